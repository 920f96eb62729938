--- Workers that die: a process of its own for one run, and a real SIGKILL at a point of that run.
--
--     before_effect    the key is claimed in the open transaction, the handler has not begun
--     before_commit    the handler has returned, its SQL is done, nothing of the completion has been sent
--     after_commit     the commit is there; whether the worker has read its answer is left open
--
-- The first two are exact: the process kills itself there. The third is killed from outside, as soon as the commit is
-- seen. Other points (between the completion and the commit, while an answer is under way) need a build with
-- failpoints, and are the business of umavez's own tests.
-- @module umavez.testing.crash

local shell = require("umavez.shell")
local stage_of = require("umavez.testing.stage")
local sys = require("umavez.sys")

local M = {}

M.POINTS = { "before_effect", "before_commit", "after_commit" }

--- The queue of the workers that die.
M.QUEUE = "umavez.testing.crash"

local LIMIT_MS = 60000

local function start(stage, point)
  local script = debug.getinfo(1, "S").source:match("^@(.*)crash%.lua$") .. "crasher.lua"
  local env = { UMAVEZ_TESTING_TASKS = stage.conf.tasks_dir, UMAVEZ_TESTING_TENANTS = stage.conf.tenants_table,
    UMAVEZ_TESTING_DATABASE = stage.database_url, UMAVEZ_TESTING_LOG = stage.log, UMAVEZ_TESTING_QUEUE = M.QUEUE }
  local pid, why = sys.spawn({ sys.readlink("/proc/self/exe"), "exec", script, point },
    { stdout = stage.log, stderr = stage.log, env = env })
  if not pid then
    error("cannot start a worker: " .. why, 0)
  end
  return { pid = pid }
end

local function kill(worker)
  if not worker.dead then
    sys.kill(worker.pid, "KILL")
    sys.wait(worker.pid)
    worker.dead = true
  end
end

local function ended(stage, run_id)
  return stage.db:one([[SELECT status, failure->>'message' AS why FROM umavez.finished_runs WHERE run_id = $1::uuid
    ORDER BY finished_at DESC LIMIT 1]], run_id)
end

local function put_off(stage, run_id)
  return stage.db:one([[SELECT 'put off' AS status, failure->>'message' AS why FROM umavez.runs
    WHERE run_id = $1::uuid AND state = 'available' AND failure IS NOT NULL]], run_id)
end

local function last_lines(path)
  return select(2, shell.run("tail -n 5 " .. shell.quote(path)))
end

-- The run came to an end, or is to be tried again, without passing the point.
local function missed(point, row)
  error(("crash_at: the run never came to %s: it is %s%s"):format(point, row.status,
    row.why and " (" .. row.why .. ")" or ""), 0)
end

-- Waits until the worker is dead; gives how the point was missed, or nil.
local function wait_for_death(stage, worker, point, run_id)
  local deadline = sys.monotonic_ms() + LIMIT_MS
  repeat
    local code, signal = sys.poll(worker.pid)
    if code ~= false then
      worker.dead = true
      if signal == 9 then
        return nil
      end
      error(("crash_at: the worker ended by itself (%s); the last lines of %s:\n%s"):format(
        tostring(code or signal), stage.log, last_lines(stage.log)), 0)
    end
    local row = ended(stage, run_id)
    if row and point == "after_commit" and row.status == "completed" then
      kill(worker)
      return nil
    end
    row = row or put_off(stage, run_id)
    if row then
      return row
    end
    sys.sleep(5)
  until sys.monotonic_ms() > deadline
  error(("crash_at: nothing has happened within %d s; see %s"):format(LIMIT_MS / 1000, stage.log), 0)
end

--- Have a run that waits in `QUEUE` taken by a worker that dies at a point, and wait until it is dead. The run's lease
-- is ended, so that it can be taken again.
-- @tparam table stage
-- @tparam string point
-- @tparam string run_id
-- @yields
function M.run(stage, point, run_id)
  local worker = start(stage, point)
  local ok, result = pcall(wait_for_death, stage, worker, point, run_id)
  kill(worker)
  if not ok then
    error(result, 0)
  elseif result then
    missed(point, result)
  end
  stage.db:exec([[UPDATE umavez.runs SET lease_until = clock_timestamp() - interval '1 second', queue = $2
    WHERE run_id = $1::uuid AND state = 'running']], run_id, stage_of.QUEUE)
  stage.db:query("SELECT umavez.reap_runs(100)")
end

return M
