#include "support_pgconn.c"

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

static void expect_nothing_at(int row, int col) {
  assert_string_equal(pgresult_value(last, row, col), "");
  assert_int_equal(pgresult_length(last, row, col), 0);
  assert_true(pgresult_null(last, row, col));
}

/* libpq's notice about it counted as the server's last word: the connection was given up. And it went to a connection that
 * was freed, where the result had outlived it. */
static void test_a_place_that_a_result_does_not_have_is_empty(void **state) {
  (void)state;
  group("SELECT 1 AS one WHERE false");
  until(l, answers, 1, 10000);
  for (int row = -1; row <= 1; row++) expect_nothing_at(row, 0);
  expect_nothing_at(0, 1);
  assert_string_equal(pgresult_column(last, 0), "one");
  assert_string_equal(pgresult_column(last, 1), "");
  assert_int_equal(pgresult_type(last, 1), 0);
  group("SELECT 2 AS two");
  until(l, answers, 2, 10000);
  expect("SELECT 0 SELECT 1 ");
  assert_int_equal(pgconn_state(c), PGCONN_READY);
  pgconn_close_later(c);
  c = NULL;
  for (int i = 0; i < 3; i++) loop_step(l, 0);
  expect_nothing_at(1, 0);
  expect_nothing_at(0, 1);
  assert_string_equal(pgresult_value(last, 0, 0), "2");
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

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_values_come_back_in_order),
    T(test_affected_rows_and_error_fields),
    T(test_a_place_that_a_result_does_not_have_is_empty),
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
  };
  return cmocka_run_group_tests_name("pgconn", tests, start, NULL);
}
