--- What `umavez retry --failed` and `umavez discard --failed` share: which failed runs are meant, and how they are gone
-- through. In batches, each one transaction: an interruption leaves the rest as it was, and a second call does it.
-- @module umavez.cli.failed

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = {}

local BATCH = 200
local BOUNDS = [[
SELECT coalesce(CASE WHEN $1::interval IS NOT NULL THEN clock_timestamp() - $1::interval ELSE $2::timestamptz END,
                '-infinity')::text AS since, clock_timestamp()::text AS until]]
local PAGE = [[
SELECT run_id::text AS run_id, finished_at::text AS finished_at
  FROM umavez.failed_runs($1, $2::timestamptz, $3::uuid, $4::timestamptz, $5::int)]]
local COUNT = "SELECT count(*)::int AS n FROM umavez.failed_runs($1, $2::timestamptz, NULL, $3::timestamptz, NULL)"

-- Nothing has failed, of a task that nobody knows: rather a slip than a wish.
local function check_task(db, task)
  local known = operator.known_tasks(db)
  if not cli.contains(known, task) then
    cli.fail("failed", "no run of %s has failed, and no worker has registered such a task%s", task,
      cli.did_you_mean(task, known))
  end
end

function M.add_options(parser)
  parser:flag("--failed", "Those that have failed for good and are not discarded; with --task or --since, or both.")
  parser:option("--task", "Only runs of this task.")
  parser:option("--since", "Only those that failed within this time (90s, 15m, 1h, 2d), or since this time as "
    .. "PostgreSQL reads it.")
end

--- What the options select, in words for the audit.
function M.selection(args)
  return ("failed runs%s%s"):format(args.task and " of " .. args.task or "",
    args.since and " since " .. args.since or "")
end

--- Whether the command names failed runs as a whole; usage errors are raised.
-- @tparam boolean named some are named by their ids
-- @tparam string usage what may be said
function M.many(args, named, usage)
  local many = args.failed and (args.task or args.since)
  if (named and (args.failed or args.task or args.since)) or (not named and not many) then
    cli.fail("usage", "%s", usage)
  end
  return many
end

--- Goes through the failed runs that the options select, oldest first, up to now: what fails again meanwhile is not met
-- once more.
-- @tparam function act called with each batch's ids; gives how many it was done to
-- @treturn int for how many it was done
-- @yields
function M.each_batch(db, args, act)
  local bounds = operator.times(db, BOUNDS, "--since", args.since)
  local from, till = bounds.since, bounds["until"]
  local total = db:one(COUNT, args.task, from, till).n
  if total == 0 and args.task then
    check_task(db, args.task)
  end
  local after, done, seen = nil, 0, 0
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
    done = done + act(ids)
    seen = seen + #page
    operator.progress(seen, math.max(total, seen), "runs looked at")
  end
end

return M
