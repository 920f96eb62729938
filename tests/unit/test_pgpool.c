#include "support_servers.c"

#include "base/buf.h"
#include "base/log.h"
#include "io/pgpool.h"

enum { SIZE = 3, BORROWERS = 12 };

static struct server pg;
static struct loop *l;
static struct pgpool *pool;
static int log_fd[2];        /* the log, to count lines */

struct borrower {
  struct pgwait wait;
  struct pgconn *c;
  struct err why;
};
static struct borrower who[BORROWERS];
static int got, refused, answers, errors, changes, ups, downs;
static struct err down_why;
static char order[256];      /* who got a connection, one letter each */

static void on_got(void *arg, struct pgconn *c, const struct err *why) {
  struct borrower *b = arg;
  b->c = c;
  if (c == NULL) {
    b->why = *why;
    refused++;
    return;
  }
  assert_int_equal(pgconn_state(c), PGCONN_READY);
  assert_true(pgconn_idle(c));
  assert_int_equal(pgconn_txn(c), 'I');
  order[got++] = (char)('a' + (b - who));
}

static void on_state(void *arg, enum pgpool_state s, const struct err *why) {
  (void)arg;
  changes++;
  if (s == PGPOOL_UP) ups++;
  if (s == PGPOOL_DOWN) {
    downs++;
    down_why = *why;
  }
}

static void on_answer(void *arg, struct pgresult *r) {
  (void)arg;
  answers++;
  if (!pgresult_ok(r)) errors++;
  pgresult_free(r);
}

static void acquire(int i) {
  pgwait_init(&who[i].wait, on_got, &who[i]);
  pgpool_acquire(pool, &who[i].wait);
}

static void release(int i) {
  pgpool_release(pool, who[i].c);
  who[i].c = NULL;
}

static void discard(int i) {
  pgpool_discard(pool, who[i].c);
  who[i].c = NULL;
}

static void run(int i, const char *sql) {
  int want = answers + 1;
  pgconn_exec(who[i].c, sql, on_answer, NULL);
  until(l, answers, want, 10000);
}

static void open_pool(const char *url, int size) {
  pool = pgpool_new(l, url, size, 2000, true);
  pgpool_on_state(pool, on_state, NULL);
}

static int setup(void **state) {
  (void)state;
  l = loop_new();
  memset(who, 0, sizeof who);
  memset(order, 0, sizeof order);
  got = refused = answers = errors = changes = ups = downs = 0;
  open_pool(pg.url, SIZE);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  if (pool != NULL) pgpool_close_later(pool);
  for (int i = 0; pool != NULL && i < BORROWERS; i++) {
    if (who[i].c != NULL) discard(i);
  }
  pool = NULL;
  loop_free(l);
  return 0;
}

static int log_lines(const char *event) {
  static char text[65536];
  char needle[64];
  int n = 0;
  ssize_t len = read(log_fd[0], text, sizeof text - 1);
  text[len > 0 ? len : 0] = '\0';
  snprintf(needle, sizeof needle, "event=%s ", event);
  for (char *p = strstr(text, needle); p != NULL; p = strstr(p + 1, needle)) n++;
  if (getenv("V")) fputs(text, stderr);
  return n;
}

static void test_first_come_first_served_within_the_size(void **state) {
  (void)state;
  for (int i = 0; i < BORROWERS; i++) acquire(i);
  assert_int_equal(got, 0);
  until(l, got, SIZE, 10000);
  loop_step(l, 0);
  struct pgpool_counts n = pgpool_counts(pool);
  assert_int_equal(n.lent, SIZE);
  assert_int_equal(n.waiting, BORROWERS - SIZE);
  assert_int_equal(n.connecting, 0);
  pgpool_cancel_wait(pool, &who[4].wait);
  pgpool_cancel_wait(pool, &who[4].wait);
  assert_false(pgwait_waiting(&who[4].wait));
  for (int i = 0; got < BORROWERS - 1; i++) {
    if (who[i].c == NULL) continue;
    run(i, "SELECT 1");
    int want = got + 1;
    release(i);
    until(l, got, want, 5000);
  }
  assert_string_equal(order, "abcdfghijkl");
  assert_int_equal(errors, 0);
  assert_int_equal(pgpool_state(pool), PGPOOL_UP);
}

