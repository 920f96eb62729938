--- A task in words, from its manifest: for `umavez describe`.
-- @module umavez.describe

local args = require("umavez.args")
local json = require("umavez.json")
local manifest = require("umavez.manifest")
local schedule = require("umavez.schedule")

local M = {}

local UNITS = { { "d", 86400000 }, { "h", 3600000 }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 } }

--- A duration as a manifest writes it.
-- @tparam number ms
-- @treturn string
function M.duration(ms)
  for _, unit in ipairs(UNITS) do
    if ms > 0 and ms % unit[2] == 0 then
      return ("%d%s"):format(ms / unit[2], unit[1])
    end
  end
  return ms .. "ms"
end

local duration = M.duration

local words = {}

function words.owner(task)
  return task.owner == "tenant" and "tenant: each run is some tenant's" or "platform: its runs are no tenant's"
end

function words.key(task)
  if task.key == nil then
    return "the run_id: only redeliveries of a run are duplicates"
  elseif type(task.key) == "function" then
    return "what a function of args returns: runs with the same result are one operation"
  end
  return ("args.%s: runs with the same %s are one operation"):format(table.concat(task.key, ", args."),
    #task.key == 1 and "value" or "values")
end

function words.fingerprint(task)
  return task.fingerprint and ("args.%s must be equal in runs of one key"):format(
    table.concat(task.fingerprint, ", args.")) or "all args must be equal in runs of one key"
end

function words.retention(task)
  return ("%s: so long an outcome is kept, and answered to duplicates"):format(duration(task.retention))
end

function words.lease(task)
  return ("%s: so long a worker that says nothing keeps a run"):format(duration(task.lease))
end

function words.timeout(task)
  return ("%s for one start of the handler"):format(duration(task.timeout))
end

function words.retry(task)
  local r = task.retry
  if r.max_attempts == 1 then
    return "none: the first error is final"
  end
  return ("up to %d attempts, after %s, doubling, at most %s; %d that cost the worker its life"):format(r.max_attempts,
    duration(r.base), duration(r.cap), r.max_crashes)
end

function words.concurrency(task)
  return task.concurrency and ("%d at once in one worker"):format(task.concurrency)
    or "as many at once as there are connections"
end

function words.global_limit(task)
  return task.global_limit and ("%d at once in all workers together"):format(task.global_limit)
    or "no limit across workers"
end

function words.batch(task)
  return task.batch == 1 and "each run has a transaction of its own"
    or ("up to %d runs share a transaction when many wait"):format(task.batch)
end

function words.history(task)
  return task.history and "completed runs are kept in umavez.finished_runs" or "completed runs leave no row"
end

local function http_auth(http)
  if http.signature then
    return "signed in the header " .. http.signature.header
  end
  return http.auth == "none" and "open to anybody"
end

function words.http(task)
  local http = task.http
  if not http then
    return "none"
  end
  local key = type(http.key) == "table" and "the key in the header " .. http.key.header
    or ("Idempotency-Key %s%s"):format(http.key, http.key_form == "uuid" and " (a UUID)" or "")
  return ("%s %s, %s, %s, %s"):format(http.method, http.path,
    http_auth(http) or ("a token that allows %s"):format(http.scope or task.name), key,
    http.mode == "enqueue" and "answered with 202, then run" or "answered with the outcome")
end

local MISSED = { skip = "missed slots are passed over", once = "of missed slots the latest is enqueued",
  all = "each missed slot is enqueued" }

function words.schedule(task)
  local s = task.schedule
  if not s then
    return "none"
  end
  return ("%s%s%s; %s"):format(schedule.text(s), s.cron and " in " .. s.tz or "",
    s.tenants and ", a run for each tenant" or "", MISSED[s.missed])
end

function words.handler(task)
  return task.file .. (task.prepare and " (prepare, then effect)" or "")
end

-- A field that nobody has words for: as it was written.
local function plain(value)
  if type(value) ~= "table" then
    return value ~= nil and tostring(value) or nil
  end
  local parts = {}
  for name, v in pairs(value) do
    parts[#parts + 1] = ("%s = %s"):format(tostring(name), tostring(v))
  end
  table.sort(parts)
  return table.concat(parts, ", ")
end

--- Names and words, in the manifest's order.
-- @tparam table task as umavez.manifest.load gives it
-- @treturn {table,...} pairs
function M.lines(task)
  local out = { { "task", task.name }, { "description", task.description } }
  for _, field in ipairs(manifest.fields) do
    local name = field.name
    if words[name] then
      out[#out + 1] = { name, words[name](task) }
    elseif name ~= "args" and name ~= "description" then
      out[#out + 1] = { name, plain(task[name]) }
    end
  end
  if not task.args then
    out[#out + 1] = { "args", "any object" }
  end
  for i, line in ipairs(task.args and args.lines(task.args) or {}) do
    out[#out + 1] = { i == 1 and "args" or "", ("%s: %s%s%s"):format(line.path, line.words,
      line.required and ", required" or "", line.description and (" (%s)"):format(line.description) or "") }
  end
  return out
end

-- The fields as a manifest has them: durations as texts, functions as the word.
local function value_of(field, value)
  if field.fields and type(value) == "table" then
    local out = {}
    for _, inner in ipairs(field.fields) do
      out[inner.name] = value_of(inner, value[inner.name])
    end
    return out
  elseif field.type == "duration" and type(value) == "number" then
    return duration(value)
  end
  return type(value) ~= "function" and value or value and "function" or nil
end

--- The same for programs: the manifest's fields with their defaults, and the args' JSON Schema.
-- @tparam table task
-- @treturn table
function M.plain(task)
  local out = { name = task.name, file = task.file, has_prepare = task.prepare ~= nil }
  for _, field in ipairs(manifest.fields) do
    local value = value_of(field, task[field.name])
    if value ~= nil then
      out[field.name] = value
    elseif type(task[field.name]) == "boolean" then
      out[field.name] = task[field.name]
    end
  end
  out.key = out.key or "run_id"
  out.args_schema = task.args and args.schema(task.args) or json.null
  return out
end

return M
