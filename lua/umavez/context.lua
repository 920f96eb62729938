--- `ctx`: what a handler is given. docs/tasks.md is the guide.
-- @module umavez.context

local declarations = require("umavez.args")
local c = require("umavez.c.run")
local value = require("umavez.c.value")
local vm = require("umavez.vm")

local await = vm.await
local error, getmetatable, pcall, select, type, tostring = error, getmetatable, pcall, select, type, tostring
local NULL = value.null

-- Handlers by task name: { effect = fn, prepare = fn or nil, key = fn or nil, owner = "tenant" or "platform",
-- args = what the manifest declares or nil }.
local tasks = {}

local M = { tasks = tasks }

local function raise(code, message)
  error(value.error_object({ code = code, message = message }), 0)
end

-- A method that was called with a dot got its first argument where it looks for its object.
local function check_colon(self, mark, object, method)
  if getmetatable(self) ~= mark then
    raise("parameter", ("%s:%s is called with a colon, %s:%s(…), not with a dot"):format(object, method, object,
      method))
  end
end

-- A Lua number of milliseconds, or a duration's text.
local function milliseconds(v, what)
  if type(v) == "number" then
    return v * 1000
  end
  if type(v) ~= "string" then
    raise("parameter", ("%s: expected a duration such as \"5s\", or a number of seconds, not %s"):format(what, type(v)))
  end
  local ms, err = c.duration(v)
  if not ms then
    raise("parameter", what .. ": " .. err)
  end
  return ms
end

--- What a handler is given first. It ends with the handler.
-- @table ctx
-- @tfield string run_id of this run
-- @tfield string task of this run
-- @tfield umavez.Int64|nil tenant_id the tenant, nil for a platform task
-- @tfield number attempt 1, 2, … of this key
-- @tfield number deliveries of this run
-- @tfield string key the key's digest, hexadecimal
-- @tfield number deadline when the handler will be stopped, seconds since 1970
-- @tfield string|nil traceparent W3C trace context that came with the run
-- @tfield umavez.Sql sql the transaction
-- @tfield umavez.Log log one line an event, with run, task, tenant and attempt

--- What SQL raises, and what umavez refuses.
-- @table umavez.Error
-- @tfield string code such as "sql" or "statement_refused"
-- @tfield string message
-- @tfield string|nil sqlstate five characters
-- @tfield string|nil constraint the violated one
-- @tfield string|nil detail the server's
-- @tfield boolean|nil retryable trying again may help

---- SQL ----

-- Texts that the guard let pass. Emptied when a handler makes ever new ones.
local passed, npassed = {}, 0

local function check(sql)
  if passed[sql] then
    return
  end
  if type(sql) ~= "string" then
    raise("statement_refused", "the statement must be a string, not " .. type(sql))
  end
  c.guard(sql)
  if npassed >= 1000 then
    passed, npassed = {}, 0
  end
  passed[sql] = true
  npassed = npassed + 1
end

local SQL, LOG, CTX = "umavez.sql", "umavez.log", "umavez.ctx"

local Sql = {}
Sql.__index = Sql
Sql.__metatable = SQL

--- Run a statement on the run's own transaction.
-- @function ctx.sql:query
-- @tparam string sql one statement, parameters as `$1`, `$2`, …
-- @param ... the parameters
-- @treturn table array of rows; empty when there is none
-- @raise error object with `sqlstate`, `constraint`, `message`, `detail`, `retryable`
-- @yields
function Sql:query(sql, ...)
  check_colon(self, SQL, "ctx.sql", "query")
  check(sql)
  local handle = self.handle
  return c.rows(handle, await(c.send(handle, sql, select("#", ...), ...)))
end

--- Run a statement and take its first row.
-- @function ctx.sql:one
-- @tparam string sql one statement
-- @param ... the parameters
-- @treturn table|nil
-- @yields
function Sql:one(sql, ...)
  check_colon(self, SQL, "ctx.sql", "one")
  check(sql)
  local handle = self.handle
  return c.row(handle, await(c.send(handle, sql, select("#", ...), ...)))
end

--- Run a statement.
-- @function ctx.sql:exec
-- @tparam string sql one statement
-- @param ... the parameters
-- @treturn number rows affected (or returned)
-- @yields
function Sql:exec(sql, ...)
  check_colon(self, SQL, "ctx.sql", "exec")
  check(sql)
  local handle = self.handle
  return c.affected(handle, await(c.send(handle, sql, select("#", ...), ...)))
