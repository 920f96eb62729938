--- The tasks that a command works with, and the faults of their manifests.
-- @module umavez.cli.tasks

local json = require("umavez.json")
local manifest = require("umavez.manifest")
local sorted = require("umavez.names").sorted
local sys = require("umavez.sys")

local M = {}

local FAULT = { "file", "task", "field", "message", "found", "expected", "nearest" }

local DAY_MS = 86400000

-- The schedule of the purge that comes with umavez carries the settings of what it keeps, where somebody has set them.
local function set_purge(purge, conf)
  local args = {}
  for name, setting in pairs { keep_days = "keep_runs", keep_audit_days = "keep_audit" } do
    if conf:source(setting) ~= "default" then
      args[name] = math.ceil(conf[setting] / DAY_MS)
    end
  end
  if purge and purge.builtin and purge.schedule and next(args) then
    purge.schedule.args = args
  end
end

--- Load all manifests and handlers.
-- @tparam table conf the settings
-- @tparam[opt] table options umavez.manifest.load's
-- @treturn table the tasks by name
-- @treturn {fault,...} every fault; tostring(fault) is its message
-- @treturn table the queues that the manifests declare, by name
function M.load(conf, options)
  local found, faults, queues = manifest.load(conf.tasks_dir, options)
  set_purge(found["maintenance.purge"], conf)
  return found, faults, queues
end

--- The tasks of the manifests, where there are manifests: enqueueing works without them, too.
-- @tparam table conf the settings
-- @treturn table the tasks by name, without their handlers
function M.declared(conf)
  return sys.exists(conf.tasks_dir) == "directory" and (manifest.load(conf.tasks_dir, { handlers = false })) or {}
end

--- What those declare of their args.
-- @tparam table declared what declared() gave
-- @treturn table declared args by task
function M.args_of(declared)
  local out = {}
  for name, task in pairs(declared) do
    out[name] = task.args
  end
  return out
end

--- @treturn {string,...} the names of the tasks, sorted
function M.names(tasks)
  return json.array(sorted(tasks))
end

--- @treturn {table,...} the faults as plain tables, for JSON
function M.plain(faults)
  local out = json.array {}
  for i, fault in ipairs(faults) do
    out[i] = { text = tostring(fault) }
    for _, name in ipairs(FAULT) do
      out[i][name] = fault[name] and tostring(fault[name]) or nil
    end
  end
  return out
end

return M
