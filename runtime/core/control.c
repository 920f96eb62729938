#include "core/control.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/backoff.h"

struct control {
  struct loop *loop;
  char *name, *url;
  int64_t connect_timeout_ms, answer_timeout_ms;
  bool prepare;
  struct control_hooks hooks;
  struct pgconn *conn; /* NULL between two tries */
  bool up, told_down;
  bool wrap; /* the server's default isolation is not READ COMMITTED, which the SQL functions need: BEGIN … COMMIT */
  struct err why;
  struct backoff backoff;
  struct loop_timer retry;
};

static void connect_now(void *arg);

static void on_isolation(void *arg, struct pgresult *result) {
  struct control *c = arg;
  bool ok = pgresult_ok(result);

  c->wrap = ok && strcmp(pgresult_value(result, 0, 0), "read committed") != 0;
  pgresult_free(result);
  if (!ok) return; /* the connection is lost: on_closed follows */
  c->up = true;
  c->told_down = false;
  backoff_reset(&c->backoff);
  err_clear(&c->why);
  log_kv(LOG_INFO_, "postgresql_up", "connection", c->name, NULL);
  c->hooks.on_up(c->hooks.arg);
}

static void on_ready(void *arg) {
  struct control *c = arg;

  pgconn_exec(c->conn, "SHOW default_transaction_isolation", on_isolation, c);
}

static void on_closed(void *arg, const struct err *why) {
  struct control *c = arg;
  struct pgconn *conn = c->conn;

  c->why = *why;
  c->conn = NULL;
  c->up = false;
  pgconn_close_later(conn);
  loop_timer_start(c->loop, &c->retry, backoff_next_ms(&c->backoff));
  if (c->told_down) return;
  c->told_down = true;
  log_kv(LOG_WARN_, "postgresql_down", "connection", c->name, "error", why->message, NULL);
  if (c->hooks.on_down) c->hooks.on_down(c->hooks.arg, why);
}

static void on_notify(void *arg, const char *channel, const char *payload) {
  struct control *c = arg;

  if (c->hooks.on_notify) c->hooks.on_notify(c->hooks.arg, channel, payload);
}

static void connect_now(void *arg) {
  static const struct pgconn_hooks hooks = {on_ready, on_closed, on_notify};
  struct control *c = arg;

  c->conn = pgconn_new(c->loop, c->url, &hooks, c, c->connect_timeout_ms);
  pgconn_set_prepare(c->conn, c->prepare);
  pgconn_set_answer_timeout(c->conn, c->answer_timeout_ms);
}

struct control *control_new(struct loop *loop, const struct control_options *o, const struct control_hooks *hooks) {
  struct control *c = xcalloc(1, sizeof *c);

  c->loop = loop;
  c->name = xstrdup(o->name);
  c->url = xstrdup(o->url);
  c->connect_timeout_ms = o->connect_timeout_ms;
  c->answer_timeout_ms = o->answer_timeout_ms;
  c->prepare = o->prepare;
  c->hooks = *hooks;
  c->backoff = (struct backoff)BACKOFF_INIT(100, 5000);
  loop_timer_init(&c->retry, connect_now, c);
  connect_now(c);
  return c;
}

void control_free(struct control *c) {
  if (!c) return;
  loop_timer_stop(&c->retry);
  if (c->conn) pgconn_close_later(c->conn);
  free(c->name);
  free(c->url);
  free(c);
}

bool control_up(const struct control *c) {
  return c->up;
}

const struct err *control_error(const struct control *c) {
  return &c->why;
}

static void send_plain(struct control *c, const char *sql) {
  struct pgquery q = {.sql = sql};

  pgconn_query(c->conn, &q);
}

bool control_query(struct control *c, const struct pgquery *q) {
  if (!c->up) return false;
  if (c->wrap) send_plain(c, "BEGIN ISOLATION LEVEL READ COMMITTED");
  pgconn_query(c->conn, q);
  if (c->wrap) send_plain(c, "COMMIT");
  pgconn_sync(c->conn);
  return true;
}
