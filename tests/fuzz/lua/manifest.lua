-- Manifests, as files: tables of any shape, and texts as they come.
--
-- Invariants: loading raises nothing; each fault has its file and a message, in lines that JSON can hold; what is taken
-- is taken again, is registered, described for people and for programs, has an OpenAPI description, and a schedule that
-- can be given to the database.
local declarations = require("declarations")
local describe = require("umavez.describe")
local json = require("umavez.json")
local manifest = require("umavez.manifest")
local octets = require("octets")
local openapi = require("umavez.openapi")
local plain = require("umavez.cli.tasks").plain
local sys = require("umavez.sys")

local dir = os.tmpname()
os.remove(dir)
assert(sys.mkdir_all(dir .. "/shop"))
local path = package.path

-- Plausible values of a field, from its own description.
local function plausible(o, field)
  local choices = {}
  for word in field.type:gmatch('"(.-)"') do
    choices[#choices + 1] = word
  end
  if #choices > 0 then
    return o:pick(choices)
  elseif field.type == "duration" then
    return o:pick { "1s", "10s", "1m", "1h", "24h" }
  elseif field.type == "number" then
    return o:octet() % 70 + 1
  elseif field.type:find("paths") then
    return { o:pick(declarations.NAMES), o:pick { "id", "a", "b.c" } }
  elseif field.type == "boolean" then
    return o:octet() % 2 == 0
  elseif field.type == "path" then
    return o:pick { "/a", "/a/{id}", "/{a}/{b}/c", "/runs" }
  end
  return o:word()
end

local function fields(o, list, depth)
  local out = {}
  o.made[#o.made + 1] = out
  for _, field in ipairs(list) do
    local kind = o:octet()
    if kind > 250 then
      out[field.name] = o:value(depth)
    elseif kind > 150 or field.required then
      out[field.name] = field.fields and fields(o, field.fields, depth + 1)
        or field.name == "args" and depth == 1 and declarations.fields(o, 2)
        or field.name == "cron" and o:pick { "*/5 * * * *", "@daily", "0 0 30 2 *" }
        or field.name == "tz" and o:pick { "UTC", "America/Sao_Paulo", "Nowhere" }
        or field.name == "args" and { a = o:value(depth), b = 1 }
        or plausible(o, field)
    end
  end
  if o:octet() > 250 then
    out[o:word()] = o:value(depth)
  end
  return out
end

-- Texts without what takes long or much on purpose: a manifest is its author's own program.
local HEAVY = { "while", "for", "repeat", "goto", "function", "rep", "gsub", "concat", "format", "%.%.", "find",
  "match", "math" }

local function text_of(o)
  if o:octet() < 230 then
    local tasks = { a = fields(o, manifest.fields, 1) }
    if o:octet() > 200 then
      tasks.b = o:octet() > 128 and fields(o, manifest.fields, 1) or o:value(1)
    end
    local whole = { tasks = tasks }
    if o:octet() > 250 then
      whole = o:value(1)
    end
    return octets.emit(whole)
  end
  local text = o:rest()
  for _, word in ipairs(HEAVY) do
    if text:find(word) then
      return "return {}"
    end
  end
  return text
end

local function load(text)
  local f = assert(io.open(dir .. "/shop/manifest.lua", "wb"))
  f:write(text)
  f:close()
  package.path = path
  return manifest.load(dir, { handlers = false })
end

return function(data)
  local text = text_of(octets.new(data))
  local found, faults = load(text)
  for _, fault in ipairs(faults) do
    assert(fault.file and type(fault.message) == "string" and #tostring(fault) > 0)
  end
  json.decode(json.encode(plain(faults)))
  if #faults > 0 then
    return
  end
  local again, more = load(text)
  assert(#more == 0)
  for name, task in pairs(found) do
    assert(again[name])
    for _, line in ipairs(describe.lines(task)) do
      assert(line[2] == nil or type(line[2]) == "string")
    end
    json.decode(json.encode(describe.plain(task)))
  end
  json.decode(json.encode(openapi.describe(found)))
  forget_tasks() -- luacheck: ignore 113
  manifest.register(found)
  forget_tasks() -- luacheck: ignore 113
end
