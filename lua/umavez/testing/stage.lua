--- What stands behind `umavez test`: a PostgreSQL server, a fresh database, and a worker in this very process.
--
-- The worker serves one queue of its own, which only umavez.testing fills: what a task enqueues waits in its own queue
-- until a spec asks for it. It works without Valkey: PostgreSQL alone decides what has happened, and a copy in Valkey
-- would not notice that a spec has travelled in time. Handlers share the specs' Lua state, so that a spec can stub the
-- modules that they call.
-- @module umavez.testing.stage

local ffi = require("ffi")

local c = require("umavez.c.worker")
local cli = require("umavez.cli")
local conf = require("umavez.conf")
local database = require("umavez.testing.database")
local dev = require("umavez.dev")
local json = require("umavez.json")
local manifest = require("umavez.manifest")
local openapi = require("umavez.openapi")
local pg = require("umavez.pg")
local shell = require("umavez.shell")
local sys = require("umavez.sys")
local version = require("umavez.version")
local vm = require("umavez.vm")

ffi.cdef([[
int dup(int fd);
long write(int fd, const void *data, unsigned long size);
]])

local M = {}

--- The queue of the worker in this process.
M.QUEUE = "umavez.testing"

local function find_schemas(dir, out)
  for _, entry in ipairs(sys.list(dir) or {}) do
    local path = dir .. "/" .. entry
    if entry == "schema.sql" then
      out[#out + 1] = path
    elseif entry:sub(1, 1) ~= "." and sys.exists(path) == "directory" then
      find_schemas(path, out)
    end
  end
  return out
end

local function read_schemas(paths)
  local schemas = {}
  for i, path in ipairs(paths) do
    local text = shell.read_file(path)
    if not text then
      cli.fail("usage", "cannot read the schema file %s", path)
    end
    schemas[i] = { path = path, text = text }
  end
  return schemas
end

--- The servers of the specs: in a folder of their own, started when they do not run, left running.
-- @tparam string dir
function M.servers(dir)
  local servers = dev.open(dir)
  servers:locked(function()
    servers:make_folders()
    servers:start_postgres()
  end)
  return servers
end

-- Nothing that a spec stores must outlive the machine.
local function be_quick(url)
  local db = pg.connect(url)
  if db:one("SHOW fsync").fsync ~= "off" then
    db:exec("ALTER SYSTEM SET fsync = off")
    db:exec("ALTER SYSTEM SET full_page_writes = off")
    db:query("SELECT pg_reload_conf()")
  end
  db:close()
end

-- The log takes descriptor 2 (runtime/proc/logfile.h): what busted and specs write to standard error goes on to where
-- it went, through a duplicate. (To open /dev/fd/2 anew would be another file position, and is not always allowed.)
local function keep_stderr()
  local fd = ffi.C.dup(2)
  if fd < 0 then
    return
  end
  local stderr = {}
  function stderr:write(...)
    local text = table.concat({ ... })
    local at = 0
    while at < #text do
      local n = tonumber(ffi.C.write(fd, ffi.cast("const char *", text) + at, #text - at))
      if n <= 0 then
        return nil, "standard error cannot be written to"
      end
      at = at + n
    end
    return self
  end
  function stderr.flush()
    return true
  end
  stderr.setvbuf = stderr.flush
  io.stderr = stderr -- luacheck: ignore 122
end

--- The settings of a worker on the stage's database.
-- @tparam table stage
-- @tparam string queue
-- @treturn table umavez.conf's settings
function M.worker_settings(stage, queue)
  local settings = conf.new()
  local function set(name, value)
    settings:set(name, value, "umavez test")
  end
  set("database_url", stage.database_url)
  set("tasks_dir", stage.conf.tasks_dir)
  set("tenants_table", stage.conf.tenants_table)
  set("queues", queue)
  set("supervise", false)
  set("schedules", false)
  set("pool_size", 4)
  set("poll_interval", "20ms")
  set("log_file", stage.log)
  return settings
end

--- Take every run's outcome into umavez.finished_runs, whatever the manifest says: that is where specs read it.
function M.keep_history(tasks)
  for _, task in pairs(tasks) do
    task.history = true
  end
  return tasks
end

local function start_worker(stage)
  local settings = M.worker_settings(stage, M.QUEUE)
  keep_stderr()
  c.log_to(settings.handle)
  stage.settings = settings -- the worker borrows it
  manifest.register(M.keep_history(stage.tasks))
  stage.box = c.start(settings.handle, json.encode(openapi.describe(stage.tasks)), version)
end

-- The database knows the queues of the tasks when the worker has told it: then enqueue() can be used.
local function wait_for_worker(stage)
  for _ = 1, 3000 do
    if not c.running() then
      cli.fail("failed", "the worker of the specs has ended: %s", select(2, c.result(vm.await(stage.box))) or "?")
    elseif stage.db:one("SELECT FROM umavez.tasks LIMIT 1") then
      return
    end
    sys.sleep(10)
  end
  cli.fail("failed", "the worker of the specs is not ready within 30 s; see %s", stage.log)
end

--- Set the stage.
-- @tparam table options `conf` (the settings: tasks_dir, tenants_table), `tasks` (umavez.manifest.load's), `dir` (of
-- the servers and the log), `server` (a PostgreSQL URL instead of them), `schemas` (paths of SQL files that
-- come before umavez's own)
-- @treturn table the stage: `db` (a connection), `database_url`, `tasks`, `log` (the workers' log)
-- @yields
function M.open(options)
  local stage = { conf = { tasks_dir = sys.realpath(options.conf.tasks_dir),
    tenants_table = options.conf.tenants_table }, tasks = options.tasks }
  if options.server then
    stage.server_url = options.server
    shell.run("mkdir -p " .. shell.quote(options.dir))
  else
    stage.server_url = M.servers(options.dir):urls().database_url
    be_quick(stage.server_url)
  end
  stage.log = assert(shell.absolute(options.dir)) .. "/worker.log"
  os.remove(stage.log)
  stage.first = read_schemas(options.schemas or {})
  stage.schemas = read_schemas(find_schemas(stage.conf.tasks_dir, {}))
  stage.database = database.create(stage)
  stage.database_url = database.with_database(stage.server_url, stage.database)
  stage.db = pg.connect(stage.database_url)
  start_worker(stage)
  wait_for_worker(stage)
  return stage
end

--- Stop the worker and drop the database.
-- @yields
function M.close(stage)
  if stage.closed then
    return
  end
  stage.closed = true
  if c.running() then
    sys.kill(sys.getpid(), "TERM")
    vm.await(stage.box)
  end
  stage.db:close()
  database.drop(stage, stage.database)
end

--- Is the worker still there? It ends by itself when somebody interrupts this process.
function M.running()
  return c.running()
end

return M
