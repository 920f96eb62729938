-- The fault matrix' handler: two effects, and two lines in the file args.starts, where no rollback undoes them: `start` before anything, and
-- `alive` with the database's time at which its transaction answered (a stopped worker may write that much later).
--
--   args: key, number (what tells a request from another one with its key), starts (file),
--         wish ("fail": fails for good; "error": raises, twice; "slow": sleeps args.sleep, so that leases are renewed)
--
-- The outcome says whose it is, so that an answer in the wrong hands is seen. failpoint is there in the build of `make failpoints` only.
local failpoint = failpoint or function() end -- luacheck: ignore 113

local function note(ctx, args, what, at)
  local file = assert(io.open(args.starts, "a"))
  file:write(table.concat({ what, at, ctx.run_id, tostring(ctx.tenant_id or "-"), args.key, ctx.attempt }, " ") .. "\n")
  file:close()
end

local function effect(ctx, args, part)
  ctx.sql:exec(
    "INSERT INTO effects (run_id, task, tenant_id, key, value, attempt)"
      .. " VALUES ($1::text::uuid, $2, $3, $4, jsonb_build_object('number', $5::int), $6)",
    ctx.run_id, ctx.task, ctx.tenant_id, args.key .. part, args.number or 0, ctx.attempt)
end

return function(ctx, args)
  note(ctx, args, "start", "-")
  note(ctx, args, "alive", ctx.sql:one("SELECT extract(epoch FROM clock_timestamp())::text AS now").now)
  failpoint("effect-before")
  effect(ctx, args, "")
  failpoint("effect-between")
  if args.wish == "slow" then
    ctx:sleep(args.sleep)
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
