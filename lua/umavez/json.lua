--- JSON with exact numbers.
--
-- Integers up to 2^53 and numbers that a double holds are Lua numbers, other integers int64 cdata, the rest
-- `umavez.decimal`. `null` is `json.null`; arrays carry a mark, so that `[]` and `{}` stay what they were.
-- @module umavez.json

local c = require("umavez.c.value")

return {
  --- Encode a value.
  -- @function encode
  -- @param value at most 128 levels; no NaN, infinity, function, mixed table, invalid UTF-8, NUL
  -- @treturn string
  -- @raise error object with code `json_value` (and the place in the message) or `json_too_large`
  encode = c.encode,

  --- Decode a text (RFC 8259, strict, UTF-8, at most 128 levels).
  -- @function decode
  -- @tparam string text
  -- @return the value
  -- @raise error object with a code `json_…` and the offset in the message
  decode = c.decode,

  --- JSON null, and NULL inside a PostgreSQL array.
  null = c.null,

  --- Mark a table as an array.
  -- @function array
  -- @tparam[opt] table t a new one when absent
  -- @treturn table the same table
  array = c.array,

  --- Does the table carry the array mark?
  -- @function is_array
  -- @treturn boolean
  is_array = c.is_array,
}
