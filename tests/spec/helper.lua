--- Databases for specs.
local pg = require("umavez.pg")
local with_database = require("umavez.testing.database").with_database

local M = {}

M.url = os.getenv("UMAVEZ_TEST_DATABASE_URL")

local server, dir

--- Start a private PostgreSQL, unless one is given.
function M.start()
  if M.url then
    return
  end
  dir = os.tmpname()
  os.remove(dir)
  server = require("umavez.dev").open(dir)
  server:make_folders()
  server:start_postgres()
  M.url = server:urls().database_url
end

--- Stop it and remove its data.
function M.stop()
  if server then
    server:reset()
    os.execute("rm -rf " .. require("umavez.shell").quote(dir))
    server = nil
  end
end

--- A connection to a new, empty database that is dropped when `close` is called.
-- @treturn table
-- @yields
function M.database(name)
  name = ("umavez_spec_%s_%d"):format(name, require("umavez.sys").getpid())
  local admin = pg.connect(M.url)
  admin:exec("DROP DATABASE IF EXISTS " .. name .. " WITH (FORCE)")
  admin:exec("CREATE DATABASE " .. name)
  local db = pg.connect(with_database(M.url, name))
  local close = db.close
  db.close = function(self)
    close(self)
    admin:exec("DROP DATABASE IF EXISTS " .. name .. " WITH (FORCE)")
    admin:close()
  end
  return db
end

return M
