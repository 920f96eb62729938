-- A manifest's schedule: its faults, and what the database is told of it.
local json = require("umavez.json")
local manifest = require("umavez.manifest")
local schedule = require("umavez.schedule")
local sys = require("umavez.sys")

describe("a manifest's schedule", function()
  local dir

  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    sys.mkdir_all(dir .. "/shop")
    local f = assert(io.open(dir .. "/shop/a.lua", "w"))
    f:write("return function() end")
    f:close()
  end)

  after_each(function()
    sys.wait(sys.spawn({ "rm", "-rf", dir }))
  end)

  local function load(text, owner)
    local f = assert(io.open(dir .. "/shop/manifest.lua", "w"))
    f:write(('return { tasks = { a = { owner = %q, schedule = %s } } }'):format(owner or "platform", text))
    f:close()
    local found, faults = manifest.load(dir)
    return found["shop.a"], faults
  end

  it("is checked, with its defaults", function()
    local task, faults = load('{ cron = "*/15 * * * *" }')
    assert.same({}, faults)
    assert.same({ cron = "*/15 * * * *", tz = "UTC", missed = "once" }, task.schedule)
    task, faults = load([[{ every = "90m", missed = "all", tenants = "each", args = { a = { 1, 2 } },
      slot_arg = "at" }]], "tenant")
    assert.same({}, faults)
    assert.equal(5400000, task.schedule.every)
    assert.same({ task = "x", every_ms = 5400000, text = "every 90m", tz = "UTC", missed = "all", each_tenant = true,
      args = { a = { 1, 2 } }, slot_arg = "at" }, schedule.declared("x", task.schedule))
  end)

  it("becomes JSON that the database reads", function()
    local task = load('{ cron = "0 0 L * *", tz = "America/Sao_Paulo" }')
    local text = json.encode(schedule.declared("shop.a", task.schedule))
    assert.truthy(text:find('"days":[]', 1, true), text)
    assert.truthy(text:find('"args":{}', 1, true), text)
    assert.truthy(text:find('"last_day":true', 1, true), text)
  end)

  for text, expected in pairs({
    ['{}'] = { "schedule", "says not when" },
    ['{ cron = "* * * * *", every = "1h" }'] = { "schedule", "both cron and every" },
    ['{ cron = "61 * * * *" }'] = { "schedule.cron", 'a minute of 0 to 59; found "61"' },
    ['{ cron = 5 }'] = { "schedule.cron", "five fields" },
    ['{ cron = "@daily", tz = "America/Sao Paulo" }'] = { "schedule.tz", "a time zone" },
    ['{ cron = "@daily", tz = "America/Sampa" }'] = { "schedule.tz", "there is no" },
    ['{ cron = "@daily", tz = "../etc/passwd" }'] = { "schedule.tz", "a time zone" },
    ['{ cron = "@daily", tz = "Etc//UTC" }'] = { "schedule.tz", "a time zone" },
    ['{ cron = "@daily", tz = "leapseconds" }'] = { "schedule.tz", "is none" },
    ['{ cron = "@daily", tz = "CET" }'] = { "schedule.tz", 'such as "Europe/Berlin"' },
    ['{ cron = "@daily", tz = "America" }'] = { "schedule.tz", "there is no" },
    ['{ every = "1h", tz = "UTC" }'] = { "schedule.tz", "goes with cron only" },
    ['{ every = "0s" }'] = { "schedule.every", "a duration" },
    ['{ every = "1h", missed = "never" }'] = { "schedule.missed", '"skip"' },
    ['{ every = "1h", tenants = "each" }'] = { "schedule.tenants", "tenant" },
    ['{ every = "1h", args = { 1, 2 } }'] = { "schedule.args", "a JSON object" },
    ['{ every = "1h", args = { f = function() end } }'] = { "schedule.args", "a JSON object" },
    ['{ every = "1h", slot_arg = "a b" }'] = { "schedule.slot_arg", "letters" },
    ['{ every = "1h", zone = "UTC" }'] = { "schedule.zone", "no such field" },
    ['"@daily"'] = { "schedule", "a table" },
  }) do
    it(("may not be %s"):format(text), function()
      local _, faults = load(text)
      assert.equal(1, #faults, #faults > 1 and tostring(faults[2]))
      assert.same({ "shop.a", expected[1] }, { faults[1].task, faults[1].field })
      assert.truthy(tostring(faults[1]):find(expected[2], 1, true), tostring(faults[1]))
      assert.truthy(faults[1].file:find("shop/manifest.lua", 1, true))
    end)
  end

  it("needs tenants = each for a tenant's task", function()
    local _, faults = load('{ every = "1h" }', "tenant")
    assert.equal("schedule.tenants", faults[1].field)
  end)

  it("gives args that fit what the task declares", function()
    local declared = ', args = { n = { type = "integer", required = true }, at = { type = "string" } }'
    local function with(text)
      local _, faults = load(text .. declared)
      return #faults, faults[1] and tostring(faults[1])
    end
    assert.equal(0, (with('{ every = "1h", args = { n = 5 }, slot_arg = "at" }')))
    local n, text = with('{ every = "1h", args = { n = "five" } }')
    assert.equal(1, n)
    assert.truthy(text:find("schedule.args", 1, true) and text:find("n: found", 1, true), text)
    n, text = with('{ every = "1h", slot_arg = "n", args = {} }')
    assert.equal(1, n, text)
    assert.equal(1, (with('{ every = "1h" }')))
  end)

  it("is what purge has out of the box", function()
    local found = manifest.load(dir)
    assert.equal("*/15 * * * *", found["maintenance.purge"].schedule.cron)
  end)
end)
