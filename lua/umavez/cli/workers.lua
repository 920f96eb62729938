--- `umavez workers`: who is there, and what each holds.
-- @module umavez.cli.workers

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "list the worker processes: host, pid, version, since when, runs held" }

M.examples = { "umavez workers", "umavez workers --all     those too that have said nothing for a while" }
M.settings = { "database_url", "connect_timeout" }

function M.configure(parser)
  parser:flag("--all", "Those too that have said nothing for 45 seconds: killed without supervisor, or cut off.")
  parser:flag("--json", "Print one JSON object a worker.")
end

local LIST = [[
SELECT worker_id::text AS worker_id, host, pid, version,
       to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS started_at,
       up_s, seen_s, alive, held, supervisor, http, queues
  FROM umavez.list_workers($1::boolean)]]

--- The workers as the database shows them.
-- @param db the connection
-- @tparam boolean all those too that look dead
-- @treturn {table,...}
-- @yields
function M.list(db, all)
  return db:query(LIST, all and true or false)
end

--- Print them as a table.
-- @tparam {table,...} rows what list gave
function M.print(rows)
  local lines = {}
  for i, row in ipairs(rows) do
    lines[i] = { row.host, row.pid, row.version, row.started_at, row.held, row.queues or row.http or false,
      row.alive and operator.age(row.seen_s) or operator.age(row.seen_s) .. " (silent)", row.worker_id }
  end
  cli.print_table({ "HOST", "PID", "VERSION", "STARTED", "HELD", "QUEUES", "SEEN", "WORKER" }, lines)
end

function M.run(args)
  local rows = M.list(operator.open(args), args.all)
  if not args.json then
    M.print(rows)
    return cli.EXIT.ok
  end
  for _, row in ipairs(rows) do
    cli.print_json(row)
  end
end

return M