static void test_an_open_transaction_is_not_lent_on(void **state) {
  (void)state;
  acquire(0);
  until(l, got, 1, 5000);
  int pid = pgconn_backend_pid(who[0].c);
  run(0, "BEGIN");
  release(0);
  acquire(1);
  until(l, got, 2, 5000);
  assert_int_not_equal(pgconn_backend_pid(who[1].c), pid);
  pid = pgconn_backend_pid(who[1].c);
  pgconn_exec(who[1].c, "SELECT 1", on_answer, NULL); /* released too early: pending */
  release(1);
  acquire(2);
  until(l, got, 3, 5000);
  assert_int_equal(answers, 2);
  assert_int_equal(errors, 1);
  assert_int_not_equal(pgconn_backend_pid(who[2].c), pid);
  pid = pgconn_backend_pid(who[2].c);
  release(2);
  acquire(3);
  until(l, got, 4, 5000);
  assert_int_equal(pgconn_backend_pid(who[3].c), pid);
}

static void test_a_connection_lost_while_lent(void **state) {
  (void)state;
  acquire(0);
  until(l, got, 1, 5000);
  run(0, "SELECT pg_terminate_backend(pg_backend_pid())");
  assert_int_equal(errors, 1);
  run(0, "SELECT 1"); /* still a valid struct */
  assert_int_equal(errors, 2);
  for (int i = 1; i <= SIZE; i++) acquire(i);
  until(l, got, SIZE, 5000); /* the dead one keeps its place until it is given back */
  assert_int_equal(pgpool_counts(pool).waiting, 1);
  discard(0);
  until(l, got, SIZE + 1, 5000);
  assert_int_equal(downs, 0);
}

static void lend_all(int first) {
  int want = got + SIZE;
  for (int i = 0; i < SIZE; i++) acquire(first + i);
  until(l, got, want, 20000);
}

/* Requests in flight are answered once, waiters wait, all connections come back, one line for each change. */
static void test_a_restart_of_the_server(void **state) {
  (void)state;
  const char *modes[] = {"fast", "immediate", "kill"};
  for (int m = 0; m < 3; m++) {
    lend_all(0);
    log_lines("");
    answers = errors = 0;
    for (int i = 0; i < SIZE; i++) pgconn_exec(who[i].c, "SELECT pg_sleep(30)", on_answer, NULL);
    loop_step(l, 0);
    pg_stop(&pg, modes[m]);
    until(l, answers, SIZE, 5000);
    assert_int_equal(errors, SIZE);
    for (int i = SIZE; i < 2 * SIZE; i++) acquire(i);
    for (int i = 0; i < SIZE; i++) discard(i);
    int before = got;
    until(l, downs, m + 1, 5000);
    assert_string_equal(down_why.code, "connect_failed");
    for (int64_t end = wall_ms() + 600; wall_ms() < end;) loop_step(l, 100); /* several tries */
    assert_int_equal(got, before);
    assert_int_equal(refused, 0);
    pg_start(&pg);
    until(l, got, before + SIZE, 10000);
    assert_int_equal(pgpool_state(pool), PGPOOL_UP);
    assert_false(err_is_set(pgpool_error(pool)));
    answers = errors = 0;
    for (int i = SIZE; i < 2 * SIZE; i++) run(i, "SELECT 1");
    assert_int_equal(errors, 0);
    assert_int_equal(log_lines("postgres_down"), 1);
    for (int i = SIZE; i < 2 * SIZE; i++) release(i);
    loop_step(l, 0);
  }
  assert_int_equal(ups, 4);
}

