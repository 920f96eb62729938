--- What task code may need besides `ctx`: values that Lua has no type for.
-- @module umavez

local c = require("umavez.c.value")

local M = {}

--- JSON null, and NULL inside a PostgreSQL array. As a parameter: NULL.
M.null = c.null

--- Mark a table as an array: `[]` in JSON even when empty, an array literal as a parameter.
-- @function array
-- @tparam[opt] table t
-- @treturn table the same table
M.array = c.array

--- A JSON document as a parameter of a statement.
-- @function json
-- @param value
-- @return parameter value
M.json = c.json

--- Octets as a bytea parameter.
-- @function bytea
-- @tparam string octets
-- @return parameter value
M.bytea = c.bytea

--- An exact decimal number, in JSON and as a parameter. `tostring(d)` is its text, `d:number()` the nearest double.
-- @function decimal
-- @tparam string|number value
-- @return decimal
M.decimal = c.decimal

--- A typed error object, as `ctx.sql` raises them.
-- @function error_object
-- @tparam table fields `code`, `message`, …
-- @treturn table the same table, to be raised by `error`
M.error_object = c.error_object

return M
