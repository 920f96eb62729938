return function(ctx, args)
  if args.amount_cents > 500000 then
    return ctx:fail({ status = 422, code = "limit_exceeded", message = "amount is above 5000.00" })
  end
  local payment = ctx.sql:one([[
    INSERT INTO payments (tenant_id, end_to_end_id, amount_cents, txid, paid_at)
    VALUES ($1, $2, $3, $4, $5::timestamptz) RETURNING id]],
    ctx.tenant_id, args.end_to_end_id, args.amount_cents, args.txid, args.paid_at)
  ctx:enqueue("receipts.send", { payment_id = payment.id }) -- in the same transaction
  return { status = 201, payment_id = payment.id }
end
