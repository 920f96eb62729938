--- `umavez retry`: give failed runs another chance.
-- @module umavez.cli.retry

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local settings = require("umavez.cli.settings")

local M = { summary = "put failed runs back into the queue" }

M.examples = {
  "umavez retry 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c",
  "umavez retry --task payments.pix --failed     every failed run of a task",
}
M.settings = { "database_url", "connect_timeout" }

function M.configure(parser)
  parser:argument("run_id", "A run that has failed for good."):args("?")
  parser:option("--task", "All runs of this task (with --failed).")
  parser:flag("--failed", "Those that have failed for good.")
  parser:flag("--json", "Print one JSON object.")
end

local FAILED = [[
SELECT run_id::text FROM umavez.finished_runs
 WHERE task = $1 AND status = 'failed_permanent' ORDER BY finished_at]]

-- Gives nil when there is no such failed run.
local function retry(db, run_id)
  local ok, err = pcall(db.query, db, "SELECT umavez.retry_run($1::uuid)", run_id)
  if ok then
    return true
  elseif type(err) == "table" and err.sqlstate == "UV004" then
    return nil
  end
  error(err, 0)
end

function M.run(args)
  if (args.run_id and (args.task or args.failed)) or (not args.run_id and not (args.task and args.failed)) then
    cli.fail("usage", "name one run, or all failed runs of a task: umavez retry RUN_ID | --task TASK --failed")
  end
  if args.run_id then
    database.check_uuid(args.run_id)
  end
  local db = database.open_migrated(settings.load(args))
  local ids = { args.run_id }
  if args.task then
    for i, row in ipairs(db:query(FAILED, args.task)) do
      ids[i] = row.run_id
    end
  end
  local done = 0
  for _, run_id in ipairs(ids) do
    done = done + (retry(db, run_id) and 1 or 0)
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
