/* The lives of a run, its handler's statements and its connection, where they cross. The server is a real one; of the ledger
 * it has only a claim that is always granted. The control connection is away, so that a run without a transaction ends at
 * once, in the same tick. */
#include "support_servers.c"

#include "base/log.h"
#include "core/control.h"
#include "core/gate.h"
#include "core/runner.h"
#include "core/source.h"

static struct server pg;
static struct loop *l;
static struct gate *gate;
static struct control *control;
static struct pgpool *pool;
static struct runner *runner;
static int effects, drops, forgets, answers, ends, returns, sent;

/* ---- what the runner calls ---- */

static void effect(struct run *r) { effects++; }

static void drop(struct run *r) { drops++; }

static void forget(struct run *r) { forgets++; }

static const struct handler_ops handler = {.effect = effect, .drop = drop, .forget = forget};

static void free_ended(void *r) { run_free(r); }

static void on_ended(void *arg, struct run *r) {
  ends++;
  loop_free_later(l, free_ended, r);
}

static void give_back(struct source *s, const char *run_id, enum give_back how, int64_t delay_ms) { returns++; }

static const struct source_ops source_ops = {.give_back = give_back};
static struct source source = {.ops = &source_ops};

/* ---- what the tests do ---- */

static void on_answer(void *arg, struct pgresult *result) {
  answers++;
  pgresult_free(result);
}

static int ask(struct run *r, const char *sql) {
  struct err e = ERR_INIT;
  return runner_query(r, &(struct pgquery){.sql = sql, .done = on_answer}, &e);
}

/* A run in its handler. */
static struct run *started(void) {
  struct run *r = run_new("6b1d1d2e-9d3f-4f0e-8f0a-2f6d1c1b0a99", "t.one", "{}", 2);

  sent = effects = drops = forgets = answers = ends = returns = 0;
  r->deliveries = 1;
  runner_start(runner, r);
  until(l, effects, 1, 30000);
  assert_int_equal(r->state, RUN_HANDLER);
  return r;
}

static void cut(struct run *r) {
  char sql[96];

  snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d)", pgconn_backend_pid(r->conn));
  pg_psql(&pg, sql);
  for (int64_t limit = wall_ms() + 30000; pgconn_state(r->conn) != PGCONN_CLOSED; loop_step(l, 10))
    assert_true(wall_ms() < limit);
}

static int setup(void **state) {
  static struct control_hooks hooks;
  struct control_options away = {.name = "away", .url = "host=/nowhere", .connect_timeout_ms = 1000, .answer_timeout_ms = 1000};
  struct runner_hooks runner_hooks = {.ended = on_ended};

  l = loop_new();
  gate = gate_new(NULL, NULL, "umavez", 1000);
  control = control_new(l, &away, &hooks);
  pool = pgpool_new(l, pg.url, 2, 30000, true);
  runner = runner_new(l, gate, control, pool, &source, "0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c", &runner_hooks);
  runner_set_handler(runner, &handler);
  return 0;
}

static int teardown(void **state) {
  struct pgpool_counts counts = pgpool_counts(pool);

  runner_free(runner);
  pgpool_close_later(pool);
  control_free(control);
  loop_step(l, 10);
  loop_free(l);
  gate_free(gate);
  return counts.lent; /* 0: every connection was given back */
}

/* ---- the tests ---- */

static void test_a_lost_connection_ends_a_handler_that_waits(void **state) {
  struct run *r = started();

  cut(r);
  runner_look(runner, r);
  until(l, ends, 1, 30000);
  assert_int_equal(drops, 1);
  assert_int_equal(returns, 1);
}

static void wake_up(void *arg) {
  sent += ask(arg, "SELECT 1") == 0;
}

/* Between the look and its safe point the handler woke up and sent a statement. The run ended without waiting for the answer,
 * which then came to what was freed. */
static void test_a_statement_sent_after_the_look_is_waited_for(void **state) {
  struct run *r = started();

  struct loop_timer sleep;

  cut(r);
  runner_look(runner, r);
  loop_timer_init(&sleep, wake_up, r);
  loop_timer_start(l, &sleep, 0); /* behind that of the look, in the same tick */
  until(l, ends, 1, 30000);
  assert_int_equal(sent, 1);
  assert_int_equal(drops, 1);
  assert_int_equal(returns, 1);
  assert_int_equal(answers, 0); /* the handler was dropped: nothing of it may be called */
}

/* A step that is over has given up what it kept for the answer. */
static void test_an_answer_behind_the_verdict_reaches_nobody(void **state) {
  struct run *r = started();
  struct verdict v = {.kind = VERDICT_ERROR, .outcome = xstrdup("{\"code\":\"error\",\"message\":\"\"}"), .retry_after_ms = -1};

  assert_int_equal(ask(r, "SELECT 1"), 0);
  runner_handler_done(r, &v);
  until(l, ends, 1, 30000);
  assert_int_equal(answers, 0);
  assert_int_equal(forgets, 1);
}

static void test_an_answer_reaches_the_handler(void **state) {
  struct run *r = started();

  assert_int_equal(ask(r, "SELECT 1"), 0);
  until(l, answers, 1, 30000);
  cut(r);
  assert_int_equal(ask(r, "SELECT 1"), 0); /* so does the news that there is none */
  until(l, answers, 2, 30000);
  runner_look(runner, r);
  until(l, ends, 1, 30000);
}

static int start(void **state) {
  struct task *t = task_new("t.one");
  struct err e = ERR_INIT;

  log_init(getenv("V") ? LOG_DEBUG_ : LOG_ERROR_, LOG_LOGFMT, 2);
  t->owner = TASK_OWNER_PLATFORM;
  assert_int_equal(task_register(t, &e), 0);
  pg_start(&pg);
  pg_psql(&pg, "CREATE SCHEMA umavez");
  pg_psql(&pg, "CREATE FUNCTION umavez.begin_run(bigint, bytea, bytea, int, int, OUT verdict text, OUT id bigint, OUT attempt int,"
               " OUT status text, OUT outcome text, OUT remaining_ms bigint) LANGUAGE sql AS"
               " $$SELECT 'claimed', 1::bigint, 1, NULL::text, NULL::text, NULL::bigint$$");
  return 0;
}

static int stop(void **state) {
  task_forget_all();
  support_cleanup();
  return 0;
}

int main(void) {
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
  const struct CMUnitTest tests[] = {
      CASE(test_a_lost_connection_ends_a_handler_that_waits),
      CASE(test_a_statement_sent_after_the_look_is_waited_for),
      CASE(test_an_answer_behind_the_verdict_reaches_nobody),
      CASE(test_an_answer_reaches_the_handler),
  };
  return cmocka_run_group_tests_name(__FILE__, tests, start, stop);
}
