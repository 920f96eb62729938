--- `umavez retry`: give failed runs another chance.
-- @module umavez.cli.retry

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local failed = require("umavez.cli.failed")
local operator = require("umavez.cli.operator")

local M = { summary = "put failed runs back into the queue" }

M.examples = {
  "umavez retry 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c",
  "umavez retry --failed --since 1h              all that failed within the last hour",
  "umavez retry --failed --task payments.pix     every failed run of a task",
}
M.settings = { "database_url", "connect_timeout" }

local USAGE = "name one run, or failed runs: umavez retry RUN_ID | --failed [--task TASK] [--since 1h]"

function M.configure(parser)
  parser:argument("run_id", "A run that has failed for good."):args("?")
  failed.add_options(parser)
  operator.add_reason(parser)
  parser:flag("--json", "Print one JSON object.")
end

local function retry(db, ids, target, reason)
  return db:one("SELECT umavez.retry_runs($1::uuid[], $2, $3, $4)::int AS n", operator.uuid_array(ids), target, reason,
    operator.actor()).n
end

function M.run(args)
  local many = failed.many(args, args.run_id, USAGE)
  if args.run_id then
    database.check_uuid(args.run_id)
  end
  local db = operator.open(args)
  local done
  if many then
    done = failed.each_batch(db, args, function(ids) return retry(db, ids, failed.selection(args), args.reason) end)
  else
    done = retry(db, { args.run_id }, args.run_id, args.reason)
  end
  if args.json then
    cli.print_json { retried = done }
  else
    print(("%d runs are back in the queue"):format(done))
  end
  if args.run_id and done == 0 then
    cli.fail("failed", "there is no failed run %s (`umavez show %s` says what it is)", args.run_id, args.run_id)
  end
end

return M
