--- `umavez retry`: give failed runs another chance.
-- @module umavez.cli.retry

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local operator = require("umavez.cli.operator")

local M = { summary = "put failed runs back into the queue" }

M.examples = {
  "umavez retry 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c",
  "umavez retry --failed --since 1h              all that failed within the last hour",
  "umavez retry --failed --task payments.pix     every failed run of a task",
}
M.settings = { "database_url", "connect_timeout" }

function M.configure(parser)
  parser:argument("run_id", "A run that has failed for good."):args("?")
  parser:flag("--failed", "Those that have failed for good and are not discarded; with --task or --since, or both.")
  parser:option("--task", "Only runs of this task.")
  parser:option("--since", "Only those that failed within this time (90s, 15m, 1h, 2d), or since this time as "
    .. "PostgreSQL reads it.")
  operator.add_reason(parser)
  parser:flag("--json", "Print one JSON object.")
end

local BATCH = 200
local BOUNDS = [[
SELECT coalesce(CASE WHEN $1::interval IS NOT NULL THEN clock_timestamp() - $1::interval ELSE $2::timestamptz END,
                '-infinity')::text AS since, clock_timestamp()::text AS until]]

-- From when to when: what fails again meanwhile is not retried once more.
local function bounds(db, since)
  local row = operator.times(db, BOUNDS, "--since", since)
  return row.since, row["until"]
end

-- Nothing to retry, of a task that nobody knows: rather a slip than a wish.
local function check_task(db, task)
  local known = operator.known_tasks(db)
  if not cli.contains(known, task) then
    cli.fail("failed", "no run of %s has failed, and no worker has registered such a task%s", task,
      cli.did_you_mean(task, known))
  end
end

local PAGE = [[
SELECT run_id::text AS run_id, finished_at::text AS finished_at
  FROM umavez.failed_runs($1, $2::timestamptz, $3::uuid, $4::timestamptz, $5::int)]]

local COUNT = "SELECT count(*)::int AS n FROM umavez.failed_runs($1, $2::timestamptz, NULL, $3::timestamptz, NULL)"

local function retry(db, ids, target, reason)
  return db:one("SELECT umavez.retry_runs($1::uuid[], $2, $3, $4)::int AS n", operator.uuid_array(ids), target, reason,
    operator.actor()).n
end

local function selection(args)
  return ("failed runs%s%s"):format(args.task and " of " .. args.task or "",
    args.since and " since " .. args.since or "")
end

-- In batches, each one transaction: an interruption leaves the rest as it was.
local function retry_failed(db, args)
  local since, till = bounds(db, args.since)
  local total = db:one(COUNT, args.task, since, till).n
  if total == 0 and args.task then
    check_task(db, args.task)
  end
  local from, after, done, seen = since, nil, 0, 0
  while true do
    local page = db:query(PAGE, args.task, from, after, till, BATCH)
    if #page == 0 then
      return done
    end
    local ids = {}
    for i, row in ipairs(page) do
      ids[i] = row.run_id
    end
    from, after = page[#page].finished_at, page[#page].run_id
    done = done + retry(db, ids, selection(args), args.reason)
    seen = seen + #page
    operator.progress(seen, math.max(total, seen), "runs looked at")
  end
end

function M.run(args)
  local many = args.failed and (args.task or args.since)
  if (args.run_id and (args.failed or args.task or args.since)) or (not args.run_id and not many) then
    cli.fail("usage", "name one run, or failed runs: umavez retry RUN_ID | --failed [--task TASK] [--since 1h]")
  end
  if args.run_id then
    database.check_uuid(args.run_id)
  end
  local db = operator.open(args)
  local done = many and retry_failed(db, args) or retry(db, { args.run_id }, args.run_id, args.reason)
  if args.json then
    cli.print_json { retried = done }
  else
    print(("%d runs are back in the queue"):format(done))
  end
  if args.run_id and done == 0 then
    cli.fail("failed", "there is no failed run %s (`umavez show %s` says what it is)", args.run_id, args.run_id)
  end
end

return M
