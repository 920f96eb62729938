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

static void test_values_come_back_in_order(void **state) {
  (void)state;
  const char *values[] = {"7", NULL, "it's; --", "\001\000\002"};
  int lengths[] = {0, 0, 0, 3}, formats[] = {0, 0, 0, 1};
  assert_int_equal(pgconn_state(c), PGCONN_READY);
  assert_true(pgconn_backend_pid(c) > 0);
  assert_int_equal(pgconn_txn(c), 'I');
  query("SELECT 1");
  group("SELECT 2");
  pgconn_query(c, &(struct pgquery){.sql = "SELECT $1::int AS a, $2::text AS b, $3::text, $4::bytea", .nparams = 4, .values = values,
                                    .lengths = lengths, .formats = formats, .done = note, .arg = "v:"});
  assert_false(pgconn_idle(c));
  pgconn_sync(c);
  pgconn_sync(c);
  assert_int_equal(answers, 0);
  until(l, answers, 3, 5000);
  expect("SELECT 1 SELECT 1 v:SELECT 1 ");
  assert_true(pgconn_idle(c));
  assert_string_equal(pgresult_value(last, 0, 0), "7");
  assert_true(pgresult_null(last, 0, 1));
  assert_string_equal(pgresult_value(last, 0, 1), "");
  assert_string_equal(pgresult_value(last, 0, 2), "it's; --");
  assert_string_equal(pgresult_value(last, 0, 3), "\\x010002");
  assert_int_equal(pgresult_type(last, 0), 23);
  assert_int_equal(pgresult_column_index(last, "b"), 1);
  assert_int_equal(pgresult_column_index(last, "z"), -1);
}

static void test_affected_rows_and_error_fields(void **state) {
  (void)state;
  ask("CREATE TEMP TABLE t (id int CONSTRAINT t_is_unique UNIQUE)");
  group("INSERT INTO t SELECT generate_series(1, 3)");
  until(l, answers, 1, 5000);
  expect("INSERT 0 3 ");
  assert_int_equal(pgresult_affected(last), 3);
  group("INSERT INTO t VALUES (2)");
  until(l, answers, 1, 5000);
  expect("sql/23505 ");
  const struct err *e = pgresult_err(last);
  assert_int_equal(e->class, ERR_SQL);
  assert_string_equal(e->constraint, "t_is_unique");
  assert_string_equal(e->detail, "Key (id)=(2) already exists.");
  assert_non_null(strstr(e->message, "duplicate key"));
}

static void test_an_error_skips_the_rest_of_its_group(void **state) {
  (void)state;
  query("SELECT 1");
  query("SELECT 1/0");
  query("SELECT 2");
  group("SELECT nonsense");
  group("SELECT 3");
  query("SELECT nonsense"); /* fails in its Parse */
  group("SELECT 4");
  group("SELECT 5");
  until(l, answers, 8, 5000);
  expect("SELECT 1 sql/22012 skipped/ skipped/ SELECT 1 sql/42703 skipped/ SELECT 1 ");
}

static char txn_seen[8];
static bool idle_seen;

static void note_txn(void *arg, struct pgresult *r) {
  txn_seen[answers] = pgconn_txn(c);
  idle_seen = pgconn_idle(c);
  note(arg, r);
}

static void txn_group(const char *a, const char *b) {
  pgconn_query(c, &(struct pgquery){.sql = a, .done = note_txn, .arg = ""});
  if (b != NULL) pgconn_query(c, &(struct pgquery){.sql = b, .done = note_txn, .arg = ""});
  pgconn_sync(c);
  until(l, answers, b ? 2 : 1, 5000);
}

static void test_commit_of_a_failed_transaction_says_rollback(void **state) {
  (void)state;
  txn_group("BEGIN", "SELECT 1");
  expect("BEGIN SELECT 1 ");
  assert_int_equal(txn_seen[1], 'T');
  assert_true(idle_seen);
  txn_group("SELECT 1/0", NULL);
  expect("sql/22012 ");
  assert_int_equal(txn_seen[0], 'E');
  txn_group("COMMIT", NULL);
  expect("ROLLBACK ");
  assert_true(pgresult_ok(last));
  assert_int_equal(txn_seen[0], 'I');
  assert_true(idle_seen);
}

