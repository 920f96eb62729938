--- What the operator's commands share: who asks, and how the answers are shown.
-- @module umavez.cli.operator

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local settings = require("umavez.cli.settings")
local shell = require("umavez.shell")
local sys = require("umavez.sys")

local M = {}

--- Who asks, for the audit: user@host as the system knows them.
-- @treturn string
function M.actor()
  local user = sys.user(sys.uid())
  local host = (shell.read_file("/proc/sys/kernel/hostname") or "?"):gsub("%s+$", "")
  return ("%s@%s"):format(user and user.name or tostring(sys.uid()), host)
end

--- Connect for a command.
-- @tparam table args the parsed arguments
-- @return the connection
-- @treturn table the settings
-- @yields
function M.open(args)
  local conf = settings.load(args)
  return database.open_migrated(conf), conf
end

--- Add the option that each act has.
function M.add_reason(parser)
  return parser:option("--reason", "Why; kept in the audit (`umavez audit`)."):argname("TEXT")
end

--- A number that was counted up to a limit.
-- @tparam number|string count
-- @tparam number limit
-- @treturn string|number
function M.bounded(count, limit)
  count = tonumber(tostring(count):match("%d+"))
  return count >= limit and ("%d+"):format(limit) or count
end

--- Seconds in two units at most.
-- @tparam number|nil seconds
-- @treturn string
function M.age(seconds)
  seconds = tonumber(seconds)
  if not seconds then
    return "-"
  end
  seconds = math.max(0, math.floor(seconds))
  if seconds < 60 then
    return seconds .. "s"
  elseif seconds < 3600 then
    return ("%dm%02ds"):format(seconds / 60, seconds % 60)
  elseif seconds < 86400 then
    return ("%dh%02dm"):format(seconds / 3600, seconds % 3600 / 60)
  end
  return ("%dd%02dh"):format(seconds / 86400, seconds % 86400 / 3600)
end

--- Show how far long work has come: a bar on a terminal, nothing elsewhere.
-- @tparam number done
-- @tparam number total
function M.progress(done, total)
  if not sys.isatty(2) or total == 0 then
    return
  end
  local filled = math.floor(30 * math.min(done, total) / total)
  io.stderr:write(("\r[%s%s] %d of %d"):format(("#"):rep(filled), (" "):rep(30 - filled), done, total),
    done >= total and "\n" or "")
  io.stderr:flush()
end

--- Refuse what is no list of UUIDs.
-- @tparam {string,...} ids
function M.check_uuids(ids)
  for _, id in ipairs(ids) do
    database.check_uuid(id)
  end
end

--- An array of UUIDs as PostgreSQL reads it.
-- @tparam {string,...} ids which check_uuids has seen
-- @treturn string
function M.uuid_array(ids)
  return "{" .. table.concat(ids, ",") .. "}"
end

M.EXIT = cli.EXIT

return M
