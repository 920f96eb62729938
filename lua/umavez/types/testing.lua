---@meta umavez.testing
-- Made by tests/lint/types.lua; do not edit.

---@class umavez.Connection
local Connection = {}

---Run a statement.
---@param sql string one statement
---@param ... any its parameters
---@return table # array of rows
function Connection:query(sql, ...) end

---Run a statement and take its first row.
---@param sql string one statement
---@param ... any its parameters
---@return table|nil
function Connection:one(sql, ...) end

---Run a statement.
---@param sql string one statement
---@param ... any its parameters
---@return number # rows affected
function Connection:exec(sql, ...) end

---Run the statements of a script one after another. Not a transaction by itself.
---@param text string many statements
---@return number # how many
function Connection:script(text) end

---Run a function inside a transaction: COMMIT when it returns, ROLLBACK when it raises (and raise again).
---@param fn function
---@return any # what fn returns
function Connection:transaction(fn) end

---The server process of this connection.
---@return number
function Connection:backend_pid() end

---The server's version as a number, 150004 for 15.4.
---@return number
function Connection:server_version() end

---Close the connection. Closing twice is harmless.
function Connection:close() end

---@class umavez.Testing
---@field db umavez.Connection the specs' own connection
local Testing = {}

---A run, as `t:run` gives it.
---@class umavez.testing.Run
---@field run_id string
---@field task string
---@field status string "completed", "failed_permanent", or "retry": put off
---@field replay boolean the outcome is an earlier one's; no handler has run
---@field outcome? table
---@field failure? table of the last attempt: code, message, traceback
---@field deliveries number
---@field attempt? number of the key
---@field crashed? string where a worker died on it

---How runs are made.
---@class umavez.testing.Options
---@field tenant? number whose the run is; made when it is not there
---@field run_id? string
---@field priority? number 1 first … 4
---@field may_fail? boolean do not raise the handler's errors
---@field after? string t:enqueue: "5m"
---@field run_at? string t:enqueue: a time as PostgreSQL reads it
---@field queue? string t:enqueue: default the task's

---One run of a task through the real runner, committed. After `t:crash_at` a worker dies on it first.
---@param task string
---@param args? table
---@param options? umavez.testing.Options
---@return table|nil # the outcome: what the handler returned, or the detail of its `ctx:fail`; nil when the run is to be tried again
---@return umavez.testing.Run # the run
function Testing:run(task, args, options) end

---Deliver the same operation twice: a task with a `key` gets two runs with the same args, one without gets its run
---delivered again.
---@param task string
---@param args? table
---@param options? umavez.testing.Options
---@return table|nil # the first delivery's outcome
---@return table|nil # the second one's
---@return umavez.testing.Run # the second run; its `replay` tells that no handler ran
function Testing:deliver_twice(task, args, options) end

---Put a run into the queue; it waits there for `t:drain()`.
---@param task string
---@param args? table
---@param options? umavez.testing.Options
---@return string # its run_id
function Testing:enqueue(task, args, options) end

---Work on the queue until nothing in it is due: what specs and tasks have enqueued, and what those enqueue.
---@param options? umavez.testing.Options `may_fail` only
---@return table # how many runs have `completed`, `failed`, and are put off (`retry`)
function Testing:drain(options) end

---Have a worker killed (SIGKILL, a process of its own) by the next `t:run` or `t:deliver_twice`, at a point of its
---run. That run is then taken up by another worker; after the point "after_commit" it is sent again.
---@param point string "before_effect", "before_commit" or "after_commit"
function Testing:crash_at(point) end

---Let time pass: every time that umavez has stored becomes so much older, so that leases, retentions, waits of retries
---and `run_at` are over as if it had. The clock itself, and the application's tables, stay as they are.
---@param duration string "25h"
function Testing:travel(duration) end

---Fail unless a run of a task waits in the queue whose args hold these.
---@param task string
---@param args? table a part of its args; objects inside may be parts, too
---@return table # the first such run: `run_id`, `args`, `tenant_id`, `queue`, `priority`, `run_at`
function Testing:assert_enqueued(task, args) end

---Fail unless an effect is there once.
---@param sql string a query with one row for each effect, or one that counts them (a column named `count`)
---@param ... any its parameters
function Testing:assert_effects_once(sql, ...) end

---Put the database back to its beginning. `umavez test` does so before each test.
function Testing:reset() end

return Testing
