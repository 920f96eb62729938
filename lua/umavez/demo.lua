--- The demo: real input, delivered several times each, out of order and at once, to workers of which one is killed,
-- while Valkey is away for a part of the time. What came of it is counted in SQL.
-- @module umavez.demo

local cli = require("umavez.cli")
local dev = require("umavez.dev")
local input = require("umavez.demo_input")
local migrate = require("umavez.migrate")
local pg = require("umavez.pg")
local shell = require("umavez.shell")
local sys = require("umavez.sys")

local M = {}

local DATABASE = "umavez_demo"
local WORKERS, COPIES, WAVES, WAVE_MS = 2, 6, 24, 250
local PATIENCE_MS = 180000

-- The effect tables of the example tasks, and what makes an effect the same as another.
local EFFECTS = {
  { task = "payments.pix", tbl = "payments", key = "tenant_id || ' ' || end_to_end_id" },
  { task = "receipts.send", tbl = "receipts", key = "payment_id::text" },
  { task = "webhooks.receive", tbl = "webhooks", key = "delivery" },
}

-- A trigger counts every handler that gets to its INSERT, in a sequence: a rollback does not take that back. It also
-- makes an effect last a moment, so that the kill meets some that are under way.
local SCHEMA = [[
CREATE SCHEMA demo;
CREATE TABLE demo.messages (n bigint PRIMARY KEY, task text NOT NULL, tenant_id bigint, key text NOT NULL,
                            args jsonb NOT NULL);
CREATE TABLE demo.deliveries (run_id uuid PRIMARY KEY, n bigint NOT NULL REFERENCES demo.messages, wave int NOT NULL);
CREATE TABLE demo.handlers (task text PRIMARY KEY, runs regclass NOT NULL);
CREATE FUNCTION demo.handler_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM nextval(TG_ARGV[0]);
  PERFORM pg_sleep(0.01 + random() * 0.05);
  RETURN NEW;
END $$;
CREATE FUNCTION demo.handler_runs(task text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
  EXECUTE format('SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM %s',
                 (SELECT h.runs FROM demo.handlers h WHERE h.task = handler_runs.task)) INTO n;
  RETURN n;
END $$;]]

local COUNTER = [[
CREATE SEQUENCE demo.%s_runs;
INSERT INTO demo.handlers VALUES ('%s', 'demo.%s_runs');
CREATE TRIGGER handler_run BEFORE INSERT ON public.%s FOR EACH ROW EXECUTE FUNCTION demo.handler_run('demo.%s_runs');]]

local DELIVERIES = [[
INSERT INTO demo.deliveries
SELECT run_id, n, ntile($2::int) OVER (ORDER BY random())
  FROM (SELECT gen_random_uuid() AS run_id, n FROM demo.messages, generate_series(1, $1::int)) AS copies]]

local ENQUEUE = [[
SELECT umavez.enqueue_many((
  SELECT jsonb_agg(jsonb_build_object('run_id', run_id, 'task', task, 'tenant_id', tenant_id, 'args', args))
    FROM demo.deliveries JOIN demo.messages USING (n) WHERE wave = $1::int))]]

-- What is counted at the end, from what the database holds; also printed, so that anyone can run it.
local AUDIT = [[
WITH effects AS (            -- what the handlers did; no constraint keeps these tables free of duplicates
@EFFECTS@
), expected AS (             -- what had to happen: each message once, and a receipt for each payment
  SELECT task, key FROM demo.messages
  UNION ALL SELECT 'receipts.send', id::text FROM payments
), ended AS (
  SELECT task, count(*) AS runs, sum(deliveries) AS deliveries, count(*) FILTER (WHERE replay) AS replays
    FROM umavez.finished_runs GROUP BY task
)
SELECT task, messages, coalesce(runs, 0) AS runs, coalesce(deliveries, 0) AS deliveries,
       demo.handler_runs(task) AS handler_runs,
       (SELECT count(*) FROM effects e WHERE e.task = t.task) AS effects,
       coalesce(replays, 0) AS replays,
       (SELECT count(*) - count(DISTINCT key) FROM effects e WHERE e.task = t.task) AS duplicates,
       (SELECT count(*) FROM expected x WHERE x.task = t.task
          AND NOT EXISTS (SELECT FROM effects e WHERE e.task = x.task AND e.key = x.key)) AS lost
  FROM (SELECT task, count(*) AS messages FROM expected GROUP BY task) AS t LEFT JOIN ended USING (task)
 ORDER BY task;]]

local function say(format, ...)
  print(format:format(...))
end

local function audit_sql()
  local parts = {}
  for i, effect in ipairs(EFFECTS) do
    parts[i] = ("SELECT '%s' AS task, %s AS key FROM %s"):format(effect.task, effect.key, effect.tbl)
  end
  return (AUDIT:gsub("@EFFECTS@", function() return "  " .. table.concat(parts, "\n  UNION ALL ") end))
end

-- --- the stage: servers, database, input ------------------------------------------------------------------

local function tasks_dir()
  local here = debug.getinfo(1, "S").source:match("^@(.*)/umavez/demo%.lua$") or "lua"
  return assert(shell.absolute(here .. "/../tasks"))
end

local function make_database(servers)
  local urls = servers:urls()
  local admin = pg.connect(urls.database_url)
  admin:exec("DROP DATABASE IF EXISTS " .. DATABASE .. " WITH (FORCE)")
  admin:exec("CREATE DATABASE " .. DATABASE)
  admin:close()
  local stage = { servers = servers, valkey_url = urls.valkey_url,
    database_url = urls.database_url:gsub("/umavez%?", "/" .. DATABASE .. "?") }
  stage.db = pg.connect(stage.database_url)
  migrate.run(stage.db, { tenants_table = "public.tenants" }, function() end)
  for _, path in ipairs(shell.glob(shell.quote(tasks_dir()) .. "/*/schema.sql")) do
    stage.db:script(shell.read_file(path))
  end
  stage.db:exec("INSERT INTO public.tenants (id) SELECT generate_series(1, $1::int) ON CONFLICT DO NOTHING",
    input.TENANTS)
  stage.db:script(SCHEMA)
  for _, effect in ipairs(EFFECTS) do
    stage.db:script(COUNTER:gsub("%%s", function() return "%s" end):format(effect.tbl, effect.task, effect.tbl,
      effect.tbl, effect.tbl))
  end
  return stage
end

local function load_messages(db, messages)
  db:transaction(function()
    for n, message in ipairs(messages) do
      db:exec("INSERT INTO demo.messages VALUES ($1::bigint, $2, $3::bigint, $4, $5::jsonb)", n, message.task,
        message.tenant_id, message.key, message.args)
    end
    db:exec(DELIVERIES, COPIES, WAVES)
  end)
end

-- --- workers ----------------------------------------------------------------------------------------------

local function pid_file(stage)
  return stage.servers.dir .. "/demo-workers"
end

local function log_file(stage)
  return stage.servers.dir .. "/demo-worker.log"
end

-- Workers of a demo that was interrupted.
local function end_strays(stage)
  for pid in (shell.read_file(pid_file(stage)) or ""):gmatch("%d+") do
    if (shell.cmdline(tonumber(pid)) or ""):find("umavez worker", 1, true) then
      shell.signal(tonumber(pid), "KILL")
    end
  end
  os.remove(pid_file(stage))
end

-- The demo's own settings and nobody else's.
local function worker_environment(stage, worker_name)
  local env = {}
  for _, pair in ipairs(sys.environ()) do
    local name = pair:match("^([^=]*)=")
    if name:find("^UMAVEZ_") or name:find("^PG") then
      env[name] = false
    end
  end
  local config = stage.servers.dir .. "/demo.lua"
  local file = assert(io.open(config, "w"))
  file:write("return { workers = 1, schedules = false }\n")
  file:close()
  env.UMAVEZ_CONFIG, env.UMAVEZ_TASKS_DIR = config, tasks_dir()
  env.DATABASE_URL = stage.database_url .. "&application_name=" .. worker_name
  env.VALKEY_URL = stage.valkey_url
  return env
end

local function start_worker(stage)
  local log = log_file(stage)
  stage.started = stage.started + 1
  local name = "demo-worker-" .. stage.started
  local pid, why = sys.spawn({ sys.readlink("/proc/self/exe"), "worker" },
    { stdout = log, stderr = log, env = worker_environment(stage, name) })
  if not pid then
    cli.fail("failed", "cannot start a worker: %s", why)
  end
  stage.workers[#stage.workers + 1] = { pid = pid, name = name }
  local file = assert(io.open(pid_file(stage), "a"))
  file:write(pid, "\n")
  file:close()
  return pid
end

local function check_workers(stage) -- none may end by itself
  for _, worker in ipairs(stage.workers) do
    if sys.poll(worker.pid) ~= false then
      local log = log_file(stage)
      cli.fail("failed", "worker %d has ended by itself; the last lines of %s:\n%s", worker.pid, log,
        select(2, shell.run("tail -n 5 " .. shell.quote(log))))
    end
  end
end

local function start_workers(stage)
  os.remove(log_file(stage))
  for _ = 1, WORKERS do
    start_worker(stage)
  end
  for _ = 1, 600 do
    local _, ready = (shell.read_file(log_file(stage)) or ""):gsub("event=child_ready", "")
    if ready == WORKERS then
      return
    end
    check_workers(stage)
    sys.sleep(50)
  end
  cli.fail("failed", "the workers are not ready within 30 s; see %s", log_file(stage))
end

local function effects_under_way(db, name)
  return db:one([[SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database()
                     AND application_name = $1 AND wait_event = 'PgSleep']], name).n
end

-- The child that works for a supervisor now, as the log tells.
local function child_of(stage, worker)
  local child
  local ready = "event=child_ready pid=" .. worker.pid .. " child=(%d+)"
  for pid in (shell.read_file(log_file(stage)) or ""):gmatch(ready) do
    child = tonumber(pid)
  end
  return child
end

-- Kill the first worker's child if handlers of it are under way, or if this is the last chance.
local function try_to_kill(stage, last_chance)
  local worker, n = stage.workers[1], 0
  for _ = 1, 40 do
    n = effects_under_way(stage.db, worker.name)
    if n > 0 then
      break
    end
    sys.sleep(5)
  end
  if n == 0 and not last_chance then
    return false
  end
  worker.killed = child_of(stage, worker)
  sys.kill(worker.killed, "KILL")
  say("  SIGKILL to worker process %d, which has %d effect%s under way", worker.killed, n, n == 1 and "" or "s")
  return true
end

local function wait_for_another(stage)
  local worker = stage.workers[1]
  for _ = 1, 600 do
    if child_of(stage, worker) ~= worker.killed then
      say("  its supervisor %d has started another: %d", worker.pid, child_of(stage, worker))
      return
    end
    check_workers(stage)
    sys.sleep(50)
  end
  cli.fail("failed", "the killed worker process was not replaced within 30 s; see %s", log_file(stage))
end

local function stop_workers(stage)
  for _, worker in ipairs(stage.workers) do
    sys.kill(worker.pid, "TERM")
  end
  for _, worker in ipairs(stage.workers) do
    local code, signal = sys.wait(worker.pid)
    if code ~= 0 then
      cli.fail("failed", "worker %d did not end well after SIGTERM: %s", worker.pid,
        tostring(code or "signal " .. tostring(signal)))
    end
  end
  stage.workers = {}
end

-- --- the play ---------------------------------------------------------------------------------------------

-- What happens besides deliveries, by wave.
local function interfere(stage, wave)
  if not stage.killed_at and wave >= 3 and try_to_kill(stage, wave == 9) then
    stage.killed_at = wave
  elseif wave == (stage.killed_at or wave) + 3 then
    wait_for_another(stage)
  elseif wave == 13 then
    stage.servers:stop_valkey("KILL")
    say("  SIGKILL to Valkey")
  elseif wave == 19 then
    stage.servers:start_valkey()
    say("  Valkey is back, empty")
  end
end

local function deliver(stage)
  for wave = 1, WAVES do
    stage.db:query(ENQUEUE, wave)
    interfere(stage, wave)
    check_workers(stage)
    sys.sleep(WAVE_MS)
  end
end

local function wait_until_done(stage)
  local deadline, said = sys.monotonic_ms() + PATIENCE_MS, false
  while true do
    local row = stage.db:one([[SELECT count(*)::int AS live, count(*) FILTER (WHERE lease_until > now())::int AS leased
                                 FROM umavez.runs]])
    if row.live == 0 then
      return
    elseif sys.monotonic_ms() > deadline then
      say("  %d runs are still in the queue; giving up", row.live)
      return
    elseif not said and row.leased == row.live then
      said = true
      say("  %d runs wait for a lease or for their next try", row.live)
    end
    check_workers(stage)
    sys.sleep(200)
  end
end

local COLUMNS = { "messages", "runs", "deliveries", "handler_runs", "effects", "replays", "duplicates", "lost" }

local function report(stage)
  local sql = audit_sql()
  local rows, total = stage.db:query(sql), { "total" }
  local lines = {}
  for i, row in ipairs(rows) do
    lines[i] = { row.task }
    for c, name in ipairs(COLUMNS) do
      lines[i][c + 1] = tonumber(row[name])
      total[c + 1] = (total[c + 1] or 0) + tonumber(row[name])
    end
  end
  lines[#lines + 1] = total
  local left = stage.db:one("SELECT count(*)::int AS n FROM umavez.runs").n
  local failed = stage.db:one("SELECT count(*)::int AS n FROM umavez.finished_runs WHERE status <> 'completed'").n
  local heads = { "" }
  for c, name in ipairs(COLUMNS) do
    heads[c + 1] = name:gsub("_", " ")
  end
  print()
  cli.print_table(heads, lines)
  print()
  say("The same by hand, in psql (a run is a message of the queue, a delivery one time that a worker got it):")
  print()
  print(sql)
  print()
  say("  psql '%s'", stage.database_url)
  say("\nBoth servers run on for that, until `umavez dev --stop`. A task of your own: docs/quickstart.md")
  if left > 0 or failed > 0 then
    say("\nFAILED: %d runs are still in the queue, %d ended as failures", left, failed)
    return 1
  end
  return total[#COLUMNS] == 0 and total[#COLUMNS + 1] == 0 and 0 or 1
end

--- Run the demo.
-- @tparam string path the input
-- @treturn int the exit code: 0 when nothing was lost and nothing happened twice
-- @yields
function M.run(path)
  local messages, lines = input.read(path)
  local servers = dev.open()
  servers:start()
  local program, version = dev.valkey_program()
  end_strays { servers = servers }
  local stage = make_database(servers)
  stage.workers, stage.started = {}, 0
  say("PostgreSQL %s and %s %s run under %s", stage.db:one("SHOW server_version").server_version, program, version,
    servers.dir)
  load_messages(stage.db, messages)
  say("%d messages of %d lines (%s), %d runs each, in random order, to %d workers:", #messages, lines, path, COPIES,
    WORKERS)
  local ok, result = pcall(function()
    start_workers(stage)
    deliver(stage)
    wait_until_done(stage)
    stop_workers(stage)
    return report(stage)
  end)
  for _, worker in ipairs(stage.workers) do
    sys.kill(worker.pid, "KILL")
  end
  os.remove(pid_file(stage))
  if not ok then
    error(result, 0)
  end
  return result
end

return M
