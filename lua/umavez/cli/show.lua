--- `umavez show`: everything that the database knows of one run.
-- @module umavez.cli.show

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local settings = require("umavez.cli.settings")
local tasks = require("umavez.cli.tasks")

local M = { summary = "show one run: state, deliveries, key, ledger row, outcome, failure" }

M.examples = { "umavez show 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c", "umavez show RUN_ID --json | jq .outcome" }
M.settings = { "database_url", "connect_timeout", "tasks_dir" }

function M.configure(parser)
  parser:argument("run_id", "The run.")
  parser:flag("--args", "Show the run's args too (they may hold what logs must not).")
  parser:flag("--json", "Print one JSON object.")
end

-- Everything as text: nothing of a jsonb value is changed on its way through Lua.
local RUN = [[
SELECT run_id::text, task, tenant_id::text, queue, priority, state, replay, deliveries, busy, crashes, attempt,
       discarded_at::text, enqueued_at::text, run_at::text, lease_until::text, finished_at::text, worker_id::text,
       traceparent, key_digest, outcome::text, failure::text, args::text
  FROM umavez.run_details($1::uuid)]]

local LEDGER = [[
SELECT id::text, status, attempt, fingerprint, outcome::text, expires_at::text, created_at::text, updated_at::text,
       expired
  FROM umavez.ledger_row($1::bigint, decode($2, 'hex'))]]

local function ledger_row(db, run)
  return run.key_digest and db:one(LEDGER, run.tenant_id, run.key_digest) or nil
end

-- Whose outcome the ledger holds. It was written in the transaction that ended that run, which leaves a day or two of
-- the history to be read.
local HOLDER = [[
SELECT run_id::text AS run_id, task, status, finished_at::text AS finished_at
  FROM umavez.finished_runs
 WHERE idempotency_key = decode($1, 'hex') AND tenant_id IS NOT DISTINCT FROM $2::bigint
   AND attempt IS NOT NULL AND NOT replay AND run_id <> $3::uuid
   AND finished_at BETWEEN $4::timestamptz - interval '1 hour' AND $4::timestamptz + interval '1 hour'
 ORDER BY finished_at DESC LIMIT 1]]

-- Of a run that was refused because its key is in use: what the key is made of, and who has it.
local function explain_reuse(db, run, ledger, declared)
  if not (run.outcome and require("umavez.json").decode(run.outcome).code == "key_reused" and run.key_digest) then
    return
  end
  local task = declared[run.task]
  run.key_parts = task and type(task.key) == "table" and require("umavez.json").array { unpack(task.key) } or nil
  local holder = ledger and db:one(HOLDER, run.key_digest, run.tenant_id, run.run_id, ledger.updated_at)
  run.key_held_by = holder and { run_id = holder.run_id, task = holder.task, state = holder.status,
    finished_at = holder.finished_at } or nil
end

local function holder_text(run, ledger)
  local holder = run.key_held_by
  if holder then
    return ("run %s of %s, %s at %s"):format(holder.run_id, holder.task, holder.state, holder.finished_at)
  elseif run.outcome and require("umavez.json").decode(run.outcome).code == "key_reused" then
    return ledger and ("row %s of the ledger, below; its run is not in the history"):format(ledger.id)
      or "nobody any more: its row is gone from the ledger"
  end
  return nil
end

local function plain_failure(failure)
  if not failure then
    return nil
  end
  local value = require("umavez.json").decode(failure)
  local lines = { ("%s: %s"):format(tostring(value.code or "error"), tostring(value.message or "")) }
  for _, name in ipairs { "sqlstate", "constraint", "detail" } do
    if value[name] then
      lines[#lines + 1] = name .. ": " .. tostring(value[name])
    end
  end
  if value.traceback then
    lines[#lines + 1] = tostring(value.traceback)
  end
  return table.concat(lines, "\n")
end

local function print_run(run, ledger, with_args)
  cli.print_fields {
    { "run", run.run_id }, { "task", run.task },
    { "owner", run.tenant_id and "tenant " .. run.tenant_id or "platform" },
    { "state", run.state .. (run.replay and " (answered as a replay)" or "") },
    { "queue", run.queue .. ", priority " .. tostring(run.priority) },
    { "deliveries", run.deliveries }, { "attempt", run.attempt }, { "busy", run.busy },
    { "crashes", run.crashes and run.crashes > 0 and run.crashes or nil },
    { "enqueued at", run.enqueued_at }, { "due at", run.run_at }, { "leased until", run.lease_until },
    { "finished at", run.finished_at }, { "discarded at", run.discarded_at },
    { "worker", run.worker_id }, { "traceparent", run.traceparent },
    { "key digest", run.key_digest or "(known when the run has ended)" },
    { "key", run.key_parts and ("made of %s (their values: --args)"):format(table.concat(run.key_parts, ", ")) },
    { "key held by", holder_text(run, ledger) },
    { "args", with_args and (run.args or "(not kept)") or nil },
    { "outcome", run.outcome }, { "failure", plain_failure(run.failure) },
  }
  if not ledger then
    print(("%-15s %s"):format("ledger", run.key_digest and "no row: purged, or never claimed" or "-"))
    return
  end
  print("ledger")
  cli.print_fields {
    { "  id", ledger.id }, { "  status", ledger.status }, { "  attempt", ledger.attempt },
    { "  fingerprint", ledger.fingerprint }, { "  outcome", ledger.outcome },
    { "  expires at", ledger.expires_at .. (ledger.expired and " (counts as absent)" or "") },
    { "  created at", ledger.created_at }, { "  updated at", ledger.updated_at },
  }
end

local function print_run_as_json(run, ledger, with_args)
  local json = require("umavez.json")
  local function raw(text)
    return text and json.decode(text) or nil
  end
  run.args = with_args and raw(run.args) or nil
  run.outcome, run.failure = raw(run.outcome), raw(run.failure)
  if ledger then
    ledger.outcome = raw(ledger.outcome)
  end
  run.ledger = ledger
  cli.print_json(run)
end

function M.run(args)
  database.check_uuid(args.run_id)
  local conf = settings.load(args)
  local db = database.open_migrated(conf)
  local run = db:one(RUN, args.run_id)
  if not run then
    cli.fail("failed", "there is no run %s (it may have been purged, or its task keeps no history)", args.run_id)
  end
  local ledger = ledger_row(db, run)
  explain_reuse(db, run, ledger, tasks.declared(conf))
  local print_it = args.json and print_run_as_json or print_run
  print_it(run, ledger, args.args)
end

return M
