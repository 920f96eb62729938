--- The tasks that a command works with, and the faults of their manifests.
-- @module umavez.cli.tasks

local M = {}

--- Load all manifests and handlers.
-- @tparam table conf the settings
-- @treturn table the tasks by name
-- @treturn {fault,...} every fault; tostring(fault) is its message
function M.load(conf)
  return require("umavez.manifest").load(conf.tasks_dir)
end

return M
