--- `umavez doctor`: look at everything that umavez stands on, and say what to do.
-- @module umavez.cli.doctor

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local doctor = require("umavez.doctor")
local settings = require("umavez.cli.settings")

local M = { summary = "look at server, schema, queue, Valkey and machine: what is wrong, why it matters, what to do" }

M.examples = {
  "umavez doctor                     the exit code is 1 after warnings, 6 after errors",
  "umavez doctor --all               what is well, too",
  "umavez doctor --json | jq -r 'select(.severity == \"error\") | .fix'",
}
M.settings = "all"

function M.configure(parser)
  parser:flag("--all", "Show what is well, too.")
  parser:option("--long-transaction", "From how many seconds on a transaction is a long one.", "300"):argname("SECONDS")
    :convert(cli.number)
  parser:flag("--json", "Print one JSON object a finding, with what is well.")
end

-- The connection, or nil and why there is none.
local function connect(conf)
  local ok, db = pcall(database.open, conf)
  if ok then
    return db
  elseif type(db) == "table" then
    return nil, db.message
  end
  error(db, 0)
end

local function print_finding(finding)
  print(("%-8s %s: %s"):format(finding.severity, finding.check, finding.found))
  if finding.why then
    print("         why  " .. finding.why)
    print("         do   " .. finding.fix)
  end
end

local function print_all(findings, all)
  local counts = {}
  for _, finding in ipairs(findings) do
    counts[finding.severity] = (counts[finding.severity] or 0) + 1
    if all or finding.severity ~= "ok" then
      print_finding(finding)
    end
  end
  print(("%d errors, %d warnings, %d notes; %d checks are well"):format(counts.error or 0, counts.warning or 0,
    counts.info or 0, counts.ok or 0))
end

local function exit_code(findings, db)
  local worst = findings[1] and findings[1].severity
  if not db then
    return cli.EXIT.database
  end
  return worst == "error" and cli.EXIT.unwell or worst == "warning" and cli.EXIT.failed or cli.EXIT.ok
end

function M.run(args)
  local conf = settings.load(args)
  local db, why = connect(conf)
  local findings = doctor.examine(db, conf, args.long_transaction)
  if not db then
    table.insert(findings, 1, { severity = "error", check = "PostgreSQL", found = why,
      why = "Without it nothing runs.", fix = "Start it, or mend database_url." })
  end
  if args.json then
    for _, finding in ipairs(findings) do
      cli.print_json(finding)
    end
  else
    print_all(findings, args.all)
  end
  return exit_code(findings, db)
end

return M
