--- The commands' connection to PostgreSQL.
-- @module umavez.cli.database

local cli = require("umavez.cli")
local migrate = require("umavez.migrate")
local pg = require("umavez.pg")
local redact = require("umavez.conf").redact

local M = {}

local UUID = "^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"

local function shown(url)
  return url == "" and "by libpq's defaults (no database_url is set)" or "at " .. redact(url)
end

--- Connect.
-- @tparam table conf the settings
-- @return umavez.pg's connection
-- @yields
function M.open(conf)
  local ok, db = pcall(pg.connect, conf.database_url, { timeout_ms = conf.connect_timeout })
  if ok then
    return db
  elseif type(db) ~= "table" then
    error(db, 0)
  end
  cli.fail("database", "cannot connect to the database %s: %s\n%s", shown(conf.database_url),
    tostring(db.message or db.code),
    conf.database_url == "" and "Set DATABASE_URL, or start a private server: eval \"$(umavez dev)\""
    or "Is the server running, and are DATABASE_URL's host, port, role and database right?")
end

--- Say it in words when err is PostgreSQL's refusal of a tenant that is not there; else do nothing.
-- @param err what a statement raised
-- @param tenant the tenant that was named, or nil
-- @tparam table conf the settings
function M.check_tenant(err, tenant, conf)
  if type(err) == "table" and err.sqlstate == "23503" and tostring(err.constraint):find("tenant_id_fkey", 1, true) then
    cli.fail("failed", "there is no tenant %s in %s, the application's table of tenants (setting tenants_table)",
      tostring(tenant), conf.tenants_table)
  end
end

--- Refuse a database that is not migrated, or newer than this program.
-- @param db the connection
-- @yields
function M.check_migrated(db)
  local status = migrate.status(db)
  if status.missing > 0 then
    cli.fail("database", "the database is not migrated: %s is missing; `umavez migrate` brings it up to date",
      status.first_missing)
  end
end

--- Connect to a database that must be migrated.
-- @tparam table conf
-- @return the connection
-- @yields
function M.open_migrated(conf)
  local db = M.open(conf)
  M.check_migrated(db)
  return db
end

--- Refuse what is no UUID.
-- @tparam string text
function M.check_uuid(text)
  if not text:find(UUID) then
    cli.fail("usage", "a run's id is a UUID like 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c, found \"%s\"", text)
  end
end

return M
