--- Declarations of args from octets: mostly such as are taken, each field now and then with anything in it.
local TYPES = { "string", "integer", "number", "boolean", "object", "array", "any" }
local NAMES = { "a", "b", "id", "a.b", "amount_cents" }
local PATTERNS = { "^%d+$", "^[%a_][%w_]*$", "x-", "[^a-c%s]+", "(a)(b)", "%.", "a$b", "[]]", "[a-]", "" }

local M = {}

local function one(o, depth)
  local d = { type = o:octet() < 240 and o:pick(TYPES) or o:value(depth) }
  local bits = o:octet()
  local function given(bit)
    return math.floor(bits / 2 ^ bit) % 2 == 1
  end
  local function some(v)
    return o:octet() < 230 and v or o:value(depth)
  end
  if given(0) then
    d.required = some(true)
  end
  if given(1) then
    d.min = some(o:number())
  end
  if given(2) then
    d.max = some(o:number())
  end
  if given(3) then
    d.pattern = some(o:octet() < 128 and o:pick(PATTERNS) or o:text(16))
  end
  if given(4) then
    d.enum = some({ o:value(depth), o:value(depth), o:value(depth) })
  end
  if given(5) and depth < 4 then
    d.items = some(one(o, depth + 1))
  end
  if given(6) and depth < 4 then
    d.fields = some(M.fields(o, depth + 1))
  end
  if given(7) then
    d[o:octet() < 200 and "description" or o:word()] = o:word()
  end
  o.made[#o.made + 1] = d
  return d
end

function M.fields(o, depth)
  local out = {}
  o.made[#o.made + 1] = out
  for _ = 1, o:octet() % 4 do
    local name = o:octet() < 230 and o:pick(NAMES) or o:value(depth)
    if name ~= nil and name == name then
      out[name] = o:octet() < 240 and one(o, depth) or o:value(depth)
    end
  end
  return out
end

M.NAMES = NAMES
return M
