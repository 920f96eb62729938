return function(ctx)
  ctx.sql:exec(
    [[INSERT INTO bench_effects (tenant_id, run_id, payload)
      VALUES ($1, $2, '{"amount": 100, "kind": "credit"}')]],
    ctx.tenant_id,
    ctx.run_id
  )
  return { ok = true }
end
