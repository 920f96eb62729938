--- The manifest's `schedule`: its fields, and what the database is told of it (umavez.tick_schedules).
-- @module umavez.schedule

local args = require("umavez.args")
local cron = require("umavez.cron")
local json = require("umavez.json")
local sys = require("umavez.sys")

local M = {}

local ZONES = "/usr/share/zoneinfo"

-- Zones whose names PostgreSQL takes for abbreviations, which have one offset all the year round.
local ABBREVIATIONS = { CET = "Europe/Berlin", MET = "Europe/Berlin", EET = "Europe/Athens", WET = "Europe/Lisbon" }

local function check_cron(v)
  local sets, expected = cron.parse(v)
  return sets and v, expected
end

-- A name that the database cannot know is found here, where the tz database is. Without one it decides alone.
-- What is wrong with a name, by the files of the tz database; nil when they know it, or are not here.
local function unknown_zone(name)
  local dir = os.getenv("TZDIR") or ZONES
  local path = dir .. "/" .. name
  if not sys.exists(dir) then
    return nil
  elseif sys.exists(path) ~= "file" then
    return "there is no " .. path
  end
  local f = io.open(path, "rb")
  local head = f and f:read(4)
  if f then
    f:close()
  end
  return f and head ~= "TZif" and path .. " is none" or nil
end

local function check_tz(v)
  local expected = 'a time zone of the tz database, such as "America/Sao_Paulo" or "UTC"'
  if type(v) ~= "string" or #v > 64 or not v:match("^%a[%w_+%-/]*$") or v:match("^posix") or v:match("^right/")
    or v == "localtime" or v:find("//", 1, true)
  then
    return nil, expected
  end
  if ABBREVIATIONS[v] then
    return nil, ('a place, such as "%s": PostgreSQL knows no summer time in %s'):format(ABBREVIATIONS[v], v)
  end
  local fault = unknown_zone(v)
  if fault then
    return nil, ("%s (%s)"):format(expected, fault)
  end
  return v
end

local function check_args(v)
  local ok, text = pcall(json.encode, v)
  if type(v) ~= "table" or #v > 0 or not ok or #text > 100000 then
    return nil, "a table that can be a JSON object, at most 100000 octets"
  end
  return v
end

local function check_slot_arg(v)
  if type(v) ~= "string" or not v:match("^[%a_][%w_]*$") or #v > 64 then
    return nil, "a name of letters, digits and _"
  end
  return v
end

--- The fields, as in `umavez.manifest`.
-- @tparam function one_of makes a check
-- @tparam function duration makes a check
-- @treturn table
function M.fields(one_of, duration)
  return {
    { name = "cron", type = "text", check = check_cron,
      doc = 'minute, hour, day of month, month, day of week, such as `"*/15 * * * *"`; or `"@daily"`. '
        .. "This or `every`; see docs/schedules.md" },
    { name = "every", type = "duration", check = duration("1s", "366d"),
      doc = 'instead of `cron`: at all multiples of this duration since 1970-01-01 00:00 UTC, such as `"1h"`' },
    { name = "tz", type = "text", check = check_tz, doc = "the time zone of `cron`. Default: UTC" },
    { name = "missed", type = '"skip", "once" or "all"', default = "once", check = one_of("skip", "once", "all"),
      doc = "what happens to slots that passed while no worker was there: none, the latest only, or each is enqueued" },
    { name = "tenants", type = '"each"', check = one_of("each"),
      doc = "required for tenants' tasks, and only there: each slot is one run for every row of the tenants table" },
    { name = "args", type = "table", check = check_args, doc = "the runs' args. Default: none" },
    { name = "slot_arg", type = "name", check = check_slot_arg,
      doc = "the name of an argument that gets the slot's time in UTC, `2026-12-01T12:00:00Z`. Default: none" },
  }
end

-- The runs' args as the task will get them, against its declaration of args.
local function check_declared(schedule, declared, fault)
  local given = {}
  for name, value in pairs(schedule.args or {}) do
    given[name] = value
  end
  if schedule.slot_arg then
    given[schedule.slot_arg] = "2026-12-01T12:00:00Z"
  end
  local found = args.fault(declared, given)
  if found then
    fault("schedule.args", ("does not fit the task's args: %s: found %s"):format(found.path, found.found),
      found.expected)
  end
end

--- What no field alone can say.
-- @tparam table schedule checked; gets its tz
-- @tparam table given the same, as it was written
-- @tparam table task checked: owner, args
-- @tparam function fault fault(field, message, expected)
function M.check(schedule, given, task, fault)
  local owner = task.owner
  if (given.cron == nil) == (given.every == nil) then
    fault("schedule", given.cron and "has both cron and every" or "says not when", "one of cron and every")
  end
  if given.every ~= nil and given.tz ~= nil then
    fault("schedule.tz", "goes with cron only", "no tz: every counts from 1970-01-01 00:00 UTC")
  end
  if owner == "tenant" and given.tenants == nil then
    fault("schedule.tenants", "is missing", '"each": the runs of a tenant\'s task need a tenant')
  elseif owner == "platform" and given.tenants ~= nil then
    fault("schedule.tenants", 'is for owner = "tenant" only', "no tenants: the platform's task gets one run a slot")
  end
  if task.args then
    check_declared(schedule, task.args, fault)
  end
  schedule.tz = schedule.tz or "UTC"
end

--- A checked schedule, as the database takes it: an element of tick_schedules' array.
-- @tparam string task its name
-- @tparam table s the schedule
-- @treturn table for JSON
function M.declared(task, s)
  local out = { task = task, missed = s.missed, each_tenant = s.tenants == "each", args = s.args or {},
    slot_arg = s.slot_arg }
  if s.every then
    out.every_ms, out.text, out.tz = s.every, M.text(s), "UTC"
    return out
  end
  for name, value in pairs(assert(cron.parse(s.cron))) do
    out[name] = type(value) == "table" and json.array(value) or value
  end
  out.text, out.tz = s.cron, s.tz
  return out
end

--- When, for people: the cron expression, or `every 1h`.
-- @tparam table s a checked schedule
-- @treturn string
function M.text(s)
  if s.cron then
    return s.cron
  end
  for _, unit in ipairs { { 86400000, "d" }, { 3600000, "h" }, { 60000, "m" }, { 1000, "s" } } do
    if s.every % unit[1] == 0 then
      return ("every %d%s"):format(s.every / unit[1], unit[2])
    end
  end
  return ("every %dms"):format(s.every)
end

return M
