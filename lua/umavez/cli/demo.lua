--- `umavez demo`: what `./setup demo` runs.
-- @module umavez.cli.demo

local shell = require("umavez.shell")

local M = { summary = "run the main job on real input, with faults, and count what came of it" }

M.examples = { "umavez demo", "umavez demo --input webhooks.jsonl      (any JSON lines)" }

function M.configure(parser)
  parser:option("--input", "JSON lines; default: the notifications that come with umavez."):argname("FILE")
end

function M.run(args)
  local here = debug.getinfo(1, "S").source:match("^@(.*)/umavez/cli/demo%.lua$") or "lua"
  return require("umavez.demo").run(args.input or shell.absolute(here .. "/../examples") .. "/notifications.jsonl")
end

return M
