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

-- A name that no task and no run has is more likely a slip than a wish; it is paused all the same.
local KNOWN = "SELECT queue FROM umavez.list_queues(1)"

local function warn_unknown(db, queue)
  local known = {}
  for i, row in ipairs(db:query(KNOWN)) do
    known[i] = row.queue
  end
  if not cli.contains(known, queue) then
    cli.note("no run and no registered task uses the queue \"%s\"%s", queue, cli.did_you_mean(queue, known))
  end
end

function M.run(args)
  local db = operator.open(args)
  warn_unknown(db, args.queue)
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
