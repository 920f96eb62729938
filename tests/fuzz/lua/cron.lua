-- Cron expressions, time zones, durations. The input: three lines, one of each.
--
-- Invariants: an expression is read, or refused in words; what is read are sets in order within their bounds, never
-- empty but for days with L; the same sets, written out, are read as the same again; a zone that is taken is a file of
-- the tz database; a duration is written by describe.lua such that it is read back as the same.
local c = require("umavez.c.run")
local cron = require("umavez.cron")
local describe = require("umavez.describe")
local schedule = require("umavez.schedule")

local BOUNDS = { { "minutes", 0, 59 }, { "hours", 0, 23 }, { "days", 1, 31 }, { "months", 1, 12 },
  { "weekdays", 0, 6 } }

local check = {}
for _, field in ipairs(schedule.fields(function() end, function() end)) do
  check[field.name] = field.check
end

local function in_order(set, least, greatest)
  local last = least - 1
  for i, n in ipairs(set) do
    assert(n > last and n <= greatest and n % 1 == 0, i)
    last = n
  end
end

-- Ranges, so that it is short; `*` only where that says more than the set.
local function written(parsed)
  local out = {}
  for i, b in ipairs(BOUNDS) do
    local set, items, at = parsed[b[1]], {}, 1
    while at <= #set do
      local from = at
      while set[at + 1] == set[at] + 1 do
        at = at + 1
      end
      items[#items + 1] = from == at and tostring(set[at]) or set[from] .. "-" .. set[at]
      at = at + 1
    end
    if b[1] == "days" and parsed.last_day then
      items[#items + 1] = "L"
    end
    out[i] = table.concat(items, ",")
  end
  return table.concat(out, " ")
end

local function expression(text)
  local parsed, expected = cron.parse(text)
  if not parsed then
    assert(type(expected) == "string" and expected ~= "" and #expected < 1000, expected)
    assert(select(2, check.cron(text)) == expected)
    return
  end
  assert(check.cron(text) == text)
  for _, b in ipairs(BOUNDS) do
    in_order(parsed[b[1]], b[2], b[3])
    assert(#parsed[b[1]] > 0 or (b[1] == "days" and parsed.last_day), b[1])
  end
  assert(not (parsed.either and parsed.every_hour) or text:find("%*"))
  local long = written(parsed)
  -- Written out nothing begins with a star: either day is enough then, so that none is refused as never coming.
  if #long <= 200 then
    local again = assert(cron.parse(long))
    for _, b in ipairs(BOUNDS) do
      assert(table.concat(again[b[1]], ",") == table.concat(parsed[b[1]], ","), long)
    end
    assert(again.last_day == parsed.last_day and again.either and not again.every_hour, long)
  end
end

local function zone(text)
  local tz, expected = check.tz(text)
  if not tz then
    assert(type(expected) == "string" and expected ~= "")
    return
  end
  local f = assert(io.open((os.getenv("TZDIR") or "/usr/share/zoneinfo") .. "/" .. tz, "rb"))
  local head = f:read(4)
  f:close()
  assert(head == "TZif" and not tz:find("//", 1, true) and not tz:find("%z") and not tz:find("/$"), tz)
end

local function duration(text)
  local ms, expected = c.duration(text)
  if not ms then
    assert(type(expected) == "string" and expected ~= "")
    return
  end
  assert(ms >= 0 and ms % 1 == 0)
  assert(c.duration(describe.duration(ms)) == ms, describe.duration(ms))
  if ms > 0 then
    assert(c.duration((schedule.text { every = ms }):match("^every (.*)$")) == ms)
  end
end

return function(data)
  local first, second, third = data:match("^([^\n]*)\n?([^\n]*)\n?(.*)$")
  expression(first)
  zone(second)
  duration(third)
end
