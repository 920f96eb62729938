--- The worker, started from Lua.
-- @module umavez.worker

local c = require("umavez.c.worker")
local json = require("umavez.json")
local manifest = require("umavez.manifest")
local openapi = require("umavez.openapi")
local version = require("umavez.version")
local vm = require("umavez.vm")

local M = {}

--- Run tasks until told to stop (SIGTERM).
-- @tparam table settings umavez.conf's
-- @tparam table tasks what umavez.manifest.load gave
-- @tparam table queues likewise
-- @treturn number exit code: 0 drained, 1 some runs could not be given back, 4 the database cannot be used
-- @treturn string|nil why
-- @yields
function M.run(settings, tasks, queues)
  manifest.register(tasks, queues)
  return c.result(vm.await(c.start(settings.handle, json.encode(openapi.describe(tasks)), version)))
end

--- Run a worker's supervisor until told to stop. It starts this program with this command line again, once a child.
-- @tparam table settings umavez.conf's
-- @treturn number exit code: 0 drained, 1 some children did not end well, 5 children died again and again, else that of
-- the first child, which could not start
-- @treturn string|nil why
-- @yields
function M.supervise(settings)
  return c.result(vm.await(c.supervise(settings.handle)))
end

return M
