/* What the tests of pgconn share: a server, a connection, and a trace of its answers. Include it once. */
#include "support_servers.c"

#include "base/buf.h"
#include "base/log.h"
#include "io/pgconn.h"

static struct server pg;
static struct loop *l;
static struct pgconn *c;
static struct buf trace;     /* one word an answer */
static int answers, readies, closes, notes;
static struct err why;       /* of the last on_closed */
static struct pgresult *last; /* of the last answer that was kept */

static void on_ready(void *arg) {
  (void)arg;
  readies++;
}

static void on_closed(void *arg, const struct err *e) {
  (void)arg;
  closes++;
  why = *e;
}

static void on_notify(void *arg, const char *channel, const char *payload) {
  (void)arg;
  notes++;
  buf_printf(&trace, "%s=%s ", channel, payload);
}

static const struct pgconn_hooks hooks = {on_ready, on_closed, on_notify};

/* Writes "tag", or "code/sqlstate" of an error, behind the name. */
static void note(void *name, struct pgresult *r) {
  answers++;
  const struct err *e = pgresult_err(r);
  if (pgresult_ok(r)) buf_printf(&trace, "%s%s ", (char *)name, pgresult_tag(r));
  else buf_printf(&trace, "%s%s/%s ", (char *)name, e->code, e->sqlstate);
  pgresult_free(last);
  last = r;
}

static void query(const char *sql) { pgconn_query(c, &(struct pgquery){.sql = sql, .done = note, .arg = ""}); }

static void group(const char *sql) {
  query(sql);
  pgconn_sync(c);
}

static void expect(const char *text) {
  assert_string_equal(buf_cstr(&trace), text);
  buf_clear(&trace);
  answers = 0;
}

/* Runs one statement and gives its first value. */
static const char *ask(const char *sql) {
  int want = answers + 1;
  pgconn_query(c, &(struct pgquery){.sql = sql, .once = true, .done = note, .arg = ""});
  pgconn_sync(c);
  until(l, answers, want, 10000);
  if (!pgresult_ok(last)) fail_msg("%s: %s", sql, pgresult_err(last)->message);
  buf_clear(&trace);
  answers = 0;
  return pgresult_rows(last) > 0 ? pgresult_value(last, 0, 0) : "";
}

static void open_url(const char *url, int64_t timeout_ms) {
  c = pgconn_new(l, url, &hooks, NULL, timeout_ms);
  readies = closes = notes = answers = 0;
  buf_clear(&trace);
}

static int setup(void **state) {
  (void)state;
  l = loop_new();
  open_url(pg.url, 5000);
  until(l, readies, 1, 10000);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  if (c != NULL) pgconn_close_later(c);
  c = NULL;
  loop_free(l);
  pgresult_free(last);
  last = NULL;
  buf_fini(&trace);
  return 0;
}

static int start(void **state) {
  (void)state;
  log_init(getenv("V") ? LOG_DEBUG_ : LOG_ERROR_, LOG_LOGFMT, 2);
  pg_start(&pg);
  return 0;
}
