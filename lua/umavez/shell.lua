--- Shell commands, locks and files for `umavez dev` and the migrations. Everything here blocks; nothing of it belongs
-- into a task. Processes and clocks: umavez.sys.
-- @module umavez.shell

local ffi = require("ffi")

ffi.cdef [[
int open(const char *path, int flags, int mode);
int flock(int fd, int operation);
int close(int fd);
unsigned geteuid(void);
]]

local O_RDWR_CREAT_CLOEXEC, LOCK_EX = 0x80042, 2

local M = {}

--- Quote words for the shell.
-- @tparam string ... or one table of words
-- @treturn string
function M.quote(...)
  local words = type((...)) == "table" and (...) or { ... }
  local out = {}
  for i, word in ipairs(words) do
    out[i] = "'" .. tostring(word):gsub("'", "'\\''") .. "'"
  end
  return table.concat(out, " ")
end

--- Run a shell command line to its end.
-- @tparam string command
-- @treturn boolean whether it ended with 0
-- @treturn string what it wrote, standard error included, without the last newline
-- @treturn int its exit code
function M.run(command)
  local pipe = assert(io.popen("{ " .. command .. "\n} 2>&1 </dev/null; printf '\\n%d' $?", "r"))
  local all = pipe:read("*a")
  pipe:close()
  local output, code = all:match("^(.*)\n(%d+)$")
  code = tonumber(code) or 255
  return code == 0, ((output or all):gsub("\n$", "")), code
end

--- Send a signal.
-- @tparam int pid
-- @tparam string name `KILL`, `TERM`, …
-- @treturn boolean whether there was such a process
function M.signal(pid, name)
  return (M.run(("kill -%s %d"):format(name, pid)))
end

--- The command line of a process.
-- @tparam int pid
-- @treturn string|nil with spaces between its words; nil when there is no such process, or it is a zombie
function M.cmdline(pid)
  local text = M.read_file(("/proc/%d/cmdline"):format(pid))
  if not text or text == "" then
    return nil
  end
  return (text:gsub("%z", " "):gsub(" +$", ""))
end

--- Wait until something holds.
-- @tparam function probe
-- @tparam number seconds at most
-- @return what the probe gave, false when the time is over
function M.wait_for(probe, seconds)
  for _ = 1, seconds * 20 do
    local found = probe()
    if found then
      return found
    end
    os.execute("sleep 0.05")
  end
  return probe() or false
end

--- Take a file's lock, waiting for it. It ends with `unlock`, or with the process.
-- @tparam string path made when it is not there
-- @return a handle for `unlock`
function M.lock(path)
  local fd = ffi.C.open(path, O_RDWR_CREAT_CLOEXEC, 420)
  if fd < 0 or ffi.C.flock(fd, LOCK_EX) ~= 0 then
    return nil, "cannot lock " .. path
  end
  return fd
end

--- Give a lock back.
function M.unlock(fd)
  ffi.C.close(fd)
end

--- @treturn boolean whether this process is root
function M.is_root()
  return ffi.C.geteuid() == 0
end

--- @tparam string path
-- @treturn string|nil the file's whole content
function M.read_file(path)
  local file = io.open(path, "rb")
  if not file then
    return nil
  end
  local text = file:read("*a")
  file:close()
  return text
end

--- @tparam string path
-- @treturn boolean
function M.exists(path)
  return (M.run("test -e " .. M.quote(path)))
end

--- @tparam string pattern a shell pattern, not quoted
-- @treturn {string,...} the files that match, sorted
function M.glob(pattern)
  local _, output = M.run("for f in " .. pattern .. "; do test -e \"$f\" && printf '%s\\n' \"$f\"; done; true")
  local out = {}
  for line in output:gmatch("[^\n]+") do
    out[#out + 1] = line
  end
  table.sort(out)
  return out
end

--- @tparam string path a directory that is there
-- @treturn string its absolute path
function M.absolute(path)
  local ok, output = M.run("cd " .. M.quote(path) .. " && pwd -P")
  return ok and output or nil
end

return M
