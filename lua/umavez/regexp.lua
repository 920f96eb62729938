--- Lua patterns as regular expressions of ECMA-262, which OpenAPI uses.
-- @module umavez.regexp

local M = {}

-- What a class is inside of brackets. %c and %p are written out: they are ASCII's, as everywhere here.
local CLASSES = {
  a = "A-Za-z", d = "0-9", l = "a-z", s = " \\t\\n\\v\\f\\r", u = "A-Z", w = "A-Za-z0-9", x = "A-Fa-f0-9",
  c = "\\x00-\\x1f\\x7f", p = "!-\\/:-@\\[-`{-~",
}

local CAPTURES_MAX = 32 -- Lua's

local function escaped(char)
  return char:find("[%^%$%(%)%.%[%]%*%+%-%?{}|\\/]") and "\\" .. char or char
end

-- What stands at `at` in a set: its translation and the place after it. `%` cannot end a range in both languages.
local function member(pattern, at)
  local char = pattern:sub(at, at)
  if char == "%" then
    local class = pattern:sub(at + 1, at + 1)
    if class == "" or class:find("%a") and not CLASSES[class] then
      return nil -- a class's complement inside of a set
    end
    return CLASSES[class] or escaped(class), at + 2
  end
  local last = pattern:sub(at + 2, at + 2)
  if pattern:sub(at + 1, at + 1) == "-" and last ~= "]" and last ~= "" then
    if last == "%" or last < char or (char .. last):find("[\128-\255]") then
      return nil
    end
    return escaped(char) .. "-" .. escaped(last), at + 3
  end
  return escaped(char), at + 1
end

-- A set from its `[` at `at`: its translation and the place of its `]`.
local function set(pattern, at)
  local out, i, first = "[", at + 1, true
  if pattern:sub(i, i) == "^" then
    out, i = out .. "^", i + 1
  end
  while first or pattern:sub(i, i) ~= "]" do
    local text, after = member(pattern, i)
    if i > #pattern or not text then
      return nil
    end
    out, i, first = out .. text, after, false
  end
  return out .. "]", i
end

-- One item at `at`: its translation, the place after it, and whether it can be repeated.
local function item(pattern, at)
  local char = pattern:sub(at, at)
  if char == "%" then
    local class = pattern:sub(at + 1, at + 1)
    if class == "" or class:find("[bf%d]") then
      return nil
    elseif CLASSES[class] then
      return "[" .. CLASSES[class] .. "]", at + 2, true
    elseif CLASSES[class:lower()] then
      return "[^" .. CLASSES[class:lower()] .. "]", at + 2, true
    elseif class:find("%a") then
      return nil
    end
    return escaped(class), at + 2, true
  elseif char == "[" then
    local out, stop = set(pattern, at)
    return out, stop and stop + 1, true
  elseif char == "(" or char == ")" then
    return pattern:sub(at, at + 1) ~= "()" and char or nil, at + 1, false
  elseif char == "." then
    return "[\\s\\S]", at + 1, true
  elseif char == "$" and at == #pattern then
    return "$", at + 1, false
  end
  return escaped(char), at + 1, true
end

--- Translate.
-- @tparam string pattern a Lua pattern that is well formed
-- @treturn string|nil nil when there is no regular expression for it: %b, %f, %1, (), complements inside of sets,
-- ranges backwards, or when captures are not closed or too many
function M.from_pattern(pattern)
  local out, at, open, captures = {}, 1, 0, 0
  if pattern:sub(1, 1) == "^" then
    out[1], at = "^", 2
  end
  while at <= #pattern do
    local text, after, repeatable = item(pattern, at)
    open = open + (text == "(" and 1 or text == ")" and -1 or 0)
    captures = captures + (text == "(" and 1 or 0)
    if not text or open < 0 or captures > CAPTURES_MAX then
      return nil
    end
    local mark = pattern:sub(after, after)
    if repeatable and mark ~= "" and mark:find("[%*%+%-%?]") then
      text, after = text .. (mark == "-" and "*?" or mark), after + 1
    end
    out[#out + 1], at = text, after
  end
  return open == 0 and table.concat(out) or nil
end

return M
