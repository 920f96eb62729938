--- `umavez demo`: what `./setup demo` runs.
-- @module umavez.cli.demo

local shell = require("umavez.shell")

local M = { summary = "run the main job on real input, with faults, and count what came of it" }

M.examples = {
  "umavez demo",
  "umavez demo --input webhooks.jsonl      (any JSON lines)",
  "umavez demo --http      (the HTTP door, step by step with curl)",
}

function M.configure(parser)
  parser:option("--input", "JSON lines; default: the notifications that come with umavez."):argname("FILE")
  parser:flag("--http", "Show the HTTP door instead: pay, repeat, race, reuse a key, kill the worker.")
end

function M.run(args)
  if args.http then
    return require("umavez.demo_http").run()
  end
  local here = debug.getinfo(1, "S").source:match("^@(.*)/umavez/cli/demo%.lua$") or "lua"
  return require("umavez.demo").run(args.input or shell.absolute(here .. "/../examples") .. "/notifications.jsonl")
end

return M
