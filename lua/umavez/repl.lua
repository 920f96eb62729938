--- Reads Lua, line by line, and prints what it gives: for `umavez repl`.
--
-- Each input is a chunk of its own, so `local` lasts for one input; globals stay, in a table of the session's own. An
-- input that is not whole yet goes on with the next line. What waits (a query, `sleep`) waits on the loop.
-- @module umavez.repl

local cli = require("umavez.cli")
local json = require("umavez.json")

local M = {}

local DEPTH_MAX, ITEMS_MAX = 4, 100

-- ---- printing ----

local function sorted_keys(t)
  local keys = {}
  for k in pairs(t) do
    keys[#keys + 1] = k
  end
  table.sort(keys, function(a, b)
    if type(a) == "number" and type(b) == "number" then
      return a < b
    end
    return tostring(a) < tostring(b)
  end)
  return keys
end

local function key_text(k)
  if type(k) == "string" then
    return k:find("^[%a_][%w_]*$") and k or ("[%q]"):format(k)
  end
  return "[" .. tostring(k) .. "]"
end

--- A value as text, much as Lua would have it.
-- @param v
-- @treturn string
function M.show(v, depth, seen)
  depth, seen = depth or 0, seen or {}
  if type(v) == "string" then
    return ("%q"):format(v)
  elseif v == json.null then
    return "null"
  elseif type(v) ~= "table" then
    return tostring(v)
  elseif seen[v] or depth >= DEPTH_MAX then
    return next(v) == nil and "{}" or "{…}"
  end
  seen[v] = true
  local parts, n = {}, 0
  for i, item in ipairs(v) do
    n = i
    if i <= ITEMS_MAX then
      parts[i] = M.show(item, depth + 1, seen)
    end
  end
  for _, k in ipairs(sorted_keys(v)) do
    if not (type(k) == "number" and k >= 1 and k <= n and k % 1 == 0) and #parts <= ITEMS_MAX then
      parts[#parts + 1] = key_text(k) .. " = " .. M.show(v[k], depth + 1, seen)
    end
  end
  if n > ITEMS_MAX then
    parts[#parts + 1] = "…"
  end
  seen[v] = nil
  local line = table.concat(parts, ", ")
  if #line <= 100 and not line:find("\n") then
    return line == "" and "{}" or "{ " .. line .. " }"
  end
  local indent = ("  "):rep(depth + 1)
  return "{\n" .. indent .. table.concat(parts, ",\n" .. indent) .. "\n" .. ("  "):rep(depth) .. "}"
end

-- Rows of a query are a table of columns.
local function is_rows(v)
  if type(v) ~= "table" or #v == 0 then
    return false
  end
  for _, row in ipairs(v) do
    if type(row) ~= "table" or next(row) == nil or row[1] ~= nil then
      return false
    end
    for _, cell in pairs(row) do
      if type(cell) == "table" then
        return false
      end
    end
  end
  return true
end

local function print_rows(rows)
  local heads, names = {}, {}
  for _, row in ipairs(rows) do
    for name in pairs(row) do
      if not names[name] then
        names[name] = true
        heads[#heads + 1] = name
      end
    end
  end
  table.sort(heads)
  local lines = {}
  for i, row in ipairs(rows) do
    lines[i] = {}
    for c, name in ipairs(heads) do
      local cell = row[name]
      lines[i][c] = cell ~= nil and (type(cell) == "number" and cell or tostring(cell))
    end
  end
  cli.print_table(heads, lines)
end

local function print_results(n, ...)
  for i = 1, n do
    local v = select(i, ...)
    if is_rows(v) then
      print_rows(v)
    else
      print(M.show(v))
    end
  end
end

-- ---- reading ----

-- An expression, else statements. Gives the function; or nil, and whether more input can help, and why not.
local function compile(text)
  local fn = loadstring("return " .. text, "=input")
  if fn then
    return fn
  end
  local why
  fn, why = loadstring(text, "=input")
  if fn then
    return fn
  end
  return nil, why:find("near '<eof>'", 1, true) ~= nil, why
end

local function explain(err)
  if type(err) == "table" then
    return select(2, cli.describe(err))
  end
  return tostring(err)
end

local function evaluate(fn, env)
  local function keep(ok, ...)
    return ok, select("#", ...), ...
  end
  local function report(ok, n, ...)
    if ok then
      print_results(n, ...)
    else
      io.stderr:write(explain((...)), "\n")
    end
    return ok
  end
  return report(keep(pcall(setfenv(fn, env))))
end

--- Read until the end of the input.
-- @tparam table env what the session's code sees; it writes its globals there
-- @tparam table options `read` (gives the next line, or nil), `prompt` (shown before each line; or nil), `commands`
-- (functions by the line that calls them)
-- @treturn boolean whether every input did well
-- @yields
function M.run(env, options)
  local well, text = true, nil
  while true do
    if options.prompt then
      io.stdout:write(options.prompt, text and ">> " or "> ")
      io.stdout:flush()
    end
    local line = options.read()
    if not line then
      break
    end
    text = text and text .. "\n" .. line or line
    local fn, more, why = compile(text)
    local command = options.commands[text:match("^%s*(.-)%s*$")]
    if command or text:find("^%s*$") then
      text = command and command()
    elseif fn then
      text, well = nil, evaluate(fn, env) and well
    elseif not more then
      io.stderr:write(why, "\n")
      text, well = nil, false
    end
  end
  if text then
    io.stderr:write(select(3, compile(text)) or "the input ends in the middle", "\n")
    well = false
  end
  return well
end

return M
