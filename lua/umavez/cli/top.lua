--- `umavez top`: what is going on, again and again.
-- @module umavez.cli.top

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local json = require("umavez.json")
local operator = require("umavez.cli.operator")
local limit = require("umavez.cli.limit")
local queues = require("umavez.cli.queues")
local settings = require("umavez.cli.settings")
local sys = require("umavez.sys")
local workers = require("umavez.cli.workers")

local M = { summary = "show throughput, latency, depth, failures and workers, refreshed" }

M.examples = { "umavez top", "umavez top --interval 5", "umavez top --once --json | jq .ended_per_s" }
M.settings = { "database_url", "connect_timeout" }

local BLOCKS, DEAD_LIMIT = 64, 10000

function M.configure(parser)
  parser:option("--interval", "Seconds between two looks.", "2"):argname("SECONDS"):convert(cli.number)
  parser:flag("--once", "Look once and end; also when standard output is no terminal.")
  parser:flag("--json", "Look once and print one JSON object.")
end

local NOW = [[
SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS now, current_database() AS name]]

--- One look.
-- @param db the connection
-- @treturn table now, database, ended_per_s, failed_per_s, replayed_per_s, p50_ms, p99_ms, dead_last_hour, tasks,
-- queues, limits, workers
-- @yields
function M.look(db)
  local now = db:one(NOW)
  local seen = { now = now.now, database = now.name, ended_per_s = 0, failed_per_s = 0, replayed_per_s = 0, tasks = {},
    dead_last_hour = db:one("SELECT umavez.dead_runs($1::int) AS n", DEAD_LIMIT).n,
    queues = queues.list(db), limits = limit.list(db), workers = workers.list(db) }
  for _, row in ipairs(db:query("SELECT * FROM umavez.recent_rates($1::int)", BLOCKS)) do
    if row.task then
      seen.tasks[#seen.tasks + 1] = row
    else
      for name, value in pairs(row) do
        seen[name] = value
      end
    end
  end
  return seen
end

local function rate(value)
  return ("%.1f"):format(value)
end

local function ms(value)
  if not value then
    return "-"
  end
  return value < 10000 and ("%.0f ms"):format(value) or operator.age(value / 1000)
end

local function show_tasks(tasks, most)
  local lines = {}
  for i = 1, math.min(#tasks, most) do
    local row = tasks[i]
    lines[i] = { row.task, rate(row.ended_per_s), rate(row.failed_per_s), rate(row.replayed_per_s), ms(row.p50_ms),
      ms(row.p99_ms) }
  end
  cli.print_table({ "TASK", "ENDED/S", "FAILED/S", "REPLAYED/S", "P50", "P99" }, lines)
  if #tasks > most then
    print(("and %d more tasks"):format(#tasks - most))
  end
end

local function show(seen)
  print(("%s  %s  %d workers"):format(seen.database, seen.now, #seen.workers))
  print(("ended %s/s  failed %s/s  replayed %s/s  from enqueued to ended: p50 %s, p99 %s  dead in the last hour: %s")
    :format(rate(seen.ended_per_s), rate(seen.failed_per_s), rate(seen.replayed_per_s), ms(seen.p50_ms),
      ms(seen.p99_ms), operator.bounded(seen.dead_last_hour, DEAD_LIMIT)))
  print("")
  queues.print(seen.queues)
  print("")
  if #seen.limits > 0 then
    limit.print(seen.limits)
    print("")
  end
  show_tasks(seen.tasks, 10)
  print("")
  workers.print(seen.workers)
end

-- Until it is interrupted. A database that goes away is waited for, and said to be.
local function watch(conf, interval)
  local db
  while true do
    local ok, seen = pcall(function()
      db = db or database.open_migrated(conf)
      return M.look(db)
    end)
    if not ok and type(seen) ~= "table" then
      error(seen, 0)
    end
    io.stdout:write("\27[H\27[2J")
    if ok then
      show(seen)
    else
      print(select(2, cli.describe(seen)))
      db = nil
    end
    io.stdout:flush()
    sys.sleep(interval * 1000)
  end
end

function M.run(args)
  if not args.interval or args.interval < 0.1 then
    cli.fail("usage", "--interval must be a number of seconds from 0.1")
  end
  local conf = settings.load(args)
  if not args.once and not args.json and sys.isatty(1) then
    watch(conf, args.interval)
  end
  local seen = M.look(database.open_migrated(conf))
  if args.json then
    for _, name in ipairs { "tasks", "queues", "limits", "workers" } do
      seen[name] = json.array(seen[name])
    end
    cli.print_json(seen)
  else
    show(seen)
  end
end

return M
