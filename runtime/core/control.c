#include "core/control.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/backoff.h"
#include "io/pgoutage.h"

struct control {
  struct loop *loop;
  char *name, *url;
  int64_t connect_timeout_ms, answer_timeout_ms;
  bool prepare, apart;
  char *limit; /* statement_timeout, or NULL */
  struct control_hooks hooks;
  struct pgconn *conn; /* NULL between two tries */
  bool up, told_down;
  bool wrap; /* the server's default isolation is not READ COMMITTED, which the SQL functions need: BEGIN … COMMIT */
  struct err why;
  int epoch; /* times that it came up */
  bool closing;
  int pending; /* statements that are not answered yet */
  struct backoff backoff;
  struct pgoutage outage;
  struct loop_timer retry;
};

struct statement;
static void connect_now(void *arg);
static void on_closed(void *arg, const struct err *why);
static void send(struct control *c, const struct pgquery *q);
static bool send_again(struct control *c, struct statement *st, const struct pgresult *result);

/* A statement under way: its answer goes to nobody once control_free was called, and the last one frees the control. */
struct statement {
  struct control *control;
  void (*done)(void *arg, struct pgresult *r);
  void *arg;
  struct pgresult *result; /* wrapped: held until COMMIT is answered */
  bool wrapped;
  struct pgquery *again; /* a copy, to be sent once more; NULL: it was */
};

static void on_isolation(void *arg, struct pgresult *result) {
  struct control *c = arg;
  bool ok = pgresult_ok(result);
  struct err why = *pgresult_err(result);

  c->wrap = ok && strcmp(pgresult_value(result, 0, 0), "read committed") != 0;
  pgresult_free(result);
  if (!ok) {
    if (c->conn && pgconn_state(c->conn) != PGCONN_CLOSED) on_closed(c, &why); /* else it is on its way */
    return;
  }
  c->up = true;
  c->epoch++;
  c->told_down = false;
  backoff_reset(&c->backoff);
  err_clear(&c->why);
  if (!c->apart) pgoutage_up(&c->outage);
  c->hooks.on_up(c->hooks.arg);
}

static void on_ready(void *arg) {
  struct control *c = arg;
  struct pgquery q = {.sql = "SHOW default_transaction_isolation", .done = on_isolation, .arg = c};

  send(c, &q);
  pgconn_sync(c->conn);
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
  if (!c->apart) pgoutage_down(&c->outage, why);
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
  pgoutage_init(&c->outage, c->name);
  c->url = xstrdup(o->url);
  c->connect_timeout_ms = o->connect_timeout_ms;
  c->answer_timeout_ms = o->answer_timeout_ms;
  c->prepare = o->prepare;
  c->apart = o->apart;
  if (o->statement_timeout_ms > 0) {
    char ms[24];
    snprintf(ms, sizeof ms, "%" PRId64, o->statement_timeout_ms);
    c->limit = xstrdup(ms);
  }
  c->hooks = *hooks;
  c->backoff = (struct backoff)BACKOFF_INIT(100, 5000);
  loop_timer_init(&c->retry, connect_now, c);
  connect_now(c);
  return c;
}

static void control_destroy(struct control *c) {
  free(c->name);
  free(c->url);
  free(c->limit);
  free(c);
}

void control_free(struct control *c) {
  if (!c) return;
  loop_timer_stop(&c->retry);
  pgoutage_fini(&c->outage);
  c->closing = true;
  c->up = false;
  if (c->conn) pgconn_close_later(c->conn);
  c->conn = NULL;
  if (c->pending == 0) control_destroy(c);
}

int control_epoch(const struct control *c) {
  return c->epoch;
}

int control_backend_pid(const struct control *c) {
  return c->conn ? pgconn_backend_pid(c->conn) : 0;
}

bool control_up(const struct control *c) {
  return c->up;
}

bool control_snapshots(const struct control *c) {
  return c->wrap;
}

const struct err *control_error(const struct control *c) {
  return &c->why;
}

/* Text parameters only; gives one block, or NULL for a statement that is not prepared and cannot be lost. */
static struct pgquery *query_copy(const struct pgquery *q) {
  size_t size = sizeof *q + (size_t)q->nparams * sizeof(char *) + strlen(q->sql) + 1;
  struct pgquery *copy;
  const char **values;
  char *text;

