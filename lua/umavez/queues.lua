--- What a manifest says of queues: limits across all workers, tenants in turn.
--
-- `queues = { bank = { global_limit = 4 } }` beside `tasks`. What is declared goes to the database when a worker starts
-- (umavez.declare_limits), since it holds for all workers.
-- @module umavez.queues

local json = require("umavez.json")
local sorted = require("umavez.names").sorted

local M = {}

--- The greatest limit.
M.GREATEST = 10000

local LIMIT = ("a whole number from 1 to %d"):format(M.GREATEST)

--- Check a limit across all workers, of a task or a queue.
-- @param v
-- @return the checked value, or nil and what was expected
function M.limit(v)
  if type(v) ~= "number" or v % 1 ~= 0 or v < 1 or v > M.GREATEST then
    return nil, LIMIT
  end
  return v
end

--- Check a switch, of a task or a queue.
-- @param v
-- @return the checked value, or nil and what was expected
function M.boolean(v)
  if type(v) ~= "boolean" then
    return nil, "true or false"
  end
  return v
end

--- The fields of a queue, as `umavez.manifest.fields` are those of a task.
M.fields = {
  { name = "global_limit", type = "number", check = M.limit,
    doc = "runs of this queue at once in all workers together. Default: no limit" },
  { name = "fair", type = "boolean", default = false, check = M.boolean,
    doc = "true: its tenants are served in turn, however many runs one of them has queued" },
}

--- Check what a manifest says of queues.
-- @param given its `queues`
-- @tparam table found queues by name, of the manifests so far; filled
-- @tparam table how `report(fault)`, `is_queue(name)`, `check_fields`, `shown` and the manifest's `folder`
function M.check(given, found, how)
  if type(given) ~= "table" then
    return how.report({ field = "queues", message = "wrong value", found = how.shown(given),
      expected = "a table of queues" })
  end
  for _, name in ipairs(sorted(given)) do
    local checked, expected = how.is_queue(name)
    if not checked then
      how.report({ field = "queues", message = "a queue's name is wrong", found = how.shown(name),
        expected = expected })
    elseif type(given[name]) ~= "table" then
      how.report({ field = "queues." .. name, message = "wrong value", found = how.shown(given[name]),
        expected = "a table of fields" })
    elseif found[name] then
      how.report({ field = "queues." .. name, message = ("is declared in %s already"):format(found[name].folder) })
    else
      found[name] = how.check_fields(M.fields, given[name], "queues." .. name .. ".", nil, how.report)
      found[name].folder = how.folder
    end
  end
end

--- What umavez.declare_limits takes: each task with or without its limit, and the queues that are declared.
-- @tparam table tasks checked tasks by name
-- @tparam[opt] table queues checked queues by name
-- @treturn string JSON
function M.declared(tasks, queues)
  local out = json.array {}
  for _, name in ipairs(sorted(tasks)) do
    out[#out + 1] = { kind = "task", name = name, limit = tasks[name].global_limit }
  end
  for _, name in ipairs(sorted(queues or {})) do
    out[#out + 1] = { kind = "queue", name = name, limit = queues[name].global_limit, fair = queues[name].fair }
  end
  return json.encode(out)
end

return M
