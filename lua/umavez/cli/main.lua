--- The command line: finds the command, parses its arguments with argparse, turns errors into messages and exit codes.
--
-- A command is a module `umavez.cli.NAME` with
--
--   * `summary`    one line
--   * `examples`   { "umavez NAME ...", ... }
--   * `settings`   names of the settings that become its flags (umavez.cli.settings)
--   * `configure(parser)`   declares its arguments, may be missing
--   * `run(args, context)`  does the work; gives an exit code, nil means 0
--
-- A user's mistake is raised as a table by `umavez.cli.fail`; anything else that is raised is our fault and shown with
-- its traceback.
-- @module umavez.cli.main

local argparse = require("argparse")
local cli = require("umavez.cli")
local settings = require("umavez.cli.settings")

local M = {}

--- The commands in the order that help shows them.
M.COMMANDS = { "worker", "dev", "new", "test", "migrate", "enqueue", "runs", "show", "retry", "cancel", "discard",
  "forget", "queues", "pause", "resume", "limit", "schedules", "workers", "audit", "purge", "top", "doctor", "token",
  "openapi", "check", "describe", "exec", "repl", "demo", "version", "help" }

local EXIT_CODES = [[
exit codes:
   0  done
   1  an operation failed
   2  wrong usage
   3  a fault in the configuration or a manifest
   4  the database cannot be reached, is not migrated, or is newer than this program
   5  `worker` only: its children died again and again
   6  `doctor` only: it has found errors (1: warnings)]]

local function epilog(command)
  local lines = { "examples:" }
  for _, example in ipairs(command.examples or {}) do
    lines[#lines + 1] = "   " .. example
  end
  return (command.examples and table.concat(lines, "\n") .. "\n\n" or "") .. EXIT_CODES
end

-- argparse calls a value that its converter does not take a "malformed argument" and says no more: say of which option.
local function name_faults(elements)
  for _, element in ipairs(elements) do
    local convert = element._convert
    if type(convert) == "function" then
      element:convert(function(text)
        local value, why = convert(text)
        if value == nil then
          return nil, ("%s: %s"):format(element._name, why or ("\"%s\" is not understood"):format(text))
        end
        return value
      end)
    end
  end
end

--- The parser of one command.
-- @tparam string name
-- @return argparse's parser
-- @treturn table the command's module
function M.parser(name)
  local command = require("umavez.cli." .. name)
  local parser = argparse("umavez " .. name, command.summary, epilog(command))
  parser:usage_max_width(100):help_max_width(100):help_description_margin(34)
  if command.configure then
    command.configure(parser)
  end
  name_faults(parser._options)
  name_faults(parser._arguments)
  settings.add_flags(parser, command.settings or {})
  return parser, command
end

--- What `umavez help` shows.
-- @treturn string
function M.overview()
  local lines = { "usage: umavez COMMAND [ARGUMENTS]", "",
    "Runs tasks in Lua: the queue delivers at least once, the effect happens once.", "", "commands:" }
  for _, name in ipairs(M.COMMANDS) do
    lines[#lines + 1] = ("   %-10s %s"):format(name, require("umavez.cli." .. name).summary)
  end
  lines[#lines + 1] = ""
  lines[#lines + 1] = "`umavez help COMMAND` says more; `umavez help settings` lists the settings."
  lines[#lines + 1] = ""
  lines[#lines + 1] = EXIT_CODES
  return table.concat(lines, "\n")
end

local function say(name, message)
  io.stderr:write("umavez ", name, ": ", message, "\n")
end

local function explain(name, err)
  if type(err) ~= "table" then
    say(name, "this is a fault of umavez, please report it: " .. tostring(err))
    return cli.EXIT.failed
  end
  local exit, message = cli.describe(err)
  say(name, message)
  return exit
end

local function parse(name, argv)
  local parser, command = M.parser(name)
  local ok, args = parser:pparse(argv)
  if not ok then
    say(name, args .. "\n" .. parser:get_usage() .. "\n`umavez help " .. name .. "` says more.")
    return nil, cli.EXIT.usage
  end
  return args, command
end

--- Run a command line.
-- @tparam {string,...} argv without the program's name
-- @treturn int the exit code
-- @yields
function M.main(argv)
  local name = table.remove(argv, 1) or "help"
  local alias = { ["-h"] = "help", ["--help"] = "help", ["-V"] = "version", ["--version"] = "version" }
  name = alias[name] or name
  if not cli.contains(M.COMMANDS, name) then
    io.stderr:write(("umavez: unknown command \"%s\"%s (`umavez help` lists them)\n"):format(
      name, cli.did_you_mean(name, M.COMMANDS)))
    return cli.EXIT.usage
  end
  local args, command = parse(name, argv)
  if not args then
    return command
  end
  local ok, result = xpcall(command.run, function(err)
    return type(err) == "table" and err or debug.traceback(tostring(err), 2)
  end, args, { name = name })
  if not ok then
    return explain(name, result)
  end
  return result or 0
end

return M
