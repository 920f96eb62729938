-- The tests' handler: counts its start where no rollback undoes it, then does what args.steps lists (default: one effect).
--
--   {"effect"}  {"effect", key, value}     a row of the table effects
--   {"reach", name}  {"wait", name}        signals to and from the test (sequences: outside any transaction)
--   {"sleep", seconds}                     in SQL, on the run's transaction
--   {"ctxsleep", duration}                 ctx:sleep
--   {"sql", text, ...}  {"try", text, ...} a statement; `try` swallows its error with pcall
--   {"fail", t}  {"retry", t}  {"error", message}
--   {"attempt", n, step...}                the steps only when ctx.attempt == n
--   {"unless", name, step...}              the steps only while the test has not set the signal
--   {"enqueue", task, args}  {"return", outcome}
local run_steps

local ACTIONS = {}

function ACTIONS.effect(ctx, args, step)
  ctx.sql:exec(
    "INSERT INTO effects (run_id, task, tenant_id, key, value, attempt)"
      .. " VALUES ($1::text::uuid, $2, $3::text::bigint, $4, $5::text::jsonb, $6::text::integer)",
    ctx.run_id,
    ctx.task,
    ctx.tenant_id ~= nil and string.format("%d", tonumber(ctx.tenant_id)) or nil,
    tostring(step[2] or args.key or ctx.run_id),
    step[3],
    string.format("%d", tonumber(ctx.attempt))
  )
end

function ACTIONS.reach(ctx, _, step)
  ctx.sql:one("SELECT test_reach($1)", step[2])
end

function ACTIONS.wait(ctx, _, step)
  repeat
    local row = ctx.sql:one("SELECT test_wait($1, 100)::text AS is_set", step[2])
  until row.is_set == "true"
end

function ACTIONS.sleep(ctx, _, step)
  ctx.sql:one("SELECT pg_sleep($1::text::float8)::text AS slept", tostring(step[2]))
end

function ACTIONS.ctxsleep(ctx, _, step)
  ctx:sleep(step[2])
end

function ACTIONS.sql(ctx, _, step)
  ctx.sql:query(step[2], unpack(step, 3))
end

function ACTIONS.try(ctx, _, step)
  pcall(ctx.sql.query, ctx.sql, step[2], unpack(step, 3))
end

function ACTIONS.fail(ctx, _, step)
  return ctx:fail(step[2] or {})
end

function ACTIONS.retry(ctx, _, step)
  return ctx:retry(step[2] or {})
end

function ACTIONS.error(_, _, step)
  error(step[2] or "asked to fail", 0)
end

function ACTIONS.attempt(ctx, args, step)
  if tonumber(ctx.attempt) == tonumber(step[2]) then
    return run_steps(ctx, args, { unpack(step, 3) })
  end
end

function ACTIONS.unless(ctx, args, step)
  if ctx.sql:one("SELECT test_wait($1, 0)::text AS is_set", step[2]).is_set ~= "true" then
    return run_steps(ctx, args, { unpack(step, 3) })
  end
end

function ACTIONS.enqueue(ctx, _, step)
  ctx:enqueue(step[2], step[3])
end

ACTIONS["return"] = function(_, _, step)
  return step[2]
end

function run_steps(ctx, args, steps)
  for _, step in ipairs(steps) do
    local result = ACTIONS[step[1]](ctx, args, step)
    if result ~= nil then
      return result
    end
  end
end

return function(ctx, args)
  if args.starts then
    ctx.sql:one("SELECT test_start($1)", args.starts)
  end
  local result = run_steps(ctx, args, args.steps or { { "effect" } })
  if result ~= nil then
    return result
  end
  return { ok = true, run = ctx.run_id }
end
