--- `umavez purge`: remove what has outlived its retention, now. maintenance.purge does it by schedule.
-- @module umavez.cli.purge

local cli = require("umavez.cli")
local operator = require("umavez.cli.operator")

local M = { summary = "remove expired keys and old finished runs now (maintenance.purge does it by schedule)" }

M.examples = {
  "umavez purge                   what maintenance.purge would remove, to the end",
  "umavez purge --json | jq .tenant_keys",
}
M.settings = { "database_url", "connect_timeout", "keep_runs" }

local BATCH, AHEAD_DAYS, COUNT_LIMIT = 2000, 7, 1000000

function M.configure(parser)
  parser:flag("--json", "Print one JSON object.")
end

-- Counted up to a limit: only for people, and only where they see it.
local EXPIRED = [[
WITH t AS (SELECT FROM umavez.idempotency_keys k
            WHERE k.expires_at <= clock_timestamp() AND k.status <> 'processing' LIMIT $1::int),
     p AS (SELECT FROM umavez.platform_idempotency_keys k
            WHERE k.expires_at <= clock_timestamp() AND k.status <> 'processing' LIMIT $1::int)
SELECT ((SELECT count(*) FROM t) + (SELECT count(*) FROM p))::int AS n]]

local STEP = [[
SELECT tenant_keys::int AS tenant, platform_keys::int AS platform FROM umavez.purge_keys($1::int)]]

-- Each step is a transaction of its own: whoever claims a key that is being removed waits for a moment only.
local function purge_keys(db)
  local total = operator.shows_progress() and db:one(EXPIRED, COUNT_LIMIT).n or 0
  local removed = { tenant_keys = 0, platform_keys = 0 }
  while true do
    local now = db:one(STEP, BATCH)
    if now.tenant + now.platform == 0 then
      return removed
    end
    removed.tenant_keys = removed.tenant_keys + now.tenant
    removed.platform_keys = removed.platform_keys + now.platform
    local done = removed.tenant_keys + removed.platform_keys
    operator.progress(done, math.max(total, done), "keys removed")
  end
end

function M.run(args)
  local db, conf = operator.open(args)
  local removed = purge_keys(db)
  removed.partitions = #db:one("SELECT umavez.purge_finished($1::float8 * interval '1 millisecond') AS names",
    conf.keep_runs).names
  db:one("SELECT umavez.make_partitions($1::int)", AHEAD_DAYS)
  if args.json then
    cli.print_json(removed)
  else
    print(("%d keys of tenants and %d of the platform are removed, and %d days of finished runs"):format(
      removed.tenant_keys, removed.platform_keys, removed.partitions))
  end
end

return M
