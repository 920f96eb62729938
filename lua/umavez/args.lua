--- `args = { … }` in a manifest: what a task's args must be.
--
-- One table (`M.fields`) describes what a value's declaration may say; docs/manifest.md follows from it. A declaration
-- is checked once (`validate`), then values are checked against it (`fault`), and it is told as JSON Schema (`schema`).
-- @module umavez.args

local ffi = require("ffi")
local json = require("umavez.json")
local regexp = require("umavez.regexp")
local sorted = require("umavez.names").sorted
local texts = require("umavez.text")

local M = {}

local DEPTH_MAX = 16 -- of declarations inside one another
local COUNT_MAX = 1000 -- of a task's declarations
local PATTERN_MAX = 1000 -- octets of a text that is matched without a `max`: patterns may take long for long texts

local function is_integer(v)
  return type(v) == "number" and v % 1 == 0 and v > -math.huge and v < math.huge
    or type(v) == "cdata" and (ffi.istype("int64_t", v) or ffi.istype("uint64_t", v))
end

local function is_number(v)
  return type(v) == "number" or is_integer(v) or type(v) == "userdata" and v ~= json.null
end

local function is_object(v)
  return type(v) == "table" and not json.is_array(v) and v[1] == nil
end

local function is_array(v)
  return type(v) == "table" and (json.is_array(v) or v[1] ~= nil)
end

-- Each type: the test of a value, the words for it, the unit of min and max (nil: they do not go with it).
local TYPES = {
  string = { test = function(v) return type(v) == "string" end, words = "a string", unit = " characters" },
  integer = { test = is_integer, words = "a whole number", unit = "" },
  number = { test = is_number, words = "a number", unit = "" },
  boolean = { test = function(v) return type(v) == "boolean" end, words = "true or false" },
  object = { test = is_object, words = "an object" },
  array = { test = is_array, words = "an array", unit = " items" },
  any = { test = function() return true end, words = "anything" },
}
local TYPE_NAMES = { "string", "integer", "number", "boolean", "object", "array", "any" }

--- What a declaration may say, in the order of the docs. `goes_with` are the types that it is for.
M.fields = {
  { name = "type", type = '"' .. table.concat(TYPE_NAMES, '", "') .. '"', required = true,
    doc = "what the value is. JSON's null is only of the type any" },
  { name = "required", type = "boolean", doc = "true: it must be there" },
  { name = "min", type = "number", goes_with = "string integer number array",
    doc = "the least value; of a string the characters, of an array the items" },
  { name = "max", type = "number", goes_with = "string integer number array", doc = "the greatest, likewise" },
  { name = "pattern", type = "Lua pattern", goes_with = "string",
    doc = "what a string must match somewhere (`^…$`: as a whole); without `%b`, `%f`, `%1`, `()`. Strings longer than "
      .. PATTERN_MAX .. " octets do not match, unless `max` allows more" },
  { name = "enum", type = "array", goes_with = "string integer number", doc = "the values that there are" },
  { name = "items", type = "declaration", goes_with = "array", doc = "what each item is" },
  { name = "fields", type = "table", goes_with = "object", doc = "what its members are, by name; others may be there" },
  { name = "description", type = "text", doc = "for people" },
}

-- ---- values ----

local function counted(n, unit)
  return n .. (n == 1 and unit:gsub("s$", "") or unit)
end