end

local function savepoint(handle, verb, depth)
  return c.affected(handle, await(c.savepoint(handle, verb, depth)))
end

local function undo(handle, depth)
  savepoint(handle, "ROLLBACK TO SAVEPOINT", depth)
  c.undone(handle)
  savepoint(handle, "RELEASE SAVEPOINT", depth)
end

local function leave(self, depth, ok, ...)
  local handle = self.handle
  self.depth = depth - 1
  if c.ended(handle) then
    error((...), 0)
  end
  local fault = c.aborted(handle)
  if ok and not fault then
    savepoint(handle, "RELEASE SAVEPOINT", depth)
    return ...
  end
  undo(handle, depth)
  if ok then
    error(fault, 0) -- swallowed inside, but its work is gone
  end
  error((...), 0)
end

--- Run a function under a savepoint: when it raises, its SQL is undone and the error is raised again; catch it with
-- `pcall` to go on.
-- @function ctx.sql:savepoint
-- @tparam function fn
-- @param ... its arguments
-- @return what fn returns
-- @yields
function Sql:savepoint(fn, ...)
  check_colon(self, SQL, "ctx.sql", "savepoint")
  local depth = self.depth + 1
  savepoint(self.handle, "SAVEPOINT", depth)
  self.depth = depth
  return leave(self, depth, pcall(fn, ...))
end

---- log ----

local Log = {}
Log.__index = Log
Log.__metatable = LOG

