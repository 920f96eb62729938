-- `args` of a manifest, and values against it.
--
-- Invariants: a declaration is taken, or each fault names its field and says what is wrong; one that is taken has words
-- and a JSON Schema that can be written; a value against it gives no fault or one that says where, without any text of
-- the value; nothing raises.
local args = require("umavez.args")
local declarations = require("declarations")
local json = require("umavez.json")
local octets = require("octets")

local SECRET = "s3cret"

local function hide(v, seen)
  if type(v) == "string" then
    return SECRET
  elseif type(v) == "table" and not seen[v] then
    seen[v] = true
    for k, inner in pairs(v) do
      v[k] = hide(inner, seen)
    end
  end
  return v
end

-- What the database hands out: JSON, so no functions and no cycles.
local function decoded(value)
  local ok, text = pcall(json.encode, value)
  return ok and json.decode(text) or nil
end

local function try(declared, values)
  local fault, line = args.fault(declared, values)
  if not fault then
    return
  end
  assert(fault.code == "args_invalid" and fault.path ~= "" and fault.found ~= "" and fault.expected ~= "")
  assert(fault.message == ("args.%s: found %s, expected %s"):format(fault.path, fault.found, fault.expected))
  assert(not fault.found:find(SECRET, 1, true) and type(line) == "string", fault.found)
  json.decode(json.encode(fault))
end

return function(data)
  local o = octets.new(data)
  local declared = o:octet() < 250 and declarations.fields(o, 1) or o:value(1)
  local faults = 0
  local taken = args.validate(declared, function(fault)
    faults = faults + 1
    assert(type(fault.field) == "string" and fault.field:find("^args") and fault.message ~= "")
    assert(fault.found == nil or type(fault.found) == "string")
  end)
  assert((faults == 0) == (taken ~= nil))
  if not taken then
    return
  end
  json.decode(json.encode(args.schema(taken)))
  for _, line in ipairs(args.lines(taken)) do
    assert(line.path and line.words ~= "")
  end
  o.made = {}
  for _ = 1, 4 do
    local values = {}
    for _, name in ipairs(declarations.NAMES) do
      values[name] = o:value(1, true)
    end
    values = decoded(values)
    if values then
      try(taken, values)
      try(taken, hide(values, {}))
    end
  end
end
