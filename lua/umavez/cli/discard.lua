--- `umavez discard`: take failed runs off the list of failures.
-- @module umavez.cli.discard

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "mark failed runs as dealt with, so that they are no failures to look at any more" }

M.examples = {
  "umavez discard 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c --reason 'refunded by hand'",
  "umavez runs --state discarded",
}
M.settings = { "database_url", "connect_timeout" }

function M.configure(parser)
  parser:argument("run_ids", "Runs that have failed for good."):args("+"):argname("<run_id>")
  operator.add_reason(parser)
  parser:flag("--json", "Print one JSON object.")
end

function M.run(args)
  operator.check_uuids(args.run_ids)
  local db = operator.open(args)
  local rows = db:query("SELECT run_id::text FROM umavez.discard_runs($1::uuid[], $2, $3) AS run_id",
    operator.uuid_array(args.run_ids), args.reason, operator.actor())
  if args.json then
    cli.print_json { discarded = #rows }
  else
    print(("%d of %d runs are discarded"):format(#rows, #args.run_ids))
  end
  if #rows < #args.run_ids then
    cli.fail("failed", "%d are no failed runs, or were discarded before (`umavez show RUN_ID` says what they are)",
      #args.run_ids - #rows)
  end
end

return M
