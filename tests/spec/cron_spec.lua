-- Cron expressions: what each field may say, every fault with what was expected, and a property test.
local cron = require("umavez.cron")

local function set(text, name)
  local parsed, expected = cron.parse(text)
  return assert(parsed, expected)[name]
end

local function range(first, last, step)
  local out = {}
  for n = first, last, step or 1 do
    out[#out + 1] = n
  end
  return out
end

describe("cron expressions", function()
  it("have numbers, ranges, steps and lists", function()
    assert.same(range(0, 59), set("* * * * *", "minutes"))
    assert.same(range(0, 59, 15), set("*/15 * * * *", "minutes"))
    assert.same({ 1, 2, 3, 10, 20, 26, 32, 38 }, set("20-40/6,1-3,10,2 * * * *", "minutes"))
    assert.same({ 0 }, set("0 0 1 1 0", "hours"))
    assert.same(range(1, 31, 7), set("0 0 */7 * *", "days"))
    assert.same({ 5 }, set("\t05  * *\t* * ", "minutes"))
  end)

  it("have names, in any case", function()
    assert.same({ 1, 3, 4, 5, 12 }, set("0 0 * JAN,mar-May,dec *", "months"))
    assert.same({ 1, 2, 3, 4, 5 }, set("0 0 * * Mon-fri", "weekdays"))
  end)

  it("know two Sundays", function()
    assert.same({ 0 }, set("0 0 * * 7", "weekdays"))
    assert.same({ 0, 5, 6 }, set("0 0 * * 5-7", "weekdays"))
    assert.same({ 0, 5, 6 }, set("0 0 * * fri-sun", "weekdays"))
    assert.same({ 0, 1 }, set("0 0 * * 0-1", "weekdays"))
    assert.same({ 0, 2, 4, 6 }, set("0 0 * * */2", "weekdays"))
  end)

  it("have L for the last day of the month", function()
    assert.is_true(set("0 0 L * *", "last_day"))
    assert.same({ 15 }, set("0 0 15,l * *", "days"))
    assert.is_false(set("0 0 31 * *", "last_day"))
  end)

  it("say whether both days must fit, as vixie cron: a field that begins with a star does not restrict", function()
    assert.is_true(set("0 0 13 * 5", "either"))
    assert.is_true(set("0 0 L * 5", "either"))
    assert.is_false(set("0 0 */2 * 5", "either"))
    assert.is_false(set("0 0 1 * *", "either"))
    assert.is_false(set("0 0 1 * */2", "either"))
  end)

  it("say whether the hour is every hour", function()
    assert.is_true(set("0 */2 * * *", "every_hour"))
    assert.is_false(set("* 0-23 * * *", "every_hour"))
  end)

  it("have short forms", function()
    for short, long in pairs(cron.SHORT) do
      assert.same(cron.parse(long), cron.parse(short))
    end
    assert.same(cron.parse("0 0 * * *"), cron.parse("@DAILY"))
  end)

  for text, expected in pairs({
    [""] = "five fields", ["* * * *"] = "found 4", ["0 * * * * *"] = "found 6", ["@reboot"] = "@hourly",
    ["60 * * * *"] = 'a minute of 0 to 59; found "60"', ["* 24 * * *"] = 'a hour of 0 to 23; found "24"',
    ["* * 0 * *"] = "a day of month of 1 to 31", ["* * 32 * *"] = 'found "32"', ["* * * 13 *"] = "a month of 1 to 12",
    ["* * * * 8"] = "a day of week of 0 to 7", ["* * * * L"] = "a day of week", ["* * * * 5L"] = "a day of week",
    ["* * 15W * *"] = "a day of month", ["* * * * mon#2"] = "a day of week", ["* * ? * *"] = 'found "?"',
    ["5/15 * * * *"] = "FROM-TO/STEP", ["*/0 * * * *"] = "a step of 1", ["*/99 * * * *"] = "a step of 1 to 59",
    ["1,,2 * * * *"] = 'found ""', ["-5 * * * *"] = 'found "-5"', ["5- * * * *"] = 'found "5-"',
    ["50-10 * * * *"] = "begins before it ends", ["* * * nov-feb *"] = "begins before it ends",
    ["* * * * sat-mon"] = "begins before it ends", ["1.5 * * * *"] = 'found "1.5"', ["0x5 * * * *"] = 'found "0x5"',
    ["* * * mon *"] = 'found "mon"', ["* * 30 2 *"] = "a day that exists", ["* * 31 2,4,jun *"] = "a day that exists",
    [("1,"):rep(200) .. "1 * * * *"] = "at most 200 characters",
  }) do
    it(("refuse %q"):format(text:sub(1, 30)), function()
      local parsed, found = cron.parse(text)
      assert.is_nil(parsed)
      assert.truthy(found:find(expected, 1, true), found)
    end)
  end

  it("take a day of week for a day that no month has", function()
    assert.truthy(cron.parse("0 0 31 2 mon"))
    assert.truthy(cron.parse("0 0 29 2 *"))
  end)

  it("mean what their items mean, whatever their order", function()
    math.randomseed(tonumber(os.getenv("UMAVEZ_TEST_SEED") or 5))
    local bounds = { { 0, 59, "minutes" }, { 0, 23, "hours" }, { 1, 31, "days" }, { 1, 12, "months" },
      { 0, 6, "weekdays" } }
    for _ = 1, 3000 do
      local fields, sets = {}, {}
      for i, b in ipairs(bounds) do
        local items, members = {}, {}
        for k = 1, math.random(3) do
          local first, last, step = math.random(b[1], b[2]), math.random(b[1], b[2]), math.random(1, 9)
          first, last, step = math.min(first, last), math.max(first, last), math.min(step, b[2])
          local kind = math.random(4)
          if kind == 1 then
            items[k], last, step = tostring(first), first, 1
          elseif kind == 2 then
            items[k], step = first .. "-" .. last, 1
          elseif kind == 3 then
            items[k] = first .. "-" .. last .. "/" .. step
          else
            items[k], first, last = "*/" .. step, b[1], b[2]
          end
          for n = first, last, step do
            members[n] = true
          end
        end
        fields[i], sets[i] = table.concat(items, ","), {}
        for n = b[1], b[2] do
          sets[i][#sets[i] + 1] = members[n] and n or nil
        end
      end
      local text = table.concat(fields, " ")
      local parsed, expected = cron.parse(text)
      if parsed then
        for i, b in ipairs(bounds) do
          assert.same(sets[i], parsed[b[3]], text)
        end
      else
        assert.truthy(expected:find("a day that exists", 1, true), text .. ": " .. expected)
        assert.is_true(sets[3][1] > 28 or #text > 200, text)
      end
    end
  end)

  it("never raise an error, whatever the text", function()
    local alphabet = "0123456789*/,-LlW#?@ \tmonsujadfri.\0\255"
    for _ = 1, 20000 do
      local text = {}
      for i = 1, math.random(0, 24) do
        local at = math.random(#alphabet)
        text[i] = math.random(4) == 1 and " " or alphabet:sub(at, at)
      end
      local parsed, expected = cron.parse(table.concat(text))
      assert.equal(parsed == nil, type(expected) == "string")
    end
  end)
end)
