--- `umavez discard`: take failed runs off the list of failures.
-- @module umavez.cli.discard

local cli = require("umavez.cli")
local failed = require("umavez.cli.failed")
local operator = require("umavez.cli.operator")

local M = { summary = "mark failed runs as dealt with, so that they are no failures to look at any more" }

M.examples = {
  "umavez discard 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c --reason 'refunded by hand'",
  "umavez discard --failed --task mail.welcome --since 2h --reason INC-4711     all of a task",
  "umavez runs --state discarded",
}
M.settings = { "database_url", "connect_timeout" }

local USAGE = "name runs, or failed runs as a whole: umavez discard RUN_ID... | --failed [--task TASK] [--since 1h]"

function M.configure(parser)
  parser:argument("run_ids", "Runs that have failed for good."):args("*"):argname("<run_id>")
  failed.add_options(parser)
  operator.add_reason(parser)
  parser:flag("--json", "Print one JSON object.")
end

local function discard(db, ids, reason)
  return #db:query("SELECT run_id::text FROM umavez.discard_runs($1::uuid[], $2, $3) AS run_id",
    operator.uuid_array(ids), reason, operator.actor())
end

local function discard_failed(args)
  local db = operator.open(args)
  local done = failed.each_batch(db, args, function(ids) return discard(db, ids, args.reason) end)
  if args.json then
    cli.print_json { discarded = done }
  else
    print(("%d runs are discarded"):format(done))
  end
end

function M.run(args)
  if failed.many(args, #args.run_ids > 0, USAGE) then
    return discard_failed(args)
  end
  operator.check_uuids(args.run_ids)
  local done = discard(operator.open(args), args.run_ids, args.reason)
  if args.json then
    cli.print_json { discarded = done }
  else
    print(("%d of %d runs are discarded"):format(done, #args.run_ids))
  end
  if done < #args.run_ids then
    cli.fail("failed", "%d are no failed runs, or were discarded before (`umavez show RUN_ID` says what they are)",
      #args.run_ids - done)
  end
end

return M
