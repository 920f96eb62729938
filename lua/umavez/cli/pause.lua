--- `umavez pause`: stop taking runs from a queue.
-- @module umavez.cli.pause

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "stop taking runs from a queue, on all workers" }

M.examples = {
  "umavez pause payments --reason 'the bank is down, INC-4711'",
  "umavez queues        what is paused, by whom",
}
M.settings = { "database_url", "connect_timeout" }

function M.configure(parser)
  parser:argument("queue", "The queue.")
  operator.add_reason(parser)
  parser:flag("--json", "Print one JSON object.")
end

function M.run(args)
  local db = operator.open(args)
  operator.note_unknown_queue(db, args.queue)
  local row = db:one("SELECT umavez.pause_queue($1, $2, $3) AS done", args.queue, args.reason, operator.actor())
  if args.json then
    cli.print_json { queue = args.queue, paused = true, changed = row.done }
  else
    print(row.done
      and ("%s is paused: nothing is taken from it until `umavez resume %s`"):format(args.queue, args.queue)
      or ("%s was paused already (`umavez queues` says by whom)"):format(args.queue))
  end
end

return M
