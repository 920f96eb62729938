--- Values from the octets of an input: whatever they are, they mean something, and a changed octet means something
-- near it.
local json = require("umavez.json")

local Octets = {}
Octets.__index = Octets

local NUMBERS = { 0, -1, 1, 1.5, 2, 100, 1e15, 1e308, 2 ^ 53, 2 ^ 63, -2 ^ 63, 1 / 0, -1 / 0, 0 / 0, 1e-320 }

--- Texts that mean something to somebody.
local WORDS = {
  "", " ", "x", "a.b", "a..b", ".a", "a\0b", "\255\254", "é", "a\nb", "tenant", "platform", "5s", "0s",
  "-5s", "1.5ms", "1h", "7d", "999999999999d", "/a", "/a/{b}", "/{a}/{a}", "/runs/x", "//", "X-Key",
  "POST", "GET", "enqueue", "optional", "none", "string", "integer", "number", "boolean", "object",
  "array", "any", "^%d+$", "[", "[a", "(a", "a)", "%", "%b()", "[%a-z]", "()", "*/5 * * * *", "@daily",
  "UTC", "America/Sao_Paulo", "Etc//UTC", "leapseconds", "each", "skip", "once", "all", "a.lua",
  "../a.lua", "hmac_sha256",
}

function Octets.new(data)
  return setmetatable({ data = data, at = 1, made = {} }, Octets)
end

function Octets:octet()
  local b = self.data:byte(self.at) or 0
  self.at = self.at + 1
  return b
end

function Octets:pick(list)
  return list[self:octet() % #list + 1]
end

--- At most `most` octets of the input as they are.
function Octets:text(most)
  local n = self:octet() % (most + 1)
  local s = self.data:sub(self.at, self.at + n - 1)
  self.at = self.at + n
  return s
end

function Octets:rest()
  return self.data:sub(self.at)
end

function Octets:number()
  local kind = self:octet()
  if kind < 100 then
    return kind - 20
  elseif kind < 160 then
    return NUMBERS[kind % #NUMBERS + 1]
  end
  return (self:octet() * 256 + self:octet() - 32768) / 2 ^ (kind % 12)
end

function Octets:word()
  return self:octet() < 170 and self:pick(WORDS) or self:text(24)
end

--- A table whose tables may be others again, or itself.
function Octets:table(depth)
  local t = {}
  self.made[#self.made + 1] = t
  for _ = 1, self:octet() % 5 do
    local kind = self:octet() % 8
    local key
    if kind < 3 then
      key = #t + 1
    elseif kind < 6 then
      key = self:word()
    elseif kind == 6 then
      key = self:number()
    else
      key = self:value(depth + 1)
    end
    local value = self:value(depth + 1)
    if key ~= nil and key == key then
      t[key] = value
    end
  end
  return t
end

--- Any value. `plain`: such as decoded JSON may hold, too, which a manifest may not.
function Octets:value(depth, plain)
  local kind = self:octet() % 12
  if kind < 4 then
    return self:word()
  elseif kind < 6 then
    return self:number()
  elseif kind == 6 then
    return self:octet() % 2 == 0
  elseif kind == 7 then
    return function() return "k" end
  elseif kind == 8 and plain then
    return json.decode(self:pick { "null", "9007199254740993", "1.00000000000000000001", "18446744073709551615", "-0",
      "[]", "{}" })
  elseif kind == 9 and #self.made > 0 then
    return self.made[self:octet() % #self.made + 1]
  elseif kind >= 8 and depth < 6 then
    return self:table(depth)
  end
  return nil
end

--- The Lua text that makes a value: `T` holds its tables.
local function emit(value)
  local out, names, n = { "local T = {}" }, {}, 0
  local literal
  local function name(t)
    if not names[t] then
      n = n + 1
      names[t] = ("T[%d]"):format(n)
      out[#out + 1] = names[t] .. " = {}"
      for k, v in pairs(t) do
        out[#out + 1] = ("%s[%s] = %s"):format(names[t], literal(k), literal(v))
      end
    end
    return names[t]
  end
  function literal(v)
    if type(v) == "table" then
      return name(v)
    elseif type(v) == "function" then
      return "function() return 'k' end"
    elseif type(v) == "string" then
      return (("%q"):format(v):gsub("[^\32-\126\n]", function(c) return ("\\%03d"):format(c:byte()) end))
    elseif v ~= v then
      return "0/0"
    elseif v == 1 / 0 or v == -1 / 0 then
      return v > 0 and "1/0" or "-1/0"
    end
    return type(v) == "number" and ("%.17g"):format(v) or tostring(v)
  end
  out[#out + 1] = "return " .. literal(value)
  return table.concat(out, "\n")
end

return { new = Octets.new, emit = emit }
