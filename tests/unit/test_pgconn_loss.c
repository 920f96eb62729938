#include "support_pgconn.c"

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

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
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
  return cmocka_run_group_tests_name("pgconn_loss", tests, start, NULL);
}
