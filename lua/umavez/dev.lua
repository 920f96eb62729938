--- A private PostgreSQL and a private Valkey under `.umavez/`: for development, for the demo, for tests.
--
--     .umavez/
--       postgres/        the cluster          log/     both servers' logs
--       valkey/          Valkey's folder      run/     the sockets; a link to a short path where this one is too long
--       lock             held while something is started or stopped
--
-- Both servers listen on unix sockets only, in a folder that only their user may enter. PostgreSQL refuses to run as
-- root; then both run as the user `postgres`, which its package makes, and where that user may not reach the
-- checkout (one under /root), they get the capability to pass through.
-- @module umavez.dev

local shell = require("umavez.shell")
local quote, run = shell.quote, shell.run

local Dev = {}
Dev.__index = Dev

local M = {}

local SOCKET = "/.s.PGSQL.5432"
local LONGEST_SOCKET = 100
local DATABASE = "umavez"
local SUPERUSER = "postgres"

local function fail(...)
  error({ code = "dev", message = table.concat({ ... }) }, 0)
end

local function last_lines(path, n)
  local _, text = run(("tail -n %d %s"):format(n, quote(path)))
  return text
end

-- --- the user that the servers run as ---------------------------------------------------------------------

-- Words that go before a command. The capabilities are the least that let the user pass a folder that is not his.
local function find_prefix(dir)
  if not shell.is_root() then
    return ""
  end
  if not run("id -u " .. SUPERUSER) then
    fail("the servers must not run as root, and the user \"postgres\" is not here: install PostgreSQL ",
      "(`./setup deps`), or call this as an ordinary user")
  end
  local plain = "setpriv --reuid postgres --regid postgres --init-groups "
  if run("cd / && " .. plain .. "-- test -d " .. quote(dir .. "/.")) then
    return plain .. "--"
  end
  for _, capability in ipairs { "dac_read_search", "dac_override" } do
    local able = plain .. ("--inh-caps +%s --ambient-caps +%s --"):format(capability, capability)
    if run("cd / && " .. able .. " test -d " .. quote(dir .. "/.")) then
      return able
    end
  end
  fail("the user \"postgres\" cannot reach ", dir, ": move the checkout to a folder that others may enter")
end

-- Run a command as the servers' user, in the servers' folder, without the caller's PG* variables.
function Dev:as_user(command)
  return run(("cd %s && env -i PATH=%s LC_ALL=C.UTF-8 HOME=/nonexistent %s %s"):format(
    quote(self.dir .. "/postgres"), quote(os.getenv("PATH") or "/usr/bin:/bin"), self.prefix, command))
end

-- --- folders ----------------------------------------------------------------------------------------------

--- The servers of a checkout.
-- @tparam[opt=".umavez"] string dir made when it is not there
-- @treturn Dev
function M.open(dir)
  dir = dir or ".umavez"
  local ok, why = run("mkdir -p " .. quote(dir))
  if not ok then
    fail("cannot make ", dir, ": ", why)
  end
  local self = setmetatable({ dir = assert(shell.absolute(dir)) }, Dev)
  self.prefix = find_prefix(self.dir)
  return self
end

