--- Processes, files, clocks and digests for scripts and the command line.
--
-- Functions that look at the world return `nil, message` when it says no.
-- @module umavez.sys

local c = require("umavez.c.sys")
local vm = require("umavez.vm")

local M = {}

for name, fn in pairs(c) do
  M[name] = fn
end
M.status = nil

--- Pause this coroutine; others go on.
-- @tparam number ms milliseconds
-- @yields
function M.sleep(ms)
  vm.await(c.sleep(ms))
end

--- Wait for a child process.
-- @tparam number pid
-- @treturn number|nil its exit code; nil when a signal ended it
-- @treturn number|string|nil the signal's number, or why there is nothing to wait for
-- @yields
function M.wait(pid)
  return c.status(vm.await(c.wait(pid)))
end

--- Start a program.
-- @tparam table argv the program (searched on PATH) and its arguments
-- @tparam[opt] table options `env` (names to values, added to the present ones; `false` takes one away), `cwd`,
-- `stdin`, `stdout`, `stderr` (file names; output is appended), `uid`, `gid`, `detach` (a session of its own)
-- @treturn number|nil its pid
-- @treturn string|nil why it could not be started
function M.spawn(argv, options)
  options = options or {}
  local copy = {}
  for k, v in pairs(options) do
    copy[k] = v
  end
  if options.env then
    local env = {}
    for _, pair in ipairs(c.environ()) do
      if options.env[pair:match("^([^=]*)=")] == nil then
        env[#env + 1] = pair
      end
    end
    for k, v in pairs(options.env) do
      if v ~= false then
        env[#env + 1] = k .. "=" .. tostring(v)
      end
    end
    copy.env = env
  end
  return c.spawn(argv, copy)
end

--- Run a program to its end.
-- @tparam table argv
-- @tparam[opt] table options as for `spawn`
-- @treturn number|nil exit code
-- @treturn string what it wrote to its standard output and error
-- @yields
function M.run(argv, options)
  local file = os.tmpname()
  local copy = {}
  for k, v in pairs(options or {}) do
    copy[k] = v
  end
  copy.stdout, copy.stderr = copy.stdout or file, copy.stderr or file
  local pid, err = M.spawn(argv, copy)
  local code, output = nil, err
  if pid then
    code = M.wait(pid)
    local f = io.open(file)
    output = f and f:read("*a") or ""
    if f then
      f:close()
    end
  end
  os.remove(file)
  return code, output
end

--- A variable of the environment.
-- @tparam string name
-- @treturn string|nil
M.env = os.getenv

--- SHA-256 of a file's octets.
-- @tparam string path
-- @treturn string|nil hexadecimal
-- @treturn string|nil why not
function M.sha256_file(path)
  local f, err = io.open(path, "rb")
  if not f then
    return nil, err
  end
  local text = f:read("*a")
  f:close()
  return c.sha256_hex(text)
end

--- Make a folder and those above it.
-- @tparam string path
-- @treturn boolean|nil
-- @treturn string|nil why not
function M.mkdir_all(path)
  local at = path:sub(1, 1) == "/" and "/" or ""
  for part in path:gmatch("[^/]+") do
    at = at .. part
    local ok, err = c.mkdir(at)
    if not ok then
      return nil, err
    end
    at = at .. "/"
  end
  return true
end

return M
