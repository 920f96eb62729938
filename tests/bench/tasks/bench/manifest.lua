-- The benchmark's tasks: the effect is one INSERT.
return {
  tasks = {
    insert = { owner = "tenant" }, -- key: the run_id
    alone = { owner = "tenant", batch = 1 },
    keyed = { owner = "tenant", key = { "key" } },
    pay = { owner = "tenant", http = { path = "/pay" } },
  },
}