  if (q->once || q->lengths || q->formats || q->types) return NULL;
  for (int i = 0; i < q->nparams; i++)
    size += q->values[i] ? strlen(q->values[i]) + 1 : 0;
  copy = xmalloc(size);
  *copy = *q;
  values = (const char **)(copy + 1);
  text = (char *)(values + q->nparams);
  copy->sql = strcpy(text, q->sql);
  text += strlen(text) + 1;
  for (int i = 0; i < q->nparams; i++) {
    values[i] = q->values[i] ? strcpy(text, q->values[i]) : NULL;
    if (q->values[i]) text += strlen(text) + 1;
  }
  copy->values = values;
  return copy;
}

static struct statement *statement_new(struct control *c, const struct pgquery *q) {
  struct statement *st = xcalloc(1, sizeof *st);

  *st = (struct statement){.control = c, .done = q->done, .arg = q->arg, .again = query_copy(q)};
  c->pending++;
  return st;
}

static void on_answer(void *arg, struct pgresult *result) {
  struct statement *st = arg;
  struct control *c = st->control;

  if (st->again && send_again(c, st, result)) {
    pgresult_free(result);
    return;
  }
  free(st->again);
  c->pending--;
  if (!c->closing && st->done)
    st->done(st->arg, result);
  else
    pgresult_free(result);
  free(st);
  if (c->closing && c->pending == 0) control_destroy(c);
}

/* Keeps the first error, or else the last answer, of what comes before COMMIT. */
static void on_wrapped(void *arg, struct pgresult *result) {
  struct statement *st = arg;

  if (st->result && !pgresult_ok(st->result)) {
    pgresult_free(result);
    return;
  }
  pgresult_free(st->result);
  st->result = result;
}

static void on_commit(void *arg, struct pgresult *result) {
  struct statement *st = arg;

  if (pgresult_ok(result))
    pgresult_free(result);
  else
    on_wrapped(st, result);
  on_answer(st, st->result);
}

static void send_as(struct control *c, const struct pgquery *q, void (*done)(void *, struct pgresult *), void *arg) {
  struct pgquery own = *q;

  own.done = done;
  own.arg = arg;
  pgconn_query(c->conn, &own);
}

/* For the transaction alone: a session may be a pooler's. */
static void send_limit(struct control *c) {
  struct pgquery q = {.sql = "SELECT set_config('statement_timeout', $1, true)",
                      .nparams = 1,
                      .values = (const char *const *)&c->limit};

  if (c->limit) pgconn_query(c->conn, &q);
}

static void send(struct control *c, const struct pgquery *q) {
  send_limit(c);
  send_as(c, q, on_answer, statement_new(c, q));
}

/* COMMIT is a group of its own: an error of q skips the rest of its group, and the transaction would stay open. */
static void send_wrapped(struct control *c, const struct pgquery *q, struct statement *st) {
  st->wrapped = true;
  send_as(c, &(struct pgquery){.sql = "BEGIN ISOLATION LEVEL READ COMMITTED"}, on_wrapped, st);
  send_limit(c);
  send_as(c, q, on_wrapped, st);
  pgconn_sync(c->conn);
  send_as(c, &(struct pgquery){.sql = "COMMIT"}, on_commit, st);
}

/* A pooler's other server session does not know what was prepared: nothing was executed, and the connection goes on without
 * prepared statements. */
static bool send_again(struct control *c, struct statement *st, const struct pgresult *result) {
  struct pgquery *q = st->again;

  if (c->closing || !c->up || pgresult_ok(result) || strcmp(pgresult_err(result)->code, "prepared_lost") != 0) return false;
  st->again = NULL;
  st->result = NULL;
  if (st->wrapped)
    send_wrapped(c, q, st);
  else {
    send_limit(c);
    send_as(c, q, on_answer, st);
  }
  pgconn_sync(c->conn);
  free(q);
  return true;
}

bool control_query(struct control *c, const struct pgquery *q) {
  if (!c->up) return false;
  if (c->wrap)
    send_wrapped(c, q, statement_new(c, q));
  else
    send(c, q);
  pgconn_sync(c->conn);
  return true;
}

#ifdef UMAVEZ_FAILPOINTS
int control_fd(struct control *c) {
  return c->conn ? pgconn_fd(c->conn) : -1;
}
#endif