/* All of what a run does in two writes: the state is that behind the last group. */
static void test_txn_is_exact_behind_pipelined_groups(void **state) {
  (void)state;
  for (int i = 0; i < 50; i++) {
    group("BEGIN");
    group("SELECT 1");
    group("COMMIT");
  }
  group("BEGIN");
  until(l, answers, 151, 5000);
  assert_int_equal(pgconn_txn(c), 'T');
  group("ROLLBACK");
  until(l, answers, 152, 5000);
  assert_int_equal(pgconn_txn(c), 'I');
}

static void expect_statements(void) {
  char held[32];
  snprintf(held, sizeof held, "%d", pgconn_stats(c).statements);
  assert_string_equal(ask("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"), held);
  assert_true(pgconn_stats(c).statements <= PGCONN_STATEMENTS);
}

static void test_a_statement_is_prepared_once(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) group("SELECT 41");
  until(l, answers, 20, 5000);
  for (int i = 0; i < 20; i++) query("SELECT 42");
  pgconn_sync(c);
  until(l, answers, 40, 5000);
  assert_int_equal(pgconn_stats(c).prepared, 2);
  unsigned types[] = {20};
  const char *values[] = {"1"};
  for (int i = 0; i < 2; i++) {
    pgconn_query(c, &(struct pgquery){.sql = "SELECT $1", .nparams = 1, .values = values, .done = note, .arg = ""});
    pgconn_query(c, &(struct pgquery){.sql = "SELECT $1", .nparams = 1, .values = values, .types = types, .done = note, .arg = ""});
  }
  pgconn_sync(c);
  until(l, answers, 44, 5000);
  assert_int_equal(pgconn_stats(c).prepared, 4);
  assert_int_equal(pgresult_type(last, 0), 20);
  expect_statements();
}

/* A Parse that was skipped has not happened, though the next group was sent before that was known. */
static void test_a_skipped_parse_is_not_remembered(void **state) {
  (void)state;
  query("SELECT 1/0");
  group("SELECT 'new'");
  group("SELECT 'new'");
  group("SELECT 'new'");
  until(l, answers, 4, 5000);
  expect("sql/22012 skipped/ SELECT 1 SELECT 1 ");
  group("SELECT 'new'");
  until(l, answers, 1, 5000);
  expect("SELECT 1 ");
  expect_statements();
}

/* More texts than the cache holds, in transactions that fail at every place. */
static void test_eviction_in_failed_transactions(void **state) {
  (void)state;
  int total = 0;
  for (int i = 0; i < 3 * PGCONN_STATEMENTS; i++) {
    char sql[3][64];
    for (int k = 0; k < 3; k++) snprintf(sql[k], sizeof sql[k], "SELECT %d", 3 * i + k);
    query("BEGIN");
    pgconn_sync(c);
    query(sql[0]);
    if (i % 2) query("SELECT 1/0");
    query(sql[1]);
    pgconn_sync(c);
    query(sql[2]); /* in state E when i is odd: 25P02 */
    pgconn_sync(c);
    group(i % 3 ? "ROLLBACK" : "COMMIT");
    total += i % 2 ? 6 : 5;
    if (i % 7 == 0) until(l, answers, total, 10000);
  }
  until(l, answers, total, 20000);
  assert_int_equal(pgconn_txn(c), 'I');
  assert_null(strstr(buf_cstr(&trace), "26000"));
  assert_null(strstr(buf_cstr(&trace), "42P05"));
  assert_null(strstr(buf_cstr(&trace), "lost"));
  ask("SELECT 1");
  expect_statements();
  assert_in_range(pgconn_stats(c).statements, PGCONN_STATEMENTS - 1, PGCONN_STATEMENTS);
  for (int i = 0; i < 10; i++) {
    char sql[64];
    snprintf(sql, sizeof sql, "SELECT 'late %d'", i / 2);
    group(sql);
    until(l, answers, 1, 5000);
    buf_clear(&trace);
    answers = 0;
  }
  assert_true(pgconn_stats(c).evicted >= 4);
  expect_statements();
}

