--- `umavez runs`: list runs, live and finished.
-- @module umavez.cli.runs

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local operator = require("umavez.cli.operator")
local settings = require("umavez.cli.settings")

local M = { summary = "list runs, the newest first" }

M.examples = {
  "umavez runs",
  "umavez runs --state failed_permanent --task payments.pix",
  "umavez runs --tenant 7 --limit 100 --json | jq -r .run_id",
}
M.settings = { "database_url", "connect_timeout" }

M.STATES = { "available", "running", "completed", "failed_permanent", "discarded" }

function M.configure(parser)
  parser:option("--state", "Only runs in this state: " .. table.concat(M.STATES, ", ") .. ".")
    :convert(cli.one_of(M.STATES))
  parser:option("--task", "Only runs of this task.")
  parser:option("--tenant", "Only runs of this tenant (an id), or `platform`.")
  parser:option("--limit", "How many at most.", "20"):convert(cli.number)
  parser:flag("--json", "Print one JSON object a run.")
end

-- Times as text in UTC: what a program reads must not hang on the session's settings.
local UTC = [[to_char(%s AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')]]

local LIST = ([[
SELECT run_id::text AS run_id, task, tenant_id::text AS tenant_id, queue, priority, state, deliveries, replay,
       ENQUEUED AS enqueued_at, DUE AS run_at, FINISHED AS finished_at, code
  FROM (
    (SELECT run_id, task, tenant_id, queue, priority, state, deliveries, false AS replay, enqueued_at, run_at,
            NULL::timestamptz AS finished_at, failure->>'code' AS code
       FROM umavez.runs
      WHERE ($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR task = $2)
        AND ($3::text IS NULL OR coalesce(tenant_id::text, 'platform') = $3)
      ORDER BY enqueued_at DESC LIMIT $4::bigint)
    UNION ALL
    (SELECT run_id, task, tenant_id, queue, priority,
            CASE WHEN discarded_at IS NULL THEN status ELSE 'discarded' END AS status,
            deliveries, replay, enqueued_at, NULL, finished_at,
            CASE WHEN status <> 'completed' THEN outcome->>'code' END
       FROM umavez.finished_runs
      WHERE ($1::text IS NULL OR status = $1 AND discarded_at IS NULL
             OR $1 = 'discarded' AND status = 'failed_permanent' AND discarded_at IS NOT NULL)
        AND ($2::text IS NULL OR task = $2)
        AND ($3::text IS NULL OR coalesce(tenant_id::text, 'platform') = $3)
      ORDER BY enqueued_at DESC LIMIT $4::bigint)) AS both_kinds
 ORDER BY both_kinds.enqueued_at DESC, run_id LIMIT $4::bigint]])
  :gsub("ENQUEUED", function() return UTC:format("enqueued_at") end)
  :gsub("DUE", function() return UTC:format("run_at") end)
  :gsub("FINISHED", function() return UTC:format("finished_at") end)

-- An empty list of a task that nobody knows is rather a slip.
local function note_unknown(db, task)
  local known = operator.known_tasks(db)
  if not cli.contains(known, task) then
    cli.note("there are no runs of %s, and no worker has registered such a task%s", task, cli.did_you_mean(task, known))
  end
end

function M.run(args)
  cli.check_limit(args.limit)
  if args.tenant and args.tenant ~= "platform" and not args.tenant:find("^%d+$") then
    cli.fail("usage", "--tenant must be an id or `platform`, found \"%s\"", args.tenant)
  end
  local db = database.open_migrated(settings.load(args))
  local rows = db:query(LIST, args.state, args.task, args.tenant, ("%d"):format(args.limit))
  if #rows == 0 and args.task then
    note_unknown(db, args.task)
  end
  if args.json then
    for _, row in ipairs(rows) do
      cli.print_json(row)
    end
    return cli.EXIT.ok
  end
  local lines = {}
  for i, row in ipairs(rows) do
    local state = row.state .. (row.replay and " (replay)" or "")
    lines[i] = { row.run_id, row.task, row.tenant_id or "platform", state, row.deliveries, row.enqueued_at,
      row.code or false }
  end
  cli.print_table({ "RUN", "TASK", "TENANT", "STATE", "DELIVERIES", "ENQUEUED", "CODE" }, lines)
end

return M
