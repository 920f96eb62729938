--- The doctor's checks of this machine.
-- @module umavez.doctor.machine

local shell = require("umavez.shell")
local sys = require("umavez.sys")

local SPARE_FILES = 64                                           -- code, logs, shared memory, Valkey

local function open_files(look)
  local limits = shell.read_file("/proc/self/limits") or ""
  local soft = tonumber(limits:match("Max open files%s+(%d+)"))
  local conf = look.conf
  local need = conf.pool_size + 2 + SPARE_FILES + (conf.http_listen ~= "" and conf.http_max_connections or 0)
  if not soft then
    look:ok("open files", "no limit")
  elseif soft < need then
    look:error("open files", ("the limit is %d, a worker process needs up to %d"):format(soft, need),
      "Connections fail with \"Too many open files\" under load.",
      ("Raise it: LimitNOFILE=%d in the unit, or ulimit -n."):format(2 * need))
  else
    look:ok("open files", ("limit %d, needed up to %d by a worker process"):format(soft, need))
  end
end

local function time_zones(look)
  local dir = os.getenv("TZDIR") or "/usr/share/zoneinfo"
  for _, zone in ipairs { "UTC", "America/Sao_Paulo", "Europe/Lisbon" } do
    if not sys.exists(dir .. "/" .. zone) then
      look:warning("time zones", ("%s has no %s"):format(dir, zone),
        "Schedules with a time zone cannot be computed without the tz database.", "Install the package tzdata.")
      return
    end
  end
  look:ok("time zones", dir)
end

return {
  { name = "open files", look = open_files },
  { name = "time zones", look = time_zones },
}
