--- The doctor's checks of the PostgreSQL server: what it promises, what holds it up, who we are there.
-- @module umavez.doctor.postgres

local operator = require("umavez.cli.operator")
local pg = require("umavez.pg")
local shell = require("umavez.shell")
local sys = require("umavez.sys")

local VERY_OLD = 12                                              -- times as old as what is old
local OLD_XIDS = 1000000
local CLOCK_MS = 1000
local SLOT_BYTES = 2 ^ 26                                        -- a few WAL segments: more than a reader that restarts

local SETTINGS = [[
SELECT name, setting FROM pg_catalog.pg_settings
 WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts',
                'default_transaction_isolation', 'server_version',
                'server_encoding', 'max_prepared_transactions', 'transaction_read_only')]]

local function settings_of(db)
  local settings = {}
  for _, row in ipairs(db:query(SETTINGS)) do
    settings[row.name] = row.setting
  end
  return settings
end

local function server(look)
  local set = settings_of(look.db)
  local version = look.db:server_version()
  if version < 130000 then
    look:error("version of PostgreSQL", set.server_version, "Versions before 13 are not supported.", "Upgrade.")
  else
    look:ok("version of PostgreSQL", set.server_version)
  end
  if look.db:one("SELECT pg_catalog.pg_is_in_recovery() AS standby").standby then
    look:error("primary", "this server is a standby", "Workers can only write to a primary.",
      "Point database_url to the primary, or name both hosts with target_session_attrs=read-write.")
  end
  if set.server_encoding ~= "UTF8" then
    look:warning("encoding", set.server_encoding, "Args and outcomes are UTF-8; not every text fits another encoding.",
      "Use a database with the encoding UTF8.")
  end
  if set.default_transaction_isolation ~= "read committed" then
    look:info("isolation", "default_transaction_isolation is " .. set.default_transaction_isolation,
      "Right, and slower: runs do not share transactions, and conflicts are done again.",
      "Leave it at read committed unless handlers need the other.")
  end
end

local function durability(look)
  local set = settings_of(look.db)
  for _, name in ipairs { "fsync", "full_page_writes" } do
    if set[name] == "off" then
      look:error(name, "off", "After a crash of the machine the ledger can be damaged: keys, and effects, may be lost "
        .. "or doubled.", ("ALTER SYSTEM SET %s = on, and reload. Off is for throwaway servers."):format(name))
    else
      look:ok(name, "on")
    end
  end
  if set.synchronous_commit == "off" then
    look:warning("synchronous_commit", "off for this role", "A crash of the server loses the last commits: callers and "
      .. "duplicates may have been given outcomes that are gone, and their runs are done again.",
      "Set it on for the workers' role, unless that is acceptable.")
  else
    look:ok("synchronous_commit", set.synchronous_commit)
  end
end

local STANDBYS_IN_STEP = [[
SELECT current_setting('synchronous_standby_names') AS wanted,
       (SELECT count(*) FROM pg_catalog.pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))::int AS there]]

-- Who sees too little of pg_stat_replication sees no standby: nothing is said then.
local function synchronous_standbys(look)
  local row = look.db:one(STANDBYS_IN_STEP)
  local sees = look.db:one("SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees").sees
  if row.wanted == "" then
    look:ok("synchronous standbys", "none is asked for")
  elseif row.there > 0 or not sees then
    look:ok("synchronous standbys", ("%s: %s"):format(row.wanted, sees and row.there .. " in step" or "not shown"))
  else
    look:error("synchronous standbys",
      ("synchronous_standby_names is \"%s\", and none is connected"):format(row.wanted),
      "Each COMMIT waits for one, so no run ends.",
      "Start the standby, or ALTER SYSTEM RESET synchronous_standby_names and reload.")
  end
end

