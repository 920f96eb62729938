--- Enqueueing a JSONL file: read and check all lines first, then send them in batches.
-- @module umavez.cli.bulk

local cli = require("umavez.cli")
local json = require("umavez.json")
local sys = require("umavez.sys")

local M = {}

local BATCH, SHOWN_FAULTS = 500, 20
local FIELDS = { "task", "args", "tenant_id", "run_id", "run_at", "queue", "priority", "traceparent" }
local UUID = "^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"

local function fault_of(value)
  if type(value) ~= "table" or json.is_array(value) then
    return "expected an object, found " .. (type(value) == "table" and "an array" or type(value))
  end
  for name in pairs(value) do
    if not cli.contains(FIELDS, name) then
      return ("unknown field \"%s\"%s"):format(tostring(name), cli.did_you_mean(tostring(name), FIELDS))
    end
  end
  if type(value.task) ~= "string" or value.task == "" then
    return "field \"task\": expected a task's name, found " .. (value.task == nil and "nothing" or tostring(value.task))
  end
  local run_id = value.run_id
  if run_id ~= nil and run_id ~= json.null and not tostring(run_id):find(UUID) then
    return "field \"run_id\": expected a UUID, found " .. tostring(run_id)
  end
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
-- @treturn {string,...} the lines as they are to be sent
function M.read(path)
  local file, why = io.open(path, "rb")
  if not file then
    cli.fail("failed", "cannot read the file: %s", why)
  end
  local lines, faults, number = {}, {}, 0
  for line in file:lines() do
    number = number + 1
    if line:find("%S") then
      local ok, value = pcall(json.decode, line)
      local fault
      if ok then
        fault = fault_of(value)
      else
        fault = type(value) == "table" and value.message or tostring(value)
      end
      if fault then
        faults[#faults + 1] = ("%s:%d: %s"):format(path, number, fault)
      else
        lines[#lines + 1] = with_run_id(line, number, value)
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

local function show_progress(done, total)
  local filled = math.floor(30 * done / total)
  io.stderr:write(("\r[%s%s] %d of %d"):format(("#"):rep(filled), (" "):rep(30 - filled), done, total),
    done == total and "\n" or "")
  io.stderr:flush()
end

--- Enqueue lines in batches, each one transaction.
-- @param db umavez.cli.database's connection
-- @tparam {string,...} lines
-- @treturn int how many runs are new
-- @yields
function M.enqueue(db, lines)
  local new, terminal = 0, sys.isatty(2)
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
    if terminal then
      show_progress(to, #lines)
    end
  end
  return new
end

return M
