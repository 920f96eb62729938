--- The doctor's checks of Valkey.
-- @module umavez.doctor.valkey

local redact = require("umavez.conf").redact
local sys = require("umavez.sys")
local valkey = require("umavez.valkey")

local CLOCK_MS = 1000

local function clock(look, gate)
  local asked = sys.wall_ms()
  local reply = gate:command("TIME")
  local now = sys.wall_ms()
  local seconds, micros = (reply or ""):match("^(%d+)\n(%d+)$")
  if not seconds then
    return
  end
  local difference = seconds * 1000 + micros / 1000 - (asked + now) / 2
  local found = ("Valkey's clock is %+d ms from this machine's"):format(difference)
  if math.abs(difference) > CLOCK_MS then
    look:info("clock of Valkey", found, "Nothing is decided by it, but logs of the two cannot be laid side by side.",
      "Let both follow NTP.")
  else
    look:ok("clock of Valkey", found)
  end
end

local function memory(look, gate)
  local info = gate:command("INFO", "memory") or ""
  local limit = tonumber(info:match("maxmemory:(%d+)"))
  local policy = info:match("maxmemory_policy:([%w-]+)")
  if not limit or not policy then
    look:info("memory of Valkey", "INFO memory tells neither maxmemory nor a policy",
      "It cannot be seen what happens when its memory is full.", "Let this user run INFO.")
  elseif limit > 0 and policy == "noeviction" then
    look:warning("memory of Valkey", ("maxmemory %d MB with the policy noeviction"):format(limit / 2 ^ 20),
      "When it is full Valkey refuses the gate's entries: every delivery then asks PostgreSQL.",
      "Set maxmemory-policy to volatile-ttl: an evicted entry costs a little time, never a wrong answer.")
  else
    look:ok("memory of Valkey", limit == 0 and "no maxmemory; policy " .. policy
      or ("maxmemory %d MB, policy %s"):format(limit / 2 ^ 20, policy))
  end
end

local function persistence(look, gate)
  local info = gate:command("INFO", "persistence") or ""
  local aof = info:match("aof_enabled:(%d)")
  look:ok("persistence of Valkey", (aof == "1" and "append-only file" or aof == "0" and "no append-only file"
    or "not shown") .. "; it does not matter: what Valkey loses costs time only")
end

local function version(look, gate)
  local info = gate:command("INFO", "server") or ""
  local name = info:find("valkey_version") and "Valkey" or "Redis"
  local found = info:match("valkey_version:([%d.]+)") or info:match("redis_version:([%d.]+)")
  if not found then
    look:info("version of Valkey", "INFO server does not tell it", "It cannot be seen whether it is known to work.",
      "Let this user run INFO.")
  elseif tonumber(found:match("^%d+")) < 6 then
    look:warning("version of Valkey", name .. " " .. found, "Versions before 6 are not tested.", "Take a newer one.")
  else
    look:ok("version of Valkey", name .. " " .. found)
  end
end

local function examine(look)
  if look.conf.valkey_url == "" then
    look:info("Valkey", "none is set (valkey_url)", "Without the gate duplicates are found by PostgreSQL alone: right, "
      .. "and slower where there are many.", "Set VALKEY_URL if duplicates are frequent.")
    return
  end
  local gate, why = valkey.connect(look.conf)
  if not gate then
    look:warning("Valkey", ("cannot be reached at %s: %s"):format(redact(look.conf.valkey_url), why),
      "Workers go on without the gate: every delivery asks PostgreSQL.", "Start it, or mend valkey_url.")
    return
  end
  version(look, gate)
  memory(look, gate)
  persistence(look, gate)
  clock(look, gate)
  gate:close()
end

return { { name = "Valkey", look = examine } }
