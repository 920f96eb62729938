--- Test helpers for tasks, for busted specs that `umavez test` runs. docs/testing.md is the guide.
--
--     local t = require("umavez.testing")
--
-- Runs go through the real runner, in a worker inside this process, against a private database that is put back to its
-- beginning before each test. What a task enqueues waits in the queue until `t:drain()`.
-- @module umavez.testing

local c = require("umavez.c.run")
local cli = require("umavez.cli")
local crash = require("umavez.testing.crash")
local json = require("umavez.json")
local stage_of = require("umavez.testing.stage")
local sys = require("umavez.sys")

local LIMIT_MS = 60000

-- What is a fault of the handler, not an answer: raised in the test, unless it says `may_fail`.
local FAULTS = { error = true, sql = true, timeout = true, outcome_invalid = true, outcome_too_large = true,
  key_error = true }

local M = {}

local stage -- umavez.testing.stage's; nil outside of `umavez test`

--- Called by `umavez test`. `M.db` is the specs' own connection (umavez.pg).
function M.attach(opened)
  stage, M.db = opened, opened.db
end

local function need_stage()
  if not stage then
    error("umavez.testing is for specs: run them with `umavez test`", 3)
  elseif not stage_of.running() then
    error("the worker of the specs has ended (interrupted?)", 3)
  end
end

local function fail(message)
  require("busted").fail(message, 4)
end

