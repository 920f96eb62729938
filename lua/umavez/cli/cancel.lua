--- `umavez cancel`: end a run that waits, stop one that runs.
-- @module umavez.cli.cancel

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local operator = require("umavez.cli.operator")
local sys = require("umavez.sys")

local M = { summary = "cancel a run: a waiting one ends, a running one is stopped and rolled back" }

M.examples = {
  "umavez cancel 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c --reason 'wrong amount'",
  "umavez cancel RUN_ID --wait 0s     ask, and do not wait for the worker to stop it",
}
M.settings = { "database_url", "connect_timeout" }

function M.configure(parser)
  parser:argument("run_id", "The run.")
  operator.add_reason(parser)
  parser:option("--wait", "How many seconds to wait for a running one to stop, like 10s.", "10s"):argname("SECONDS")
    :convert(function(text) return cli.number((text:gsub("s$", ""))) end)
  parser:flag("--json", "Print one JSON object.")
end

local ENDED = [[
SELECT status, outcome->>'code' AS code FROM umavez.finished_runs
 WHERE run_id = $1::uuid ORDER BY finished_at DESC LIMIT 1]]

-- What has become of a run that was asked to stop.
local function wait_for_end(db, run_id, seconds)
  local deadline = sys.monotonic_ms() + seconds * 1000
  while true do
    local row = db:one(ENDED, run_id)
    if row then
      return row.code == "cancelled" and "cancelled" or row.status
    elseif not db:one("SELECT 1 FROM umavez.runs WHERE run_id = $1::uuid", run_id) then
      return db:one(ENDED, run_id) and wait_for_end(db, run_id, 0) or "completed"
    elseif sys.monotonic_ms() >= deadline then
      return "asked"
    end
    sys.sleep(100)
  end
end

local WORDS = {
  cancelled = "%s is cancelled",
  asked = "%s is asked to stop; it does so at its next wait, unless it completes first (`umavez show` says which)",
}

local function refuse(run_id, state, waited)
  if state == "unknown" then
    cli.fail("failed", "there is no run %s", run_id)
  end
  cli.fail("failed", waited and "%s had ended before it could be stopped: %s"
    or "%s has ended already, there is nothing to cancel: %s", run_id, state)
end

function M.run(args)
  database.check_uuid(args.run_id)
  local db = operator.open(args)
  local state = db:one("SELECT umavez.cancel_run($1::uuid, $2, $3) AS state", args.run_id, args.reason,
    operator.actor()).state
  local waited = state == "asked" and args.wait > 0
  if waited then
    state = wait_for_end(db, args.run_id, args.wait)
  end
  if args.json then
    cli.print_json { run_id = args.run_id, state = state }
    return WORDS[state] and cli.EXIT.ok or cli.EXIT.failed
  elseif not WORDS[state] then
    refuse(args.run_id, state, waited)
  end
  print(WORDS[state]:format(args.run_id))
end

return M
