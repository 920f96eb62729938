--- `umavez enqueue`: one run from the command line, or many from a file.
-- @module umavez.cli.enqueue

local args_of = require("umavez.args")
local cli = require("umavez.cli")
local bulk = require("umavez.cli.bulk")
local database = require("umavez.cli.database")
local settings = require("umavez.cli.settings")
local tasks_of = require("umavez.cli.tasks")

local M = { summary = "put a run into the queue, or many from a file" }

M.examples = {
  "umavez enqueue webhooks.receive '{\"delivery\":\"8f2c\",\"payload\":{}}'",
  "umavez enqueue payments.pix '{\"end_to_end_id\":\"E1\",\"amount_cents\":100}' --tenant 7",
  "umavez enqueue maintenance.purge --at '2026-01-31 03:00:00+00'",
  "umavez enqueue --file runs.jsonl      {\"task\":\"…\",\"args\":{…},\"tenant_id\":7,\"run_id\":\"…\"} a line",
}
M.settings = { "database_url", "connect_timeout", "tasks_dir" }

function M.configure(parser)
  parser:argument("task", "The task's name."):args("?")
  parser:argument("args", "Its args, a JSON object."):args("?")
  parser:option("--tenant", "The tenant's id; without it the run belongs to the platform.")
  parser:option("--run-id", "A UUID; the same one twice is one run.")
  parser:option("--at", "Not before this time (as PostgreSQL reads it).")
  parser:option("--queue", "The queue; default: the task's.")
  parser:option("--priority", "1 (first) to 4; default 2."):convert(cli.one_of { "1", "2", "3", "4" })
  parser:option("--file", "Enqueue every line of this JSONL file. It can be called again after an interruption: "
    .. "a line's run_id (or one made from the line) keeps it from being enqueued twice.")
  parser:flag("--json", "Print one JSON object.")
end

-- SQLSTATEs that say that the caller wrote something wrong.
local MISTAKES = { ["22"] = true, ["23"] = true, UV = true, P0 = true }

-- What a worker has registered knows the task's queue better than a manifest here, which knows it better than nobody.
local ENQUEUE = [[
  SELECT umavez.enqueue($1, $2::jsonb, tenant_id => $3::bigint, run_id => $4::uuid, run_at => $5::timestamptz,
                        queue => coalesce($6, (SELECT t.queue FROM umavez.tasks t WHERE t.name = $1), $8),
                        priority => $7::int)::text AS run_id]]

local function enqueue_one(db, args, conf, task)
  local ok, row = pcall(db.one, db, ENQUEUE, args.task, args.args or "{}", args.tenant, args.run_id, args.at,
    args.queue, args.priority, task and task.queue)
  if ok then
    return row.run_id
  end
  database.check_tenant(row, args.tenant, conf)
  if type(row) == "table" and row.sqlstate and MISTAKES[row.sqlstate:sub(1, 2)] then
    cli.fail("failed", "the run was refused: %s", select(2, cli.describe(row)))
  end
  error(row, 0)
end

-- Any name may be enqueued, since its worker may come later; but say so when others are known only.
local function note_unknown(db, tasks, declared)
  local registered, names = {}, {}
  for i, row in ipairs(db:query("SELECT name FROM umavez.tasks")) do
    registered[row.name], names[i] = true, row.name
  end
  for name in pairs(declared) do
    if not registered[name] then
      names[#names + 1] = name
    end
  end
  for task in pairs(#names > 0 and tasks or {}) do
    if not registered[task] and (next(registered) or not declared[task]) then
      cli.note("no worker has registered the task %s so far%s", task, declared[task]
        and ": its runs are put off until one starts, or reloads, with this manifest"
        or ", and no manifest here declares it" .. cli.did_you_mean(task, names))
    end
  end
end

local function check(args)
  if args.file then
    for _, name in ipairs { "task", "tenant", "run_id", "at", "queue", "priority" } do
      if args[name] then
        cli.fail("usage", "--file takes everything from the file's lines; leave %s out", name)
      end
    end
    return
  end
  if not args.task then
    cli.fail("usage", "a task is missing: umavez enqueue TASK [ARGS], or --file FILE")
  end
  local ok, value = pcall(require("umavez.json").decode, args.args or "{}")
  if not ok then
    cli.fail("usage", "ARGS is not JSON: %s", type(value) == "table" and value.message or tostring(value))
  elseif (args.args or "{}"):match("^%s*(.)") ~= "{" then
    cli.fail("usage", "ARGS must be a JSON object ({…}), found %s", args.args:sub(1, 40))
  end
  if args.tenant and not args.tenant:find("^%d+$") then
    cli.fail("usage", "--tenant must be an id, found \"%s\"", args.tenant)
  end
  if args.run_id then
    database.check_uuid(args.run_id)
  end
end

-- Only as far as manifests are here: who enqueues need not have the tasks.
local function check_declared(args, task)
  if not task then
    return
  elseif task.owner == "tenant" and not args.tenant then
    cli.fail("usage", "%s is a task of tenants: say whose run it is, --tenant ID", args.task)
  elseif task.owner == "platform" and args.tenant then
    cli.fail("usage", "%s is a task of the platform: leave --tenant out", args.task)
  end
  if not task.args then
    return
  end
  local fault, why = args_of.fault(task.args, require("umavez.json").decode(args.args or "{}"))
  if fault then
    cli.fail("failed", "the manifest of %s does not take these args: %s", args.task, why)
  end
end

function M.run(args)
  check(args)
  local conf = settings.load(args)
  local declared = tasks_of.declared(conf)
  local lines = args.file and bulk.read(args.file, tasks_of.args_of(declared))
  if not lines then
    check_declared(args, declared[args.task])
  end
  local db = database.open_migrated(conf)
  if not lines then
    local run_id = enqueue_one(db, args, conf, declared[args.task])
    note_unknown(db, { [args.task] = true }, declared)
    if args.json then
      cli.print_json { run_id = run_id }
    else
      print(run_id)
    end
    return
  end
  local new = bulk.enqueue(db, lines)
  note_unknown(db, lines.tasks, declared)
  if args.json then
    cli.print_json { lines = #lines, enqueued = new, known = #lines - new }
  else
    print(("%d runs enqueued; %d were there already"):format(new, #lines - new))
  end
end

return M