local function check_task(name)
  local task = stage.tasks[name]
  if not task then
    local names = {}
    for known in pairs(stage.tasks) do
      names[#names + 1] = known
    end
    error(("there is no task %s%s"):format(tostring(name), cli.did_you_mean(tostring(name), names)), 3)
  end
  return task
end

-- ---- runs ----

local function decoded(text)
  return text and json.decode(text) or nil
end

local FINISHED = [[
SELECT run_id::text, task, status, replay, deliveries, attempt, outcome::text, failure::text
  FROM umavez.finished_runs WHERE run_id = $1::uuid ORDER BY finished_at DESC LIMIT 1]]
local LIVE = [[
SELECT run_id::text, task, state, deliveries, busy, failure::text, run_at <= clock_timestamp() AS due, queue
  FROM umavez.runs WHERE run_id = $1::uuid]]

local function ensure_tenant(id)
  if stage.db:one(("SELECT FROM %s WHERE id = $1"):format(stage.conf.tenants_table), id) then
    return
  end
  local ok, err = pcall(stage.db.exec, stage.db,
    ("INSERT INTO %s (id) VALUES ($1)"):format(stage.conf.tenants_table), id)
  if not ok then
    error(("the tenant %s is not there, and cannot be made: %s; insert it in the spec, or in a schema file"):format(
      tostring(id), tostring(err.message)), 0)
  end
end

local function enqueue(task, args, options, queue)
  options = options or {}
  local declared = stage.tasks[task]
  if options.tenant ~= nil then
    ensure_tenant(options.tenant)
  elseif declared and declared.owner == "tenant" then
    error(("%s is a tenant's task: say whose the run is, { tenant = 7 }"):format(task), 0)
  end
  return stage.db:one([[
    SELECT umavez.enqueue(task => $1::text, args => $2::jsonb, tenant_id => $3::bigint, run_id => $4::uuid,
             run_at => coalesce($5::timestamptz, clock_timestamp() + $6::float8 * interval '1 millisecond'),
             queue => $7::text, priority => $8::int)::text AS run_id]],
    task, json.encode(args or {}), options.tenant, options.run_id, options.run_at,
    options.after and assert(c.duration(options.after)) or nil, queue or options.queue, options.priority).run_id
end

local function wake()
  stage.db:query("SELECT umavez.wake()")
end

-- The run's own queue again: the worker is done with it for now.
local function put_back(run_id, queue)
  return stage.db:exec([[UPDATE umavez.runs SET queue = $2 WHERE run_id = $1::uuid AND state = 'available']], run_id,
    queue) > 0
end

-- What ctx:retry said stands in the ledger only: nothing but the run that has just ended has been at work.
local function last_detail()
  local row = stage.db:one([[SELECT outcome::text FROM (
      SELECT outcome, updated_at FROM umavez.idempotency_keys WHERE status = 'failed_retryable' UNION ALL
      SELECT outcome, updated_at FROM umavez.platform_idempotency_keys WHERE status = 'failed_retryable') k
    ORDER BY updated_at DESC LIMIT 1]])
  return row and row.outcome
end

-- Wait until the delivery of a run in the worker's queue has ended; gives the run. `before`: its deliveries so far. One
-- that found the key held (busy) is not counted, and comes again.
local function wait_for(run_id, queue, before)
  local deadline = sys.monotonic_ms() + LIMIT_MS
  repeat
    local live = stage.db:one(LIVE, run_id)
    if not live then
      local run = assert(stage.db:one(FINISHED, run_id), "the run has vanished")
      run.outcome, run.failure = decoded(run.outcome), decoded(run.failure)
      return run
    elseif live.state == "available" and live.deliveries > before and live.busy == 0 and put_back(run_id, queue) then
      return { run_id = run_id, task = live.task, status = "retry", replay = false, deliveries = live.deliveries,
        failure = decoded(live.failure or last_detail()) }
    end
    need_stage()
    sys.sleep(2)
  until sys.monotonic_ms() > deadline
  error(("the run %s has not ended within %d s; see %s"):format(run_id, LIMIT_MS / 1000, stage.log), 0)
end

-- A handler's fault, as the test should show it.
local function raise_fault(run, options)
  local detail = run.failure or run.outcome
  if options and options.may_fail or not detail or not FAULTS[detail.code] or run.replay then
    return
  end
  local lines = { ("%s ended with the code %s: %s"):format(run.task, detail.code, tostring(detail.message)) }
  for _, name in ipairs { "sqlstate", "constraint", "detail", "traceback" } do
    if detail[name] and detail[name] ~= "" then
      lines[#lines + 1] = ("%s: %s"):format(name, tostring(detail[name]))
    end
  end
  error(table.concat(lines, "\n"), 0)
end

local function queue_of(task, options)
  return options and options.queue or stage.tasks[task].queue
end

local function once(task, args, options)
  local run_id = enqueue(task, args, options, stage_of.QUEUE)
  return wait_for(run_id, queue_of(task, options), 0)
end

-- The duplicate that such a task meets: its queue delivers the run again, or its sender sends the same again.
local function duplicate(task, args, options, run_id)
  if stage.tasks[task].key ~= nil then
    local copy = {}
    for k, v in pairs(options or {}) do
      copy[k] = v
    end
    copy.run_id = nil
    return once(task, args, copy)
  end
  stage.db:exec([[INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, run_at)
    VALUES ($1::uuid, $2, $3::bigint, $4::jsonb, $5, 2, clock_timestamp())]], run_id, task, options and options.tenant,
    json.encode(args or {}), stage_of.QUEUE)
  wake()
  return wait_for(run_id, queue_of(task, options), 0)
end

local function crashed(point, task, args, options)
  local run_id = enqueue(task, args, options, crash.QUEUE)
  crash.run(stage, point, run_id)
  local run
  if point == "after_commit" then -- whoever has sent it knows nothing of the commit
    run = duplicate(task, args, options, run_id)
  else
    wake()
    run = wait_for(run_id, queue_of(task, options), 1)
  end
  run.crashed = point
  return run
end

local function start(task, args, options)
  local point = M.point
  M.point = nil
  local run = point and crashed(point, task, args, options) or once(task, args, options)
  raise_fault(run, options)
  return run
end

--- A run, as `t:run` gives it.
-- @table umavez.testing.Run
-- @tfield string run_id
-- @tfield string task
-- @tfield string status "completed", "failed_permanent", or "retry": put off
-- @tfield boolean replay the outcome is an earlier one's; no handler has run
-- @tfield table|nil outcome
-- @tfield table|nil failure of the last attempt: code, message, traceback
-- @tfield number deliveries
-- @tfield number|nil attempt of the key
-- @tfield string|nil crashed where a worker died on it

--- How runs are made.
-- @table umavez.testing.Options
-- @tfield number|nil tenant whose the run is; made when it is not there
-- @tfield string|nil run_id
-- @tfield number|nil priority 1 first … 4
-- @tfield boolean|nil may_fail do not raise the handler's errors
-- @tfield string|nil after t:enqueue: "5m"
-- @tfield string|nil run_at t:enqueue: a time as PostgreSQL reads it
-- @tfield string|nil queue t:enqueue: default the task's

--- One run of a task through the real runner, committed. After `t:crash_at` a worker dies on it first.
-- @function t:run
-- @tparam string task
-- @tparam[opt] table args
-- @tparam[opt] umavez.testing.Options options
-- @treturn table|nil the outcome: what the handler returned, or the detail of its `ctx:fail`; nil when the run is to be
-- tried again
-- @treturn umavez.testing.Run the run
-- @yields
function M:run(task, args, options)
  need_stage()
  check_task(task)
  local run = start(task, args, options)
  return run.outcome, run
end

--- Deliver the same operation twice: a task with a `key` gets two runs with the same args, one without gets its run
-- delivered again.
-- @function t:deliver_twice
-- @tparam string task
-- @tparam[opt] table args
-- @tparam[opt] umavez.testing.Options options
-- @treturn table|nil the first delivery's outcome
-- @treturn table|nil the second one's
-- @treturn umavez.testing.Run the second run; its `replay` tells that no handler ran
-- @yields
function M:deliver_twice(task, args, options)
  need_stage()
  check_task(task)
  local first = start(task, args, options)
  local second = duplicate(task, args, options, first.run_id)
  raise_fault(second, options)
  return first.outcome, second.outcome, second
end

--- Put a run into the queue; it waits there for `t:drain()`.
-- @function t:enqueue
-- @tparam string task
-- @tparam[opt] table args
-- @tparam[opt] umavez.testing.Options options
-- @treturn string its run_id
-- @yields
function M:enqueue(task, args, options)
  need_stage()
  check_task(task)
  return enqueue(task, args, options)
end

local MOVE = [[
WITH due AS (SELECT run_id, queue FROM umavez.runs
              WHERE state = 'available' AND run_at <= clock_timestamp() AND task = ANY ($2::text[]) AND queue <> $1
              ORDER BY priority, run_at FOR UPDATE)
UPDATE umavez.runs r SET queue = $1 FROM due WHERE r.run_id = due.run_id
RETURNING r.run_id::text, due.queue, r.deliveries]]

local function known_tasks()
  local names = json.array {}
  for name in pairs(stage.tasks) do
    names[#names + 1] = name
  end
  return names
end

--- Work on the queue until nothing in it is due: what specs and tasks have enqueued, and what those enqueue.
-- @function t:drain
-- @tparam[opt] umavez.testing.Options options `may_fail` only
-- @treturn table how many runs have `completed`, `failed`, and are put off (`retry`)
-- @yields
function M:drain(options)
  need_stage()
  local counts, deadline = { completed = 0, failed = 0, retry = 0 }, sys.monotonic_ms() + LIMIT_MS
  local words = { completed = "completed", failed_permanent = "failed", retry = "retry" }
  local names = known_tasks()
  while true do
    local moved = stage.db:query(MOVE, stage_of.QUEUE, names)
    if #moved == 0 then
      return counts
    elseif sys.monotonic_ms() > deadline then
      error("drain: after a minute there is still work; do the tasks enqueue each other for ever?", 2)
    end
    wake()
    for _, row in ipairs(moved) do
      local run = wait_for(row.run_id, row.queue, row.deliveries)
      counts[words[run.status]] = counts[words[run.status]] + 1
      raise_fault(run, options)
    end
  end
end

--- Have a worker killed (SIGKILL, a process of its own) by the next `t:run` or `t:deliver_twice`, at a point of its
-- run. That run is then taken up by another worker; after the point "after_commit" it is sent again.
-- @function t:crash_at
-- @tparam string point "before_effect", "before_commit" or "after_commit"
function M:crash_at(point)
  if not cli.contains(crash.POINTS, point) then
    error(("crash_at: expected one of %s, found %s"):format(table.concat(crash.POINTS, ", "), tostring(point)), 2)
  end
  self.point = point
end

-- ---- time ----

-- Every time that umavez stores, but when its schema was made. Marks are only hints; without them, takes begin anew.
local TRAVEL = [[
DO $do$
DECLARE t record;
BEGIN
  FOR t IN SELECT a.attrelid::regclass AS tbl,
                  string_agg(format('%%1$I = %%1$I - interval ''%s milliseconds''', a.attname), ', ') AS changes
             FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            WHERE c.relnamespace = 'umavez'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND a.atttypid = 'timestamptz'::regtype AND a.attnum > 0 AND NOT a.attisdropped
              AND c.relname NOT IN ('migrations', 'tasks', 'marks')
            GROUP BY a.attrelid
  LOOP
    EXECUTE format('UPDATE %%s SET %%s', t.tbl, t.changes);
  END LOOP;
  DELETE FROM umavez.marks;
END $do$]]

--- Let time pass: every time that umavez has stored becomes so much older, so that leases, retentions, waits of retries
-- and `run_at` are over as if it had. The clock itself, and the application's tables, stay as they are.
-- @function t:travel
-- @tparam string duration "25h"
-- @yields
function M:travel(duration)
  need_stage()
  local ms = type(duration) == "string" and c.duration(duration)
  if not ms then
    error(("travel: expected a duration such as \"25h\", found %s"):format(tostring(duration)), 2)
  end
  stage.db:exec(TRAVEL:format(("%d"):format(ms)))
end

-- ---- assertions ----

local function list_runs()
  local lines = {}
  for i, row in ipairs(stage.db:query([[SELECT task, args::text, tenant_id::text AS tenant, run_at::text
      FROM umavez.runs ORDER BY enqueued_at, run_id LIMIT 20]])) do
    lines[i] = ("  %s %s%s, due %s"):format(row.task, row.args, row.tenant and " for tenant " .. row.tenant or "",
      row.run_at)
  end
  return #lines == 0 and "  nothing" or table.concat(lines, "\n")
end

--- Fail unless a run of a task waits in the queue whose args hold these.
-- @function t:assert_enqueued
-- @tparam string task
-- @tparam[opt] table args a part of its args; objects inside may be parts, too
-- @treturn table the first such run: `run_id`, `args`, `tenant_id`, `queue`, `priority`, `run_at`
-- @yields
function M:assert_enqueued(task, args)
  need_stage()
  local row = stage.db:one([[SELECT run_id::text, args, tenant_id, queue, priority, run_at::text FROM umavez.runs
     WHERE task = $1 AND args @> $2::jsonb ORDER BY enqueued_at, run_id LIMIT 1]], task, json.encode(args or {}))
  if not row then
    fail(("no run of %s with %s is in the queue; there is:\n%s"):format(tostring(task), json.encode(args or {}),
      list_runs()))
  end
  return row
end

--- Fail unless an effect is there once.
-- @function t:assert_effects_once
-- @tparam string sql a query with one row for each effect, or one that counts them (a column named `count`)
-- @param ... its parameters
-- @yields
function M:assert_effects_once(sql, ...)
  need_stage()
  local rows = stage.db:query(sql, ...)
  local n = #rows
  if n == 1 and rows[1].count ~= nil and next(rows[1], next(rows[1])) == nil then
    n = tonumber(rows[1].count)
  end
  if n ~= 1 then
    fail(("expected one effect, found %s: %s"):format(n == 0 and "none" or tostring(n), sql))
  end
end

--- Put the database back to its beginning. `umavez test` does so before each test.
-- @function t:reset
-- @yields
function M:reset()
  need_stage()
  self.point = nil
  for attempt = 1, 5 do
    local ok, err = pcall(stage.db.query, stage.db, "SELECT umavez_testing.reset()")
    if ok then
      return
    elseif attempt == 5 or type(err) ~= "table" or not err.retryable then
      error(err, 0)
    end
  end
end

return M
