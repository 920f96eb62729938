--- `umavez test`: the specs of tasks, inside the program, against a private database.
-- @module umavez.cli.test

local cli = require("umavez.cli")
local settings = require("umavez.cli.settings")
local tasks = require("umavez.cli.tasks")

local M = { summary = "run the specs of tasks (busted) against a private database" }

M.examples = {
  "umavez test                            every *_spec.lua below the tasks folder",
  "umavez test tasks/payments             some files or folders",
  "umavez test --filter 'books a payment'",
  "umavez test --stop                     stop the private PostgreSQL, which is left running for the next time",
}
M.settings = { "tasks_dir", "tenants_table" }

function M.configure(parser)
  parser:argument("FILE", "Spec files or folders; default: the tasks folder."):args("*")
  parser:option("--filter", "Only tests whose names match this Lua pattern."):argname("PATTERN")
  parser:option("--output", "busted's form of output: plainTerminal, utfTerminal, TAP, json, junit."):argname("NAME")
  parser:option("--schema", "Apply this SQL file first: what umavez's schema and the schema.sql files stand on.")
    :argname("FILE"):count("*")
  parser:option("--dir", "Where the private PostgreSQL lives.", ".umavez/test")
  parser:option("--server", "Use this PostgreSQL (a superuser's URL) instead [UMAVEZ_TEST_DATABASE_URL].")
    :argname("URL")
  parser:flag("--stop", "Stop the private PostgreSQL; run nothing.")
end

local function busted_arguments(args, conf)
  local here = debug.getinfo(1, "S").source:match("^@(.*)/cli/test%.lua$")
  local list = { [0] = "umavez test", "--helper=" .. here .. "/testing/helper.lua", "--pattern=_spec%.lua$" }
  for _, name in ipairs { "filter", "output" } do
    if args[name] then
      list[#list + 1] = ("--%s=%s"):format(name, args[name])
    end
  end
  list[#list + 1] = "--"
  for _, path in ipairs(#args.FILE > 0 and args.FILE or { conf.tasks_dir }) do
    list[#list + 1] = path
  end
  return list
end

local function load_tasks(conf)
  local found, faults = tasks.load(conf)
  if #faults > 0 then
    for _, fault in ipairs(faults) do
      io.stderr:write(tostring(fault), "\n")
    end
    cli.fail("config", "%d faults in the manifests under %s; nothing was run", #faults, conf.tasks_dir)
  end
  return found
end

-- busted leaves by os.exit, or, when something failed, by an error without a value.
local function run_busted(arguments)
  _G.arg = arguments
  local ok, err = pcall(require("busted.runner"), { standalone = false })
  if not ok and err ~= nil then
    io.stderr:write(tostring(err), "\n")
  end
  return ok and cli.EXIT.ok or cli.EXIT.failed
end

function M.run(args)
  if args.stop then
    local servers = require("umavez.dev").open(args.dir)
    servers:stop()
    cli.note("the PostgreSQL under %s is stopped", servers.dir)
    return cli.EXIT.ok
  end
  if not pcall(require, "busted") then
    cli.fail("failed", "busted is not installed: `apt install lua-busted` (or luarocks) installs it")
  end
  local conf = settings.load(args)
  local stage_of = require("umavez.testing.stage")
  local stage = stage_of.open { conf = conf, tasks = load_tasks(conf), dir = args.dir, schemas = args.schema,
    server = args.server or os.getenv("UMAVEZ_TEST_DATABASE_URL") }
  require("umavez.testing").attach(stage)
  local exit = os.exit
  os.exit = function(code) -- luacheck: ignore 122
    pcall(stage_of.close, stage)
    exit(code)
  end
  local code = run_busted(busted_arguments(args, conf))
  stage_of.close(stage)
  os.exit = exit -- luacheck: ignore 122
  return code
end

return M
