--- A PostgreSQL connection for scripts and the command line. Handlers use `ctx.sql` instead.
--
-- Every statement is a transaction of its own, unless the script sends BEGIN and COMMIT. Parameters are bound, never
-- spliced; the values both ways are those of docs/tasks.md. Errors are raised objects with `code`, `message`,
-- `sqlstate`, `constraint`, `detail`, `retryable`.
-- @module umavez.pg

local c = require("umavez.c.pg")
local vm = require("umavez.vm")
local value = require("umavez.c.value")

local await, select = vm.await, select

local Connection = {}
Connection.__index = Connection

local M = {}

--- Connect.
-- @tparam[opt=""] string url a connection URI or keyword string; "" for libpq's PG* variables alone
-- @tparam[opt] table options `timeout_ms` (5000)
-- @treturn Connection
-- @raise error object: connect_failed, connect_timeout, auth_failed, no_database, bad_url, read_only
-- @yields
function M.connect(url, options)
  local handle, box = c.connect(url or "", options and options.timeout_ms)
  await(box)
  c.connected(handle)
  return setmetatable({ handle = handle }, Connection)
end

--- Split a script into statements.
-- @tparam string text
-- @treturn table array of `{ sql, line }`
M.statements = c.statements

--- Run a statement.
-- @tparam string sql one statement
-- @param ... its parameters
-- @treturn table array of rows
-- @yields
function Connection:query(sql, ...)
  return c.rows(await(c.send(self.handle, sql, select("#", ...), ...)))
end

--- Run a statement and take its first row.
-- @tparam string sql one statement
-- @param ... its parameters
-- @treturn table|nil
-- @yields
function Connection:one(sql, ...)
  return c.row(await(c.send(self.handle, sql, select("#", ...), ...)))
end

--- Run a statement.
-- @tparam string sql one statement
-- @param ... its parameters
-- @treturn number rows affected
-- @yields
function Connection:exec(sql, ...)
  return c.affected(await(c.send(self.handle, sql, select("#", ...), ...)))
end

--- Run the statements of a script one after another. Not a transaction by itself.
-- @tparam string text many statements
-- @treturn number how many
-- @raise the first error, with `line` (of the statement in the text) and `statement`
-- @yields
function Connection:script(text)
  local statements = c.statements(text)
  for _, statement in ipairs(statements) do
    local box = await(c.send(self.handle, statement[1], 0))
    local ok, err = pcall(c.affected, box)
    if not ok then
      if type(err) == "table" then
        err.line, err.statement = statement[2], statement[1]
      end
      error(err, 0)
    end
  end
  return #statements
end

--- Run a function inside a transaction: COMMIT when it returns, ROLLBACK when it raises (and raise again).
-- @tparam function fn
-- @return what fn returns
-- @yields
function Connection:transaction(fn)
  self:exec("BEGIN")
  local result = { pcall(fn, self) }
  if not result[1] then
    pcall(self.exec, self, "ROLLBACK")
    error(result[2], 0)
  end
  if c.tag(await(c.send(self.handle, "COMMIT", 0))) == "ROLLBACK" then
    error(value.error_object({
      code = "rolled_back",
      message = "an error was swallowed inside the transaction: PostgreSQL has rolled it back",
    }))
  end
  return unpack(result, 2, table.maxn(result))
end

--- The server process of this connection.
-- @treturn number
function Connection:backend_pid()
  return c.backend_pid(self.handle)
end

--- The server's version as a number, 150004 for 15.4.
-- @treturn number
function Connection:server_version()
  return c.server_version(self.handle)
end

--- Close the connection. Closing twice is harmless.
function Connection:close()
  c.close(self.handle)
end

M.null, M.array, M.json, M.bytea, M.decimal = value.null, value.array, value.json, value.bytea, value.decimal

return M
