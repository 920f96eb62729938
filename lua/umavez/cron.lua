--- Cron expressions: five fields as crontab(5) means them, read into sets. Which moments they mean in a time zone is
-- found by the database: see docs/schedules.md and sql/functions/35_schedules.sql.
-- @module umavez.cron

local M = {}

local MONTHS = { jan = 1, feb = 2, mar = 3, apr = 4, may = 5, jun = 6, jul = 7, aug = 8, sep = 9, oct = 10, nov = 11,
  dec = 12 }
local DAYS = { sun = 0, mon = 1, tue = 2, wed = 3, thu = 4, fri = 5, sat = 6 }

-- In their order. `max` is what may be written: 7 is Sunday, too.
local FIELDS = {
  { name = "minute", set = "minutes", min = 0, max = 59, expected = "0 to 59" },
  { name = "hour", set = "hours", min = 0, max = 23, expected = "0 to 23" },
  { name = "day of month", set = "days", min = 1, max = 31, expected = "1 to 31, or L for the month's last day" },
  { name = "month", set = "months", min = 1, max = 12, names = MONTHS, expected = "1 to 12, or jan to dec" },
  { name = "day of week", set = "weekdays", min = 0, max = 7, names = DAYS,
    expected = "0 to 7 (0 and 7: Sunday), or sun to sat" },
}

local LONGEST = { 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 } -- days of the months

--- The short forms and what they stand for.
M.SHORT = {
  ["@yearly"] = "0 0 1 1 *", ["@annually"] = "0 0 1 1 *", ["@monthly"] = "0 0 1 * *", ["@weekly"] = "0 0 * * 0",
  ["@daily"] = "0 0 * * *", ["@midnight"] = "0 0 * * *", ["@hourly"] = "0 * * * *",
}

local MOST = 200 -- characters

local function value_of(field, text)
  local n = text:match("^%d%d?$") and tonumber(text) or field.names and field.names[text:lower()]
  return n and n >= field.min and n <= field.max and n or nil
end

local function bad(field, found, expected)
  return nil, ("a %s of %s; found %q"):format(field.name, expected or field.expected, found)
end

-- One item of a list: `*`, `5`, `5-10`, each range with `/2`. Gives first, last, step.
local function read_item(field, item)
  local range, step = item:match("^([^/]+)/(%d+)$")
  range = range or item
  if range == "*" then
    return field.min, field.set == "weekdays" and 6 or field.max, tonumber(step or 1)
  end
  local from, to = range:match("^(%w+)%-(%w+)$")
  if not from then
    if step then
      return bad(field, item, ("the form FROM-TO/STEP or */STEP, such as %s-%d/%s"):format(range, field.max, step))
    end
    local n = value_of(field, range)
    if not n then
      return bad(field, item)
    end
    return n, n, 1
  end
  local first, last = value_of(field, from), value_of(field, to)
  if last == 0 and field.set == "weekdays" and first and first > 0 then
    last = 7 -- fri-sun
  end
  if not first or not last then
    return bad(field, item)
  elseif first > last then
    return bad(field, item, "a range that begins before it ends (or two ranges: a-b,c-d)")
  end
  return first, last, tonumber(step or 1)
end

-- Gives the set as an array in order, and whether L stood in it; or nil and what was expected.
local function read_field(field, text)
  local seen, last_day = {}, false
  for item in (text .. ","):gmatch("([^,]*),") do
    if field.set == "days" and item:lower() == "l" then
      last_day = true
    else
      local first, last, step = read_item(field, item)
      if not first then
        return nil, last
      elseif step < 1 or step > field.max then
        return bad(field, item, ("a step of 1 to %d"):format(field.max))
      end
      for n = first, last, step do
        seen[field.set == "weekdays" and n % 7 or n] = true
      end
    end
  end
  local set = {}
  for n = field.min, field.max do
    if seen[n] then
      set[#set + 1] = n
    end
  end
  return set, last_day
end

-- 30 February and the like. Where days of the week count too, there is always one.
local function never(sets, last_day, or_weekday)
  if last_day or or_weekday then
    return false
  end
  for _, month in ipairs(sets.months) do
    if sets.days[1] <= LONGEST[month] then
      return false
    end
  end
  return true
end

--- Read a cron expression.
-- @tparam string text `*/15 8-18 * * mon-fri`, or `@daily`
-- @treturn table|nil `minutes`, `hours`, `days`, `months`, `weekdays` (0: Sunday): arrays in order; `last_day`: L;
-- `every_hour`: the hour begins with `*`; `either`: day of month or day of week is enough (both are restricted), else
-- both must fit
-- @treturn string|nil what was expected, and where
function M.parse(text)
  if type(text) ~= "string" or #text > MOST then
    return nil, ("five fields in a text of at most %d characters, such as \"*/15 * * * *\""):format(MOST)
  end
  text = text:match("^%s*(.-)%s*$")
  if text:sub(1, 1) == "@" then
    if not M.SHORT[text:lower()] then
      return nil, "five fields, @hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually"
    end
    text = M.SHORT[text:lower()]
  end
  local parts = {}
  for part in text:gmatch("%S+") do
    parts[#parts + 1] = part
  end
  if #parts ~= #FIELDS then
    return nil, ("five fields: minute, hour, day of month, month, day of week; found %d"):format(#parts)
  end
  local out = { last_day = false }
  for i, field in ipairs(FIELDS) do
    local set, more = read_field(field, parts[i])
    if not set then
      return nil, more
    end
    out[field.set] = set
    out.last_day = out.last_day or more
  end
  out.every_hour = parts[2]:sub(1, 1) == "*"
  out.either = parts[3]:sub(1, 1) ~= "*" and parts[5]:sub(1, 1) ~= "*"
  if never(out, out.last_day, out.either) then
    return nil, "a day that exists in one of its months"
  end
  return out
end

return M
