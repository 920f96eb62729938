-- The settings of the umavez service; all of them: `umavez help settings`, or umavez(1). The environment overrides
-- them: /etc/umavez/environment (mode 0600) is the place for a DATABASE_URL with a password.
-- After a change: systemctl reload umavez
return {
  -- The user umavez, by peer authentication, on this machine's PostgreSQL.
  database_url = "postgresql:///umavez",
  -- valkey_url = "redis://127.0.0.1:6379",
  tasks_dir = "/etc/umavez/tasks",
  -- http_listen = "127.0.0.1:8080",
}
