-- An example: webhooks of a service that repeats what is not answered in time.
return {
  tasks = {
    receive = {
      description = "store a webhook's delivery",
      owner = "platform",
      lease = "5s",
      key = { "delivery" },
      retention = "7d",
      args = {
        delivery = { type = "string", required = true, min = 1, description = "the sender's id of this delivery" },
        event = { type = "string" },
        payload = { type = "any", required = true },
      },
      queue = "webhooks",
    },
  },
}
