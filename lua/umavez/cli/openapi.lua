--- `umavez openapi`: the OpenAPI description of the HTTP doors that the manifests declare.
-- @module umavez.cli.openapi

local cli = require("umavez.cli")
local openapi = require("umavez.openapi")
local settings = require("umavez.cli.settings")
local tasks = require("umavez.cli.tasks")

local M = { summary = "print the OpenAPI 3.1 description of the HTTP doors" }

M.examples = { "umavez openapi > openapi.json" }
M.settings = { "tasks_dir" }

function M.run(args)
  local conf = settings.load(args)
  local found, faults = tasks.load(conf)
  if #faults > 0 then
    cli.fail("config", "%d faults in the manifests under %s (`umavez check` shows them)", #faults, conf.tasks_dir)
  end
  cli.print_json(openapi.describe(found))
end

return M