static void test_without_preparing_nothing_is_prepared(void **state) {
  (void)state;
  pgconn_set_prepare(c, false);
  for (int i = 0; i < 5; i++) group("SELECT 1");
  until(l, answers, 5, 5000);
  assert_int_equal(pgconn_stats(c).prepared, 0);
  expect_statements();
}

static void test_lost_prepared_statements_cost_one_error(void **state) {
  (void)state;
  group("SELECT 1");
  until(l, answers, 1, 5000);
  ask("DISCARD ALL");
  group("SELECT 1");
  group("SELECT 1");
  until(l, answers, 2, 5000);
  expect("prepared_lost/26000 prepared_lost/26000 ");
  assert_int_equal(pgresult_err(last)->class, ERR_ENV);
  group("SELECT 1");
  until(l, answers, 1, 5000);
  expect("SELECT 1 ");
  expect_statements();
}

static void test_the_users_own_execute_is_not_a_lost_statement(void **state) {
  (void)state;
  group("EXECUTE nobody");
  until(l, answers, 1, 5000);
  expect("sql/26000 ");
}

static void test_a_changed_table_is_prepared_anew(void **state) {
  (void)state;
  ask("CREATE TEMP TABLE t AS SELECT 1 AS a");
  group("SELECT * FROM t");
  until(l, answers, 1, 5000);
  ask("ALTER TABLE t ADD b int");
  group("SELECT * FROM t");
  until(l, answers, 1, 5000);
  expect("prepared_lost/0A000 ");
  group("SELECT * FROM t");
  until(l, answers, 1, 5000);
  expect("SELECT 1 ");
  assert_int_equal(pgresult_columns(last), 2);
  group("SELECT * FROM t");
  until(l, answers, 1, 5000);
  assert_int_equal(pgconn_stats(c).prepared, 2);
  expect_statements();
}

static void test_queries_may_come_before_the_connection(void **state) {
  (void)state;
  pgconn_close_later(c);
  open_url(pg.url, 5000);
  char sql[64];
  const char *value = sql;
  strcpy(sql, "SELECT $1::text");
  pgconn_query(c, &(struct pgquery){.sql = sql, .nparams = 1, .values = &value, .done = note, .arg = ""});
  strcpy(sql, "overwritten");
  pgconn_sync(c);
  group("SELECT 1");
  assert_false(pgconn_idle(c));
  until(l, answers, 2, 5000);
  assert_int_equal(readies, 1);
  expect("SELECT 1 SELECT 1 ");
  assert_true(pgconn_idle(c));
}

static void test_many_and_large(void **state) {
  (void)state;
  size_t size = 1 << 20;
  char *text = xmalloc(size + 1);
  memset(text, 'x', size);
  text[size] = '\0';
  const char *value = text;
  for (int i = 0; i < 20; i++) {
    pgconn_query(c, &(struct pgquery){.sql = "SELECT $1::text || $1::text", .nparams = 1, .values = &value, .done = note, .arg = ""});
    pgconn_sync(c);
  }
  until(l, answers, 20, 20000);
  assert_int_equal(pgresult_length(last, 0, 0), 2 * size);
  free(text);
  buf_clear(&trace);
  answers = 0;
  for (int i = 0; i < 5000; i++) query("SELECT repeat('y', 100)");
  pgconn_sync(c);
  until(l, answers, 5000, 20000);
  assert_null(strchr(buf_cstr(&trace), '/'));
}

static void test_copy_and_too_many_parameters_are_refused(void **state) {
  (void)state;
  const char **values = xcalloc(70000, sizeof *values);
  pgconn_query(c, &(struct pgquery){.sql = "SELECT 1", .nparams = 70000, .values = values, .done = note, .arg = ""});
  group("SELECT 1");
  group("SELECT 2");
  until(l, answers, 3, 5000);
  expect("not_supported/0A000 skipped/ SELECT 1 ");
  free(values);
  group("COPY (SELECT 1) TO STDOUT");
  until(l, closes, 1, 5000);
  expect("not_supported/0A000 ");
  group("SELECT 1");
  until(l, answers, 1, 5000);
  expect("connection_lost/08006 ");
}