function Dev:make_folders()
  local names = { "postgres", "valkey", "log" }
  -- A socket's path is limited to some 100 bytes, and pg_ctl hands it on through a shell.
  if #self.dir + #"/run" + #SOCKET <= LONGEST_SOCKET and not self.dir:find("[^%w/._-]") then
    names[#names + 1] = "run"
  elseif not shell.exists(self.dir .. "/run/.") then
    local ok, short = run(("rm -f %s && mktemp -d /tmp/umavez-XXXXXX"):format(quote(self.dir .. "/run")))
    if not ok or not run(("ln -s %s %s"):format(quote(short), quote(self.dir .. "/run"))) then
      fail("cannot make a short folder for the sockets: ", short)
    end
  end
  local ok, why = run(([[cd %s && mkdir -p %s && chmod 700 %s run/.]]):format(
    quote(self.dir), quote(names), quote("postgres", "valkey", "log")))
  if ok and shell.is_root() then
    ok, why = run(("cd %s && chown postgres:postgres postgres valkey log run/."):format(quote(self.dir)))
  end
  if not ok then
    fail("cannot prepare ", self.dir, " (does it belong to another user?): ", why)
  end
end

-- The folder of the sockets by its real, short name; nil when it has not been made.
function Dev:run_dir()
  return shell.absolute(self.dir .. "/run")
end

-- --- PostgreSQL -------------------------------------------------------------------------------------------

local function bin_dir(version)
  local found = shell.glob("/usr/lib/postgresql/" .. (version or "*") .. "/bin/postgres")
  table.sort(found, function(a, b)
    return tonumber(a:match("/(%d+)/bin")) > tonumber(b:match("/(%d+)/bin"))
  end)
  if found[1] then
    return (found[1]:gsub("/postgres$", ""))
  end
  local ok, dir = run("pg_config --bindir")
  if ok and not version and shell.exists(dir .. "/postgres") then
    return dir
  end
  return nil
end

function Dev:bin()
  local version = shell.read_file(self.dir .. "/postgres/data/PG_VERSION")
  version = version and version:match("%d+")
  local dir = bin_dir(version)
  if not dir and version then
    fail("the cluster under ", self.dir, " was made by PostgreSQL ", version,
      ", which is not installed: install it, or start afresh with `umavez dev --reset`")
  elseif not dir then
    fail("PostgreSQL's server is not installed: `./setup deps` installs it")
  end
  return dir
end

-- The pid in the first line of a server's file, if that process is the server that we mean.
local function server_pid(file, words)
  local pid = tonumber((shell.read_file(file) or ""):match("^%s*(%d+)"))
  local cmdline = pid and shell.cmdline(pid)
  if not cmdline then
    return nil
  end
  for _, word in ipairs(words) do
    if not cmdline:find(word, 1, true) then
      return nil
    end
  end
  return pid
end

--- @treturn int|nil the postmaster's pid
function Dev:postgres_pid()
  local data = self.dir .. "/postgres/data"
  return server_pid(data .. "/postmaster.pid", { "postgres", data })
end

function Dev:init_cluster()
  local data = self.dir .. "/postgres/data"
  if shell.exists(data .. "/PG_VERSION") then
    return
  end
  -- Made beside its place, then moved: what a killed initdb leaves is never taken for a cluster.
  local ok, why = self:as_user(([[sh -c %s]]):format(quote(([[
    rm -rf data.new &&
    %s/initdb -D data.new -U %s --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync >initdb.log &&
    rm -rf data && mv data.new data]]):format(self:bin(), SUPERUSER))))
  if not ok then
    fail("initdb failed:\n", why)
  end
end

--- Start PostgreSQL unless it runs, and make the database.
function Dev:start_postgres()
  local data, log = self.dir .. "/postgres/data", self.dir .. "/log/postgres.log"
  if self:postgres_pid() then
    return
  end
  self:init_cluster()
  -- A stale pid file whose number another process has by now would keep PostgreSQL from starting.
  self:as_user(("rm -f %s %s"):format(quote(data .. "/postmaster.pid"), quote(self:run_dir() .. SOCKET .. ".lock")))
  local options = ("-c listen_addresses= -c unix_socket_directories=%s -c port=5432 -c max_connections=200"):format(
    "'" .. self:run_dir() .. "'")
  local ok, why = self:as_user(("%s/pg_ctl start -w -t 120 -s -D %s -l %s -o %s"):format(
    self:bin(), quote(data), quote(log), quote(options)))
  if not ok then
    fail("PostgreSQL does not start: ", why, "\n", last_lines(log, 10))
  end
  if not self:sql("SELECT 1", DATABASE) then
    ok, why = self:sql("CREATE DATABASE " .. DATABASE, "postgres")
    if not ok then
      fail("cannot make the database: ", why)
    end
  end
end

--- Run SQL by psql, as the superuser.
-- @tparam string text
-- @tparam[opt] string database
-- @treturn boolean
-- @treturn string what psql wrote
function Dev:sql(text, database)
  return self:as_user(("%s/psql -XqAt -v ON_ERROR_STOP=1 -h %s -p 5432 -U %s -d %s -c %s"):format(
    self:bin(), quote(self:run_dir()), SUPERUSER, quote(database or DATABASE), quote(text)))
end

function Dev:stop_postgres()
  local data = self.dir .. "/postgres/data"
  if not self:postgres_pid() then
    return false
  end
  local ctl = ("%s/pg_ctl stop -w -s -D %s "):format(self:bin(), quote(data))
  if not self:as_user(ctl .. "-m fast -t 30") then
    local ok, why = self:as_user(ctl .. "-m immediate -t 30")
    if not ok then
      fail("PostgreSQL does not stop: ", why)
    end
  end
  return true
end

-- --- Valkey -----------------------------------------------------------------------------------------------

--- The program in Valkey's part.
-- @treturn string `valkey-server` or `redis-server`
-- @treturn string its version
function M.valkey_program()
  for _, name in ipairs { "valkey-server", "redis-server" } do
    local ok, text = run(name .. " --version")
    if ok then
      return name, text:match("v=([%d.]+)") or "?"
    end
  end
  fail("neither valkey-server nor redis-server is installed: `./setup deps` installs one")
end

--- @treturn int|nil Valkey's pid
function Dev:valkey_pid()
  local run_dir = self:run_dir()
  return run_dir and server_pid(self.dir .. "/valkey/valkey.pid", { "-server", run_dir .. "/valkey.sock" })
end

--- Start Valkey unless it runs.
function Dev:start_valkey()
  if self:valkey_pid() then
    return
  end
  local program = M.valkey_program()
  local socket, log = self:run_dir() .. "/valkey.sock", self.dir .. "/log/valkey.log"
  local ok, why = self:as_user(("sh -c %s"):format(quote(("rm -f %s %s && %s"):format(
    quote(socket), quote(self.dir .. "/valkey/valkey.pid"), quote {
      program, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "700", "--daemonize", "yes",
      "--pidfile", self.dir .. "/valkey/valkey.pid", "--dir", self.dir .. "/valkey", "--logfile", log,
      "--save", "", "--appendonly", "no", "--maxmemory", "256mb", "--maxmemory-policy", "volatile-ttl" }))))
  if not ok or not shell.wait_for(function() return self:valkey_pid() and shell.exists(socket) end, 10) then
    fail(program, " does not start: ", why, "\n", last_lines(log, 10))
  end
end

--- Stop Valkey.
-- @tparam[opt="TERM"] string signal
-- @treturn boolean whether it ran
function Dev:stop_valkey(signal)
  local pid = self:valkey_pid()
  if not pid then
    return false
  end
  shell.signal(pid, signal or "TERM")
  if not shell.wait_for(function() return not self:valkey_pid() end, 10) then
    shell.signal(pid, "KILL")
    shell.wait_for(function() return not self:valkey_pid() end, 5)
  end
  return true
end

-- --- both -------------------------------------------------------------------------------------------------

function Dev:locked(work)
  local lock, why = shell.lock(self.dir .. "/lock")
  if not lock then
    fail(why, " (does it belong to another user?)")
  end
  local ok, err = pcall(work)
  shell.unlock(lock)
  if not ok then
    error(err, 0)
  end
end

--- Start what does not run.
function Dev:start()
  self:locked(function()
    self:make_folders()
    self:start_postgres()
    self:start_valkey()
  end)
end

function Dev:stop_all()
  self:stop_valkey()
  self:stop_postgres()
  local link = quote(self.dir .. "/run")
  run(("test ! -L %s || rm -rf -- \"$(readlink %s)\" %s"):format(link, link, link))
end

--- Stop both servers; the data stays.
function Dev:stop()
  self:locked(function() self:stop_all() end)
end

--- Stop both servers and remove their data.
function Dev:reset()
  self:locked(function()
    self:stop_all()
    local ok, why = run(("cd %s && rm -rf postgres valkey log run"):format(quote(self.dir)))
    if not ok then
      fail("cannot remove the data: ", why)
    end
  end)
end

local function encode(path)
  return (path:gsub("[^%w/._-]", function(c) return ("%%%02X"):format(c:byte()) end))
end

--- Where the servers are.
-- @treturn {database_url=string,valkey_url=string}
function Dev:urls()
  local run_dir = self:run_dir()
  if not run_dir then
    return {}
  end
  return {
    database_url = ("postgresql://%s@/%s?host=%s"):format(SUPERUSER, DATABASE, encode(run_dir):gsub("/", "%%2F")),
    valkey_url = "unix://" .. encode(run_dir) .. "/valkey.sock?db=0",
  }
end

--- What runs.
-- @treturn {postgres=table,valkey=table} each with pid (nil when it does not run) and url
function Dev:status()
  local urls = self:urls()
  return {
    postgres = { pid = self:postgres_pid(), url = urls.database_url, log = self.dir .. "/log/postgres.log" },
    valkey = { pid = self:valkey_pid(), url = urls.valkey_url, log = self.dir .. "/log/valkey.log" },
  }
end

return M
