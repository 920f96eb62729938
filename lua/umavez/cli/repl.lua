--- `umavez repl`: Lua by hand, with umavez's libraries and a connection.
-- @module umavez.cli.repl

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local json = require("umavez.json")
local repl = require("umavez.repl")
local settings = require("umavez.cli.settings")
local sys = require("umavez.sys")

local M = { summary = "try Lua by hand, with umavez's libraries and a connection to the database" }

M.examples = {
  "umavez repl",
  "umavez repl < script.lua       (what each line gives is printed; the exit code is 1 when one failed)",
  "rlwrap umavez repl             (with a history, where rlwrap is installed)",
}
M.settings = { "database_url", "connect_timeout" }

local HELP = [[
sql("SELECT …", …)            the rows of a statement, each a transaction of its own
enqueue("task", args, {tenant = 7, after = "5m"})   its run_id
db                            the connection: query, one, exec, transaction, script (as in ctx.sql)
umavez, json, pg, sys         the libraries
help                          this; the end of the input (^D) ends]]

local function session(conf)
  local db
  local function connection()
    db = db or database.open(conf)
    return db
  end
  local env = { umavez = require("umavez"), json = json, pg = require("umavez.pg"), sys = sys }
  function env.sql(text, ...)
    return connection():query(text, ...)
  end
  function env.enqueue(task, args, options)
    options = options or {}
    return connection():one([[SELECT umavez.enqueue($1, $2::jsonb, tenant_id => $3::bigint, queue => $4,
        run_at => coalesce($5::timestamptz, clock_timestamp() + $6::interval))::text AS run_id]], task,
      json.encode(args or {}), options.tenant, options.queue, options.run_at, options.after).run_id
  end
  return setmetatable(env, { __index = function(_, name)
    if name == "db" then
      return connection()
    end
    return _G[name]
  end })
end

function M.run(args)
  local conf = settings.load(args)
  local by_hand = sys.isatty(0)
  if by_hand then
    cli.note("Lua is read from here; `help` lists what is there, ^D ends")
  end
  local well = repl.run(session(conf), { read = io.read, prompt = by_hand and "umavez" or nil,
    commands = { help = function() print(HELP) end } })
  if by_hand then
    print()
    return cli.EXIT.ok
  end
  return well and cli.EXIT.ok or cli.EXIT.failed
end

return M