--- Log a line of this run.
-- @function ctx.log:debug|info|warn|error
-- @tparam string message
-- @tparam[opt] table fields names and values
for level, name in ipairs({ "debug", "info", "warn", "error" }) do
  Log[name] = function(self, message, fields)
    check_colon(self, LOG, "ctx.log", name)
    local pairs_of = {}
    if type(fields) == "table" then
      for k, v in pairs(fields) do
        pairs_of[#pairs_of + 1] = tostring(k):lower():gsub("[^a-z0-9_]", "_")
        pairs_of[#pairs_of + 1] = tostring(v)
      end
    end
    c.log(self.handle, level - 1, tostring(message), pairs_of)
  end
end

---- ctx ----

local Ctx = {}
Ctx.__index = Ctx
Ctx.__metatable = CTX

-- The handle of a ctx: kept apart, so that nothing that a handler writes into ctx changes what it is.
local handles = setmetatable({}, { __mode = "k" })

--- How `ctx:enqueue` enqueues.
-- @table umavez.EnqueueOptions
-- @tfield string|nil run_id the same one twice is one run
-- @tfield string|number|nil after "5m", or seconds
-- @tfield string|nil run_at a time as PostgreSQL reads it
-- @tfield string|nil queue default: the task's
-- @tfield number|nil priority 1 first … 4
-- @tfield any tenant_id `umavez.null`: none. Default: a tenant's task goes to the run's tenant, a platform task to none

local ENQUEUE_OPTIONS = { run_id = true, after = true, run_at = true, queue = true, priority = true, tenant_id = true }

--- Enqueue a run, in this run's transaction.
-- @function ctx:enqueue
-- @tparam string task
-- @tparam[opt] table args
-- @tparam[opt] umavez.EnqueueOptions options
-- @treturn string its run_id
-- @yields
function Ctx:enqueue(task, args, options)
  check_colon(self, CTX, "ctx", "enqueue")
  options = options or {}
  for name in pairs(options) do
    if not ENQUEUE_OPTIONS[name] then
      raise("parameter", ("ctx:enqueue: unknown option \"%s\"; there are after, priority, queue, run_at, run_id, "
        .. "tenant_id"):format(tostring(name)))
    end
  end
  local tenant = options.tenant_id
  if tenant == nil then
    local known = tasks[task]
    tenant = not (known and known.owner == "platform") and c.info(handles[self]).tenant_id or nil
  end
  if type(task) ~= "string" then
    raise("parameter", "ctx:enqueue: the task must be a name, not " .. type(task))
  end
  if args ~= nil and (type(args) ~= "table" or value.is_array(args) or args[1] ~= nil) then
    raise("parameter", "ctx:enqueue: the args must be a table with names")
  end
  local row = self.sql:one([[
    SELECT umavez.enqueue(task => $1::text, args => $2::jsonb, tenant_id => $3::bigint, run_id => $4::uuid,
             run_at => coalesce($5::timestamptz, clock_timestamp() + $6::float8 * interval '1 millisecond'),
             queue => $7::text, priority => $8::int, traceparent => $9::text) AS run_id]],
    task, value.json(args or {}), tenant, options.run_id, options.run_at,
    options.after and milliseconds(options.after, "ctx:enqueue after"), options.queue, options.priority,
    self.traceparent)
  return row.run_id
end

--- Pause this run; others go on.
-- @function ctx:sleep
-- @tparam string|number duration `"250ms"`, or seconds
-- @yields
function Ctx:sleep(duration)
  check_colon(self, CTX, "ctx", "sleep")
  await(c.sleep(handles[self], milliseconds(duration, "ctx:sleep")))
end

--- Time left until the run is stopped.
-- @function ctx:remaining
-- @treturn number seconds
function Ctx:remaining()
  check_colon(self, CTX, "ctx", "remaining")
  return c.remaining_ms(handles[self]) / 1000
end

local function stop(kind, detail)
  local message = kind
  if type(detail) == "table" and detail.message ~= nil then
    message = ("%s: %s"):format(kind, tostring(detail.message))
  end
  error(value.error_object({ code = kind, message = message }), 0)
end

--- Fail the run for good: its effect is undone, the detail is its outcome, and every duplicate is told the same.
-- Does not return; and stands, whatever the handler does afterwards.
-- @function ctx:fail
-- @tparam table detail `code`, `message`, and what else the caller should see (`status` for HTTP)
function Ctx:fail(detail)
  check_colon(self, CTX, "ctx", "fail")
  c.fail(handles[self], detail)
  stop("ctx:fail", detail)
end

--- Undo the effect and try again later. Counts as an attempt. Does not return.
-- @function ctx:retry
-- @tparam[opt] table options `after` ("5s"; default: the task's backoff), `code`, `message`
function Ctx:retry(options)
  check_colon(self, CTX, "ctx", "retry")
  options = options or {}
  local after = options.after and milliseconds(options.after, "ctx:retry after") or -1
  c.retry(handles[self], after, {
    code = type(options.code) == "string" and options.code or "retry",
    message = options.message and tostring(options.message) or "the handler asked for another try",
  })
  stop("ctx:retry", options)
end

local function context(handle)
  local ctx = c.info(handle)
  handles[ctx] = handle
  ctx.sql = setmetatable({ handle = handle, depth = 0 }, Sql)
  ctx.log = setmetatable({ handle = handle }, Log)
  return setmetatable(ctx, Ctx)
end

---- what C starts ----

-- Manifest code (key functions) must end: its instructions are counted, which works in the interpreter only.
local function too_long()
  error("ran for too many instructions", 0)
end

local function bounded(fn, ...)
  debug.sethook(too_long, "", 10000000)
  local results = { pcall(fn, ...) }
  debug.sethook()
  if not results[1] then
    error(results[2], 0)
  end
  return unpack(results, 2, 3)
end
M.bounded = bounded

-- The args, which the first step finds to be what the manifest declares: the key is claimed by then, so that a
-- duplicate of what is settled already is answered whatever the manifest says today.
local function checked_args(handle, task, first)
  local given = c.args(handle)
  local fault = first and task.args and declarations.fault(task.args, given)
  if fault then
    c.fail(handle, fault)
    stop("args_invalid", fault)
  end
  return given
end

c.setup({
  prepare = function(handle)
    local ctx = context(handle)
    local task = tasks[ctx.task]
    return task.prepare(ctx, checked_args(handle, task, true))
  end,
  effect = function(handle, prepared)
    local ctx = context(handle)
    local task = tasks[ctx.task]
    return task.effect(ctx, checked_args(handle, task, not task.prepare), prepared)
  end,
  args_fault = function(task, text)
    local declared = tasks[task].args
    local fault = declared and declarations.fault(declared, value.decode(text))
    return fault and value.encode(fault) or nil
  end,
  key = function(task, args)
    local key = bounded(tasks[task].key, value.decode(args))
    if key == NULL then
      return nil
    end
    return key
  end,
})

return M
