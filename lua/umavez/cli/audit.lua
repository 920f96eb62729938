--- `umavez audit`: what operators have done.
-- @module umavez.cli.audit

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "list what operators have done: who, when, what, why" }

M.examples = { "umavez audit", "umavez audit --action forget --json", "umavez audit --target payments --limit 5" }
M.settings = { "database_url", "connect_timeout" }

M.ACTIONS = { "pause", "resume", "cancel", "discard", "retry", "forget" }

function M.configure(parser)
  parser:option("--action", "Only these acts: " .. table.concat(M.ACTIONS, ", ") .. ".")
    :convert(cli.one_of(M.ACTIONS))
  parser:option("--target", "Only what was done to this queue, run or key.")
  parser:option("--limit", "How many at most.", "20"):convert(cli.number)
  parser:flag("--json", "Print one JSON object an act.")
end

local LIST = [[
SELECT id::text AS id, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at, db_user, os_user, action,
       target, reason, detail::text AS detail
  FROM umavez.list_audit($1::text, $2::text, NULL, $3::int)]]

function M.run(args)
  cli.check_limit(args.limit)
  local rows = operator.open(args):query(LIST, args.action, args.target, ("%d"):format(args.limit))
  if args.json then
    for _, row in ipairs(rows) do
      row.detail = require("umavez.json").decode(row.detail)
      cli.print_json(row)
    end
    return cli.EXIT.ok
  end
  local lines = {}
  for i, row in ipairs(rows) do
    lines[i] = { row.at, row.os_user or false, row.db_user, row.action, row.target, row.reason or false }
  end
  cli.print_table({ "WHEN", "WHO", "ROLE", "ACT", "TARGET", "REASON" }, lines)
end

return M
