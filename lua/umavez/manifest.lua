--- Manifests: what a folder under the tasks folder declares.
--
-- One table (`M.fields`) describes what a task may say; validation, messages and docs/manifest.md follow from it.
-- A manifest is data: it is evaluated without io, os or require, and its instructions are counted.
-- @module umavez.manifest

local args = require("umavez.args")
local c = require("umavez.c.run")
local context = require("umavez.context")
local distance = require("umavez.distance")
local field_docs = require("umavez.field_docs")
local json = require("umavez.json")
local queues = require("umavez.queues")
local routes = require("umavez.routes")
local schedule = require("umavez.schedule")
local sorted = require("umavez.names").sorted
local sys = require("umavez.c.sys")
local texts = require("umavez.text")

local M = {}

---- faults ----

local Fault = {}
Fault.__index = Fault

function Fault:__tostring()
  local place = self.file
  if self.task then
    place = place .. ": task " .. self.task
  end
  if self.field then
    place = place .. ": field " .. self.field
  end
  local text = place .. ": " .. self.message
  if self.found then
    text = ("%s: found %s"):format(text, self.found)
  end
  if self.expected then
    text = ("%s, expected %s"):format(text, self.expected)
  end
  if self.nearest then
    text = ("%s (did you mean %s?)"):format(text, self.nearest)
  end
  return text
end

local function shown(v)
  if type(v) == "string" then
    return #v > 60 and ("%q…"):format(v:sub(1, 60)) or ("%q"):format(v)
  elseif type(v) == "table" then
    return next(v) == nil and "an empty table" or "a table"
  elseif type(v) == "function" then
    return "a function"
  end
  return tostring(v)
end

