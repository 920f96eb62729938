-- Both halves bring their code: args.prepare and args.effect.
local function half(name)
  return function(ctx, args, prepared)
    return assert(loadstring("local ctx, args, prepared = ... " .. args[name], "=lua"))(ctx, args, prepared)
  end
end

return { prepare = half("prepare"), effect = half("effect") }
