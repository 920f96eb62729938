--- `umavez queues`: depth and age of each queue, its limit, and what is paused.
-- @module umavez.cli.queues

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "list the queues: depth, age of the oldest run, limits in use, what is paused" }

M.examples = { "umavez queues", "umavez queues --json | jq -r 'select(.paused_at) | .queue'" }
M.settings = { "database_url", "connect_timeout" }

local LIMIT = 10000

function M.configure(parser)
  parser:flag("--json", "Print one JSON object a queue.")
end

local LIST = [[
SELECT queue, due::int AS due, later::int AS later, running::int AS running,
       oldest_s AS oldest_due_s,
       to_char(paused_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS paused_at, paused_by, reason,
       places, used::int AS used, fair
  FROM umavez.list_queues($1::int)]]

--- The queues as the database shows them.
-- @param db the connection
-- @treturn {table,...}
-- @yields
function M.list(db)
  return db:query(LIST, LIMIT)
end

--- Print them as a table.
-- @tparam {table,...} rows what list gave
function M.print(rows)
  local lines = {}
  for i, row in ipairs(rows) do
    local paused = row.paused_at and ("since %s by %s%s"):format(row.paused_at, row.paused_by,
      row.reason and ": " .. row.reason or "")
    lines[i] = { row.queue, operator.bounded(row.due, LIMIT), operator.bounded(row.later, LIMIT),
      operator.bounded(row.running, LIMIT), operator.age(row.oldest_due_s),
      row.places and ("%d of %d"):format(row.used, row.places) or false, paused or false }
  end
  cli.print_table({ "QUEUE", "DUE", "LATER", "RUNNING", "OLDEST", "LIMIT", "PAUSED" }, lines)
end

function M.run(args)
  local rows = M.list(operator.open(args))
  if not args.json then
    M.print(rows)
    return cli.EXIT.ok
  end
  for _, row in ipairs(rows) do
    row.bounded_at = LIMIT
    cli.print_json(row)
  end
end

return M
