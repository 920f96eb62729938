--- The demo of the HTTP door: pays by curl, repeats, races, breaks and kills, on a private server; each line that is
-- shown is what is run. What came of it is counted in SQL.
-- @module umavez.demo_http

local cli = require("umavez.cli")
local dev = require("umavez.dev")
local migrate = require("umavez.migrate")
local pg = require("umavez.pg")
local shell = require("umavez.shell")
local sys = require("umavez.sys")

local M = {}

local DATABASE = "umavez_demo_http"
local KEY = "8e03978e-40d5-43dd-bc93-6894a57f93%02d"
local RACERS = 50

-- A payment of this name takes a while, so that a kill can meet it.
local SLOW = [[
CREATE FUNCTION demo_slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_sleep(1.5);
  RETURN NEW;
END $$;
CREATE TRIGGER slow BEFORE INSERT ON payments FOR EACH ROW WHEN (NEW.end_to_end_id = 'E9')
  EXECUTE FUNCTION demo_slow();]]

local function say(format, ...)
  print(select("#", ...) > 0 and format:format(...) or format)
end

-- --- the stage --------------------------------------------------------------------------------------------

local function tasks_dir()
  local here = debug.getinfo(1, "S").source:match("^@(.*)/umavez/demo_http%.lua$") or "lua"
  return assert(shell.absolute(here .. "/../tasks"))
end

local function make_database(servers)
  local urls = servers:urls()
  local admin = pg.connect(urls.database_url)
  admin:exec("DROP DATABASE IF EXISTS " .. DATABASE .. " WITH (FORCE)")
  admin:exec("CREATE DATABASE " .. DATABASE)
  admin:close()
  local stage = { servers = servers, valkey_url = urls.valkey_url, port = 0, log = servers.dir .. "/demo-http.log",
    database_url = urls.database_url:gsub("/umavez%?", "/" .. DATABASE .. "?") }
  stage.db = pg.connect(stage.database_url)
  migrate.run(stage.db, { tenants_table = "public.tenants" }, function() end)
  for _, path in ipairs(shell.glob(shell.quote(tasks_dir()) .. "/*/schema.sql")) do
    stage.db:script(shell.read_file(path))
  end
  stage.db:exec("INSERT INTO public.tenants (id) VALUES (7) ON CONFLICT DO NOTHING")
  stage.db:script(SLOW)
  os.remove(stage.log)
  return stage
end

-- The demo's own settings and nobody else's.
local function environment(stage)
  local env = {}
  for _, pair in ipairs(sys.environ()) do
    local name = pair:match("^([^=]*)=")
    if name:find("^UMAVEZ_") or name:find("^PG") then
      env[name] = false
    end
  end
  env.UMAVEZ_CONFIG = stage.servers.dir .. "/demo.lua"
  local file = assert(io.open(env.UMAVEZ_CONFIG, "w"))
  file:write("return { supervise = false, schedules = false }\n")
  file:close()
  env.UMAVEZ_TASKS_DIR, env.DATABASE_URL, env.VALKEY_URL = tasks_dir(), stage.database_url, stage.valkey_url
  return env
end

local function program()
  return sys.readlink("/proc/self/exe")
end

-- Starts a worker with the door; at the port of the first one, so that the lines stay the same.
local function start_worker(stage)
  local log = stage.log .. "." .. tostring(sys.monotonic_ms())
  local pid, why = sys.spawn({ program(), "worker", "--http", "127.0.0.1:" .. stage.port },
    { stdout = log, stderr = log, env = environment(stage) })
  if not pid then
    cli.fail("failed", "cannot start a worker: %s", why)
  end
  stage.pid = pid
  for _ = 1, 600 do
    local text = shell.read_file(log) or ""
    local port = text:match("event=door_open [^\n]*port=(%d+)")
    if port and text:find("event=worker_ready", 1, true) then
      stage.port = tonumber(port)
      os.remove(log)
      return
    elseif sys.poll(pid) ~= false then
      break
    end
    sys.sleep(50)
  end
  cli.fail("failed", "the worker is not ready; its log:\n%s", (shell.read_file(log) or ""):sub(-2000))
end

local function make_token(stage)
  local log = stage.log
  local pid = sys.spawn({ program(), "token", "create", "--tenant", "7", "--scope", "payments.pix" },
    { stdout = log, stderr = log, env = environment(stage) })
  local code = pid and sys.wait(pid)
  stage.token = (shell.read_file(log) or ""):match("uv_%x+")
  os.remove(log)
  if code ~= 0 or not stage.token then
    cli.fail("failed", "`umavez token create` has failed")
  end
end

-- --- the play ---------------------------------------------------------------------------------------------

local function post(key, body, options)
  return table.concat({ "curl " .. (options or "-si"), '"$DOOR/payments" -H "Authorization: Bearer $TOKEN"',
    "-H 'Content-Type: application/json'" .. (key and (" -H 'Idempotency-Key: %s'"):format(key) or ""),
    ("-d '%s'"):format(body) }, " ")
end

local function payment(name, cents)
  return ('{"end_to_end_id":"%s","amount_cents":%d}'):format(name, cents)
end

local function run(stage, line)
  local _, output = shell.run(("DOOR=http://127.0.0.1:%d; TOKEN=%s\n%s"):format(stage.port, stage.token, line))
  return (output:gsub("\r", ""))
end

-- Shows a line, runs it, shows what came, and sees whether that is what had to come.
local function step(stage, why, line, ...)
  say("\n# %s\n$ %s", why, line)
  local output = run(stage, line)
  print(output)
  for _, expected in ipairs { ... } do
    local absent = expected:match("^!(.*)")
    if (output:find(absent or expected, 1, true) ~= nil) == (absent ~= nil) then
      stage.faults = stage.faults + 1
      say("UNEXPECTED: %s \"%s\"", absent and "there is" or "there is no", absent or expected)
    end
  end
  return output