local TABLES = [[
SELECT c.relname AS name, coalesce(s.n_live_tup, 0)::float8 AS live, coalesce(s.n_dead_tup, 0)::float8 AS dead,
       extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8 AS vacuumed_s,
       'autovacuum_enabled=false' = ANY (coalesce(c.reloptions, '{}')) AS off
  FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relnamespace = 'umavez'::regnamespace
   AND c.relname IN ('runs', 'idempotency_keys', 'platform_idempotency_keys')
 ORDER BY 1]]

local function autovacuum(look)
  local set = settings_of(look.db)
  for _, name in ipairs { "autovacuum", "track_counts" } do
    if set[name] == "off" then
      look:error("autovacuum", name .. " is off", "Nobody clears away the queue's dead rows: taking runs gets slower "
        .. "day by day.", ("ALTER SYSTEM SET %s = on, and reload."):format(name))
    end
  end
  for _, row in ipairs(look.db:query(TABLES)) do
    local found = ("umavez.%s: %d dead rows beside %d live ones, vacuumed %s"):format(row.name, row.dead, row.live,
      row.vacuumed_s and operator.age(row.vacuumed_s) .. " ago" or "never")
    if row.off then
      look:warning("autovacuum", "switched off for umavez." .. row.name,
        "Its dead rows stay: it gets slower day by day.",
        ("ALTER TABLE umavez.%s RESET (autovacuum_enabled)."):format(row.name))
    elseif row.dead > 100000 and row.dead > 2 * row.live then
      look:warning("autovacuum", found, "Taking and claiming read past them.",
        "Look at the oldest transaction (below), or run VACUUM umavez." .. row.name .. ".")
    else
      look:ok("autovacuum", found)
    end
  end
end

-- What keeps vacuum from clearing away: each kind of holder with its age in seconds, the oldest first.
local HOLDERS = [[
SELECT 'session ' || pid || coalesce(' of ' || usename, '') || coalesce(' (' || nullif(application_name, '') || ')', '')
         || ', ' || coalesce(state, '?') AS holder, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s,
       'End it: SELECT pg_terminate_backend(' || pid || '). Let its program keep transactions short, or set '
         || 'idle_in_transaction_session_timeout for it.' AS fix
  FROM pg_catalog.pg_stat_activity
 WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()
UNION ALL
SELECT 'prepared transaction ' || gid, extract(epoch FROM clock_timestamp() - prepared)::float8,
       'COMMIT PREPARED or ROLLBACK PREPARED it.'
  FROM pg_catalog.pg_prepared_xacts
 ORDER BY 2 DESC LIMIT 1]]

local SLOTS = [[
SELECT slot_name AS name, active, greatest(age(xmin), age(catalog_xmin))::float8 AS age,
       coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn() END, restart_lsn),
                0)::float8 AS bytes
  FROM pg_catalog.pg_replication_slots ORDER BY 3 DESC NULLS LAST]]

-- With hot_standby_feedback a standby's queries hold vacuum up as if they ran here.
local STANDBYS = [[
SELECT coalesce(nullif(application_name, ''), pid::text) AS name, age(backend_xmin)::float8 AS age
  FROM pg_catalog.pg_stat_replication WHERE backend_xmin IS NOT NULL ORDER BY 2 DESC]]

