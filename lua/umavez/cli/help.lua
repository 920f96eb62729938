--- `umavez help`.
-- @module umavez.cli.help

local cli = require("umavez.cli")

local M = { summary = "explain a command, or list the commands" }

M.examples = { "umavez help", "umavez help enqueue", "umavez help settings" }

function M.configure(parser)
  parser:argument("topic", "A command, or `settings`."):args("?")
end

function M.run(args)
  local main = require("umavez.cli.main")
  if not args.topic then
    print(main.overview())
  elseif args.topic == "settings" then
    print(require("umavez.cli.settings").describe())
  elseif cli.contains(main.COMMANDS, args.topic) then
    print((main.parser(args.topic):get_help()))
  else
    cli.fail("usage", "unknown command \"%s\"%s", args.topic, cli.did_you_mean(args.topic, main.COMMANDS))
  end
end

return M
