--- `umavez test`: the specs of tasks, inside the program, against a private database.
-- @module umavez.cli.test

local cli = require("umavez.cli")
local settings = require("umavez.cli.settings")
local sys = require("umavez.sys")
local tasks = require("umavez.cli.tasks")

-- counts.tests: how many tests have been begun; umavez.testing.helper counts.
local M = { counts = { tests = 0 }, summary = "run the specs of tasks (busted) against a private database" }

M.examples = {
  "umavez test                            every *_spec.lua below the tasks folder",
  "umavez test tasks/payments             some files or folders",
  "umavez test --filter 'books a payment'",
  "umavez test --stop                     stop the private PostgreSQL, which is left running for the next time",
}
M.settings = { "tasks_dir", "tenants_table" }

local OUTPUTS = { "plainTerminal", "utfTerminal", "TAP", "json", "junit", "gtest" }

-- A file of one's own is told by its ending.
local function output(name)
  if name:find("%.lua$") then
    if not sys.exists(name) then
      return nil, ("there is no file \"%s\""):format(name)
    end
    return name
  end
  return cli.one_of(OUTPUTS)(name)
end

function M.configure(parser)
  parser:argument("FILE", "Spec files or folders; default: the tasks folder."):args("*")
  parser:option("--filter", "Only tests whose names match this Lua pattern."):argname("PATTERN")
  parser:option("--output", "busted's form of output: " .. table.concat(OUTPUTS, ", ") .. ", or a Lua file.")
    :argname("NAME"):convert(output)
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

-- A run of no test at all must not look like a success.
local function check_ran(args)
  io.stdout:flush()
  if M.counts.tests > 0 then
    return cli.EXIT.ok
  elseif args.filter then
    cli.fail("failed", "no test's name matches --filter '%s' (a Lua pattern): nothing was run", args.filter)
  end
  cli.fail("failed", "there is no test in what was named: nothing was run")
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

-- All that can be seen before a server is started.
local function check(args)
  if args.filter and not pcall(string.find, "", args.filter) then
    cli.fail("usage", "--filter: \"%s\" is no Lua pattern (`%%` quotes a sign, as in `%%(`)", args.filter)
  end
  for _, path in ipairs(args.FILE) do
    if not sys.exists(path) then
      cli.fail("usage", "there is no file or folder \"%s\"", path)
    end
  end
  for _, path in ipairs(args.schema) do
    if not sys.exists(path) then
      cli.fail("usage", "--schema: cannot read the schema file %s", path)
    end
  end
end

function M.run(args)
  check(args)
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
  return code ~= cli.EXIT.ok and code or check_ran(args)
end

return M
