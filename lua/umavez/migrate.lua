--- Migrations: numbered SQL files, applied in order, each in one transaction, recorded with their checksums.
--
--     sql/0001_ledger.sql …      tables; forward only, never changed after a release
--     sql/functions/*.sql        functions; applied whole whenever one of them has changed
--
-- Every transaction takes the same advisory lock first and looks what is there after it has it: so any number of
-- programs may migrate at once, through a pooler too, and one that is killed leaves its step undone.
-- `:tenants_table` in the files stands for the setting's value.
-- @module umavez.migrate

local cli = require("umavez.cli")
local shell = require("umavez.shell")
local sys = require("umavez.sys")

local M = {}

local LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('umavez.migrate', 0))"

local RECORD = [[
CREATE SCHEMA IF NOT EXISTS umavez;
CREATE TABLE IF NOT EXISTS umavez.migrations (
  version    integer NOT NULL,              -- 0: the functions
  name       text NOT NULL,
  checksum   text NOT NULL,                 -- SHA-256 of the file
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT migrations_pkey PRIMARY KEY (version)
);]]

local FUNCTIONS = "functions"

--- Where this program's SQL lies: beside its Lua library.
-- @treturn string
function M.sql_dir()
  local here = debug.getinfo(1, "S").source:match("^@(.*)/umavez/migrate%.lua$") or "lua"
  return os.getenv("UMAVEZ_TEST_SQL_DIR") or here .. "/../sql"
end

--- This program's steps: the numbered files, then the functions as one step of version 0.
-- @tparam[opt] string dir
-- @treturn {table,...} each with version, name, text, checksum, files (name and text of each)
function M.steps(dir)
  dir = dir or M.sql_dir()
  local steps = {}
  for _, path in ipairs(shell.glob(shell.quote(dir) .. "/[0-9][0-9][0-9][0-9]_*.sql")) do
    local name, text = path:match("[^/]+$"), assert(shell.read_file(path))
    steps[#steps + 1] = { version = tonumber(name:match("^%d+")), name = name, text = text,
      checksum = sys.sha256_hex(text), files = { { name = name, text = text } } }
    if steps[#steps].version ~= #steps then
      cli.fail("config", "%s: expected number %04d; numbers have no gaps and no doubles", path, #steps)
    end
  end
  if #steps == 0 then
    cli.fail("config", "no migrations under %s: the program is not installed whole", dir)
  end
  local functions = { version = 0, name = FUNCTIONS, files = {} }
  local texts = {}
  for i, path in ipairs(shell.glob(shell.quote(dir) .. "/functions/*.sql")) do
    functions.files[i] = { name = FUNCTIONS .. "/" .. path:match("[^/]+$"), text = assert(shell.read_file(path)) }
    texts[i] = functions.files[i].text
  end
  functions.text = table.concat(texts, "\n")
  functions.checksum = sys.sha256_hex(functions.text)
  steps[#steps + 1] = functions
  return steps
end

-- What the database has recorded, by version.
local function recorded(db)
  if not db:one("SELECT 1 WHERE to_regclass('umavez.migrations') IS NOT NULL") then
    return {}
  end
  local rows = {}
  for _, row in ipairs(db:query("SELECT version, name, checksum, applied_at::text FROM umavez.migrations")) do
    rows[row.version] = row
  end
  return rows
end

-- Refuses a database that this program must not touch.
local function check_history(steps, done)
  local newest, known = 0, #steps - 1
  for version in pairs(done) do
    newest = math.max(newest, version)
  end
  if newest > known then
    cli.fail("database", "the database is newer than this program: it has migration %04d (%s), this program knows up "
      .. "to %04d (%s); use the newer program", newest, done[newest].name, known, steps[known].name)
  end
  for _, step in ipairs(steps) do
    local row = done[step.version]
    if row and step.version > 0 and row.checksum ~= step.checksum then
      cli.fail("database", "sql/%s has been changed after it was applied (on %s): recorded checksum %s, found %s; put "
        .. "the file back, and make the change a new migration", step.name, row.applied_at, row.checksum:sub(1, 12),
        step.checksum:sub(1, 12))
    end
  end
end

local function is_missing(step, done)
  local row = done[step.version]
  return not row or row.checksum ~= step.checksum
end

--- What is applied and what is missing.
-- @param db umavez.pg's connection
-- @treturn table steps (name, checksum, applied_at), missing (a count), first_missing (a name)
-- @yields
function M.status(db)
  local steps, done = M.steps(), recorded(db)
  check_history(steps, done)
  local status = { steps = {}, missing = 0 }
  for i, step in ipairs(steps) do
    local missing = is_missing(step, done)
    status.steps[i] = { name = step.name, checksum = step.checksum,
      applied_at = not missing and done[step.version].applied_at or nil }
    if missing then
      status.missing = status.missing + 1
      status.first_missing = status.first_missing or step.name
    end
  end
  return status
end

-- `schema.table` or `table`, each part quoted.
local function quoted_table(setting)
  local parts = {}
  for part in (setting .. "."):gmatch("(.-)%.") do
    if not part:find("^[%a_\128-\255][%w_$\128-\255]*$") then
      cli.fail("config", "setting tenants_table: expected a table's name like public.tenants, found \"%s\"", setting)
    end
    parts[#parts + 1] = '"' .. part .. '"'
  end
  return table.concat(parts, ".")
end

local function filled_in(text, conf)
  local name = quoted_table(conf.tenants_table or "public.tenants")
  return (text:gsub(":tenants_table%f[^%w_]", function() return name end))
end

--- The steps that are missing, with their SQL as it would be run.
-- @param db
-- @tparam table conf
-- @treturn {table,...} each with name and text
-- @yields
function M.plan(db, conf)
  local steps, done, plan = M.steps(), recorded(db), {}
  check_history(steps, done)
  for _, step in ipairs(steps) do
    if is_missing(step, done) then
      plan[#plan + 1] = { name = step.name, text = filled_in(step.text, conf) }
    end
  end
  return plan
end

--- Run a file of statements; the first that fails is told with its line.
-- @param db the connection
-- @tparam string path as the message shows it
-- @tparam string text its statements
-- @yields
function M.run_script(db, path, text)
  local ok, err = pcall(db.script, db, text)
  if not ok and type(err) == "table" then
    cli.fail("failed", "%s, the statement in line %s failed: %s", path, tostring(err.line),
      select(2, cli.describe(err)))
  elseif not ok then
    error(err, 0)
  end
end

local function run_file(db, file, conf)
  M.run_script(db, "sql/" .. file.name, filled_in(file.text, conf))
end

-- One step in one transaction; gives whether it was missing still.
local function apply(db, step, conf)
  return db:transaction(function()
    db:exec(LOCK)
    if not is_missing(step, recorded(db)) then
      return false
    end
    for _, file in ipairs(step.files) do
      run_file(db, file, conf)
    end
    db:exec([[INSERT INTO umavez.migrations (version, name, checksum) VALUES ($1, $2, $3)
              ON CONFLICT (version) DO UPDATE SET checksum = excluded.checksum, applied_at = clock_timestamp()]],
      step.version, step.name, step.checksum)
    return true
  end)
end

--- Apply what is missing.
-- @param db
-- @tparam table conf the settings (tenants_table)
-- @tparam function note called with a format and values: what is being done
-- @treturn {string,...} the names of the steps that this call applied
-- @yields
function M.run(db, conf, note)
  local steps = M.steps()
  local tenants = quoted_table(conf.tenants_table or "public.tenants")
  local had_tenants = db:one("SELECT 1 WHERE to_regclass($1) IS NOT NULL", tenants) ~= nil
  check_history(steps, recorded(db))
  if db:server_version() >= 140000 then
    -- The server ends a killed caller's statement soon, and so gives its lock to the next.
    db:exec("SET client_connection_check_interval = '1s'")
  end
  db:transaction(function()
    db:exec(LOCK)
    if not db:one("SELECT 1 WHERE to_regclass('umavez.migrations') IS NOT NULL") then
      db:script(RECORD)
    end
  end)
  local applied = {}
  for i, step in ipairs(steps) do
    if apply(db, step, conf) then
      note("applied %s", step.name == FUNCTIONS and ("the functions (%d files)"):format(#step.files) or step.name)
      if i == 1 and not had_tenants then
        note("there was no table %s, so a minimal one was made (id bigint); use your own by the setting tenants_table",
          conf.tenants_table or "public.tenants")
      end
      applied[#applied + 1] = step.name
    end
  end
  return applied
end

return M
