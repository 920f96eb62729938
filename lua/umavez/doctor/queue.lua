--- The doctor's checks of what is in the queue, the history and the ledger. Each look is bounded.
-- @module umavez.doctor.queue

local operator = require("umavez.cli.operator")
local version = require("umavez.version")

local LIMIT = 10000

local QUEUES = [[
SELECT q.queue, q.due::int AS due, q.oldest_s,
       extract(epoch FROM clock_timestamp() - q.paused_at)::float8 AS paused_s, q.paused_by, q.reason,
       EXISTS (SELECT FROM umavez.workers w WHERE w.seen_at > clock_timestamp() - interval '45 seconds'
                  AND w.detail->'queues' ? q.queue) AS served
  FROM umavez.list_queues($1::int) q]]

local function queues(look)
  local waiting = 0
  for _, row in ipairs(look.db:query(QUEUES, LIMIT)) do
    if row.paused_s then
      look:warning("paused queues", ("%s, since %s, by %s%s; %s due"):format(row.queue, operator.age(row.paused_s),
        row.paused_by, row.reason and " (" .. row.reason .. ")" or "", operator.bounded(row.due, LIMIT)),
        "Nothing is taken from it.", ("`umavez resume %s` when the reason is gone."):format(row.queue))
    elseif row.due > 0 and not row.served then
      look:error("queues without worker", ("%s: %s due, the oldest since %s, and no worker takes from it"):format(
        row.queue, operator.bounded(row.due, LIMIT), operator.age(row.oldest_s)), "Its runs wait for ever.",
        "Start a worker that serves it (setting queues, or a manifest with that queue), or mend what enqueues there.")
    else
      waiting = waiting + row.due
    end
  end
  look:ok("queues", ("%s due in queues that are served"):format(operator.bounded(waiting, LIMIT)))
end

local WORKERS = [[
SELECT count(*)::int AS n, string_agg(DISTINCT w.version, ', ') AS versions, count(DISTINCT w.version)::int AS kinds
  FROM umavez.workers w WHERE w.seen_at > clock_timestamp() - interval '45 seconds']]

local function workers(look)
  local row = look.db:one(WORKERS)
  if row.n == 0 then
    look:warning("workers", "none is alive", "What is enqueued waits.", "Start one: `umavez worker`.")
  elseif row.kinds > 1 or row.versions ~= version then
    look:info("workers", ("%d of version %s; this program is %s"):format(row.n, row.versions, version),
      "Right during an upgrade, and not for long: old code goes on running.", "Restart the old ones.")
  else
    look:ok("workers", ("%d of version %s"):format(row.n, row.versions))
  end
end

local UNSERVED = [[
SELECT l.task, count(*)::int AS n
  FROM (SELECT r.task FROM umavez.runs r WHERE r.state = 'available' LIMIT $1::int) l
 WHERE NOT EXISTS (SELECT FROM umavez.tasks t WHERE t.name = l.task)
 GROUP BY l.task ORDER BY 2 DESC LIMIT 10]]

local function tasks(look)
  local rows = look.db:query(UNSERVED, LIMIT)
  for _, row in ipairs(rows) do
    look:warning("unknown tasks", ("%s: %s runs, and no worker has ever declared it"):format(row.task,
      operator.bounded(row.n, LIMIT)),
      "They are put off, and end as failed_permanent, unknown_task, after some minutes.",
      "Start a worker with its manifest, or mend the name where it is enqueued.")
  end
  if #rows == 0 then
    look:ok("unknown tasks", "none among the runs that wait")
  end
end

local DEAD = [[
SELECT count(*)::int AS n, count(*) FILTER (WHERE l.finished_at > clock_timestamp() - interval '1 hour')::int AS hour,
       count(DISTINCT l.task)::int AS tasks
  FROM (SELECT f.task, f.finished_at FROM umavez.finished_runs f
         WHERE f.status = 'failed_permanent' AND f.discarded_at IS NULL LIMIT $1::int) l]]

local function dead_runs(look)
  local row = look.db:one(DEAD, LIMIT)
  if row.n == 0 then
    look:ok("dead runs", "none")
    return
  end
  look:warning("dead runs", ("%s of %d tasks have failed for good, %s of them within the last hour"):format(
    operator.bounded(row.n, LIMIT), row.tasks, row.hour), "Accepted work that was not done, and nobody has dealt with.",
    "`umavez runs --state failed_permanent`, then `umavez retry` or `umavez discard` (`--failed`: all of a task).")
end

-- The oldest rows of each ledger, in the order of their ids.
local EXPIRED = [[
SELECT (SELECT count(*) FROM (SELECT k.expires_at FROM umavez.idempotency_keys k ORDER BY k.id LIMIT $1::int) l
         WHERE l.expires_at < clock_timestamp() - interval '1 day')::int
     + (SELECT count(*) FROM (SELECT k.expires_at FROM umavez.platform_idempotency_keys k ORDER BY k.id LIMIT $1::int) l
         WHERE l.expires_at < clock_timestamp() - interval '1 day')::int AS n]]

local function expired_keys(look)
  local row = look.db:one(EXPIRED, LIMIT)
  if row.n > 0 then
    look:warning("expired keys", ("%s of the oldest keys have been over for more than a day"):format(
      operator.bounded(row.n, LIMIT)), "They count as absent, but take up room: the purge does not run.",
      "Enqueue maintenance.purge, and see that a worker serves it.")
  else
    look:ok("expired keys", "none among the oldest")
  end
end

local STUCK = [[
SELECT count(*)::int AS n FROM (
  SELECT FROM umavez.runs r
   WHERE r.state = 'running' AND r.lease_until < clock_timestamp() - interval '1 minute' LIMIT $1::int) l]]

local function ended_leases(look)
  local row = look.db:one(STUCK, LIMIT)
  if row.n > 0 then
    look:error("ended leases", ("%s runs are held by leases that ended more than a minute ago"):format(
      operator.bounded(row.n, LIMIT)), "No worker takes them back, so none is at work.", "Start a worker.")
  else
    look:ok("ended leases", "none")
  end
end

local PARTITIONS = [[
SELECT to_regclass('umavez.finished_runs_'
                   || to_char((clock_timestamp() AT TIME ZONE 'UTC') + interval '1 day', 'YYYYMMDD')) IS NOT NULL
         AS tomorrow,
       EXISTS (SELECT FROM umavez.finished_runs_default) AS stray]]

local function partitions(look)
  local row = look.db:one(PARTITIONS)
  if not row.tomorrow or row.stray then
    look:warning("partitions", row.stray and "rows lie in finished_runs_default" or "there is none for tomorrow",
      "Finished runs go to the default partition, which is purged row by row.",
      "A worker makes them at its start and every six hours; see that one runs.")
  else
    look:ok("partitions", "there is one for tomorrow")
  end
end

return {
  { name = "workers", database = true, look = workers },
  { name = "queues", database = true, look = queues },
  { name = "unknown tasks", database = true, look = tasks },
  { name = "ended leases", database = true, look = ended_leases },
  { name = "dead runs", database = true, look = dead_runs },
  { name = "expired keys", database = true, look = expired_keys },
  { name = "partitions", database = true, look = partitions },
}
