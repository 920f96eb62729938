--- `umavez worker`: take runs from the queue and run their tasks.
-- @module umavez.cli.worker

local c = require("umavez.c.worker")
local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local pg = require("umavez.pg")
local settings = require("umavez.cli.settings")
local tasks = require("umavez.cli.tasks")

local M = { summary = "run tasks: take runs from the queue until told to stop" }

M.examples = {
  "umavez worker",
  "umavez worker --queues payments,default --log-format json",
  "umavez worker --http 127.0.0.1:8080     (serve the tasks' HTTP doors, too)",
  "umavez worker --workers 4               (four children; default: one a core)",
  "umavez worker --watch --workers 1       (development: reload when a file below the tasks folder has changed)",
  "umavez worker --no-supervise            (one process: for debuggers, and where something else restarts it)",
  "kill -TERM PID     (finish what runs within drain_timeout, give the rest back, exit 0; again: hurry)",
  "kill -HUP PID      (reload: new children with the new code and settings, then the old ones drain)",
  "kill -USR1 PID     (open log_file anew)",
}
M.settings = "all"

function M.configure(parser)
  parser:option("--http", "Serve the HTTP door there; short for --http-listen."):argname("ADDRESS:PORT")
    :target("setting_http_listen")
  parser:flag("--no-queue", "Serve only the HTTP door; short for --queue false.")
  parser:flag("--watch", "Reload when a Lua file below the tasks folder has changed; short for --watch-tasks true.")
  parser:flag("--no-schedules", "Leave schedules to other workers; short for --schedules false.")
  parser:flag("--no-supervise", "Run in this one process, without supervisor; short for --supervise false.")
end

-- Waiting cannot heal these; anything else can be a server that is still starting.
local HOPELESS = { bad_url = true, auth_failed = true, no_database = true }

-- No warning: the worker's own connections will tell that PostgreSQL is down, if it still is.
local function note_away(conf, why)
  local note = ("PostgreSQL is away (%s); the worker waits for it"):format(why)
  c.say("database_away", note, "info")
  if not c.supervised() and conf.log_file ~= "" then
    c.tell("umavez: " .. note)
  end
end

local function look_at(conf)
  local db = pg.connect(conf.database_url, { timeout_ms = conf.connect_timeout })
  local ok, err = pcall(database.check_migrated, db)
  db:close()
  if not ok then
    error(err, 0)
  end
end

-- A server that is away at the start, or goes while we look at it, is as good as one that goes away later: the worker
-- waits for it.
local function check_database(conf)
  local ok, err = pcall(look_at, conf)
  if ok then
    return
  elseif type(err) == "table" and err.retryable then
    note_away(conf, tostring(err.message or err.code))
  elseif type(err) == "table" and HOPELESS[err.code] then
    database.open(conf)
  else
    error(err, 0)
  end
end

-- A child's faults are events of the log, and told to its supervisor; who starts a worker by hand reads plain lines,
-- and finds the events in log_file, where there is one.
local function report(conf, fault)
  if c.supervised() or conf.log_file ~= "" then
    c.fault(tostring(fault), tasks.plain({ fault })[1])
  end
  if not c.supervised() then
    c.tell(tostring(fault))
  end
end

-- Manifests and handlers are the user's code: only children load them, never the supervisor.
local function load_tasks(conf)
  local found, faults, queues = tasks.load(conf, { loading = c.loading })
  if #faults > 0 then
    for _, fault in ipairs(faults) do
      report(conf, fault)
    end
    cli.fail("config", "%d faults in the manifests under %s; nothing was started (`umavez check` shows them too)",
      #faults, conf.tasks_dir)
  end
  return found, queues
end

local function load_settings(args)
  if args.no_queue then
    args.setting_queue = "false"
  end
  if args.no_schedules then
    args.setting_schedules = "false"
  end
  if args.no_supervise then
    args.setting_supervise = "false"
  end
  if args.watch then
    args.setting_watch_tasks = "true"
  end
  local conf = settings.load(args)
  if conf.watch_tasks and not conf.supervise then
    cli.fail("config", "watch_tasks (--watch) needs the supervisor: leave supervise = false (--no-supervise) out")
  end
  local idle = not conf.queue and conf.http_listen == ""
  if idle and not conf.schedules then
    cli.fail("config", "a worker without queue (--no-queue), door and schedules does nothing: name a door with "
      .. "http_listen (--http ADDRESS:PORT), or leave queue = false out")
  end
  local ok, err = pcall(c.log_to, conf.handle)
  if not ok then
    cli.fail("config", "%s", err.message)
  end
  if idle and not c.supervised() then
    c.say("nothing_to_serve", "without queue (--no-queue) and without door this worker runs no task, it only looks "
      .. "after schedules: name a door with http_listen (--http ADDRESS:PORT), or leave queue = false out")
  end
  return conf
end

local function work(conf)
  local found, queues = load_tasks(conf)
  check_database(conf)
  return require("umavez.worker").run(conf, found, queues)
end

local function with_trace(err)
  return type(err) == "table" and err or debug.traceback(tostring(err), 2)
end

local function run_child(args)
  local ok, code, why = xpcall(function()
    c.loading("the settings")
    local conf = load_settings(args)
    c.loading(nil)
    return work(conf)
  end, with_trace)
  c.loading(nil)
  if not ok then
    local err = code
    code, why = cli.EXIT.failed, tostring(err)
    if type(err) == "table" then
      code, why = cli.describe(err)
    end
  end
  if why then
    c.fault(tostring(why))
  end
  return code
end

function M.run(args)
  if c.supervised() then
    return run_child(args)
  end
  local conf = load_settings(args)
  local ok, code, why = xpcall(conf.supervise and require("umavez.worker").supervise or work, with_trace, conf)
  if conf.log_file ~= "" and not conf.supervise and (why or not ok) then
    c.fault(why or (type(code) == "table" and select(2, cli.describe(code)) or tostring(code)))
  end
  c.log_back()
  if not ok then
    error(code, 0)
  end
  if why then
    io.stderr:write("umavez worker: ", tostring(why), "\n")
  end
  return code
end

return M
