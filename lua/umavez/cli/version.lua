--- `umavez version`.
-- @module umavez.cli.version

local cli = require("umavez.cli")
local version = require("umavez.version")

local M = { summary = "print the version of umavez and of what it stands on" }

M.examples = { "umavez version", "umavez version --json" }

function M.configure(parser)
  parser:flag("--json", "Print one JSON object.")
end

function M.run(args)
  local parts = { umavez = version, luajit = jit.version:match("%S+$"), lua = _VERSION }
  if args.json then
    cli.print_json(parts)
  else
    print(("umavez %s (LuaJIT %s)"):format(parts.umavez, parts.luajit))
  end
end

return M