static void test_a_second_statement_in_the_text_is_refused(void **state) {
  (void)state;
  group("SELECT 1; SELECT 2");
  until(l, answers, 1, 5000);
  expect("sql/42601 ");
}

static void test_notifications(void **state) {
  (void)state;
  group("LISTEN umavez_runs");
  until(l, answers, 1, 5000);
  pg_psql(&pg, "NOTIFY umavez_runs, 'x'");
  until(l, notes, 1, 5000);
  group("NOTIFY umavez_runs");
  until(l, notes, 2, 5000);
  expect("LISTEN umavez_runs=x NOTIFY umavez_runs= ");
}

/* ── the end ── */

static void test_a_terminated_backend_tells_its_reason(void **state) {
  (void)state;
  query("SELECT 1");
  query("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(10)");
  query("SELECT 2");
  pgconn_sync(c);
  group("SELECT 3");
  until(l, closes, 1, 5000);
  expect("SELECT 1 connection_lost/57P01 connection_lost/57P01 connection_lost/57P01 "); /* what was answered stays answered */
  assert_string_equal(why.sqlstate, "57P01");
  assert_int_equal(pgconn_state(c), PGCONN_CLOSED);
  assert_int_equal(pgconn_txn(c), '?');
  assert_string_equal(pgconn_error(c)->code, "connection_lost");
}

static void test_an_idle_connection_hears_the_end(void **state) {
  (void)state;
  char sql[100];
  snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d)", pgconn_backend_pid(c));
  pg_psql(&pg, sql);
  until(l, closes, 1, 5000);
  assert_string_equal(why.sqlstate, "57P01");
}

static void test_an_idle_transaction_times_out(void **state) {
  (void)state;
  ask("SET idle_in_transaction_session_timeout = 50");
  ask("BEGIN");
  until(l, closes, 1, 5000);
  assert_string_equal(why.sqlstate, "25P03");
}

static void restart(const char *mode) {
  for (int i = 0; i < 3; i++) query("SELECT 1");
  pgconn_sync(c);
  group("SELECT pg_sleep(30)");
  query("SELECT 2");
  group("COMMIT");
  query("SELECT 'no sync'");
  until(l, answers, 3, 5000);
  pg_stop(&pg, mode);
  until(l, closes, 1, 5000);
  assert_int_equal(answers, 7);
  assert_null(strstr(buf_cstr(&trace), "skipped"));
  pgconn_close_later(c);
  open_url(pg.url, 5000);
  until(l, closes, 1, 5000);
  assert_string_equal(why.code, "connect_failed");
  pgconn_close_later(c);
  pg_start(&pg);
  open_url(pg.url, 5000);
  group("SELECT 1");
  until(l, answers, 1, 5000);
  expect("SELECT 1 ");
}

static void test_restart_answers_each_query_once(void **state) {
  (void)state;
  restart("fast");
  restart("immediate");
  restart("kill");
}

static void test_a_stopped_server_is_noticed(void **state) {
  (void)state;
  pgconn_set_answer_timeout(c, 300);
  group("SELECT pg_sleep(0.1)");
  until(l, answers, 1, 5000);
  int64_t begin = wall_ms();
  int pid = pgconn_backend_pid(c);
  kill(pid, SIGSTOP);
  group("SELECT 1");
  group("SELECT 2");
  until(l, closes, 1, 5000);
  assert_in_range(wall_ms() - begin, 250, 2000);
  expect("SELECT 1 connection_lost/08006 connection_lost/08006 " );
  kill(pid, SIGCONT);
}

