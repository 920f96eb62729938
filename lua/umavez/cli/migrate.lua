--- `umavez migrate`: bring the database to this program's version.
-- @module umavez.cli.migrate

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local migrate = require("umavez.migrate")
local settings = require("umavez.cli.settings")

local M = { summary = "bring the database's schema to this program's version" }

M.examples = {
  "umavez migrate                 apply what is missing; harmless when nothing is, and when several do it at once",
  "umavez migrate --status        the exit code is 4 when something is missing",
  "umavez migrate --dry-run       print the SQL that would be run",
}
M.settings = { "database_url", "tenants_table", "connect_timeout" }

function M.configure(parser)
  parser:mutex(
    parser:flag("--status", "Say what is applied and what is missing; change nothing."),
    parser:flag("--dry-run", "Print the SQL that would be run; change nothing."))
  parser:flag("--json", "Print one JSON object (with --status, or what was applied).")
end

local function print_status(status, as_json)
  if as_json then
    cli.print_json(status)
  else
    local rows = {}
    for i, step in ipairs(status.steps) do
      rows[i] = { step.name, step.applied_at or "missing" }
    end
    cli.print_table({ "MIGRATION", "APPLIED AT" }, rows)
  end
  return status.missing == 0 and cli.EXIT.ok or cli.EXIT.database
end

function M.run(args)
  local conf = settings.load(args)
  local db = database.open(conf)
  if args.status then
    return print_status(migrate.status(db), args.json)
  elseif args.dry_run then
    for _, step in ipairs(migrate.plan(db, conf)) do
      print(("-- %s\n%s"):format(step.name, step.text))
    end
    return cli.EXIT.ok
  end
  local applied = migrate.run(db, conf, function(...)
    cli.note(...)
  end)
  if args.json then
    cli.print_json { applied = applied }
  elseif #applied == 0 then
    cli.note("the database is up to date")
  end
end

return M
