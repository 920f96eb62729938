--- `umavez exec`: run a Lua script inside the program. The running itself is in umavez.start, so that a script's
-- arguments are its own; what comes here are calls without a script.
-- @module umavez.cli.exec

local cli = require("umavez.cli")

local M = { summary = "run a Lua script inside umavez, with its libraries and its event loop" }

M.examples = {
  "umavez exec tests/spec/run.lua",
  "umavez exec report.lua 2026-01 --csv     (the arguments are the script's own)",
}

function M.configure(parser)
  parser:argument("FILE", "A Lua script; the number that it returns becomes the exit code.")
  parser:argument("ARGUMENTS", "What the script gets as `...` and `arg`."):args("*")
end

function M.run()
  cli.fail("usage", "FILE comes first: umavez exec FILE [ARGUMENTS]")
end

return M
