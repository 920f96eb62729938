-- JSON values in Lua (D02-D07, C07).
local json = require("umavez.json")
local umavez = require("umavez")

local function code_of(value)
  local ok, err = pcall(json.encode, value)
  assert.is_false(ok)
  return err.code, err.message
end

describe("JSON", function()
  it("D06 keeps [], {} and null apart", function()
    for _, text in ipairs { '{"l":[]}', '{"o":{}}', '{"n":null}', "[[],{},null]", "[null]", "null", "[]", "{}" } do
      assert.equal(text, json.encode(json.decode(text)))
    end
    assert.equal("{}", json.encode({}))
    assert.equal("[]", json.encode(umavez.array()))
    assert.equal("[]", json.encode(umavez.array({})))
    assert.is_true(json.is_array(json.decode("[1]")))
    assert.is_false(json.is_array(json.decode("{}")))
    assert.equal(json.null, json.decode("null"))
    assert.equal("null", tostring(json.null))
  end)

  it("D07 C07 keeps numbers exact", function()
    for _, text in ipairs {
      "123456789012345", "9007199254740991", "9007199254740992", "9007199254740993", "-9007199254740993", "0.1",
      "1e+300",
      "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551616",
      "0.30000000000000004", "0",
      "1e+400", "3.14159265358979323846264338327950288", "1e-7", "0.000001", "100000000000000000000",
    } do
      assert.equal("[" .. text .. "]", json.encode(json.decode("[" .. text .. "]")))
    end
    assert.not_equal(json.decode("9007199254740992"), json.decode("9007199254740993"))
    assert.equal("number", type(json.decode("9007199254740992")))
    assert.equal("cdata", type(json.decode("9007199254740993")))
    assert.equal(9007199254740993LL, json.decode("9007199254740993"))
    assert.equal("18446744073709551615", json.encode(18446744073709551615ULL))
    assert.equal("-1", json.encode(-1LL))
    assert.equal("100000000000000", json.encode(100000000000000))
    assert.equal("1.10", tostring(umavez.decimal("1.10")))
    assert.equal(1.1, umavez.decimal("1.10"):number())
    assert.equal(umavez.decimal("7"), umavez.decimal(7LL))
    assert.equal("n=1.10", "n=" .. umavez.decimal("1.10"))
    assert.has_error(function()
      umavez.decimal("1,5")
    end)
  end)

  it("D02 D03 refuses what JSON or jsonb cannot hold, and names the place", function()
    for _, value in ipairs {
      0 / 0, 1 / 0, -1 / 0, "\255", "\237\160\128", "a\0b", print, coroutine.create(print),
      io.stdout, { 1, 2, x = 3 },
      { [1] = 1, [3] = 3 }, { [1.5] = 1 }, { [0] = 1 }, { [true] = 1 }, { ["a\0"] = 1 }, { ["\255"] = 1 },
      umavez.bytea("x"),
      setmetatable({ 1, nil, 3 }, getmetatable("")),
    } do
      local code = code_of({ deep = { value } })
      assert.equal("json_value", code)
    end
    local _, message = code_of({ items = { { price = 1 }, { price = 0 / 0 } } })
    assert.matches("at %.items%[2%]%.price", message)
  end)

  it("D03 refuses cycles and depth without a crash", function()
    local loop = {}
    loop.loop = loop
    assert.equal("json_value", (code_of(loop)))
    local arrays = { {} }
    arrays[1][1] = arrays
    assert.equal("json_value", (code_of(arrays)))
    local deep = {}
    local at = deep
    for _ = 1, 100000 do
      at.x = {}
      at = at.x
    end
    assert.equal("json_value", (code_of(deep)))
    local function nest(n)
      return n == 0 and 1 or { nest(n - 1) }
    end
    assert.equal(("["):rep(128) .. "1" .. ("]"):rep(128), json.encode(nest(128)))
    assert.equal("json_value", (code_of(nest(129))))
    assert.has_error(function()
      json.decode(("["):rep(100000))
    end)
  end)

  it("stops at a limit where a small value means a huge text", function()
    local bomb = { ("x"):rep(1000) }
    for _ = 1, 60 do
      bomb = { bomb, bomb }
    end
    assert.equal("json_too_large", (code_of(bomb)))
  end)

  it("decodes strictly", function()
    for _, text in ipairs { "", "{", "[1,]", "01", "nul", "'a'", '"\\ud800"', '"\255"', "1 2", "NaN",
    "\239\187\191{}", '{"a"}' } do
      local ok, err = pcall(json.decode, text)
      assert.is_false(ok, text)
      assert.matches("^json_", err.code)
    end
    assert.same({ a = { 1, "é" } }, json.decode(' { "a" : [ 1 , "\\u00e9" ] } '))
  end)

  it("ignores metamethods and a hostile __index", function()
    local trap = setmetatable({ a = 1 }, {
      __index = function()
        error("called")
      end,
      __tostring = function()
        error("called")
      end,
    })
    assert.equal('{"a":1}', json.encode(trap))
  end)
end)
