-- Manifests: all faults at once, each with file, task, field, found, expected, nearest name.
local json = require("umavez.json")
local manifest = require("umavez.manifest")
local sys = require("umavez.sys")

describe("manifests", function()
  local dir

  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    sys.mkdir(dir)
  end)

  after_each(function()
    sys.wait(sys.spawn({ "rm", "-rf", dir }))
  end)

  local function write(path, content)
    assert(sys.mkdir_all((dir .. "/" .. path):match("^(.*)/")))
    local f = assert(io.open(dir .. "/" .. path, "w"))
    f:write(content)
    f:close()
  end

  local HANDLER = "return function() end"

  local function load(content, handlers)
    write("shop/manifest.lua", content)
    for _, name in ipairs(handlers or { "a" }) do
      write("shop/" .. name .. ".lua", HANDLER)
    end
    return manifest.load(dir)
  end

  -- One fault is expected, with these fields.
  local function fault_of(content, handlers)
    local _, faults = load(content, handlers)
    assert.equal(1, #faults, table.concat(require("pl.tablex").map(tostring, faults), "\n"))
    assert.equal(sys.realpath(dir) .. "/shop/manifest.lua", faults[1].file)
    return faults[1]
  end

  it("finds routes that no request could tell apart", function()
    local fault = fault_of([[return { tasks = {
      a = { owner = "tenant", http = { path = "/x/{id}/y" } },
      b = { owner = "tenant", http = { path = "/x/{name}/y" } },
      c = { owner = "tenant", http = { path = "/x/{id}/y", method = "PUT" } },
      d = { owner = "tenant", http = { path = "/x/1/y" } },
    } }]], { "a", "b", "c", "d" })
    assert.same({ "shop.b", "http.path" }, { fault.task, fault.field })
    assert.matches("shop.a", fault.message, 1, true)
  end)

  it("gives checked tasks with their defaults", function()
    local found, faults = load([[return { tasks = {
      a = { owner = "tenant" },
      b = { owner = "platform", key = { "order.id", "step" }, fingerprint = { "amount" }, lease = "1m",
      timeout = "500ms",
            retention = "7d", retry = { max_attempts = 3, base = "100ms" }, queue = "big",
            concurrency = 4, history = false,
            description = "b", handler = "other/b2.lua" },
      c = { owner = "tenant", key = function(args) return args.x .. ":" .. args.y end },
    } }]], { "a", "c", "other/b2" })
    assert.same({}, faults)
    local a, b, c = found["shop.a"], found["shop.b"], found["shop.c"]
    assert.equal("shop.a", a.name)
    assert.same({ 30000, 20000, 86400000, 8, 3, 1000, 600000, "default", true },
      { a.lease, a.timeout, a.retention, a.retry.max_attempts, a.retry.max_crashes, a.retry.base, a.retry.cap, a.queue,
        a.history })
    assert.is_nil(a.key)
    assert.is_nil(a.concurrency)
    assert.same({ 60000, 500, 604800000, 3, 100, 600000, "big", false, 4 }, { b.lease, b.timeout, b.retention,
      b.retry.max_attempts, b.retry.base, b.retry.cap, b.queue, b.history, b.concurrency })
    assert.same({ "order.id", "step" }, b.key)
    assert.equal("1:2", c.key({ x = 1, y = 2 }))
    assert.equal("function", type(b.effect))
    assert.is_truthy(found["maintenance.purge"])
  end)

  it("lets a run kill no more workers than it has attempts", function()
    local found, faults = load([[return { tasks = {
      a = { owner = "tenant", retry = { max_attempts = 2 } },
      b = { owner = "tenant", retry = { max_attempts = 2, max_crashes = 1 } },
      c = { owner = "tenant", retry = { max_attempts = 9, max_crashes = 9 } },
    } }]], { "a", "b", "c" })
    assert.same({}, faults)
    assert.same({ 2, 1, 9 }, { found["shop.a"].retry.max_crashes, found["shop.b"].retry.max_crashes,
      found["shop.c"].retry.max_crashes })
  end)

  it("takes limits across workers, and queues", function()
    local found, faults, queues = load([[return {
      queues = { bank = { global_limit = 4 }, imports = { fair = true }, plain = {} },
      tasks = { a = { owner = "tenant", queue = "bank", global_limit = 2 }, b = { owner = "tenant" } },
    }]], { "a", "b" })
    assert.same({}, faults)
    assert.equal(2, found["shop.a"].global_limit)
    assert.same({ 4, false, true, false }, { queues.bank.global_limit, queues.bank.fair, queues.imports.fair,
      queues.plain.fair })
    local declared = require("umavez.json").decode(require("umavez.queues").declared(
      { ["shop.a"] = found["shop.a"], ["shop.b"] = found["shop.b"] }, queues))
    assert.same({ { kind = "task", name = "shop.a", limit = 2 }, { kind = "task", name = "shop.b" },
      { kind = "queue", name = "bank", limit = 4, fair = false }, { kind = "queue", name = "imports", fair = true },
      { kind = "queue", name = "plain", fair = false } }, declared)
  end)

  it("tells what is wrong with limits and queues", function()
    for content, wrong in pairs {
      ["tasks = { a = { owner = 'tenant', global_limit = 0 } }"] =
        "task shop.a: field global_limit: wrong value: found 0, expected a whole number from 1 to 10000",
      ["tasks = { a = { owner = 'tenant' } }, queues = { bank = { global_limit = 1.5 } }"] =
        "field queues.bank.global_limit: wrong value: found 1.5, expected a whole number from 1 to 10000",
      ["tasks = { a = { owner = 'tenant' } }, queues = { bank = { limit = 1 } }"] =
        "field queues.bank.limit: no such field: found 1, expected one of global_limit, fair",
      ["tasks = { a = { owner = 'tenant' } }, queues = { ['a b'] = {} }"] =
        'field queues: a queue\'s name is wrong: found "a b", expected a name of letters, digits, _ . - (at most 64)',
      ["tasks = { a = { owner = 'tenant' } }, queues = { bank = 4 }"] =
        "field queues.bank: wrong value: found 4, expected a table of fields",
      ["tasks = { a = { owner = 'tenant' } }, queues = 4"] =
        "field queues: wrong value: found 4, expected a table of queues",
      ["tasks = { a = { owner = 'tenant' } }, queue = {}"] =
        "field queue: no such field: found an empty table, expected tasks or queues (did you mean queues?)",
    } do
      local fault = tostring(fault_of("return { " .. content .. " }"))
      assert.is_truthy(fault:find(wrong, 1, true), fault)
    end
  end)

  it("names nested folders' tasks by their path", function()
    write("a/b/manifest.lua", 'return { tasks = { c = { owner = "tenant" } } }')
    write("a/b/c.lua", "return { prepare = function() end, effect = function() end }")
    local found, faults = manifest.load(dir)
    assert.same({}, faults)
    assert.equal("function", type(found["a.b.c"].prepare))
  end)

  it("finds all faults at once", function()
    write("x/manifest.lua", "return 7")
    write("y/manifest.lua", "return {")
    write("z/manifest.lua", "return { tasks = {} }")
    local _, faults = load([[return { taks = {}, tasks = {
      a = { owner = "tenent", keys = {}, lease = 30, retry = { base = "1m", cap = "1s", atempts = 1 }, http = {} },
      b = {},
      ["c-d"] = { owner = "tenant" },
      e = 1,
    } }]])
    assert.equal(13, #faults, table.concat(require("pl.tablex").map(tostring, faults), "\n"))
  end)

  it("names task, field, found, expected and nearest", function()
    local f = fault_of('return { tasks = { a = { owner = "tenent" } } }')
    assert.same({ "shop.a", "owner", '"tenent"', '"tenant" or "platform"' }, { f.task, f.field, f.found, f.expected })
    assert.matches('shop/manifest.lua: task shop.a: field owner: wrong value: found "tenent", expected "tenant"',
      tostring(f))
    f = fault_of('return { tasks = { a = { owner = "tenant", leas = "30s" } } }')
    assert.same({ "leas", "lease" }, { f.field, f.nearest })
    assert.matches("did you mean lease%?", tostring(f))
    f = fault_of('return { tasks = { a = { owner = "tenant", retry = { max_attempt = 3 } } } }')
    assert.same({ "retry.max_attempt", "max_attempts" }, { f.field, f.nearest })
    f = fault_of("return { tasks = { a = {} } }")
    assert.same({ "owner", "is missing" }, { f.field, f.message })
    f = fault_of('return { tasks = { a = { owner = "tenant", args = { n = { type = "integr" } } } } }')
    assert.same({ "shop.a", "args.n.type" }, { f.task, f.field })
    f = fault_of([[return { tasks = { a = { owner = "tenant", args = { id = { type = "integer" } },
      http = { path = "/a/{id}" } } } }]])
    assert.same({ "args.id", "integer" }, { f.field, f.found })
    f = fault_of('return { task = {} , tasks = { a = { owner = "tenant" } } }')
    assert.same({ "task", "tasks" }, { f.field, f.nearest })
  end)

  it("refuses wrong values of every field", function()
    for field, values in pairs({
      key = { "{}", '"a"', "{ 1 }", '{ "" }', '{ "a", "a" }', '{ x = "a" }', '{ ".a" }', '{ "a." }', '{ "a..b" }',
      "true" },
      fingerprint = { "{}", "function() end", '"a"' },
      lease = { '"1"', "30", '"500ms"', '"2d"', '"abc"', "{}", '"-1s"' },
      timeout = { '"0s"', '"1ms"', '"25h"', "1" },
      retention = { '"0s"', '"10000d"' },
      ["retry"] = { "1", '"x"', "{ max_attempts = 0 }", "{ max_attempts = 1.5 }", '{ base = "8d" }',
      '{ base = "1h" }', "{ max_crashes = 0 }", "{ max_crashes = 1001 }", "{ max_crashes = 9 }",
      "{ max_attempts = 2, max_crashes = 3 }",
        "{ 1 }" },
      queue = { '""', '"a b"', "1", '("x"):upper()' .. " .. ' '" },
      concurrency = { "0", "1.5", '"1"', "-1", "1/0", "0/0" },
      history = { '"true"', "1" },
      description = { '""', "1" },
      handler = { '"/etc/x.lua"', '"../x.lua"', '"x"', "1" },
      http = {
        "1", "{}", '{ path = "x" }', '{ path = "/" }', '{ path = "/runs/x" }', '{ path = "/healthz" }',
        '{ path = "/ui" }', '{ path = "/ui/x" }',
        '{ path = "/metrics" }',
        '{ path = "/a b" }', '{ path = "/{a}/{a}" }', '{ path = "/{a-b}" }', '{ path = "/x", method = "HEAD" }',
        '{ path = "/x", key = "no" }', '{ path = "/x", key = { header = "a b" } }',
        '{ path = "/x", key = { header = "A", x = 1 } }', '{ path = "/x", key_form = "hex" }',
        '{ path = "/x", mode = "later" }', '{ path = "/x", wait = "61s" }', '{ path = "/x", auth = "basic" }',
        '{ path = "/x", max_body = 0 }',
        -- a tenant's task needs a token: nothing else says whose the run is
        '{ path = "/x", auth = "none" }', '{ path = "/x", signature = { header = "X-S", secret_env = "S" } }',
      },
    }) do
      for _, v in ipairs(values) do
        local f = fault_of(('return { tasks = { a = { owner = "tenant", %s = %s } } }'):format(field, v))
        assert.equal("shop.a", f.task)
        assert.matches("^" .. field, f.field)
      end
    end
  end)

  it("evaluates without io, os, require, and ends", function()
    for _, content in ipairs {
      "io.open('/etc/passwd')", "os.exit(1)", "require('umavez')", "while true do end", "local x = _G.x.y",
      "load('')()",
      "repeat local x = 1 until false", "local function f() return f() end f()", "local function f() f() end f()",
      "debug.sethook()", "coroutine.wrap(function() end)()", "error({})", "getmetatable('').__index.x = 1 .. nil",
      "jit.on()",
      "string.rep('x', 1e9)", "dofile('x')", "setfenv(1, {})", "newproxy()", "ffi.C.abort()",
      "package.loaded.os.exit(1)",
    } do
      local f = fault_of(content .. "\nreturn { tasks = {} }", {})
      assert.is_string(f.message)
    end
    assert.is_nil(debug.gethook())
    fault_of("\27LJ\2compiled", {})
    fault_of("return", {})
    fault_of("return { tasks = 1 }", {})
    local _, faults = load("x = 1 return { tasks = { a = { owner = 'tenant' } } }")
    assert.same({}, faults)
    assert.is_nil(rawget(_G, "x"))
  end)

  it("refuses texts that JSON cannot hold, and shows them in such a way that it can (found by fuzzing)", function()
    for field, value in pairs { description = "'\\255'", key = "{ 'a\\0b' }", handler = "'\\255.lua'" } do
      local fault = fault_of(("return { tasks = { a = { owner = 'tenant', %s = %s } } }"):format(field, value))
      assert.equal(field, fault.field)
      json.decode(json.encode(fault))
    end
    local fault = fault_of("return { tasks = { a = { owner = 'tenant', ['\\255'] = 1 } } }")
    assert.equal("\\255", fault.field)
    assert.matches("field \\255: no such field", tostring(fault))
  end)

  it("does not lengthen package.path each time it is loaded", function()
    load("return { tasks = {} }")
    local once = package.path
    load("return { tasks = {} }")
    assert.equal(once, package.path)
  end)

  it("checks the handlers", function()
    local one = 'return { tasks = { a = { owner = "tenant" } } }'
    for content, pattern in pairs {
      ["return 1"] = "returns the wrong thing.*found 1",
      [""] = "returns the wrong thing.*found nil",
      ["return {}"] = "returns the wrong thing",
      ["return { prepare = function() end }"] = "returns the wrong thing",
      ["return { effect = function() end, prepare = 1 }"] = "returns the wrong thing",
      ["return { effect = function() end, prepar = function() end }"] = "no such part of a handler: prepar",
      ["return function( end"] = "a.lua:1:",
      ["error('boom')"] = "raised an error.*boom",
    } do
      write("shop/a.lua", content)
      local f = fault_of(one, {})
      assert.equal("shop.a", f.task)
      assert.matches(pattern, tostring(f))
    end
    os.remove(dir .. "/shop/a.lua")
    assert.matches("has no handler: there is no file .*/shop/a.lua", tostring(fault_of(one, {})))
  end)

  it("lets handlers require modules beside them, and the library", function()
    write("shop/lib.lua", "return { n = 7 }")
    write("shop/manifest.lua", 'return { tasks = { a = { owner = "tenant" } } }')
    write("shop/a.lua",
    'local lib = require("shop.lib") require("umavez") return function() return { n = lib.n } end')
    local found, faults = manifest.load(dir)
    assert.same({}, faults)
    assert.equal(7, found["shop.a"].effect().n)
    package.loaded["shop.lib"] = nil
  end)

  it("says when the folder is missing", function()
    local _, faults = manifest.load(dir .. "/nowhere")
    assert.matches("no such folder", tostring(faults[1]))
  end)

  it("bounds a key function", function()
    local found = load('return { tasks = { a = { owner = "tenant", key = function() while true do end end } } }')
    jit.off(found["shop.a"].key, true)
    local ok, err = pcall(require("umavez.context").bounded, found["shop.a"].key, {})
    assert.is_false(ok)
    assert.matches("too many instructions", err)
  end)

  it("documents every field", function()
    local docs = manifest.docs()
    for _, field in ipairs(manifest.fields) do
      assert.matches("`" .. field.name, docs)
    end
  end)
end)