local function horizon(look)
  local oldest = look.db:one(HOLDERS)
  local why = "While it lives no dead row that is younger can be cleared away, in the whole database."
  if oldest and oldest.age_s > look.old_s then
    local report = oldest.age_s > VERY_OLD * look.old_s and look.error or look.warning
    report(look, "oldest transaction", ("%s, since %s"):format(oldest.holder, operator.age(oldest.age_s)), why,
      oldest.fix)
  else
    look:ok("oldest transaction", oldest and operator.age(oldest.age_s) or "none")
  end
  for _, standby in ipairs(look.db:query(STANDBYS)) do
    if standby.age > OLD_XIDS then
      look:warning("replication", ("a query on the standby %s is %d transactions old"):format(standby.name,
        standby.age), why, "End it there, or switch hot_standby_feedback off.")
    end
  end
  for _, slot in ipairs(look.db:query(SLOTS)) do
    local grave = (slot.age or 0) > OLD_XIDS or not slot.active and slot.bytes > SLOT_BYTES
    if grave or not slot.active then
      local report = grave and look.warning or look.info
      report(look, "replication slots", ("%s: %s, %d transactions and %d MB behind"):format(slot.name,
        slot.active and "active" or "nobody reads it", slot.age or 0, slot.bytes / 2 ^ 20),
        "It keeps dead rows and WAL until its reader comes; the disk can fill up.",
        ("Start its reader, or SELECT pg_drop_replication_slot('%s')."):format(slot.name))
    end
  end
  if not look.db:one("SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees").sees then
    look:info("oldest transaction", "this role sees only its own sessions",
      "An old transaction of somebody else is not found.",
      "GRANT pg_read_all_stats to it, or run the doctor as another role.")
  end
end

local CONNECTIONS = [[
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS room,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())::int AS used,
       (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'superuser_reserved_connections') AS reserved]]

-- The cores that this process may run on: what workers = 0 means here.
local function cores()
  local n = 0
  for from, to in ((shell.read_file("/proc/self/status") or ""):match("Cpus_allowed_list:%s*(%S+)") or "0"):gmatch(
      "(%d+)%-?(%d*)") do
    n = n + (to ~= "" and to - from or 0) + 1
  end
  return n
end

-- A worker process has its pool and two connections more; its supervisor one now and then. A reload has twice as many
-- for a while.
local function connections(look)
  local row = look.db:one(CONNECTIONS)
  local conf, live = look.conf, nil
  pcall(function()
    live = look.db:one([[SELECT count(*)::int AS n, coalesce(sum((detail->>'pool_size')::int + 2), 0)::int AS need
                           FROM umavez.workers WHERE seen_at > clock_timestamp() - interval '45 seconds']])
  end)
  local need, whose = live and live.need or 0, live and ("%d worker processes"):format(live.n)
  if need == 0 then
    local workers = conf.workers > 0 and conf.workers or cores()
    need, whose = workers * (conf.pool_size + 2), ("%d worker processes of these settings"):format(workers)
  end
  local found = ("%s use up to %d, twice that during a reload; the server has room for %d, of which %d are used now")
    :format(whose, need, row.room, row.used)
  local fix = "Raise max_connections, or lower pool_size or workers, or put a pooler in between."
  if need > row.room then
    look:error("connections", found, "Workers will be refused when they are busy.", fix)
  elseif 2 * need > row.room then
    look:warning("connections", found, "A reload, or the rest of the applications, will find no room.", fix)
  else
    look:ok("connections", found)
  end
end

-- The server process that the connection was told of, and the one that answers: a pooler tells of none.
local function pids(db)
  return db:backend_pid(), db:one("SELECT pg_backend_pid() AS pid").pid
end

-- A pooler between us and the server, and whether it lends a session for a transaction only: then a second connection
-- gets the session of the first one, which is idle.
local function pooler(look)
  local told, mine = pids(look.db)
  if told == mine then
    look:ok("pooler", "none: each connection is a session of its own")
    return
  end
  local other = pg.connect(look.conf.database_url, { timeout_ms = look.conf.connect_timeout })
  local theirs = other:one("SELECT pg_backend_pid() AS pid").pid
  other:close()
  look:info("pooler", "there is one, " .. (theirs == mine and "in transaction mode" or "in session mode as it seems"),
    "No notification reaches a worker: idle ones find runs by polling (poll_interval), all learn of a cancelled run "
    .. "when they renew its lease.", "Connect without the pooler for lower latency.")
end

local function listening(look)
  local told, mine = pids(look.db)
  if told ~= mine then
    return                                                       -- it would be left in somebody else's session
  end
  look.db:exec("LISTEN umavez_runs")
  local heard = look.db:one("SELECT 'umavez_runs' IN (SELECT pg_listening_channels()) AS heard").heard
  look.db:exec("UNLISTEN umavez_runs")
  if heard then
    look:ok("LISTEN", "works")
  else
    look:warning("LISTEN", "is forgotten between two statements", "Workers are not woken, and learn of orders late.",
      "See pooler.")
  end
