-- An example: a task that another one enqueues in its own transaction.
return {
  tasks = {
    send = {
      description = "write the receipt of a booked payment",
      owner = "tenant",
      lease = "5s",
      key = { "payment_id" },
      retention = "7d",
      args = { payment_id = { type = "integer", required = true } },
    },
  },
}
