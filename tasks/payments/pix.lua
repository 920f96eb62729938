return function(ctx, args)
  if tonumber(args.amount_cents) > 500000 then
    return ctx:fail({ status = 422, code = "limit_exceeded", message = "amount is above 5000.00" })
  end
  local stored, payment = pcall(ctx.sql.one, ctx.sql, [[
    INSERT INTO payments (tenant_id, end_to_end_id, amount_cents, txid, paid_at)
    VALUES ($1, $2, $3, $4::text, $5::text::timestamptz) RETURNING id]],
    ctx.tenant_id, args.end_to_end_id, args.amount_cents, args.txid, args.paid_at)
  if not stored and tostring(payment.sqlstate):find("^22") then -- a value that no column takes
    return ctx:fail({ status = 422, code = "invalid", message = "amount_cents, txid or paid_at cannot be stored" })
  elseif not stored then
    error(payment, 0)
  end
  ctx:enqueue("receipts.send", { payment_id = payment.id }) -- in the same transaction
  return { status = 201, payment_id = payment.id }
end
