--- `umavez describe`: all that its manifest says of a task, in words.
-- @module umavez.cli.describe

local cli = require("umavez.cli")
local describe = require("umavez.describe")
local settings = require("umavez.cli.settings")
local tasks = require("umavez.cli.tasks")

local M = { summary = "say what a task is: owner, key, retention, retries, HTTP, args" }

M.examples = { "umavez describe payments.pix", "umavez describe payments.pix --json | jq .args_schema" }
M.settings = { "tasks_dir" }

function M.configure(parser)
  parser:argument("task", "The task's name.")
  parser:flag("--json", "Print one JSON object: the manifest's fields, and the args' JSON Schema.")
end

function M.run(args)
  local conf = settings.load(args)
  local found, faults = tasks.load(conf)
  local task = found[args.task]
  if not task then
    cli.fail("failed", "there is no task %s below %s%s%s", args.task, conf.tasks_dir,
      cli.did_you_mean(args.task, tasks.names(found)),
      #faults > 0 and (" (and %d faults in the manifests: `umavez check` shows them)"):format(#faults) or "")
  end
  for _, fault in ipairs(faults) do
    if fault.task == args.task then
      cli.fail("config", "%s", tostring(fault))
    end
  end
  if args.json then
    cli.print_json(describe.plain(task))
  else
    cli.print_fields(describe.lines(task))
  end
end

return M
