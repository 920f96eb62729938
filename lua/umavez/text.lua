--- Texts that can be stored, answered and shown: UTF-8 without NUL.
-- @module umavez.text

local encode = require("umavez.json").encode

local M = {}

--- @param v anything
-- @treturn boolean whether it is a string that JSON and PostgreSQL can hold
function M.is(v)
  return type(v) == "string" and (pcall(encode, v))
end

--- A text for people, whatever octets stand in it: what is no such text has its octets beyond ASCII written as Lua
-- writes them.
-- @tparam string s
-- @treturn string
function M.printable(s)
  if M.is(s) then
    return s
  end
  return (s:gsub("[^\9\10\32-\126]", function(c)
    return ("\\%03d"):format(c:byte())
  end))
end

return M
