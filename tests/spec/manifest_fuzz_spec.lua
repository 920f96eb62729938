-- Any value in any field of a manifest: either it is taken, or a fault names the file and the field. Nothing raises,
-- nothing hangs.
local manifest = require("umavez.manifest")
local sys = require("umavez.sys")

local VALUES = {
  "true", "false", "0", "-1", "1", "1.5", "1e308", "0/0", "1/0", "-1/0", "2^53", "''", "' '",
  "'x'", "'tenant'", "'5s'", "'5 s'", "'-5s'", "'1e3s'", "'0s'", "'1.5ms'",
  "'99999999999999999999d'", "'s'", "'\\0'", "'a\\0b'", "'\\255\\254'", "'a\\nb'",
  "('x'):rep(70000)", "'/a'", "'/{a}/{a}'", "'/{}'", "'{'", "'//'", "'/a b'", "'X-Key'", "'X Key'",
  "{}", "{ 1 }", "{ '' }", "{ 'a' }", "{ 'a', 'a' }", "{ 'a.b' }", "{ 'a..b' }", "{ '.a' }",
  "{ 'a\\0b' }", "{ {} }", "{ a = 1 }", "{ header = 'X-Key' }", "{ header = {} }", "{ nil, 'a' }",
  "{ [0] = 'a' }", "{ [{}] = 1 }", "{ [1.5] = 1 }", "function() end", "function() error('x') end",
  "(function() local t = {} t[1] = t t.t = t return t end)()",
}
local SEED = tonumber(os.getenv("UMAVEZ_FUZZ_SEED")) or 1
local ROUNDS = os.getenv("UMAVEZ_LONG") == "1" and 20000 or 600

-- Places of the description: "retry.base" and all others, and names that nobody knows.
local function places(fields, prefix, out)
  for _, field in ipairs(fields) do
    out[#out + 1] = prefix .. field.name
    if field.fields then
      places(field.fields, prefix .. field.name .. ".", out)
    end
  end
  return out
end

local function literal(tree)
  if type(tree) == "string" then
    return tree
  end
  local parts = {}
  for name, v in pairs(tree) do
    parts[#parts + 1] = ("[%q] = %s"):format(name, literal(v))
  end
  table.sort(parts)
  return "{ " .. table.concat(parts, ", ") .. " }"
end

local function put(tree, place, value)
  local head, rest = place:match("^([^.]+)%.(.+)$")
  if not head then
    tree[place] = value
  elseif type(tree[head]) ~= "string" then
    tree[head] = tree[head] or {}
    put(tree[head], rest, value)
  end
end

describe("a manifest with any value in any field", function()
  local dir
  setup(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(sys.mkdir_all(dir .. "/shop"))
    local f = assert(io.open(dir .. "/shop/a.lua", "w"))
    f:write("return function() end")
    f:close()
  end)

  teardown(function()
    sys.wait(sys.spawn({ "rm", "-rf", dir }))
  end)

  local function load(content)
    local f = assert(io.open(dir .. "/shop/manifest.lua", "w"))
    f:write(content)
    f:close()
    local ok, found, faults = pcall(manifest.load, dir)
    assert(ok, ("%s\n  raised %s"):format(content:sub(1, 500), tostring(found)))
    for _, fault in ipairs(faults) do
      assert(fault.file and #tostring(fault) > 0, content:sub(1, 500))
      assert(fault.field or fault.message, content:sub(1, 500))
    end
    return faults
  end

  local all = places(manifest.fields, "", { "no_such_field", "retry.no_such_field", "http.no_such_field" })

  it("each value alone in each field", function()
    local refused = 0
    for _, place in ipairs(all) do
      for _, value in ipairs(VALUES) do
        local task = { owner = "'tenant'" }
        put(task, place, value)
        local faults = load("return { tasks = { a = " .. literal(task) .. " } }")
        for _, fault in ipairs(faults) do
          assert.equal("shop.a", fault.task)
          -- A wrong table leaves its required members missing, too.
          local named, top = fault.field or "", place:match("^[^.]+")
          assert(named:sub(1, #top) == top, place .. " = " .. value:sub(1, 80) .. ": " .. tostring(fault))
        end
        refused = refused + (#faults > 0 and 1 or 0)
      end
    end
    assert(refused > #all * #VALUES / 2, refused)
  end)

  it("several at once, and in place of the whole", function()
    math.randomseed(SEED)
    for _, value in ipairs(VALUES) do
      load("return " .. value)
      load("return { tasks = " .. value .. " }")
      load("return { tasks = { a = " .. value .. " } }")
      load("return { tasks = { [" .. (value == "0/0" and "1" or value) .. "] = { owner = 'tenant' } } }")
    end
    for _ = 1, ROUNDS do
      local task = { owner = "'tenant'" }
      for _ = 1, math.random(5) do
        put(task, all[math.random(#all)], VALUES[math.random(#VALUES)])
      end
      load("return { tasks = { a = " .. literal(task) .. " } }")
    end
  end)
end)