local function shown(v)
  if type(v) == "string" then
    return #v > 60 and ("%q…"):format(v:sub(1, 60):gsub("[\128-\191]*$", "")) or ("%q"):format(v)
  elseif v == json.null then
    return "null"
  elseif type(v) == "table" then
    return is_array(v) and "an array of " .. counted(#v, " items") or "an object"
  elseif type(v) == "cdata" then
    return (tostring(v):gsub("U?LL$", ""))
  end
  return tostring(v)
end

local function characters(text)
  return select(2, text:gsub("[^\128-\191]", ""))
end

-- What may be stored and answered: strings can be secrets, so of those only the length.
local function discreet(v)
  if type(v) == "string" then
    return v == "" and "an empty string" or "a string of " .. counted(characters(v), " characters")
  end
  return shown(v)
end

local function listed(enum)
  local out = {}
  for i, v in ipairs(enum) do
    out[i] = shown(v)
  end
  return table.concat(out, ", ")
end

local function bounds(d)
  local unit = TYPES[d.type].unit
  if d.min and d.min == d.max then
    return " of exactly " .. counted(d.min, unit)
  elseif d.min and d.max then
    return (" from %s to %s"):format(d.min, counted(d.max, unit))
  elseif d.min then
    return " of at least " .. counted(d.min, unit)
  end
  return d.max and " of at most " .. counted(d.max, unit) or ""
end

--- What a declaration asks for, in words.
-- @tparam table d
-- @treturn string "a whole number from 1 to 500000"
function M.words(d)
  if d.enum then
    return "one of " .. listed(d.enum)
  end
  local words = TYPES[d.type].words .. bounds(d)
  return d.pattern and ("%s that matches the pattern %s"):format(words, d.pattern) or words
end

local function within(d, n)
  return (not d.min or n >= d.min) and (not d.max or n <= d.max)
end

local function fits(d, v)
  if not TYPES[d.type].test(v) then
    return false
  elseif d.enum then
    for _, allowed in ipairs(d.enum) do
      if allowed == v then
        return true
      end
    end
    return false
  elseif d.type == "string" then
    return within(d, characters(v))
      and (not d.pattern or (d.max or #v <= PATTERN_MAX) and v:find(d.pattern) ~= nil)
  elseif d.type == "array" then
    return within(d, #v)
  elseif d.type == "integer" or d.type == "number" then
    return within(d, type(v) == "userdata" and v:number() or tonumber(v))
  end
  return true
end

local fault_of_fields

local function fault_of(d, v, path)
  if not fits(d, v) then
    return { path = path, found = discreet(v), expected = M.words(d) }, shown(v)
  elseif d.items and is_array(v) then
    for i, item in ipairs(v) do
      local fault, value = fault_of(d.items, item, ("%s[%d]"):format(path, i - 1))
      if fault then
        return fault, value
      end
    end
  elseif d.fields and is_object(v) then
    return fault_of_fields(d.fields, v, path .. ".")
  end
end

function fault_of_fields(fields, values, prefix)
  for _, name in ipairs(sorted(fields)) do
    local d, v = fields[name], values[name]
    if v == nil then
      if d.required then
        return { path = prefix .. name, found = "nothing", expected = M.words(d) }, "nothing"
      end
    else
      local fault, value = fault_of(d, v, prefix .. name)
      if fault then
        return fault, value
      end
    end
  end
end

--- The first fault of args, in the order of the names.
-- @tparam table declared a task's `args`, validated
-- @tparam table args decoded JSON
-- @treturn table|nil code ("args_invalid"), message, path ("order.items[0].sku"), found (without the text of strings),
-- expected
-- @treturn string|nil a line with the value that was found, for who has written it: not to be stored nor logged
function M.fault(declared, args)
  local fault, value = fault_of_fields(declared, args, "")
  if not fault then
    return nil
  end
  fault.code = "args_invalid"
  fault.message = ("args.%s: found %s, expected %s"):format(fault.path, fault.found, fault.expected)
  return fault, ("args.%s: found %s, expected %s"):format(fault.path, value, fault.expected)
end

-- ---- declarations ----

local validate_fields

local checks = {}

function checks.type(v)
  if not TYPES[v] then
    return "one of " .. table.concat(TYPE_NAMES, ", ")
  end
end

function checks.required(v)
  return type(v) ~= "boolean" and "true or false" or nil
end

function checks.min(v, d)
  local counts = d.type == "string" or d.type == "array"
  if type(v) ~= "number" or v ~= v or math.abs(v) == math.huge or counts and (v < 0 or v % 1 ~= 0) then
    return counts and "a whole number from 0" or "a number"
  end
end

function checks.max(v, d)
  local expected = checks.min(v, d)
  if not expected and type(d.min) == "number" and v < d.min then
    expected = "not less than min"
  end
  return expected
end

function checks.pattern(v)
  if not texts.is(v) or #v > 500 or not pcall(string.find, "", v) or not regexp.from_pattern(v) then
    return "a Lua pattern without %b, %f, %1 and ()"
  end
end

function checks.enum(v, d)
  local expected = ("an array of values of the type %s"):format(tostring(d.type))
  if type(v) ~= "table" or #v == 0 then
    return expected
  end
  for k, item in pairs(v) do
    if type(k) ~= "number" or not TYPES[d.type].test(item) or not pcall(json.encode, item) then
      return expected
    end
  end
end

function checks.description(v)
  return (not texts.is(v) or #v > 500) and "a text of at most 500 characters, in UTF-8" or nil
end

local known = {}
for _, field in ipairs(M.fields) do
  known[field.name] = field
end

local function goes_with(field, kind)
  return not field.goes_with or (" " .. field.goes_with .. " "):find(" " .. kind .. " ", 1, true)
end

-- Whether this is one declaration too many. A table can hold itself.
local function too_many(place, path, report)
  place.count = place.count + 1
  if place.count == COUNT_MAX + 1 then
    report({ field = path, message = ("is one declaration too many: a task's args have at most %d"):format(COUNT_MAX) })
  elseif place.depth > DEPTH_MAX and place.count <= COUNT_MAX then
    report({ field = path, message = ("lies in more than %d others, or in itself"):format(DEPTH_MAX) })
  end
  return place.count > COUNT_MAX or place.depth > DEPTH_MAX
end

local function validate_one(d, path, place, report)
  if too_many(place, path, report) then
    return
  elseif type(d) ~= "table" then
    return report({ field = path, message = "wrong value", found = type(d) == "string" and ("%q"):format(d) or type(d),
      expected = 'a table such as { type = "string", required = true }' })
  elseif d.type == nil then
    return report({ field = path .. ".type", message = "is missing", expected = checks.type() })
  elseif checks.type(d.type) then
    return report({ field = path .. ".type", message = "wrong value", found = shown(d.type),
      expected = checks.type(d.type) })
  end
  for _, field in ipairs(M.fields) do
    local v, where = d[field.name], path .. "." .. field.name
    if v ~= nil and not goes_with(field, d.type) then
      report({ field = where, message = ("does not go with the type %s"):format(d.type) })
    elseif v ~= nil and field.name == "items" then
      place.depth = place.depth + 1
      validate_one(v, where, place, report)
      place.depth = place.depth - 1
    elseif v ~= nil and field.name == "fields" then
      place.depth = place.depth + 1
      validate_fields(v, where, place, report)
      place.depth = place.depth - 1
    elseif v ~= nil then
      local expected = checks[field.name](v, d)
      if expected then
        report({ field = where, message = "wrong value", found = shown(v), expected = expected })
      end
    end
  end
  for name in pairs(d) do
    if not known[name] then
      local names = {}
      for i, field in ipairs(M.fields) do
        names[i] = field.name
      end
      report({ field = path .. "." .. tostring(name), message = "no such field",
        expected = "one of " .. table.concat(names, ", ") })
    end
  end
end

function validate_fields(fields, path, place, report)
  if type(fields) ~= "table" then
    return report({ field = path, message = "wrong value", found = type(fields),
      expected = "a table of names and what their values must be" })
  end
  for name, d in pairs(fields) do
    if not texts.is(name) or name == "" then
      report({ field = path, message = "wrong value",
        found = type(name) == "string" and ("%q"):format(name) or "a position (" .. tostring(name) .. ")",
        expected = "names of members" })
    else
      validate_one(d, path .. "." .. name, place, report)
    end
  end
end

--- Check a manifest's `args`.
-- @tparam table declared
-- @tparam function report called with each fault: field, message, found, expected
-- @treturn table|nil the same table, or nil when there was a fault
function M.validate(declared, report)
  local ok = true
  validate_fields(declared, "args", { count = 0, depth = 1 }, function(fault)
    ok = false
    report(fault)
  end)
  return ok and declared or nil
end

-- What is declared at a dotted path: the declaration; nil when none is, and whether anything may be there.
local function declared_at(declared, path)
  local d, fields = nil, declared
  for name in path:gmatch("[^.]+") do
    if not fields then
      return nil, d.type == "any" or d.type == "object" or d.type == "array"
    end
    d = fields[name]
    if not d then
      return nil, false
    end
    fields = d.fields
  end
  return d, false
end

local IN_KEYS = { string = true, integer = true, number = true, boolean = true, any = true }

--- Check that what else a task says of its args fits their declaration: the paths of `key` and `fingerprint`, and the
-- parameters in its door's path, which are strings.
-- @tparam table task checked fields
-- @tparam function report called with each fault: field, message, found, expected
function M.check_uses(task, report)
  local declared = task.args
  if not declared then
    return
  end
  for _, field in ipairs { "key", "fingerprint" } do
    for _, path in ipairs(type(task[field]) == "table" and task[field] or {}) do
      local d, open = declared_at(declared, path)
      if not d and not open then
        report({ field = field, message = ("args declares nothing at %s"):format(path), found = shown(path),
          expected = "a path that args declares" })
      elseif d and field == "key" and not IN_KEYS[d.type] then
        report({ field = field, message = ("%s cannot be in a key"):format(path), found = d.type,
          expected = "a string, a number or a boolean" })
      end
    end
  end
  for name in (task.http and task.http.path or ""):gmatch("{([%w_]+)}") do
    local d = declared[name]
    if d and d.type ~= "string" and d.type ~= "any" then
      report({ field = "args." .. name, message = "is a parameter of http.path", found = d.type,
        expected = 'type = "string"' })
    end
  end
end

-- ---- JSON Schema ----

local function schema_of(d)
  local s = { description = d.description }
  if d.type ~= "any" then
    s.type = d.type
  end
  if d.enum then
    s.enum = json.array(d.enum)
  elseif d.type == "string" then
    s.minLength, s.maxLength = d.min, d.max
    if d.pattern then
      s.pattern, s.maxLength = regexp.from_pattern(d.pattern), d.max or PATTERN_MAX
    end
  elseif d.type == "array" then
    s.minItems, s.maxItems, s.items = d.min, d.max, d.items and schema_of(d.items)
  elseif d.type == "object" and d.fields then
    local inner = M.schema(d.fields)
    s.properties, s.required = inner.properties, inner.required
  else
    s.minimum, s.maximum = d.min, d.max
  end
  return s
end

--- The args as a JSON Schema (2020-12, as OpenAPI 3.1 has it).
-- @tparam table declared
-- @tparam[opt] table without names that are left out (parameters of a path)
-- @treturn table
function M.schema(declared, without)
  local out, required = { type = "object", properties = {} }, json.array {}
  for _, name in ipairs(sorted(declared)) do
    if not (without and without[name]) then
      out.properties[name] = schema_of(declared[name])
      if declared[name].required then
        required[#required + 1] = name
      end
    end
  end
  out.required = #required > 0 and required or nil
  return out
end

--- Lines about the args, for people: name, what it must be, whether it is required, description; members of objects
-- under their paths.
-- @tparam table declared
-- @treturn {table,...} each with path, words, required, description
function M.lines(declared)
  local out = {}
  local function add(d, path)
    out[#out + 1] = { path = path, words = M.words(d), required = d.required == true, description = d.description }
    if d.items then
      add(d.items, path .. "[]")
    end
    for _, name in ipairs(sorted(d.fields or {})) do
      add(d.fields[name], path .. "." .. name)
    end
  end
  for _, name in ipairs(sorted(declared)) do
    add(declared[name], name)
  end
  return out
end

--- The table of what a declaration may say, as Markdown.
-- @treturn string
function M.docs()
  local out = { "| field | type | for | meaning |", "|---|---|---|---|" }
  for _, field in ipairs(M.fields) do
    out[#out + 1] = ("| `%s` | %s | %s | %s |"):format(field.name, field.required and field.type .. ", required"
      or field.type, field.goes_with and field.goes_with:gsub(" ", ", ") or "all", field.doc)
  end
  return table.concat(out, "\n")
end

return M
