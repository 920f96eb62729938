--- Databases for specs.
local pg = require("umavez.pg")

local M = {}

M.url = os.getenv("UMAVEZ_TEST_DATABASE_URL")

-- The URL with another database. Both forms: postgresql://…/name?… and key=value.
local function with_database(url, name)
  if url:match("^postgres") then
    local head, tail = url:match("^(postgres%w*://[^/?]*)/?[^?]*(.*)$")
    return head .. "/" .. name .. tail
  end
  return url .. " dbname=" .. name
end

--- A connection to a new, empty database that is dropped when `close` is called.
-- @treturn table|nil nil without UMAVEZ_TEST_DATABASE_URL
-- @yields
function M.database(name)
  if not M.url then
    return nil
  end
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
