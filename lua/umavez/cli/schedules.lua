--- `umavez schedules`: what the tasks' schedules will do, and have done.
-- @module umavez.cli.schedules

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local json = require("umavez.json")
local schedule = require("umavez.schedule")
local settings = require("umavez.cli.settings")
local tasks = require("umavez.cli.tasks")

local M = { summary = "list the tasks' schedules, their last and next slots" }

M.examples = {
  "umavez schedules",
  "umavez schedules --task reports.daily --next 10",
  "umavez schedules --json | jq -r 'select(.declared) | .next[0]'",
}
M.settings = { "database_url", "connect_timeout", "tasks_dir" }

function M.configure(parser)
  parser:option("--task", "Only the schedule of this task.")
  parser:option("--next", "How many of the next slots.", "3"):convert(cli.number)
  parser:flag("--json", "Print one JSON object a schedule.")
end

local UTC = [[to_char(%s AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')]]

local STORED = ([[SELECT task, spec, tz, missed, each_tenant, LAST AS last_slot, SEEN AS seen_at
  FROM umavez.list_schedules($1::text)]])
  :gsub("LAST", function() return UTC:format("last_slot") end):gsub("SEEN", function() return UTC:format("seen_at") end)

-- Those of the manifests here, and those that the database knows from other workers; by task.
local function collect(db, found, args)
  local by_task, declared = {}, json.array {}
  for _, name in ipairs(tasks.names(found)) do
    local s = found[name].schedule
    if s and (not args.task or args.task == name) then
      declared[#declared + 1] = schedule.declared(name, s)
      by_task[name] = { task = name, spec = schedule.text(s), tz = s.tz, missed = s.missed,
        each_tenant = s.tenants == "each", declared = true, next = json.array {} }
    end
  end
  for _, row in ipairs(db:query("SELECT * FROM umavez.schedule_slots($1::jsonb, $2::int)", json.encode(declared),
    ("%d"):format(args.next)))
  do
    by_task[row.task].next, by_task[row.task].error = json.array(row.slots), row.error
  end
  for _, row in ipairs(db:query(STORED, args.task)) do
    local own = by_task[row.task]
    if own then
      own.last_slot, own.seen_at = row.last_slot, row.seen_at
    else
      row.declared, row.next = false, json.array {}
      by_task[row.task] = row
    end
  end
  return by_task
end

local function print_all(names, by_task)
  local lines = {}
  for i, name in ipairs(names) do
    local s = by_task[name]
    local next_slots = s.error or s.declared and table.concat(s.next, " ") or "not declared by the manifests here"
    lines[i] = { s.task, s.spec, s.tz, s.missed, s.last_slot or false, next_slots == "" and "never" or next_slots }
  end
  cli.print_table({ "TASK", "SCHEDULE", "TIME ZONE", "MISSED", "LAST SLOT", "NEXT SLOTS" }, lines)
end

function M.run(args)
  if not args.next or args.next < 1 or args.next % 1 ~= 0 or args.next > 1000 then
    cli.fail("usage", "--next must be a whole number from 1 to 1000")
  end
  local conf = settings.load(args)
  local found, faults = tasks.load(conf)
  if #faults > 0 then
    cli.fail("config", "%d faults in the manifests under %s; `umavez check` shows them", #faults, conf.tasks_dir)
  end
  local by_task = collect(database.open_migrated(conf), found, args)
  local names = tasks.names(by_task)
  if args.task and #names == 0 then
    cli.fail("failed", "task %s has no schedule%s", args.task, cli.did_you_mean(args.task, tasks.names(found)))
  end
  if not args.json then
    print_all(names, by_task)
    return cli.EXIT.ok
  end
  for _, name in ipairs(names) do
    cli.print_json(by_task[name])
  end
  return cli.EXIT.ok
end

return M
