--- `umavez resume`: take runs from a paused queue again.
-- @module umavez.cli.resume

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "take runs from a paused queue again" }

M.examples = { "umavez resume payments" }
M.settings = { "database_url", "connect_timeout" }

function M.configure(parser)
  parser:argument("queue", "The queue.")
  operator.add_reason(parser)
  parser:flag("--json", "Print one JSON object.")
end

function M.run(args)
  local db = operator.open(args)
  local row = db:one("SELECT umavez.resume_queue($1, $2, $3) AS done", args.queue, args.reason, operator.actor())
  if args.json then
    cli.print_json { queue = args.queue, paused = false, changed = row.done }
  else
    print(row.done and ("%s is taken from again"):format(args.queue) or ("%s was not paused"):format(args.queue))
  end
end

return M
