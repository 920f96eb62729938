--- The type stubs (LuaCATS) for lua-language-server, lua/umavez/types/: made from the doc comments beside the code and
-- from the tables of fields. Compares them, or writes them with `--write`.
--
--     umavez exec tests/lint/types.lua [--write]
--
-- Silence means that all is well. That the comments name what is there: tests/e2e/test_author.py.
local args = require("umavez.args")
local manifest = require("umavez.manifest")
local queues = require("umavez.queues")
local shell = require("umavez.shell")

local CLASSES = { ["ctx:"] = "umavez.Ctx", ["ctx.sql:"] = "umavez.Sql", ["ctx.log:"] = "umavez.Log",
  ["t:"] = "umavez.Testing" }

-- ---- doc comments ----

-- The blocks of doc comments: text, tags ({ tag, rest }), and the line of code that follows.
local function blocks(path)
  local out, block = {}, nil
  for line in shell.read_file(path):gmatch("([^\n]*)\n") do
    local comment = line:match("^%-%-%-? ?(.*)$")
    if line:find("^%-%-%- ") and not line:find("^%-%-%-%- ") then
      block = { text = { comment }, tags = {} }
      out[#out + 1] = block
    elseif block and comment then
      local tag, rest = comment:match("^@(%S+) ?(.*)$")
      local last = block.tags[#block.tags]
      if tag then
        block.tags[#block.tags + 1] = { tag = tag, rest = rest }
      elseif last then
        last.rest = last.rest .. " " .. comment
      else
        block.text[#block.text + 1] = comment
      end
    elseif block then
      block.code, block = line, nil
    end
  end
  return out
end

local function tag_of(block, name)
  for _, tag in ipairs(block.tags) do
    if tag.tag:match("^[^%[]+") == name then
      return tag.rest
    end
  end
end

local function add_text(out, block)
  for _, line in ipairs(block.text) do
    out[#out + 1] = "---" .. line
  end
end

local function typed(rest)
  local kind, name, doc = rest:match("^(%S+) (%S+) ?(.*)$")
  return kind, name, doc
end

local function add_table(out, block)
  local name = tag_of(block, "table")
  add_text(out, block)
  out[#out + 1] = "---@class " .. (name == "ctx" and "umavez.Ctx" or name)
  for _, tag in ipairs(block.tags) do
    if tag.tag == "tfield" then
      local kind, field, doc = typed(tag.rest)
      kind, field = kind:gsub("|nil$", ""), field .. (kind:find("|nil$") and "?" or "")
      out[#out + 1] = ("---@field %s %s %s"):format(field, kind, doc):gsub(" +$", "")
    end
  end
  if name == "ctx" then
    out[#out + 1] = "local Ctx = {}"
  end
  out[#out + 1] = ""
end

local function add_function(out, block, name)
  local names = {}
  add_text(out, block)
  for _, tag in ipairs(block.tags) do
    if tag.tag:find("^tparam") then
      local kind, param, doc = typed(tag.rest)
      names[#names + 1] = param
      out[#out + 1] = ("---@param %s%s %s %s"):format(param, tag.tag:find("%[opt") and "?" or "", kind, doc or "")
        :gsub(" +$", "")
    elseif tag.tag == "param" then
      local param, doc = tag.rest:match("^(%S+) ?(.*)$")
      names[#names + 1] = param
      out[#out + 1] = ("---@param %s any %s"):format(param, doc):gsub(" +$", "")
    elseif tag.tag == "treturn" then
      local kind, doc = tag.rest:match("^(%S+) ?(.*)$")
      out[#out + 1] = ("---@return %s # %s"):format(kind, doc):gsub("[ #]+$", "")
    elseif tag.tag == "return" then
      out[#out + 1] = "---@return any # " .. tag.rest
    end
  end
  out[#out + 1] = ("function %s(%s) end"):format(name, table.concat(names, ", "))
  out[#out + 1] = ""
end

-- `ctx.sql:query` → Sql:query; `ctx.log:debug|info` → both; a plain name → a function of the module.
local function function_names(name)
  local owner, methods = name:match("^(.-:)(.*)$")
  local out = {}
  if not owner then
    return { "M." .. name }
  end
  for method in methods:gmatch("[^|]+") do
    out[#out + 1] = CLASSES[owner]:match("[^.]+$") .. ":" .. method
  end
  return out
end

-- module: its values, too (M.null).
local function add_comments(out, path, module)
  for _, block in ipairs(blocks(path)) do
    local name = tag_of(block, "function")
    local value = module and block.code and block.code:match("^M%.(%w+) = ")
    if tag_of(block, "table") then
      add_table(out, block)
    elseif name then
      for _, full in ipairs(function_names(name)) do
        add_function(out, block, full)
      end
    elseif block.code and block.code:find("^function Connection:") then
      add_function(out, block, (block.code:match("^function ([%w_:]+)")))
    elseif value then
      add_text(out, block)
      out[#out + 1] = ("---@type any\nM.%s = nil\n"):format(value)
    end
  end
end

-- ---- tables of fields ----

local WORDS = { paths = "string[]", ["paths or function"] = "string[]|fun(args: table): string?", number = "number",
  boolean = "boolean", array = "any[]", declaration = "umavez.Arg" }
local TEXTS = { duration = true, name = true, ["file name"] = true, text = true, path = true, header = true,
  variable = true, ["Lua pattern"] = true }

local function type_of(field, inner)
  local choices = {}
  for choice in field.type:gmatch('"[^"]*"') do
    choices[#choices + 1] = choice
  end
  if inner or #choices == 0 then
    return inner or WORDS[field.type] or TEXTS[field.type] and "string" or "any"
  elseif field.type:find("{ header", 1, true) then
    choices[#choices + 1] = "{ header: string }"
  end
  return table.concat(choices, "|")
end

local function add_class(out, class, fields, of_table)
  local lines = { "---@class " .. class }
  for _, field in ipairs(fields) do
    if not field.later then
      local inner = of_table[field.name]
      if field.fields then
        inner = class .. "." .. field.name:gsub("^%l", string.upper)
        add_class(out, inner, field.fields, {})
      end
      local default = field.default ~= nil and (". Default: %s"):format(tostring(field.default)) or ""
      lines[#lines + 1] = ("---@field %s%s %s %s%s"):format(field.name, field.required and "" or "?",
        type_of(field, inner), field.doc, default)
    end
  end
  out[#out + 1] = table.concat(lines, "\n") .. "\n"
end

-- ---- the files ----

local HEAD = "---@meta %s\n-- Made by tests/lint/types.lua; do not edit.\n"

local function file_umavez()
  local out = { HEAD:format("umavez"), "---@alias umavez.Int64 number|ffi.cdata* beyond 2^53 an int64",
    "---@alias umavez.Handler fun(ctx: umavez.Ctx, args: table, prepared: any): table?",
    "---@alias umavez.Prepared { prepare: (fun(ctx: umavez.Ctx, args: table): any), effect: umavez.Handler }", "",
    "---@class umavez.Sql", "local Sql = {}", "", "---@class umavez.Log", "local Log = {}", "" }
  add_comments(out, "lua/umavez/context.lua")
  out[#out + 1] = "---@class umavez\nlocal M = {}\n"
  add_comments(out, "lua/umavez/init.lua", true)
  out[#out + 1] = "return M"
  return out
end

local function file_manifest()
  local out = { HEAD:format("_") }
  add_class(out, "umavez.Arg", args.fields, { fields = "table<string, umavez.Arg>" })
  add_class(out, "umavez.Task", manifest.fields, { args = "table<string, umavez.Arg>" })
  add_class(out, "umavez.Queue", queues.fields, {})
  out[#out + 1] = "---@class umavez.Manifest\n---@field tasks table<string, umavez.Task> by name\n"
    .. "---@field queues? table<string, umavez.Queue> by name"
  return out
end

local function file_testing()
  local out = { HEAD:format("umavez.testing"), "---@class umavez.Connection", "local Connection = {}", "" }
  add_comments(out, "lua/umavez/pg.lua")
  out[#out + 1] = "---@class umavez.Testing\n---@field db umavez.Connection the specs' own connection"
  out[#out + 1] = "local Testing = {}\n"
  add_comments(out, "lua/umavez/testing.lua")
  out[#out + 1] = "return Testing"
  return out
end

local write = arg[1] == "--write"
local faults = 0
for name, make in pairs { umavez = file_umavez, manifest = file_manifest, testing = file_testing } do
  local path, text = ("lua/umavez/types/%s.lua"):format(name), table.concat(make(), "\n") .. "\n"
  if write then
    local file = assert(io.open(path, "wb"))
    file:write(text)
    file:close()
  elseif shell.read_file(path) ~= text then
    print(path .. ": does not follow the code: `umavez exec tests/lint/types.lua --write` mends it")
    faults = faults + 1
  end
end
return faults == 0 and 0 or 1