static void test_idle_connections_that_die_are_replaced(void **state) {
  (void)state;
  lend_all(0);
  for (int i = 0; i < SIZE; i++) release(i);
  loop_step(l, 0);
  assert_int_equal(pgpool_counts(pool).idle, SIZE);
  pg_psql(&pg, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'umavez'");
  lend_all(0);
  for (int i = 0; i < SIZE; i++) run(i, "SELECT 1");
  assert_int_equal(errors, 0);
  assert_int_equal(downs, 0);
}

static void test_what_waiting_does_not_heal_is_said_once(void **state) {
  (void)state;
  char url[300];
  pgpool_close_later(pool);
  snprintf(url, sizeof url, "host=%s user=postgres dbname=nosuch", pg.socket);
  log_lines("");
  open_pool(url, SIZE);
  acquire(0);
  until(l, downs, 1, 5000);
  assert_string_equal(down_why.code, "no_database");
  assert_int_equal(pgpool_error(pool)->class, ERR_INPUT);
  for (int64_t end = wall_ms() + 700; wall_ms() < end;) loop_step(l, 100);
  assert_int_equal(downs, 1);
  assert_int_equal(log_lines("postgres_down"), 1);
  pg_psql(&pg, "CREATE DATABASE nosuch");
  until(l, got, 1, 10000);
  assert_int_equal(ups, 1);
  discard(0);
  pgpool_close_later(pool);
  pool = NULL;
  loop_step(l, 0);
}

static void test_a_limit_of_the_server_is_not_down(void **state) {
  (void)state;
  pg_psql(&pg, "CREATE ROLE few LOGIN CONNECTION LIMIT 1");
  char url[300];
  pgpool_close_later(pool);
  snprintf(url, sizeof url, "host=%s user=few dbname=postgres", pg.socket);
  open_pool(url, SIZE);
  acquire(0);
  acquire(1);
  until(l, got, 1, 5000);
  while (!err_is_set(pgpool_error(pool))) loop_step(l, 100);
  assert_string_equal(pgpool_error(pool)->code, "too_many_connections");
  assert_int_equal(pgpool_state(pool), PGPOOL_UP);
  release(0);
  until(l, got, 2, 5000);
  assert_int_equal(downs, 0);
  discard(1);
}

static void test_closing_answers_waiters_and_waits_for_borrowers(void **state) {
  (void)state;
  lend_all(0);
  acquire(SIZE);
  pgpool_close_later(pool);
  assert_int_equal(refused, 0);
  until(l, refused, 1, 1000);
  assert_string_equal(who[SIZE].why.code, "pool_closed");
  run(0, "SELECT 1"); /* lent ones go on */
  assert_int_equal(errors, 0);
  for (int i = 0; i < SIZE; i++) release(i);
  pool = NULL;
  loop_step(l, 0);
  loop_step(l, 0);
}

static void test_connections_that_turn_read_only_are_not_lent(void **state) {
  (void)state;
  pg_psql(&pg, "CREATE TABLE IF NOT EXISTS ro (a int)");
  lend_all(0);
  for (int i = 1; i < SIZE; i++) release(i);
  loop_step(l, 0);
  pg_psql(&pg, "ALTER SYSTEM SET default_transaction_read_only = on");
  pg_psql(&pg, "SELECT pg_reload_conf()");
  while (!pgconn_read_only(who[0].c)) run(0, "INSERT INTO ro VALUES (1)");
  release(0);
  acquire(0);
  until(l, downs, 1, 5000);
  assert_string_equal(down_why.code, "read_only");
  assert_int_equal(got, SIZE);
  pg_psql(&pg, "BEGIN READ WRITE; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; COMMIT");
  setenv("PGOPTIONS", "-c default_transaction_read_only=off", 1);
  pg_psql(&pg, "ALTER SYSTEM RESET default_transaction_read_only");
  unsetenv("PGOPTIONS");
  pg_psql(&pg, "SELECT pg_reload_conf()");
  until(l, got, SIZE + 1, 10000);
  run(0, "INSERT INTO ro VALUES (1)");
}

/* A stopped server: the waiter waits, the try ends by its deadline, and all goes on by itself. */
static void test_a_stopped_server(void **state) {
  (void)state;
  pgpool_close_later(pool);
  server_signal_all(&pg, SIGSTOP);
  pool = pgpool_new(l, pg.url, SIZE, 150, true);
  pgpool_on_state(pool, on_state, NULL);
  acquire(0);
  until(l, downs, 1, 5000);
  assert_string_equal(down_why.code, "connect_timeout");
  server_signal_all(&pg, SIGCONT);
  until(l, got, 1, 10000);
  run(0, "SELECT 1");
}

static int start(void **state) {
  (void)state;
  if (pipe2(log_fd, O_NONBLOCK | O_CLOEXEC) != 0) return -1;
  log_init(LOG_INFO_, LOG_LOGFMT, log_fd[1]);
  pg_start(&pg);
  return 0;
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_first_come_first_served_within_the_size),
    T(test_an_open_transaction_is_not_lent_on),
    T(test_a_connection_lost_while_lent),
    T(test_a_restart_of_the_server),
    T(test_idle_connections_that_die_are_replaced),
    T(test_what_waiting_does_not_heal_is_said_once),
    T(test_a_limit_of_the_server_is_not_down),
    T(test_closing_answers_waiters_and_waits_for_borrowers),
    T(test_connections_that_turn_read_only_are_not_lent),
    T(test_a_stopped_server),
  };
  return cmocka_run_group_tests_name("pgpool", tests, start, NULL);
}
