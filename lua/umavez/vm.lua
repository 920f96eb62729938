--- Waiting in coroutines. Loaded by the program itself before anything else.
--
-- A function that waits yields a token of its own up to the event loop. Scripts may use coroutines too: their own
-- yields reach their own resumer, ours pass through it to the loop. So `coroutine.resume` and `coroutine.wrap` are
-- replaced here by versions that hand the token on.
-- @module umavez.vm

local c = require("umavez.c.vm")

local AWAIT, blocked = c.token, c.blocked
local is_ready, on_top, check = c.wait, c.on_top, c.check
local co_create, co_resume, co_yield = coroutine.create, coroutine.resume, coroutine.yield
local co_running, co_isyieldable = coroutine.running, coroutine.isyieldable
local error = error

local M = {}

-- Coroutines that wait for the loop: nobody but the loop may resume them.
local waiting = setmetatable({}, { __mode = "k" })

-- How many coroutines are inside one another: each takes of the C stack, and LuaJIT itself does not count.
local DEPTH_MAX = 180
local depth = setmetatable({}, { __mode = "k" })

local function pass(co, ok, first, ...)
  if ok and first == AWAIT then
    waiting[co] = true
    co_yield(AWAIT)
    waiting[co] = nil
    return pass(co, co_resume(co))
  end
  return ok, first, ...
end

local function resume(co, ...)
  if waiting[co] then
    return false, "cannot resume a coroutine that waits for an answer"
  end
  local running = co_running()
  local level = (depth[running] or 0) + 1
  if level > DEPTH_MAX then
    return false, "too many coroutines inside one another"
  end
  depth[co] = level
  if not co_isyieldable() or blocked[running] then
    blocked[co] = true
  elseif blocked[co] then
    blocked[co] = nil
  end
  return pass(co, co_resume(co, ...))
end

local function unwrap(ok, ...)
  if not ok then
    error((...), 0)
  end
  return ...
end

coroutine.resume = resume -- luacheck: ignore 122

function coroutine.wrap(fn) -- luacheck: ignore 122
  local co = co_create(fn)
  return function(...)
    return unwrap(resume(co, ...))
  end
end

function coroutine.yield(...) -- luacheck: ignore 122
  if on_top() then
    error("attempt to yield from outside a coroutine", 2)
  end
  return co_yield(...)
end

-- Closing the state from inside of it would end what C still owns; leaving the process is enough.
local os_exit = os.exit
os.exit = function(code) -- luacheck: ignore 122
  io.stdout:flush()
  io.stderr:flush()
  os_exit(code)
end

--- Raise an error where waiting is impossible. Call it before a request is sent.
-- @function check
M.check = check

--- Wait until the box has its answer.
-- @param box what a C function gave
-- @return the box
-- @yields
function M.await(box)
  if not is_ready(box) then
    co_yield(AWAIT)
  end
  return box
end


return M
