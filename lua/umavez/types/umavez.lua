---@meta umavez
-- Made by tests/lint/types.lua; do not edit.

---@alias umavez.Int64 number|ffi.cdata* beyond 2^53 an int64
---@alias umavez.Handler fun(ctx: umavez.Ctx, args: table, prepared: any): table?
---@alias umavez.Prepared { prepare: (fun(ctx: umavez.Ctx, args: table): any), effect: umavez.Handler }

---@class umavez.Sql
local Sql = {}

---@class umavez.Log
local Log = {}

---What a handler is given first. It ends with the handler.
---@class umavez.Ctx
---@field run_id string of this run
---@field task string of this run
---@field tenant_id? umavez.Int64 the tenant, nil for a platform task
---@field attempt number 1, 2, … of this key
---@field deliveries number of this run
---@field key string the key's digest, hexadecimal
---@field deadline number when the handler will be stopped, seconds since 1970
---@field traceparent? string W3C trace context that came with the run
---@field sql umavez.Sql the transaction
---@field log umavez.Log one line an event, with run, task, tenant and attempt
local Ctx = {}

---What SQL raises, and what umavez refuses.
---@class umavez.Error
---@field code string such as "sql" or "statement_refused"
---@field message string
---@field sqlstate? string five characters
---@field constraint? string the violated one
---@field detail? string the server's
---@field retryable? boolean trying again may help

---Run a statement on the run's own transaction.
---@param sql string one statement, parameters as `$1`, `$2`, …
---@param ... any the parameters
---@return table # array of rows; empty when there is none
function Sql:query(sql, ...) end

---Run a statement and take its first row.
---@param sql string one statement
---@param ... any the parameters
---@return table|nil
function Sql:one(sql, ...) end

---Run a statement.
---@param sql string one statement
---@param ... any the parameters
---@return number # rows affected (or returned)
function Sql:exec(sql, ...) end

---Run a function under a savepoint: when it raises, its SQL is undone and the error is raised again; catch it with
---`pcall` to go on.
---@param fn function
---@param ... any its arguments
---@return any # what fn returns
function Sql:savepoint(fn, ...) end

---Log a line of this run.
---@param message string
---@param fields? table names and values
function Log:debug(message, fields) end

---Log a line of this run.
---@param message string
---@param fields? table names and values
function Log:info(message, fields) end

---Log a line of this run.
---@param message string
---@param fields? table names and values
function Log:warn(message, fields) end

---Log a line of this run.
---@param message string
---@param fields? table names and values
function Log:error(message, fields) end

---How `ctx:enqueue` enqueues.
---@class umavez.EnqueueOptions
---@field run_id? string the same one twice is one run
---@field after? string|number "5m", or seconds
---@field run_at? string a time as PostgreSQL reads it
---@field queue? string default: the task's
---@field priority? number 1 first … 4
---@field tenant_id any `umavez.null`: none. Default: a tenant's task goes to the run's tenant, a platform task to none

---Enqueue a run, in this run's transaction.
---@param task string
---@param args? table
---@param options? umavez.EnqueueOptions
---@return string # its run_id
function Ctx:enqueue(task, args, options) end

---Pause this run; others go on.
---@param duration string|number `"250ms"`, or seconds
function Ctx:sleep(duration) end

---Time left until the run is stopped.
---@return number # seconds
function Ctx:remaining() end

---Fail the run for good: its effect is undone, the detail is its outcome, and every duplicate is told the same.
---Does not return; and stands, whatever the handler does afterwards.
---@param detail table `code`, `message`, and what else the caller should see (`status` for HTTP)
function Ctx:fail(detail) end

---Undo the effect and try again later. Counts as an attempt. Does not return.
---@param options? table `after` ("5s"; default: the task's backoff), `code`, `message`
function Ctx:retry(options) end

---@class umavez
local M = {}

---JSON null, and NULL inside a PostgreSQL array. As a parameter: NULL.
---@type any
M.null = nil

---Mark a table as an array: `[]` in JSON even when empty, an array literal as a parameter.
---@param t? table
---@return table # the same table
function M.array(t) end

---A JSON document as a parameter of a statement.
---@param value any
---@return any # parameter value
function M.json(value) end

---Octets as a bytea parameter.
---@param octets string
---@return any # parameter value
function M.bytea(octets) end

---An exact decimal number, in JSON and as a parameter. `tostring(d)` is its text, `d:number()` the nearest double.
---@param value string|number
---@return any # decimal
function M.decimal(value) end

---A typed error object, as `ctx.sql` raises them.
---@param fields table `code`, `message`, …
---@return table # the same table, to be raised by `error`
function M.error_object(fields) end

return M
