--- `umavez worker`: take runs from the queue and run their tasks.
-- @module umavez.cli.worker

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
  "kill -TERM PID     (finish what runs within drain_timeout, give the rest back, exit 0)",
}
M.settings = "all"

function M.configure(parser)
  parser:option("--http", "Serve the HTTP door there; short for --http-listen."):argname("ADDRESS:PORT")
    :target("setting_http_listen")
  parser:flag("--no-queue", "Serve only the HTTP door; short for --queue false.")
end

-- Waiting cannot heal these; anything else can be a server that is still starting.
local HOPELESS = { bad_url = true, auth_failed = true, no_database = true }

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
    cli.note("PostgreSQL is away (%s); the worker waits for it", tostring(err.message or err.code))
  elseif type(err) == "table" and HOPELESS[err.code] then
    database.open(conf)
  else
    error(err, 0)
  end
end

function M.run(args)
  if args.no_queue then
    args.setting_queue = "false"
  end
  local conf = settings.load(args)
  local found, faults = tasks.load(conf)
  if #faults > 0 then
    for _, fault in ipairs(faults) do
      io.stderr:write(tostring(fault), "\n")
    end
    cli.fail("config", "%d faults in the manifests under %s; nothing was started (`umavez check` shows them too)",
      #faults, conf.tasks_dir)
  end
  check_database(conf)
  local code, why = require("umavez.worker").run(conf, found)
  if why then
    io.stderr:write("umavez worker: ", tostring(why), "\n")
  end
  return code
end

return M
