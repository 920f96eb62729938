--- `umavez limit`: limits across all workers: list them, and order others than the manifests'.
-- @module umavez.cli.limit

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "list limits across all workers, or order one" }

M.examples = {
  "umavez limit                                          what is declared, what is ordered, what is in use",
  "umavez limit queue payments 4 --reason INC-4711       from now on, whatever the manifests say",
  "umavez limit task payments.pix declared               what the manifests say again",
}
M.settings = { "database_url", "connect_timeout" }

local GREATEST = require("umavez.queues").GREATEST

function M.configure(parser)
  parser:argument("kind", "What is limited: task or queue. Without it, all limits are listed.")
    :choices { "task", "queue" }:args "?"
  parser:argument("name", "The task or the queue."):args "?"
  parser:argument("limit", ("Runs at once in all workers together, 1 to %d; or `declared`."):format(GREATEST)):args "?"
  operator.add_reason(parser)
  parser:flag("--json", "Print one JSON object, or one a limit.")
end

local LIST = [[
SELECT kind, name, places AS "limit", declared, ordered, fair, used::int AS used
  FROM umavez.list_limits() WHERE places IS NOT NULL OR fair]]

--- The limits as the database shows them.
-- @param db the connection
-- @treturn {table,...}
-- @yields
function M.list(db)
  return db:query(LIST)
end

--- Print them as a table.
-- @tparam {table,...} rows what list gave
function M.print(rows)
  local lines = {}
  for i, row in ipairs(rows) do
    lines[i] = { row.kind, row.name, row.used, row.limit or false, row.declared or false, row.ordered or false,
      row.fair and "in turn" or false }
  end
  cli.print_table({ "LIMIT OF", "NAME", "IN USE", "LIMIT", "DECLARED", "ORDERED", "TENANTS" }, lines)
end

local function list(args)
  local rows = M.list(operator.open(args))
  if not args.json then
    return M.print(rows)
  end
  for _, row in ipairs(rows) do
    cli.print_json(row)
  end
end

local function wanted(text)
  if text == "declared" then
    return nil
  end
  local limit = text and text:match("^%d+$") and tonumber(text)
  if not limit or limit < 1 or limit > GREATEST then
    cli.fail("usage", "limit: expected a whole number from 1 to %d, or declared, found %s", GREATEST,
      text and ("%q"):format(text) or "nothing")
  end
  return limit
end

-- A name that nobody has declared is limited all the same: the order may come before its first worker.
local function note_unknown(db, kind, name)
  if kind == "queue" then
    return operator.note_unknown_queue(db, name)
  end
  local known = operator.known_tasks(db)
  if not cli.contains(known, name) then
    cli.note("no worker has registered the task %s so far%s", name, cli.did_you_mean(name, known))
  end
end

function M.run(args)
  if not args.kind then
    return list(args)
  end
  local limit = wanted(args.limit)
  local db = operator.open(args)
  if args.name then
    note_unknown(db, args.kind, args.name)
  end
  local row = db:one("SELECT umavez.set_limit($1, $2, $3::int, $4, $5) AS before", args.kind,
    args.name, limit, args.reason, operator.actor())
  if args.json then
    cli.print_json { kind = args.kind, name = args.name, limit = limit, before = row.before }
  else
    print(("%s %s: %s, was %s"):format(args.kind, args.name,
      limit and ("%d at once in all workers"):format(limit) or "as the manifests say",
      row.before and ("%d"):format(row.before) or "without limit"))
  end
end

return M
