local umavez = require("umavez")

return function(ctx, args)
  local row = ctx.sql:one("INSERT INTO webhooks (delivery, event, payload) VALUES ($1, $2, $3::jsonb) RETURNING id",
    args.delivery, args.event, umavez.json(args.payload))
  return { webhook_id = row.id }
end