end

local function clock(look)
  local asked = sys.wall_ms()
  local row = look.db:one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS ms")
  local now = sys.wall_ms()
  local difference = row.ms - (asked + now) / 2
  local found = ("the database's clock is %+d ms from this machine's"):format(difference)
  if math.abs(difference) > CLOCK_MS then
    look:info("clock of PostgreSQL", found, "Nothing is decided by this machine's clock, but its logs cannot be laid "
      .. "beside the database's times.", "Let both follow NTP.")
  else
    look:ok("clock of PostgreSQL", found)
  end
end

local ZONES = "SELECT DISTINCT declared->>'tz' AS zone FROM umavez.schedules WHERE declared->>'tz' IS NOT NULL"

-- Slots are computed by PostgreSQL, with its own tz database or its system's.
local function time_zones(look)
  local zones = { "UTC", "America/Sao_Paulo", "Europe/Lisbon" }
  pcall(function()
    for _, row in ipairs(look.db:query(ZONES)) do
      zones[#zones + 1] = row.zone
    end
  end)
  for _, zone in ipairs(zones) do
    local ok, err = pcall(look.db.one, look.db, "SELECT clock_timestamp() AT TIME ZONE $1::text AS at", zone)
    if not ok and (type(err) ~= "table" or err.sqlstate ~= "22023") then
      error(err, 0)
    elseif not ok then
      look:warning("time zones of PostgreSQL", "the server does not know " .. zone,
        "Slots of schedules in that time zone cannot be computed.", "Install tzdata where PostgreSQL runs.")
      return
    end
  end
  look:ok("time zones of PostgreSQL", ("%d looked at"):format(#zones))
end

local ROLE = [[
SELECT r.rolname AS name, r.rolsuper AS super,
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND EXISTS (
         SELECT FROM pg_catalog.pg_proc p
          WHERE p.pronamespace = n.oid AND p.proname = 'wake' AND has_function_privilege(p.oid, 'EXECUTE')),
         false) AS worker,
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND EXISTS (
         SELECT FROM pg_catalog.pg_class c
          WHERE c.relnamespace = n.oid AND c.relname = 'audit' AND has_table_privilege(c.oid, 'SELECT')),
         false) AS operator
  FROM pg_catalog.pg_roles r LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'umavez'
 WHERE r.rolname = current_user]]

local function role(look)
  local row = look.db:one(ROLE)
  if row.super then
    look:warning("role", row.name .. " is a superuser",
      "Handlers of a worker that logs in as this one could change the ledger, and everything else.",
      "Give workers a role of their own: CREATE ROLE app LOGIN; GRANT umavez_worker TO app.")
  elseif not row.worker and not row.operator then
    look:error("role", row.name .. " is neither in umavez_worker nor in umavez_operator", "It can do nothing here.",
      ("GRANT umavez_worker TO %s (a worker), or umavez_operator (this command line)."):format(row.name))
  else
    look:ok("role", ("%s: %s"):format(row.name, row.worker and row.operator and "worker and operator"
      or row.worker and "worker" or "operator"))
  end
end

return {
  { name = "server", database = true, look = server },
  { name = "role", database = true, look = role },
  { name = "durability", database = true, look = durability },
  { name = "synchronous standbys", database = true, look = synchronous_standbys },
  { name = "connections", database = true, look = connections },
  { name = "pooler", database = true, look = pooler },
  { name = "LISTEN", database = true, look = listening },
  { name = "autovacuum", database = true, look = autovacuum },
  { name = "oldest transaction", database = true, look = horizon },
  { name = "clock of PostgreSQL", database = true, look = clock },
  { name = "time zones of PostgreSQL", database = true, look = time_zones },
}