static void test_an_answer_timeout_leaves_idle_connections_alone(void **state) {
  (void)state;
  struct loop_timer t;
  pgconn_set_answer_timeout(c, 50);
  group("SELECT 1");
  until(l, answers, 1, 5000);
  loop_timer_init(&t, (void (*)(void *))on_ready, NULL);
  loop_timer_start(l, &t, 200);
  readies = 0;
  until(l, readies, 1, 5000);
  assert_int_equal(closes, 0);
}

static void expect_refused(const char *url, const char *code, const char *sqlstate, enum err_class class) {
  if (c != NULL) pgconn_close_later(c);
  open_url(url, 5000);
  query("SELECT 1");
  until(l, closes, 1, 6000);
  assert_int_equal(readies, 0);
  if (strcmp(why.code, code) != 0 || strcmp(why.sqlstate, sqlstate) != 0 || why.class != class)
    fail_msg("%s: %s %s: %s", url, why.code, why.sqlstate, why.message);
  assert_null(strstr(why.message, "s3cret"));
  assert_null(strchr(why.message, '\n'));
  assert_int_equal(answers, 1);
  assert_non_null(strstr(buf_cstr(&trace), "connection_lost/"));
  assert_null(strstr(pgresult_err(last)->message, "s3cret"));
}

static void test_connections_that_cannot_be_made(void **state) {
  (void)state;
  char url[400];
  snprintf(url, sizeof url, "host=%s user=postgres dbname=nosuch password=s3cret", pg.socket);
  expect_refused(url, "no_database", "3D000", ERR_INPUT);
  assert_non_null(strstr(why.message, "database \"nosuch\" does not exist"));
  assert_null(strstr(why.message, "LOCATION"));
  snprintf(url, sizeof url, "host=%s user=nobody_here dbname=postgres password=s3cret", pg.socket);
  expect_refused(url, "auth_failed", "28000", ERR_INPUT);
  expect_refused("postgres://u:s3cret@[::1/x", "bad_url", "", ERR_INPUT);
  expect_refused("postgres://u:x/s3cret@h/db", "bad_url", "", ERR_INPUT);
  expect_refused("postgres://u:p@s3cret@h/db?sslmode=disable", "connect_failed", "", ERR_ENV);
  expect_refused("postgres://u:p@h/db?nonsense=s3cret", "bad_url", "", ERR_INPUT);
  expect_refused("user=u password='s3cret", "bad_url", "", ERR_INPUT);
  expect_refused("host=/nonexistent password=s3cret dbname=x", "connect_failed", "", ERR_ENV);
}

static void test_a_server_that_does_not_let_us_in(void **state) {
  (void)state;
  kill(pg.pid, SIGSTOP);
  pgconn_close_later(c);
  open_url(pg.url, 100);
  group("SELECT 1");
  until(l, closes, 1, 3000);
  kill(pg.pid, SIGCONT);
  assert_string_equal(why.code, "connect_timeout");
  expect("connection_lost/08006 ");
}

static void test_the_password_is_refused_without_being_shown(void **state) {
  (void)state;
  char path[300], url[400];
  pg_psql(&pg, "CREATE ROLE locked LOGIN PASSWORD 'right'");
  snprintf(path, sizeof path, "%s/data/pg_hba.conf", pg.dir);
  FILE *f = fopen(path, "w");
  fputs("local all locked scram-sha-256\nlocal all all trust\n", f);
  fclose(f);
  pg_psql(&pg, "SELECT pg_reload_conf()");
  do { /* the reload is asynchronous */
    pg_psql(&pg, "SELECT 1");
  } while (strstr(ask("SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'scram-sha-256'"), "1") == NULL);
  snprintf(url, sizeof url, "host=%s user=locked dbname=postgres password=s3cret", pg.socket);
  expect_refused(url, "auth_failed", "28P01", ERR_INPUT);
  snprintf(url, sizeof url, "host=%s user=locked dbname=postgres passfile=/nonexistent", pg.socket);
  expect_refused(url, "auth_failed", "", ERR_INPUT);
}

static void close_inside(void *arg, struct pgresult *r) {
  note(arg, r);
  pgconn_close_later(c);
  c = NULL;
}

