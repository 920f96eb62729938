-- maintenance.purge: removes what has outlived its retention.
--
-- args: limit (keys of each ledger a run removes at most, 2000), keep_days (of finished runs, 30), keep_audit_days (of
-- what operators have done, 400; 90 at least), ahead_days (partitions made in advance, 7). `removed` is what earlier
-- runs of the same purge have done.
--
-- A run is one transaction, and whoever claims a key that is just being removed waits for its end: so a run removes one
-- small batch, and enqueues the next one when more is left. The last one looks after the partitions, and reports sums.
local DEFAULT = { limit = 2000, keep_days = 30, keep_audit_days = 400, ahead_days = 7 }
local LEAST_AUDIT_DAYS = 90

local function setting(ctx, args, name)
  local value = args[name]
  if value == nil then
    return DEFAULT[name]
  end
  if type(value) ~= "number" or value < 1 or value % 1 ~= 0 or value > 100000 then
    ctx:fail({ code = "bad_args", message = name .. " must be a whole number from 1 to 100000" })
  end
  return value
end

return function(ctx, args)
  local limit = setting(ctx, args, "limit")
  local keep_days, ahead_days = setting(ctx, args, "keep_days"), setting(ctx, args, "ahead_days")
  local keep_audit_days = setting(ctx, args, "keep_audit_days")
  if keep_audit_days < LEAST_AUDIT_DAYS then
    ctx:fail({ code = "bad_args", message = ("keep_audit_days must be %d at least"):format(LEAST_AUDIT_DAYS) })
  end
  local before = args.removed or { tenant_keys = 0, platform_keys = 0 }
  local now = ctx.sql:one("SELECT tenant_keys, platform_keys FROM umavez.purge_keys($1::int)", limit)
  local removed = {
    tenant_keys = before.tenant_keys + now.tenant_keys,
    platform_keys = before.platform_keys + now.platform_keys,
  }
  if now.tenant_keys >= limit or now.platform_keys >= limit then
    removed.next_run_id = ctx:enqueue("maintenance.purge", {
      limit = limit, keep_days = keep_days, keep_audit_days = keep_audit_days, ahead_days = ahead_days,
      removed = { tenant_keys = removed.tenant_keys, platform_keys = removed.platform_keys },
    })
    removed.done = false
    return removed
  end
  removed.audit_rows = ctx.sql:one("SELECT umavez.purge_audit(make_interval(days => $1::int), $2::int) AS n",
    keep_audit_days, limit).n
  local dropped = ctx.sql:one("SELECT umavez.purge_finished(make_interval(days => $1::int)) AS names", keep_days).names
  local made = ctx.sql:one("SELECT umavez.make_partitions($1::int) AS names", ahead_days).names
  removed.partitions_dropped, removed.partitions_made, removed.done = #dropped, #made, true
  return removed
end
