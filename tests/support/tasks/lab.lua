-- args.lua is the body of the handler, so that a test reads as one story. What it finds beside ctx and args:
--   start()        counts a start where no rollback undoes it; gives its number
--   effect(key)    one row in the table of effects
--   reached(name)  tells the test that this point was reached
--   wait(name)     waits until the test opens the latch of that name
--   note(text)     appends a line to the file args.notes, for what must be seen without the database
local function tools_of(ctx, args)
  local tools = setmetatable({}, { __index = _G })
  function tools.start()
    return tonumber(ctx.sql:one("SELECT test_start('lab') AS n").n)
  end
  function tools.effect(key)
    ctx.sql:exec(
      "INSERT INTO effects (run_id, task, tenant_id, key, attempt) VALUES ($1::text::uuid, $2, $3, $4, $5)",
      ctx.run_id, ctx.task, ctx.tenant_id, key or args.e1 or ctx.run_id, ctx.attempt)
  end
  function tools.reached(name)
    ctx.sql:one("SELECT test_reach($1)", name .. "_reached")
  end
  function tools.wait(name)
    repeat until ctx.sql:one("SELECT test_wait($1, 100) AS open", name).open
  end
  function tools.note(text)
    local file = assert(io.open(args.notes, "a"))
    file:write(text, "\n")
    file:close()
  end
  return tools
end

return function(ctx, args)
  local body = assert(loadstring("local ctx, args = ... " .. args.lua, "=lua"))
  return setfenv(body, tools_of(ctx, args))(ctx, args)
end