static void test_closing_answers_everything_once(void **state) {
  (void)state;
  query("SELECT 1");
  pgconn_query(c, &(struct pgquery){.sql = "SELECT 2", .done = close_inside, .arg = ""});
  group("SELECT 3");
  group("SELECT 4");
  until(l, answers, 4, 5000);
  assert_int_equal(closes, 0); /* no hook after pgconn_close_later */
  assert_memory_equal(buf_cstr(&trace), "SELECT 1 SELECT 1 SELECT 1 ", 27);
  open_url(pg.url, 5000); /* while connecting */
  group("SELECT 1");
  pgconn_close_later(c);
  c = NULL;
  until(l, answers, 1, 5000);
  expect("connection_lost/08006 ");
  assert_int_equal(readies, 0);
}

/* The cut comes while COMMIT is under way: unknown, never "failed". */
static void test_a_cut_connection_is_unknown(void **state) {
  (void)state;
  struct proxy proxy;
  char path[200], target[220], url[300];
  snprintf(path, sizeof path, "%s/cut", pg.dir);
  mkdir(path, 0777);
  snprintf(url, sizeof url, "host=%s user=postgres dbname=postgres", path);
  strcat(path, "/.s.PGSQL.5432");
  snprintf(target, sizeof target, "%s/.s.PGSQL.5432", pg.socket);
  proxy_start(&proxy, path, target);
  pgconn_close_later(c);
  open_url(url, 5000);
  group("SELECT 1");
  until(l, answers, 1, 5000);
  kill(proxy.pid, SIGSTOP);
  query("BEGIN");
  group("COMMIT");
  loop_step(l, 0);
  proxy_stop(&proxy);
  until(l, closes, 1, 5000);
  expect("SELECT 1 connection_lost/08006 connection_lost/08006 ");
}

static void test_a_server_that_turns_read_only(void **state) {
  (void)state;
  ask("CREATE TABLE IF NOT EXISTS ro (a int)");
  query("BEGIN READ ONLY");
  query("INSERT INTO ro VALUES (1)");
  pgconn_sync(c);
  group("ROLLBACK");
  until(l, answers, 3, 5000);
  expect("BEGIN sql/25006 ROLLBACK "); /* the user's own doing */
  assert_false(pgconn_read_only(c));
  pg_psql(&pg, "ALTER SYSTEM SET default_transaction_read_only = on");
  pg_psql(&pg, "SELECT pg_reload_conf()");
  for (int i = 0; !pgconn_read_only(c) && i < 2000; i++) {
    group("INSERT INTO ro VALUES (1)");
    until(l, answers, 1, 5000);
    answers = 0;
  }
  assert_true(pgconn_read_only(c));
  buf_clear(&trace);
  group("INSERT INTO ro VALUES (1)");
  until(l, answers, 1, 5000);
  expect("read_only/25006 ");
  assert_int_equal(pgresult_err(last)->class, ERR_ENV);
  expect_refused(pg.url, "read_only", "", ERR_ENV);
  char url[400];
  snprintf(url, sizeof url, "%s options='-c default_transaction_read_only=off'", pg.url);
  pgconn_close_later(c);
  open_url(url, 5000);
  ask("ALTER SYSTEM RESET default_transaction_read_only");
  ask("SELECT pg_reload_conf()");
  pgconn_close_later(c);
  do {
    open_url(pg.url, 5000);
    while (readies + closes == 0) loop_step(l, 1000);
    if (readies == 0) pgconn_close_later(c);
  } while (readies == 0);
}

/* A pooler in transaction mode (F08): no start-up parameter is refused, and without prepared statements nothing is lost
 * though every transaction may run in another session; with them it costs errors that say so. */