local function nearest(name, names)
  local best, least
  for _, candidate in ipairs(names) do
    local d = distance(name, candidate)
    if d <= math.max(1, math.floor(#candidate / 2)) and (not least or d < least) then
      best, least = candidate, d
    end
  end
  return best
end

---- fields ----

-- A check gives the checked value, or nil and what was expected.

local function one_of(...)
  local choices = { ... }
  local expected = '"' .. table.concat(choices, '" or "') .. '"'
  return function(v)
    for _, choice in ipairs(choices) do
      if v == choice then
        return v
      end
    end
    return nil, expected
  end
end

local function duration(least, greatest)
  local expected = ("a duration from %s to %s, such as \"30s\", \"10m\", \"24h\""):format(least, greatest)
  local min, max = c.duration(least), c.duration(greatest)
  return function(v)
    local ms = type(v) == "string" and c.duration(v) or nil
    if not ms or ms < min or ms > max then
      return nil, expected
    end
    return ms
  end
end

local function integer(min, max)
  local expected = ("a whole number from %d to %d"):format(min, max)
  return function(v)
    if type(v) ~= "number" or v % 1 ~= 0 or v < min or v > max then
      return nil, expected
    end
    return v
  end
end

local function text(v)
  if not texts.is(v) or v == "" or #v > 500 then
    return nil, "a text of at most 500 characters, in UTF-8"
  end
  return v
end

local function queue(v)
  if type(v) ~= "string" or not v:match("^[%w_][%w_.%-]*$") or #v > 64 then
    return nil, "a name of letters, digits, _ . - (at most 64)"
  end
  return v
end

local function paths(v)
  local expected = "an array of paths into args, such as { \"order.id\", \"step\" }"
  if type(v) ~= "table" or #v == 0 then
    return nil, expected
  end
  local n, seen = 0, {}
  for k, path in pairs(v) do
    n = n + 1
    if type(k) ~= "number" or not texts.is(path) or path == "" or path:find("%.%.") or path:find("^%.")
      or path:find("%.$") or seen[path]
    then
      return nil, expected
    end
    seen[path] = true
  end
  if n ~= #v then
    return nil, expected
  end
  return v
end

local function key(v)
  if type(v) == "function" then
    return v
  end
  local checked = paths(v)
  if not checked then
    return nil, "an array of paths into args, such as { \"order.id\" }, or a function of args"
  end
  return checked
end

local function file(v)
  if not texts.is(v) or not v:match("%.lua$") or v:find("..", 1, true) or v:sub(1, 1) == "/" then
    return nil, "a file name that ends in .lua, below the manifest's folder"
  end
  return v
end

-- Pages of the door's own; whatever lies below /runs/ and /ui/ is, too.
local BUILT_IN = {
  ["/runs"] = true, ["/healthz"] = true, ["/readyz"] = true, ["/openapi.json"] = true, ["/metrics"] = true,
  ["/ui"] = true,
}

local function http_path(v)
  local expected = 'a path such as "/payments" or "/orders/{order_id}/refunds", not one of the door\'s own'
  if type(v) ~= "string" or #v > 500 or v:sub(1, 1) ~= "/" or v == "/" then
    return nil, expected
  end
  local seen, n = {}, 0
  for segment in (v:sub(2) .. "/"):gmatch("([^/]*)/") do
    local param = segment:match("^{([%a_][%w_]*)}$")
    n = n + 1
    if n > 30 or (not param and not segment:match("^[%w%-._~]+$")) or (param and seen[param]) then
      return nil, expected
    end
    seen[param or segment] = param and true or nil
  end
  if v:match("^/runs/") or v:match("^/ui/") or BUILT_IN[v] then
    return nil, expected
  end
  return v
end

local function header_name(v)
  if type(v) ~= "string" or not v:match("^[%w%-]+$") or #v > 100 then
    return nil, "the name of a header, such as X-GitHub-Delivery"
  end
  return v
end

local function http_key(v)
  if v == "required" or v == "optional" then
    return v
  end
  if type(v) == "table" and header_name(v.header) and next(v) == "header" and next(v, "header") == nil then
    return v
  end
  return nil, '"required", "optional", or { header = "X-GitHub-Delivery" }'
end

local function variable(v)
  if type(v) ~= "string" or not v:match("^[%a_][%w_]*$") then
    return nil, "the name of an environment variable"
  end
  return v
end

--- The fields of a task: `name`, `type` and `doc` for the docs, `default` as it would be written, `check`.
-- `fields` makes a field a table of others, `optional` one that is nothing when it is absent; `later` reserves a name;
-- `validate(v, report)` reports faults of its own, and gives the checked value or nil.
M.fields = {
  { name = "owner", type = '"tenant" or "platform"', required = true, check = one_of("tenant", "platform"),
    doc = "whose runs these are: a tenant's (enqueued with a tenant) or nobody's (work above tenants)" },
  { name = "key", type = "paths or function", check = key,
    doc = "what makes two runs the same operation: paths into args, or a function of args that returns a string. "
      .. "Default: the run_id, so only redeliveries are duplicates" },
  { name = "fingerprint", type = "paths", check = paths,
    doc = "the paths into args that must be equal for two runs with one key. Default: all args" },
  { name = "lease", type = "duration", default = "30s", check = duration("1s", "24h"),
    doc = "how long a worker that says nothing keeps a run; renewed while it lives" },
  { name = "timeout", type = "duration", default = "20s", check = duration("10ms", "24h"),
    doc = "how long one start of the handler may take; prepare and effect each" },
  { name = "retention", type = "duration", default = "24h", check = duration("1s", "3650d"),
    doc = "how long an outcome is kept and answered to duplicates; afterwards the key counts as new" },
  { name = "retry", type = "table", doc = "what happens after an error", fields = {
    { name = "max_attempts", type = "number", default = 8, check = integer(1, 1000),
      doc = "starts of the handler before the run counts as failed for good" },
    { name = "max_crashes", type = "number", default = 3, check = integer(1, 1000),
      doc = "how often its code may cost the worker its life (a crash, an endless loop) before the run counts as "
        .. "failed for good; never more than max_attempts" },
    { name = "base", type = "duration", default = "1s", check = duration("1ms", "7d"),
      doc = "wait before the second try; doubles each time, with jitter" },
    { name = "cap", type = "duration", default = "10m", check = duration("1ms", "7d"), doc = "the longest wait" },
  } },
  { name = "queue", type = "name", default = "default", check = queue,
    doc = "the queue its runs go to, unless enqueue says otherwise" },
  { name = "concurrency", type = "number", check = integer(1, 10000),
    doc = "runs of this task at once in one worker. Default: as many as there are connections" },
  { name = "global_limit", type = "number", check = queues.limit,
    doc = "runs of this task at once in all workers together. Default: no limit" },
  { name = "batch", type = "number", default = 50, check = integer(1, 64),
    doc = "runs that may share one transaction when many wait, each under a savepoint of its own; 1: none" },
  { name = "history", type = "boolean", default = true, check = queues.boolean,
    doc = "false: a completed run leaves no row in umavez.finished_runs" },
  { name = "handler", type = "file name", check = file,
    doc = "the handler's file, from the manifest's folder. Default: the task's name and .lua" },
  { name = "description", type = "text", check = text, doc = "for people" },
  { name = "http", type = "table", optional = true, doc = "makes the task reachable over HTTP", fields = {
    { name = "method", type = '"POST", "PUT", "PATCH", "DELETE" or "GET"', default = "POST",
      check = one_of("POST", "PUT", "PATCH", "DELETE", "GET"), doc = "the request's method" },
    { name = "path", type = "path", required = true, check = http_path,
      doc = "the request's path; what stands in braces reaches args" },
    { name = "key", type = '"required", "optional" or { header = … }', default = "required", check = http_key,
      doc = "whether an Idempotency-Key must be sent; or the sender's own header that names the operation" },
    { name = "key_form", type = '"any" or "uuid"', default = "any", check = one_of("any", "uuid"),
      doc = "what a key may look like: 1 to 255 printable ASCII characters, or a UUID" },
    { name = "mode", type = '"run" or "enqueue"', default = "run", check = one_of("run", "enqueue"),
      doc = "answer with the outcome, or with 202 after the run was put into the queue" },
    { name = "wait", type = "duration", default = "10s", check = duration("0s", "60s"),
      doc = "how long a duplicate waits for the first one's answer before 409" },
    { name = "auth", type = '"token" or "none"', default = "token", check = one_of("token", "none"),
      doc = "who may send: holders of a token, or anybody (with `signature`: the signer)" },
    { name = "scope", type = "text", check = text, doc = "what the token must allow. Default: the task's name" },
    { name = "signature", type = "table", optional = true, doc = "the body's signature, instead of a token", fields = {
      { name = "scheme", type = '"hmac_sha256"', default = "hmac_sha256", check = one_of("hmac_sha256"),
        doc = "HMAC-SHA-256 over the body, in hex" },
      { name = "header", type = "header", required = true, check = header_name, doc = "where it stands" },
      { name = "prefix", type = "text", check = text, doc = 'what stands before it, such as "sha256="' },
      { name = "secret_env", type = "variable", required = true, check = variable,
        doc = "the environment variable that holds the secret" },
    } },
    { name = "max_body", type = "number", check = integer(1, 67108864),
      doc = "octets of a body. Default: the setting http_max_body_bytes" },
  } },
  { name = "schedule", type = "table", optional = true, doc = "enqueues runs by the clock",
    fields = schedule.fields(one_of, duration) },
  { name = "args", type = "table", validate = args.validate,
    doc = "what the args must be, by name. Default: any object" },
}

local function names_of(fields)
  local names = {}
  for i, field in ipairs(fields) do
    names[i] = field.name
  end
  return names
end

---- validation ----

-- Collects the faults of one file.
local function reporter(faults, path)
  return function(fault)
    fault.file = path
    for name, v in pairs(fault) do
      fault[name] = type(v) == "string" and texts.printable(v) or v
    end
    faults[#faults + 1] = setmetatable(fault, Fault)
  end
end

local function check_fields(fields, given, prefix, task, report)
  local out, known = {}, {}
  for _, field in ipairs(fields) do
    known[field.name] = true
    local name, v = prefix .. field.name, given[field.name]
    if v ~= nil and field.later then
      report({ task = task, field = name, message = "comes with a later version" })
    elseif field.validate then
      out[field.name] = v ~= nil and field.validate(v, function(fault)
        fault.task = task
        report(fault)
      end) or nil
    elseif field.fields then
      if v ~= nil and type(v) ~= "table" then
        report({ task = task, field = name, message = "wrong value", found = shown(v), expected = "a table" })
        v = nil
      end
      if v ~= nil or not field.optional then
        out[field.name] = check_fields(field.fields, v or {}, name .. ".", task, report)
      end
    elseif v == nil then
      if field.required then
        report({ task = task, field = name, message = "is missing", expected = field.type })
      elseif field.default ~= nil then
        out[field.name] = field.check(field.default)
      end
    elseif not field.later then
      local checked, expected = field.check(v)
      if expected then
        report({ task = task, field = name, message = "wrong value", found = shown(v), expected = expected })
      else
        out[field.name] = checked
      end
    end
  end
  for _, name in ipairs(sorted(given)) do
    if not known[name] then
      report({ task = task, field = prefix .. tostring(name), message = "no such field", found = shown(given[name]),
        expected = "one of " .. table.concat(names_of(fields), ", "),
        nearest = type(name) == "string" and nearest(name, names_of(fields)) or nil })
    end
  end
  return out
end

local function is_name(name)
  return type(name) == "string" and name:match("^[%a_][%w_]*$") and #name <= 64
end

local function check_task(name, given, folder, report)
  if not is_name(name) then
    report({ message = "a task's name is wrong", found = shown(name),
      expected = "letters, digits and _, not beginning with a digit" })
    return nil
  end
  local full = (folder.name == "" and "" or folder.name .. ".") .. name
  if type(given) ~= "table" then
    report({ task = full, message = "wrong value", found = shown(given), expected = "a table of fields" })
    return nil
  end
  local checked = check_fields(M.fields, given, "", full, report)
  if checked.retry.base and checked.retry.cap and checked.retry.base > checked.retry.cap then
    report({ task = full, field = "retry.base", message = "is longer than retry.cap" })
  end
  local crashes, attempts = checked.retry.max_crashes, checked.retry.max_attempts
  if crashes and attempts and crashes > attempts then
    if type(given.retry) == "table" and given.retry.max_crashes then
      report({ task = full, field = "retry.max_crashes", message = "is greater than retry.max_attempts" })
    end
    checked.retry.max_crashes = attempts
  end
  local http = checked.http
  if http and http.signature and given.http.auth == "token" then
    report({ task = full, field = "http.signature", message = 'goes without auth = "token"' })
  end
  if http and checked.owner == "tenant" and (http.signature or http.auth == "none") then
    report({ task = full, field = http.signature and "http.signature" or "http.auth",
      message = "does not say whose the run is", expected = 'owner = "platform", or auth = "token"' })
  end
  args.check_uses(checked, function(fault)
    fault.task = full
    report(fault)
  end)
  if checked.schedule then
    schedule.check(checked.schedule, given.schedule, checked, function(field, message, expected)
      report({ task = full, field = field, message = message, expected = expected })
    end)
  end
  checked.name = full
  checked.folder = folder.path
  checked.file = folder.path .. "/" .. (checked.handler or name .. ".lua")
  return checked
end

---- evaluation ----

local function sandbox()
  local function copy(t)
    local out = {}
    for k, v in pairs(t) do
      out[k] = v
    end
    return out
  end
  local env = {
    assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs, select = select, tonumber = tonumber,
    tostring = tostring, type = type, unpack = unpack, math = copy(math), string = copy(string), table = copy(table),
  }
  env.string.dump, env.string.rep = nil, nil
  return env
end

local function read(path)
  local f, err = io.open(path, "rb")
  if not f then
    return nil, err
  end
  local content = f:read("*a")
  f:close()
  return content
end

--- Evaluate a manifest's text.
-- @tparam string content
-- @tparam string path for messages
-- @return what it returns, or nil and why not
function M.evaluate(content, path)
  if content:sub(1, 1) == "\27" then
    return nil, "is compiled code, expected a Lua text"
  end
  local chunk, err = loadstring(content, "@" .. path)
  if not chunk then
    return nil, err
  end
  setfenv(chunk, sandbox())
  jit.off(chunk, true) -- hooks do not fire in compiled code
  local ok, result = pcall(context.bounded, chunk)
  if not ok then
    return nil, type(result) == "string" and result or tostring(result)
  end
  if type(result) ~= "table" then
    return nil, ("returns %s, expected a table: return { tasks = { … } }"):format(shown(result))
  end
  return result
end

local function check_manifest(content, folder, declared, report)
  local given, err = M.evaluate(content, folder.path .. "/manifest.lua")
  if not given then
    report({ message = err })
    return {}
  end
  for _, name in ipairs(sorted(given)) do
    if name == "queues" then
      queues.check(given.queues, declared,
        { report = report, is_queue = queue, check_fields = check_fields, shown = shown, folder = folder.path })
    elseif name ~= "tasks" then
      report({ field = tostring(name), message = "no such field", found = shown(given[name]),
        expected = "tasks or queues",
        nearest = type(name) == "string" and nearest(name, { "tasks", "queues" }) or nil })
    end
  end
  if type(given.tasks) ~= "table" then
    report({ field = "tasks", message = "wrong value", found = shown(given.tasks), expected = "a table of tasks" })
    return {}
  end
  local tasks = {}
  for _, name in ipairs(sorted(given.tasks)) do
    tasks[#tasks + 1] = check_task(name, given.tasks[name], folder, report)
  end
  return tasks
end

---- handlers ----

-- The handler of a checked task: fills effect and prepare.
local function load_handler(task, report)
  local function fault(message, found)
    report({ task = task.name, message = message, found = found,
      expected = found and "a function, or { prepare = function, effect = function }" or nil })
  end
  if not sys.exists(task.file) then
    return fault(("has no handler: there is no file %s"):format(task.file))
  end
  local chunk, err = loadfile(task.file)
  if not chunk then
    return fault(err)
  end
  local ok, handler = pcall(chunk)
  if not ok then
    return fault(("loading %s raised an error: %s"):format(task.file, tostring(handler)))
  end
  if type(handler) == "function" then
    task.effect = handler
  elseif type(handler) == "table" and type(handler.effect) == "function"
    and (handler.prepare == nil or type(handler.prepare) == "function")
  then
    task.effect, task.prepare = handler.effect, handler.prepare
    for name in pairs(handler) do
      if name ~= "effect" and name ~= "prepare" then
        fault(("%s: no such part of a handler: %s"):format(task.file, tostring(name)))
      end
    end
  else
    fault(("%s returns the wrong thing"):format(task.file), shown(handler))
  end
end

---- folders ----

local function each_folder(path, name, fn)
  fn({ path = path, name = name })
  for _, entry in ipairs(sys.list(path) or {}) do
    local below = path .. "/" .. entry
    if entry:sub(1, 1) ~= "." and sys.exists(below) == "directory" then
      each_folder(below, name == "" and entry or name .. "." .. entry, fn)
    end
  end
end

-- The folder with the tasks that come with umavez.
local function builtin()
  local dir = debug.getinfo(1, "S").source:match("^@(.*)/lua/umavez/manifest%.lua$")
  return dir and dir .. "/tasks/maintenance" or nil
end

-- A whole copy of the tree's tasks has the built-in ones in it: as long as nobody has changed them they are the same.
local function same_files(own, path)
  for _, name in ipairs { "manifest.lua", "purge.lua" } do
    local mine = read(own .. "/" .. name)
    if not mine or mine ~= read(path .. "/" .. name) then
      return false
    end
  end
  return true
end

local function load_folder(folder, found, faults, options)
  local path = folder.path .. "/manifest.lua"
  if not sys.exists(path) then
    return
  end
  options.loading(path)
  local report = reporter(faults, path)
  local content, err = read(path)
  if not content then
    return report({ message = err })
  end
  for part in folder.name:gmatch("[^.]+") do
    if not is_name(part) then
      report({ message = "the folder's name is part of its tasks' names", found = shown(part),
        expected = "letters, digits and _, not beginning with a digit" })
    end
  end
  for _, task in ipairs(check_manifest(content, folder, options.queues, report)) do
    if found[task.name] and found[task.name].builtin then
      report({ task = task.name, message = "comes with umavez, and this copy is another one: remove it from here, or "
        .. "give the task another name" })
    elseif found[task.name] then
      report({ task = task.name, message = ("is declared in %s already"):format(found[task.name].folder) })
    else
      found[task.name] = task
      task.builtin = options.builtin or nil
      if options.handlers ~= false then
        options.loading(("%s (%s)"):format(task.file, task.name))
        load_handler(task, report)
      end
    end
  end
end

--- Load every manifest below a folder, their handlers, and the tasks that come with umavez.
-- Nothing is registered; see `umavez.worker`.
-- @tparam string dir
-- @tparam[opt] table options `handlers = false`: the manifests only; `loading`: a function that is told of each file
-- whose code is about to be executed, and by nil that none is any more
-- @treturn table checked tasks by name: the fields (durations in milliseconds), `name`, `file`, `folder`, `effect`,
-- `prepare`
-- @treturn table array of faults, all there are; `tostring(fault)` is its message, its fields are `file`, `task`,
-- `field`, `message`, `found`, `expected`, `nearest`
-- @treturn table the queues that are declared, by name
function M.load(dir, options)
  local found, faults = {}, {}
  options = { handlers = options and options.handlers, loading = options and options.loading or function() end,
    queues = {} }
  local real = sys.realpath(dir)
  if not real or sys.exists(real) ~= "directory" then
    reporter(faults, dir)({ message = "there is no such folder (setting tasks_dir)" })
    real = nil
  end
  local own = builtin()
  own = own and sys.exists(own) and sys.realpath(own)
  if real then
    local own_path, rest = package.path:match("^([^;]*;[^;]*;)(.*)$") -- the library's: nothing hides it
    local ours = real .. "/?.lua;" .. real .. "/?/init.lua;"
    if rest:sub(1, #ours) ~= ours then
      package.path = own_path .. ours .. rest
    end
  end
  if own and not (real and own:sub(1, #real + 1) == real .. "/") then
    load_folder({ path = own, name = "maintenance" }, found, faults,
      { handlers = options.handlers, loading = options.loading, queues = options.queues, builtin = true })
  else
    own = nil
  end
  if real then
    each_folder(real, "", function(folder)
      if not (own and folder.name == "maintenance" and same_files(own, folder.path)) then
        load_folder(folder, found, faults, options)
      end
    end)
  end
  options.loading(nil)
  routes.check(found, function(task, fault) reporter(faults, task.folder .. "/manifest.lua")(fault) end)
  return found, faults, options.queues
end

-- What bind_task.c takes.
local function flat_http(http)
  if not http then
    return nil
  end
  local by_header = type(http.key) == "table"
  local signature = http.signature or {}
  return {
    method = http.method, path = http.path, mode = http.mode, key = by_header and "header" or http.key,
    key_header = by_header and http.key.header or nil, key_uuid = http.key_form == "uuid", wait_ms = http.wait,
    auth = http.signature and "signature" or http.auth, scope = http.scope, signature_header = signature.header,
    signature_prefix = signature.prefix or "", signature_env = signature.secret_env, max_body = http.max_body or 0,
  }
end

--- Register checked tasks with the program: from now on they can run.
-- @tparam table found what `load` gave
-- @tparam[opt] table declared the queues it gave
function M.register(found, declared)
  c.task_declare(queues.declared(found, declared))
  for _, name in ipairs(sorted(found)) do
    local task = found[name]
    local by_function = type(task.key) == "function"
    if by_function then
      jit.off(task.key, true)
    end
    c.task_add({
      name = name,
      owner = task.owner,
      queue = task.queue,
      key = by_function and "function" or task.key or "run_id",
      fingerprint = task.fingerprint,
      lease_ms = task.lease,
      timeout_ms = task.timeout,
      retention_ms = task.retention,
      max_attempts = task.retry.max_attempts,
      max_crashes = task.retry.max_crashes,
      retry_base_ms = task.retry.base,
      retry_cap_ms = task.retry.cap,
      concurrency = task.concurrency or 0,
      history = task.history,
      batch = task.batch,
      has_prepare = task.prepare ~= nil,
      http = flat_http(task.http),
      schedule = task.schedule and json.encode(schedule.declared(name, task.schedule)) or nil,
    })
    context.tasks[name] = {
      effect = task.effect, prepare = task.prepare, key = by_function and task.key or nil, owner = task.owner,
      args = task.args,
    }
  end
end

---- docs ----

--- A table of fields as Markdown.
-- @tparam[opt] table fields default: those of a task
-- @treturn string
function M.docs(fields)
  return field_docs(fields or M.fields)
end

return M
