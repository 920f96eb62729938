return {
  -- Outside of the transaction, and again on a redelivery: what is slow and harmless to repeat.
  prepare = function(_, args)
    return ("receipt-%s.txt"):format(tostring(args.payment_id))
  end,

  effect = function(ctx, args, name)
    local receipt = ctx.sql:one([[
      INSERT INTO receipts (payment_id, tenant_id, name, amount_cents)
      SELECT id, tenant_id, $2, amount_cents FROM payments WHERE id = $1 RETURNING id]], args.payment_id, name)
    if not receipt then
      return ctx:fail({ code = "no_payment", message = "there is no such payment" })
    end
    return { receipt_id = receipt.id }
  end,
}