static void test_F08_a_pooler_in_transaction_mode(void **state) {
  (void)state;
  struct pgconn *conns[8];
  char path[200], url[300];
  if (access("/usr/sbin/pgbouncer", X_OK) != 0) skip();
  struct server pooler = {0};
  server_init(&pooler, "bouncer");
  nservers--; /* ended below */
  snprintf(path, sizeof path, "%s/ini", pooler.dir);
  FILE *f = fopen(path, "w");
  fprintf(f, "[databases]\npostgres = host=%s user=postgres\n[pgbouncer]\npool_mode = transaction\ndefault_pool_size = 2\n"
             "auth_type = any\nlisten_port = 5432\nlisten_addr =\nunix_socket_dir = %s\n", pg.socket, pooler.dir);
  fclose(f);
  pooler.pid = spawn(pooler.dir, (char *[]){"/usr/sbin/pgbouncer", path, NULL});
  snprintf(url, sizeof url, "host=%s user=postgres dbname=postgres", pooler.dir);
  pgconn_close_later(c);
  for (;;) { /* until it listens */
    open_url(url, 5000);
    while (readies + closes == 0) loop_step(l, 1000);
    if (readies > 0) break;
    pgconn_close_later(c);
    nap();
  }
  for (int i = 0; i < 8; i++) {
    conns[i] = pgconn_new(l, url, NULL, NULL, 5000);
    pgconn_set_prepare(conns[i], i < 4);
  }
  int expected = 0;
  for (int round = 0; round < 25; round++) {
    buf_clear(&trace);
    for (int i = 0; i < 8; i++) {
      const char *text[] = {"BEGIN", "SELECT 1", "SELECT 2", "COMMIT"};
      for (int k = 0; k < 4; k++) pgconn_query(conns[i], &(struct pgquery){.sql = text[k], .done = note, .arg = i < 4 ? "p:" : ""});
      pgconn_sync(conns[i]);
    }
    expected += 32;
    until(l, answers, expected, 10000);
    for (char *word = strtok(buf_cstr(&trace), " "); word != NULL; word = strtok(NULL, " ")) {
      if (strchr(word, '/') != NULL && strncmp(word, "p:", 2) != 0) fail_msg("%s", word);
      if (strncmp(word, "p:sql/", 6) == 0 && strcmp(word, "p:sql/25P02") != 0) fail_msg("%s", word);
    }
  }
  for (int i = 0; i < 8; i++) pgconn_close_later(conns[i]);
  pgconn_close_later(c);
  loop_step(l, 0);
  c = NULL;
  kill(pooler.pid, SIGKILL);
  reap(pooler.pid);
}

static int start(void **state) {
  (void)state;
  log_init(getenv("V") ? LOG_DEBUG_ : LOG_ERROR_, LOG_LOGFMT, 2);
  pg_start(&pg);
  return 0;
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_values_come_back_in_order),
    T(test_affected_rows_and_error_fields),
    T(test_an_error_skips_the_rest_of_its_group),
    T(test_commit_of_a_failed_transaction_says_rollback),
    T(test_txn_is_exact_behind_pipelined_groups),
    T(test_a_statement_is_prepared_once),
    T(test_a_skipped_parse_is_not_remembered),
    T(test_eviction_in_failed_transactions),
    T(test_without_preparing_nothing_is_prepared),
    T(test_lost_prepared_statements_cost_one_error),
    T(test_the_users_own_execute_is_not_a_lost_statement),
    T(test_a_changed_table_is_prepared_anew),
    T(test_queries_may_come_before_the_connection),
    T(test_many_and_large),
    T(test_copy_and_too_many_parameters_are_refused),
    T(test_a_second_statement_in_the_text_is_refused),
    T(test_notifications),
    T(test_a_terminated_backend_tells_its_reason),
    T(test_an_idle_connection_hears_the_end),
    T(test_an_idle_transaction_times_out),
    T(test_restart_answers_each_query_once),
    T(test_a_stopped_server_is_noticed),
    T(test_an_answer_timeout_leaves_idle_connections_alone),
    T(test_connections_that_cannot_be_made),
    T(test_a_server_that_does_not_let_us_in),
    T(test_the_password_is_refused_without_being_shown),
    T(test_closing_answers_everything_once),
    T(test_a_cut_connection_is_unknown),
    T(test_a_server_that_turns_read_only),
    T(test_F08_a_pooler_in_transaction_mode),
  };
  return cmocka_run_group_tests_name("pgconn", tests, start, NULL);
}
