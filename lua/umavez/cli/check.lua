--- `umavez check`: every fault of every manifest at once, without a database.
-- @module umavez.cli.check

local cli = require("umavez.cli")
local settings = require("umavez.cli.settings")
local tasks = require("umavez.cli.tasks")

local M = { summary = "check all manifests and handlers, without a database" }

M.examples = { "umavez check", "umavez check --tasks-dir app/tasks --json" }
M.settings = { "tasks_dir" }

function M.configure(parser)
  parser:flag("--json", "Print one JSON object.")
end

function M.run(args)
  local conf = settings.load(args)
  local found, faults = tasks.load(conf)
  if args.json then
    cli.print_json { tasks = tasks.names(found), faults = tasks.plain(faults) }
  else
    for _, fault in ipairs(faults) do
      io.stderr:write(tostring(fault), "\n")
    end
    print(("%d tasks, %d faults"):format(#tasks.names(found), #faults))
  end
  return #faults == 0 and cli.EXIT.ok or cli.EXIT.config
end

return M
