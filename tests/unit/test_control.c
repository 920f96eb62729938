#include "support_servers.c"

#include "base/log.h"
#include "core/control.h"

static struct server pg;
static struct loop *l;
static struct control *control;
static int ups, answers, errors;
static char value[32], code[32];

static void on_up(void *arg) {
  (void)arg;
  ups++;
}

static void on_answer(void *arg, struct pgresult *r) {
  (void)arg;
  answers++;
  if (pgresult_ok(r)) {
    snprintf(value, sizeof value, "%s", pgresult_value(r, 0, 0));
  } else {
    errors++;
    snprintf(code, sizeof code, "%s", pgresult_err(r)->sqlstate);
  }
  pgresult_free(r);
}

static void connect_with(const char *options) {
  static char url[512];
  struct control_hooks hooks = {.on_up = on_up};
  snprintf(url, sizeof url, "%s %s", pg.url, options);
  struct control_options o = {
      .name = "test", .url = url, .connect_timeout_ms = 5000, .answer_timeout_ms = 5000, .prepare = true};

  ups = answers = errors = 0;
  control = control_new(l, &o, &hooks);
  until(l, ups, 1, 5000);
}

static void ask(const char *sql) {
  assert_true(control_query(control, &(struct pgquery){.sql = sql, .done = on_answer}));
}

static int teardown(void **state) {
  (void)state;
  control_free(control);
  for (int i = 0; i < 10; i++) loop_step(l, 10);
  return 0;
}

static void test_an_answer_comes_in_order(void **state) {
  (void)state;
  connect_with("");
  ask("SELECT 1");
  ask("SELECT 1/0");
  ask("SELECT 3");
  until(l, answers, 3, 5000);
  assert_int_equal(errors, 1);
  assert_string_equal(code, "22012");
  assert_string_equal(value, "3");
}

/* Where the default isolation is another one, each statement has a transaction of its own: an error left it open, and
 * whatever came afterwards was skipped for ever. */
static void test_an_error_does_not_spoil_the_statements_behind_it(void **state) {
  (void)state;
  connect_with("options='-c default_transaction_isolation=serializable'");
  ask("SELECT current_setting('transaction_isolation')");
  until(l, answers, 1, 5000);
  assert_string_equal(value, "read committed");
  ask("SELECT 1/0");
  ask("SELECT 3");
  until(l, answers, 3, 5000);
  assert_int_equal(errors, 1);
  assert_string_equal(code, "22012");
  assert_string_equal(value, "3");
}

/* A statement that only COMMIT refuses has failed. */
static void test_a_refused_commit_is_the_answer(void **state) {
  (void)state;
  pg_psql(&pg, "CREATE TABLE t (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)");
  connect_with("options='-c default_transaction_isolation=serializable'");
  ask("INSERT INTO t VALUES (1), (1) RETURNING a");
  until(l, answers, 1, 5000);
  assert_int_equal(errors, 1);
  assert_string_equal(code, "23505");
}

static int start(void **state) {
  (void)state;
  log_init(LOG_ERROR_, LOG_LOGFMT, 2);
  l = loop_new();
  pg_start(&pg);
  return 0;
}

int main(void) {
#define T(f) cmocka_unit_test_teardown(f, teardown)
  const struct CMUnitTest tests[] = {
      T(test_an_answer_comes_in_order),
      T(test_an_error_does_not_spoil_the_statements_behind_it),
      T(test_a_refused_commit_is_the_answer),
  };
  return cmocka_run_group_tests_name("control", tests, start, NULL);
}
