--- Enqueueing a JSONL file: read and check all lines first, then send them in batches.
-- @module umavez.cli.bulk

local args_of = require("umavez.args")
local cli = require("umavez.cli")
local json = require("umavez.json")
local operator = require("umavez.cli.operator")
local sys = require("umavez.sys")

local M = {}

local BATCH, SHOWN_FAULTS = 500, 20
local UUID = "^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"

local function is_object(value)
  return type(value) == "table" and not json.is_array(value)
end

-- Each field: what is expected, and the test of it. Integers beyond 2^53 are int64 cdata.
local CHECKS = {
  { "task", "a task's name", function(v) return type(v) == "string" and v ~= "" end },
  { "args", "an object", is_object },
  { "tenant_id", "an id", function(v) return tostring(v):find("^%d+L?L?$") and type(v) ~= "string" end },
  { "run_id", "a UUID", function(v) return type(v) == "string" and v:find(UUID) end },
  { "run_at", "a time", function(v) return type(v) == "string" end },
  { "queue", "a queue's name", function(v) return type(v) == "string" and v ~= "" end },
  { "priority", "1 to 4", function(v) return v == 1 or v == 2 or v == 3 or v == 4 end },
  { "traceparent", "a text", function(v) return type(v) == "string" end },
}

local FIELDS = {}
for i, check in ipairs(CHECKS) do
  FIELDS[i] = check[1]
end

local function shown(value)
  if value == nil then
    return "nothing"
  elseif type(value) == "table" then
    return json.is_array(value) and "an array" or "an object"
  end
  return type(value) == "string" and ("%q"):format(value:sub(1, 60)) or tostring(value)
end

local function fault_of(value, declared)
  if not is_object(value) then
    return "expected an object, found " .. shown(value)
  end
  for name in pairs(value) do
    if not cli.contains(FIELDS, name) then
      return ("unknown field \"%s\"%s"):format(tostring(name), cli.did_you_mean(tostring(name), FIELDS))
    end
  end
  for _, check in ipairs(CHECKS) do
    local found = value[check[1]]
    local absent = (found == nil or found == json.null) and check[1] ~= "task"
    if not absent and not check[3](found) then
      return ("field \"%s\": expected %s, found %s"):format(check[1], check[2], shown(found))
    end
  end
  local given = value.args ~= json.null and value.args or {}
  return declared[value.task] and select(2, args_of.fault(declared[value.task], given)) or nil
end

-- The line with a run_id made from its number and text: the same file twice is the same runs. The text itself is kept
-- as it is, so that its numbers stay exact.
local function with_run_id(line, number, value)
  if value.run_id ~= nil and value.run_id ~= json.null then
    return line
  end
  local hex = sys.sha256_hex(number .. "\n" .. line)
  local run_id = ("%s-%s-8%s-8%s-%s"):format(hex:sub(1, 8), hex:sub(9, 12), hex:sub(14, 16), hex:sub(18, 20),
    hex:sub(21, 32))
  local rest = line:gsub("^%s*{", "", 1)
  -- The made one comes last: of two equal names jsonb keeps the last, should the line say "run_id": null.
  return ("{%s%s\"run_id\":\"%s\"}"):format(rest:gsub("}%s*$", ""), next(value) and "," or "", run_id)
end

--- Read and check a file. Faults of all lines are reported together, and nothing is enqueued.
-- @tparam string path
-- @tparam table declared args by task, as far as manifests are known
-- @treturn {string,...} the lines as they are to be sent; `tasks` is the set of their tasks
function M.read(path, declared)
  local file, why = io.open(path, "rb")
  if not file then
    cli.fail("failed", "cannot read the file: %s", why)
  end
  local lines, faults, number = { tasks = {} }, {}, 0
  for line in file:lines() do
    number = number + 1
    if line:find("%S") then
      local ok, value = pcall(json.decode, line)
      local fault
      if ok then
        fault = fault_of(value, declared)
      else
        fault = type(value) == "table" and value.message or tostring(value)
      end
      if fault then
        faults[#faults + 1] = ("%s:%d: %s"):format(path, number, fault)
      else
        lines[#lines + 1] = with_run_id(line, number, value)
        lines.tasks[value.task] = true
      end
    end
  end
  file:close()
  if #faults > 0 then
    local more = #faults > SHOWN_FAULTS and ("\n… and %d more"):format(#faults - SHOWN_FAULTS) or ""
    cli.fail("failed", "%d bad lines, nothing was enqueued:\n%s%s", #faults,
      table.concat(faults, "\n", 1, math.min(#faults, SHOWN_FAULTS)), more)
  end
  return lines
end

--- Enqueue lines in batches, each one transaction.
-- @param db umavez.cli.database's connection
-- @tparam {string,...} lines
-- @treturn int how many runs are new
-- @yields
function M.enqueue(db, lines)
  local new = 0
  for from = 1, #lines, BATCH do
    local to = math.min(from + BATCH - 1, #lines)
    local ok, row = pcall(db.one, db, "SELECT umavez.enqueue_many($1::jsonb)::text AS new",
      "[" .. table.concat(lines, ",", from, to) .. "]")
    if not ok then
      local message = type(row) == "table" and select(2, cli.describe(row)) or tostring(row)
      cli.fail("failed", "runs %d to %d were refused: %s\n%d were enqueued before; mend the file and call this again",
        from, to, message, new)
    end
    new = new + tonumber(row.new)
    operator.progress(to, #lines, "lines sent")
  end
  return new
end

return M
