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

local LINE_MS = 5000
local told_ms = sys.monotonic_ms()                               -- when progress was told last, or the program began

--- @treturn boolean whether somebody looks: progress is a bar then
function M.shows_progress()
  return sys.isatty(2)
end

--- Show how far long work has come: a bar on a terminal, elsewhere a line now and then.
-- @tparam number done
-- @tparam number total
-- @tparam[opt] string what is done, for the line
function M.progress(done, total, what)
  if total == 0 then
    return
  elseif sys.isatty(2) then
    local filled = math.floor(30 * math.min(done, total) / total)
    io.stderr:write(("\r[%s%s] %d of %d"):format(("#"):rep(filled), (" "):rep(30 - filled), done, total),
      done >= total and "\n" or "")
    io.stderr:flush()
  elseif sys.monotonic_ms() - told_ms >= LINE_MS then
    told_ms = sys.monotonic_ms()
    cli.note("%d%s", done, (done < total and (" of %d"):format(total) or "") .. (what and " " .. what or ""))
  end
end

local UNITS = { s = "seconds", m = "minutes", h = "hours", d = "days" }

--- A length of time as the command line takes it (90s, 15m, 1h, 2d).
-- @tparam string|nil text
-- @treturn string|nil the interval as PostgreSQL reads it; nil when the text is nothing of the kind
function M.interval(text)
  local number, unit = (text or ""):match("^(%d+)([smhd])$")
  return number and ("%s %s"):format(number, UNITS[unit]) or nil
end

--- Ask for points in time that are made of an option's text. What PostgreSQL cannot read is the user's fault.
-- @param db the connection
-- @tparam string sql takes an interval as $1 or a timestamptz as $2
-- @tparam string option its name, for the message
-- @tparam string|nil text its value
-- @treturn table the row
-- @yields
function M.times(db, sql, option, text)
  local interval = M.interval(text)
  local ok, row = pcall(db.one, db, sql, interval, not interval and text or nil)
  if ok then
    return row
  elseif type(row) == "table" and (row.sqlstate or ""):find("^22") then
    cli.fail("usage", "%s: expected a time like 1h or 2026-01-31 03:00, found \"%s\"", option, text)
  end
  error(row, 0)
end

--- Every task that is known here: registered by a worker, or declared by the manifests at hand.
-- @param db the connection
-- @tparam[opt] table declared tasks by name
-- @treturn {string,...}
-- @yields
function M.known_tasks(db, declared)
  local names, seen = {}, {}
  for _, row in ipairs(db:query("SELECT name FROM umavez.tasks")) do
    names[#names + 1], seen[row.name] = row.name, true
  end
  for name in pairs(declared or {}) do
    if not seen[name] then
      names[#names + 1] = name
    end
  end
  table.sort(names)
  return names
end

--- Say that no task and no run has this queue: more likely a slip than a wish. What was asked for is done all the same.
-- @param db the connection
-- @tparam string queue
-- @yields
function M.note_unknown_queue(db, queue)
  local known = {}
  for i, row in ipairs(db:query("SELECT queue FROM umavez.list_queues(1)")) do
    known[i] = row.queue
  end
  if not cli.contains(known, queue) then
    cli.note("no run and no registered task uses the queue \"%s\"%s", queue, cli.did_you_mean(queue, known))
  end
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