end

local function scenario(stage)
  local key = function(n) return KEY:format(n) end
  local first = step(stage, "Pay. The answer may be lost on its way …", post(key(1), payment("E1", 10000)), " 201 ",
    "!X-Idempotent-Replay")
  local again = step(stage, "… so the client sends it again: the same answer, and no second payment.",
    post(key(1), payment("E1", 10000)), " 201 ", "X-Idempotent-Replay: true")
  if first:match("\n\n(.*)") ~= again:match("\n\n(.*)") then
    stage.faults = stage.faults + 1
    say("UNEXPECTED: the two bodies differ")
  end
  step(stage, RACERS .. " at once with one key: one payment, one first answer, and replays of it.",
    ("seq %d | xargs -P %d -I{} %s | sort | uniq -c"):format(RACERS, RACERS, post(key(2), payment("E2", 20000),
      "-s -o /dev/null -w 'HTTP %{http_code} replay:%header{x-idempotent-replay}\\n'")),
    "1 HTTP 201 replay:\n", (RACERS - 1) .. " HTTP 201 replay:true")
  step(stage, "The key of the first payment with another amount: refused, and the stored answer is not shown.",
    post(key(1), payment("E1", 99)), " 422 ", "urn:umavez:problem:key_reused", "!X-Idempotent-Replay")
  step(stage, "Above 5000.00: the task refuses. That is an answer, too …", post(key(3), payment("E3", 500001)), " 422 ",
    "urn:umavez:failure:limit_exceeded", "!X-Idempotent-Replay")
  step(stage, "… and replayed.", post(key(3), payment("E3", 500001)), " 422 ", "X-Idempotent-Replay: true")
  step(stage, "Without a key.", post(nil, payment("E4", 100)), " 400 ", "urn:umavez:problem:key_missing")
  step(stage, "A key that is no UUID; this route wants one.", post("k4", payment("E4", 100)), " 400 ",
    "urn:umavez:problem:key_invalid")
  step(stage, "Without a valid token.", (post(key(5), payment("E5", 100)):gsub("%$TOKEN", "uv_0")),
    " 401 ")
end

local function killed(stage)
  local line = post(KEY:format(9), payment("E9", 30000))
  say("\n# The worker dies in the middle of a payment: SIGKILL, while its transaction is open.\n$ %s", line)
  local waiting = io.popen(("DOOR=http://127.0.0.1:%d; TOKEN=%s\n%s 2>&1; echo \"curl ends with $?\""):format(
    stage.port, stage.token, (line:gsub("%-si", "-sS"))))
  for _ = 1, 400 do
    if stage.db:one("SELECT count(*)::int AS n FROM pg_stat_activity WHERE wait_event = 'PgSleep'").n > 0 then
      break
    end
    sys.sleep(10)
  end
  sys.kill(stage.pid, "KILL")
  sys.wait(stage.pid)
  print((waiting:read("*a"):gsub("%s+$", "")))
  waiting:close()
  start_worker(stage)
  step(stage, "Another worker takes its place. The client sends its request again: paid now, and once.", line, " 201 ",
    "!X-Idempotent-Replay")
  step(stage, "And once more.", line, " 201 ", "X-Idempotent-Replay: true")
end

local AUDIT = [[
SELECT end_to_end_id, count(*) AS payments FROM payments GROUP BY 1 ORDER BY 1]]

local function report(stage)
  local rows, lines = stage.db:query(AUDIT), {}
  for i, row in ipairs(rows) do
    lines[i] = { row.end_to_end_id, tonumber(row.payments) }
  end
  say("\n# What is in the table, which has no unique constraint on the payments' names:\n$ psql '%s' -c '%s'",
    stage.database_url, AUDIT)
  cli.print_table({ "end_to_end_id", "payments" }, lines)
  local wanted = { E1 = 1, E2 = 1, E9 = 1 }
  for _, line in ipairs(lines) do
    if wanted[line[1]] ~= line[2] then
      stage.faults = stage.faults + 1
    end
    wanted[line[1]] = nil
  end
  say("\n# To go on by hand:\nexport DATABASE_URL='%s' VALKEY_URL='%s'\nTOKEN=%s DOOR=http://127.0.0.1:%d",
    stage.database_url, stage.valkey_url, stage.token, stage.port)
  say("UMAVEZ_TASKS_DIR=%s %s worker --http 127.0.0.1:%d &", tasks_dir(), program(), stage.port)
  if stage.faults > 0 or next(wanted) then
    say("\nFAILED: not everything was as it must be")
    return 1
  end
  say("\nEach payment once.")
  return 0
end

--- Run the demo.
-- @treturn int the exit code: 0 when everything was answered as it must be, and each payment was made once
-- @yields
function M.run()
  if not shell.run("command -v curl") then
    cli.fail("failed", "curl is not here; `./setup demo --http` installs it")
  end
  local servers = dev.open()
  servers:start()
  local stage = make_database(servers)
  stage.faults = 0
  say("PostgreSQL %s and Valkey run under %s; the door at %s", stage.db:one("SHOW server_version").server_version,
    servers.dir, "127.0.0.1")
  local ok, result = pcall(function()
    start_worker(stage)
    make_token(stage)
    say("DOOR=http://127.0.0.1:%d\nTOKEN=%s     # umavez token create --tenant 7 --scope payments.pix", stage.port,
      stage.token)
    scenario(stage)
    killed(stage)
    return report(stage)
  end)
  if stage.pid then
    sys.kill(stage.pid, "TERM")
    sys.wait(stage.pid)
  end
  if not ok then
    error(result, 0)
  end
  return result
end

return M
