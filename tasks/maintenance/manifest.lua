-- Tasks that come with umavez. A worker has them whatever its tasks folder is.
return {
  tasks = {
    purge = {
      description = "remove expired keys of both ledgers, and old finished runs",
      owner = "platform",
      queue = "maintenance",
      timeout = "60s",
      retry = { max_attempts = 5, base = "10s", cap = "10m" },
      concurrency = 1,
      schedule = { cron = "*/15 * * * *", missed = "once" },
    },
  },
}
