-- What manifests declare of args, and what becomes of args that are something else.
local args = require("umavez.args")
local json = require("umavez.json")
local regexp = require("umavez.regexp")

local function fault(declared, text)
  local f, line = args.fault(declared, json.decode(text))
  return f and line:match("^args%.(.*)$") or nil
end

local function faults_of(declared)
  local out = {}
  args.validate(declared, function(f)
    out[#out + 1] = ("%s: %s: %s: %s"):format(f.field, f.message, tostring(f.found), tostring(f.expected))
  end)
  return out
end

describe("args", function()
  it("takes values of each type, and refuses others", function()
    for kind, values in pairs {
      string = { good = { '""', '"x"', '"é"' }, bad = { "1", "true", "null", "{}", "[]" } },
      integer = { good = { "0", "-7", "9007199254740993", "1e3", "2.0" }, bad = { "1.5", '"1"', "null", "1e400",
        "99999999999999999999999" } },
      number = { good = { "0", "1.5", "9007199254740993", "0.1000000000000000000001", "1e400" }, bad = { '"1"',
        "null" } },
      boolean = { good = { "true", "false" }, bad = { "0", '"true"', "null" } },
      object = { good = { "{}", '{"a":1}' }, bad = { "[]", "[1]", '"{}"', "null" } },
      array = { good = { "[]", "[1]", "[null]" }, bad = { "{}", '{"a":1}', '"[]"', "null" } },
      any = { good = { "null", "1", '""', "{}", "[]", "false" }, bad = {} },
    } do
      local declared = { v = { type = kind } }
      for _, text in ipairs(values.good) do
        assert.is_nil(fault(declared, ('{"v":%s}'):format(text)), kind .. " " .. text)
      end
      for _, text in ipairs(values.bad) do
        assert.is_string(fault(declared, ('{"v":%s}'):format(text)), kind .. " " .. text)
      end
    end
  end)

  it("wants what is required, and lets other members pass", function()
    local declared = { a = { type = "integer", required = true }, b = { type = "string" } }
    assert.is_nil(fault(declared, '{"a":1,"c":[]}'))
    assert.equal("a: found nothing, expected a whole number", fault(declared, '{"b":"x"}'))
  end)

  it("says where, what was found and what was expected", function()
    local declared = {
      n = { type = "integer", min = 1, max = 9 },
      kind = { type = "string", enum = { "in", "out" } },
      code = { type = "string", pattern = "^%u%u%d*$", max = 4 },
      items = { type = "array", min = 1, items = { type = "object", fields = {
        sku = { type = "string", required = true, min = 2 },
        tags = { type = "array", items = { type = "string" } } } } },
    }
    assert.equal('n: found "7", expected a whole number from 1 to 9', fault(declared, '{"n":"7"}'))
    assert.equal("n: found 10, expected a whole number from 1 to 9", fault(declared, '{"n":10}'))
    assert.equal("n: found 9007199254740993, expected a whole number from 1 to 9",
      fault(declared, '{"n":9007199254740993}'))
    assert.equal('kind: found "IN", expected one of "in", "out"', fault(declared, '{"kind":"IN"}'))
    assert.equal('code: found "ab", expected a string of at most 4 characters that matches the pattern ^%u%u%d*$',
      fault(declared, '{"code":"ab"}'))
    assert.equal("items: found an array of 0 items, expected an array of at least 1 item",
      fault(declared, '{"items":[]}'))
    assert.equal('items[1].sku: found nothing, expected a string of at least 2 characters',
      fault(declared, '{"items":[{"sku":"ab"},{}]}'))
    assert.equal("items[0].tags[1]: found null, expected a string", fault(declared,
      '{"items":[{"sku":"ab","tags":["x",null]}]}'))
  end)

  it("counts characters, not octets", function()
    local declared = { v = { type = "string", min = 2, max = 2 } }
    assert.is_nil(fault(declared, '{"v":"éé"}'))
    assert.is_string(fault(declared, '{"v":"é"}'))
  end)

  it("keeps texts out of what is stored, answered and logged", function()
    local f, line = args.fault({ pin = { type = "string", max = 4 } }, { pin = "secret" })
    assert.same({ code = "args_invalid", path = "pin", found = "a string of 6 characters",
      expected = "a string of at most 4 characters",
      message = "args.pin: found a string of 6 characters, expected a string of at most 4 characters" }, f)
    assert.equal('args.pin: found "secret", expected a string of at most 4 characters', line)
    f = args.fault({ pin = { type = "integer" } }, { pin = "" })
    assert.equal("an empty string", f.found)
  end)

  it("refuses what fuzzing found: what JSON cannot tell, what raises when it is used, what holds itself", function()
    for name, d in pairs {
      min = { type = "number", min = -math.huge }, max = { type = "number", max = math.huge },
      enum = { type = "number", enum = { 0 / 0 } }, description = { type = "any", description = "\255" },
      pattern = { type = "string", pattern = "(a" },
    } do
      local found = faults_of { v = d }
      assert.equal(1, #found, name)
      assert.matches("^args.v." .. name .. ": wrong value", found[1])
    end
    assert.matches("^args: wrong value: .*names of members", faults_of({ ["\255"] = { type = "any" } })[1])
    local t = { type = "array" }
    t.items = t
    assert.matches("lies in more than 16 others, or in itself", faults_of({ v = t })[1])
    local wide = { type = "object", fields = {} }
    for i = 1, 20 do
      wide.fields["f" .. i] = wide
    end
    local found = faults_of { v = wide }
    assert.matches("at most 1000", found[#found])
    assert.is_true(#found <= 1000)
  end)

  it("does not match patterns against long strings", function()
    local declared = { v = { type = "string", pattern = "a" } }
    assert.is_nil(args.fault(declared, { v = ("a"):rep(1000) }))
    assert.is_table(args.fault(declared, { v = ("a"):rep(1001) }))
    declared.v.max = 2000
    assert.is_nil(args.fault(declared, { v = ("a"):rep(1001) }))
  end)

  it("finds every fault of a declaration", function()
    local function one(d) return faults_of({ v = d })[1] end
    assert.same({}, faults_of { v = { type = "string", required = true, min = 1, max = 2, pattern = "^x",
      enum = { "x" }, description = "x" },
      o = { type = "object", fields = { a = { type = "array", items = { type = "any" } } } } })
    assert.matches('^args.v: wrong value: "string": a table such as', one("string"))
    assert.matches("^args.v.type: is missing: nil: one of string, integer", one {})
    assert.matches('^args.v.type: wrong value: "text": one of string', one { type = "text" })
    assert.matches("^args.v.min: does not go with the type boolean", one { type = "boolean", min = 1 })
    assert.matches("^args.v.min: wrong value: %-1: a whole number from 0", one { type = "string", min = -1 })
    assert.matches("^args.v.max: wrong value: 1: not less than min", one { type = "number", min = 2, max = 1 })
    assert.matches("^args.v.required: wrong value: 1: true or false", one { type = "any", required = 1 })
    assert.matches("^args.v.pattern: wrong value: .*a Lua pattern without", one { type = "string", pattern = "%bxy" })
    assert.matches("^args.v.pattern: wrong value: .*a Lua pattern without", one { type = "string", pattern = "[a" })
    assert.matches("^args.v.enum: wrong value: .*values of the type integer", one { type = "integer", enum = { "1" } })
    assert.matches("^args.v.enum: wrong value", one { type = "integer", enum = {} })
    assert.matches("^args.v.items.type: is missing", one { type = "array", items = {} })
    assert.matches("^args.v.fields.x.type: wrong", one { type = "object", fields = { x = { type = 1 } } })
    assert.matches("^args.v.fields: wrong value: a position", one { type = "object", fields = { { type = "any" } } })
    assert.matches("^args.v.minimum: no such field", one { type = "number", minimum = 1 })
    assert.equal(2, #faults_of { a = {}, b = {} })
  end)

  it("is compared with key, fingerprint and path", function()
    local function uses(task)
      local out = {}
      task.args = task.args or { id = { type = "string" }, n = { type = "integer" }, list = { type = "array" },
        o = { type = "object", fields = { x = { type = "any" } } }, open = { type = "object" } }
      args.check_uses(task, function(f) out[#out + 1] = f.field .. ": " .. f.message end)
      return out
    end
    assert.same({}, uses { key = { "id", "o.x", "o.x.deeper", "open.at_all" }, fingerprint = { "n", "list", "o" } })
    assert.same({ "key: args declares nothing at idd", "fingerprint: args declares nothing at o.y" },
      uses { key = { "idd", "n" }, fingerprint = { "o.y" } })
    assert.same({ "key: list cannot be in a key", "key: o cannot be in a key" }, uses { key = { "list", "o" } })
    assert.same({ "key: args declares nothing at id.x" }, uses { key = { "id.x" } })
    assert.same({ "args.n: is a parameter of http.path" }, uses { http = { path = "/a/{id}/{n}/{other}" } })
    assert.same({}, uses { key = function() end })
  end)

  it("is told as JSON Schema", function()
    assert.same({ type = "object", required = { "a" }, properties = {
      a = { type = "integer", minimum = 1, description = "first" },
      b = { type = "string", minLength = 1, maxLength = 1000, pattern = "^[0-9]" },
      c = { type = "array", maxItems = 2, items = { type = "object", properties = { d = {} } } },
      e = { type = "string", enum = { "x", "y" } },
    } }, args.schema({
      a = { type = "integer", min = 1, required = true, description = "first" },
      b = { type = "string", min = 1, pattern = "^%d" },
      c = { type = "array", max = 2, items = { type = "object", fields = { d = { type = "any" } } } },
      e = { type = "string", enum = { "x", "y" } },
      id = { type = "string" },
    }, { id = true }))
  end)

  it("translates patterns", function()
    for pattern, expected in pairs {
      ["^%d+$"] = "^[0-9]+$", ["a.b"] = "a[\\s\\S]b", ["%S-x"] = "[^ \\t\\n\\v\\f\\r]*?x",
      ["[%w_-]"] = "[A-Za-z0-9_\\-]",
      ["[^%]]"] = "[^\\]]", ["a$b"] = "a\\$b", ["-1"] = "\\-1", ["(%a)|"] = "([A-Za-z])\\|", ["[a-f]?"] = "[a-f]?",
    } do
      assert.equal(expected, regexp.from_pattern(pattern))
    end
    -- found by fuzzing: captures that matching raises at, ranges that no regular expression may have
    for _, pattern in ipairs { "%b()", "%f[%w]", "(a)%1", "()", "[%S]", "(a", "a)", ")(", ("(a)"):rep(33), "[b-a]",
      "[+-%]", "[a" } do
      assert.is_nil(regexp.from_pattern(pattern), pattern)
    end
  end)
end)
