-- The fault matrix' handler: two effects, and a line in the file args.starts that no rollback undoes, written at its start.
--
--   args: key, starts (file), wish ("fail": fails for good; "error": raises; "slow": sleeps, so that leases are renewed)
--
-- The outcome says whose it is, so that an answer in the wrong hands is seen. failpoint is there in the build of `make failpoints` only.
local failpoint = failpoint or function() end

local function note(ctx, args)
  local file = assert(io.open(args.starts, "a"))
  local now = ctx.sql:one("SELECT extract(epoch FROM clock_timestamp())::text AS now, pg_backend_pid() AS pid").now
  file:write(table.concat({ now, ctx.run_id, tostring(ctx.tenant_id or "-"), args.key, ctx.attempt, ctx.deliveries }, " ") .. "\n")
  file:close()
end

local function effect(ctx, args, part)
  ctx.sql:exec("INSERT INTO effects (run_id, task, tenant_id, key, value, attempt) VALUES ($1::text::uuid, $2, $3, $4, $5, $6)",
    ctx.run_id, ctx.task, ctx.tenant_id, args.key .. part, { run = args.number or 0 }, ctx.attempt)
end

return function(ctx, args)
  note(ctx, args)
  failpoint("effect-before")
  effect(ctx, args, "")
  failpoint("effect-between")
  if args.wish == "slow" then
    ctx:sleep("1500ms")
  end
  effect(ctx, args, "/2")
  failpoint("effect-after")
  if args.wish == "fail" then
    return ctx:fail({ status = 422, code = "declined", message = "asked to", tenant = ctx.tenant_id, key = args.key })
  elseif args.wish == "error" and ctx.attempt < 3 then
    error("asked to", 0)
  end
  return { tenant = ctx.tenant_id, key = args.key, run = ctx.run_id }
end
