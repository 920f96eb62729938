--- `umavez dev`: a private PostgreSQL and a private Valkey for development.
-- @module umavez.cli.dev

local cli = require("umavez.cli")
local dev = require("umavez.dev")

local M = { summary = "keep a private PostgreSQL and a private Valkey running for development" }

M.examples = {
  "umavez dev                     start both (those that run are left alone), print their URLs",
  "eval \"$(umavez dev)\"           and set DATABASE_URL and VALKEY_URL in this shell",
  "umavez dev --status --json",
  "umavez dev --stop              stop both; the data stays",
  "umavez dev --reset             stop both, remove their data, start afresh",
}

function M.configure(parser)
  parser:mutex(
    parser:flag("--stop", "Stop both servers; their data stays."),
    parser:flag("--status", "Say what runs; the exit code is 1 unless both do."),
    parser:flag("--reset", "Stop both servers, remove their data and start afresh."))
  parser:option("--dir", "Where they live.", ".umavez")
  parser:flag("--json", "Print one JSON object.")
end

local function print_status(servers, as_json)
  local status = servers:status()
  if as_json then
    cli.print_json(status)
  else
    for _, name in ipairs { "postgres", "valkey" } do
      local server = status[name]
      print(("%-9s %s"):format(name, server.pid and ("running, pid %d, %s"):format(server.pid, server.url)
        or "not running"))
    end
  end
  return status.postgres.pid and status.valkey.pid and cli.EXIT.ok or cli.EXIT.failed
end

function M.run(args)
  local servers = dev.open(args.dir)
  if args.status then
    return print_status(servers, args.json)
  elseif args.stop then
    servers:stop()
    cli.note("both servers are stopped; their data stays in %s", servers.dir)
    return cli.EXIT.ok
  end
  if args.reset then
    servers:reset()
  end
  servers:start()
  if args.json then
    return print_status(servers, true)
  end
  local program, version = dev.valkey_program()
  cli.note("PostgreSQL and %s %s run under %s", program, version, servers.dir)
  local urls = servers:urls()
  print(("export DATABASE_URL='%s'\nexport VALKEY_URL='%s'"):format(urls.database_url, urls.valkey_url))
end

return M
