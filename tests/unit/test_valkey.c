#include "support_servers.c"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/buf.h"
#include "base/log.h"
#include "io/valkey.h"
#include "io/valkey_url.h"

enum { TIMEOUT_MS = 100 };

static struct server vk;
static struct loop *l;
static struct valkey *v;
static int log_fd[2];
static int answers, nulls, ups, downs;
static struct buf trace;

static void on_state(void *arg, bool up, const char *why) {
  (void)arg;
  assert_true(up == (why == NULL));
  if (up) ups++;
  else downs++;
}

static void describe(const struct valkey_reply *r) {
  switch (r->type) {
    case V_NIL: buf_puts(&trace, "nil"); break;
    case V_INT: buf_printf(&trace, "%lld", (long long)r->integer); break;
    case V_ARRAY:
      buf_puts(&trace, "[");
      for (size_t i = 0; i < r->elements; i++) {
        if (i > 0) buf_puts(&trace, " ");
        describe(&r->element[i]);
      }
      buf_puts(&trace, "]");
      break;
    case V_ERROR: buf_printf(&trace, "!%.*s", (int)strcspn(r->str, " "), r->str); break;
    default: buf_append(&trace, r->str, r->len); break;
  }
}

static void note(void *arg, const struct valkey_reply *r) {
  answers++;
  buf_puts(&trace, arg);
  if (r == NULL) {
    nulls++;
    buf_puts(&trace, "NULL");
  } else {
    describe(r);
  }
  buf_puts(&trace, " ");
}

static void expect(const char *text) {
  assert_string_equal(buf_cstr(&trace), text);
  buf_clear(&trace);
  answers = nulls = 0;
}

#define COMMAND(...) valkey_command(v, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__}, NULL, note, "")
#define DIRECT(...) free(valkey_ask(&vk, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__}))

static void open_url(const char *url, int64_t timeout_ms) {
  struct err e = ERR_INIT;
  v = valkey_new(l, url, timeout_ms, "uvtest", &e);
  if (v == NULL) fail_msg("%s", e.message);
  valkey_on_state(v, on_state, NULL);
  ups = downs = answers = nulls = 0;
  buf_clear(&trace);
}

static int setup(void **state) {
  (void)state;
  l = loop_new();
  if (vk.pid == 0) valkey_start(&vk, NULL);
  DIRECT("FLUSHALL");
  open_url(vk.url, TIMEOUT_MS);
  until(l, ups, 1, 5000);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  valkey_free(v);
  v = NULL;
  loop_free(l);
  buf_fini(&trace);
  return 0;
}

static int log_lines(const char *event) {
  static char text[65536];
  char needle[64];
  int n = 0;
  ssize_t len = read(log_fd[0], text, sizeof text - 1);
  text[len > 0 ? len : 0] = '\0';
  assert_null(strstr(text, "s3cret"));
  snprintf(needle, sizeof needle, "event=%s ", event);
  for (char *p = strstr(text, needle); p != NULL; p = strstr(p + 1, needle)) n++;
  if (getenv("V")) fputs(text, stderr);
  return n;
}

static void spin(int ms) {
  for (int64_t end = wall_ms() + ms; wall_ms() < end;) loop_step(l, 10);
}

static void test_replies_of_every_type_in_order(void **state) {
  (void)state;
  size_t lens[] = {3, 1, 4};
  COMMAND("SET", "k", "v");
  COMMAND("GET", "k");
  COMMAND("GET", "none");
  COMMAND("INCR", "n");
  valkey_command(v, 3, (const char *[]){"SET", "z", "a\0b\0"}, lens, note, "");
  COMMAND("STRLEN", "z");
  COMMAND("MGET", "k", "none", "n");
  COMMAND("LPUSH", "k", "1");
  COMMAND("NOSUCH");
  COMMAND("EVAL", "return {1, {'two', {}}, redis.error_reply('MY own')}", "0");
  assert_int_equal(answers, 0);
  until(l, answers, 10, 5000);
  expect("OK v nil 1 OK 4 [v nil 1] !WRONGTYPE !ERR [1 [two []] !MY] ");
  assert_true(valkey_up(v));
  assert_int_equal(downs, 0);
}

static void test_a_reply_of_a_megabyte(void **state) {
  (void)state;
  size_t size = 1 << 20;
  char *text = xmalloc(size + 1);
  memset(text, 'x', size);
  text[size] = '\0';
  COMMAND("SET", "big", text);
  for (int i = 0; i < 8; i++) COMMAND("GET", "big");
  until(l, answers, 9, 5000);
  assert_int_equal(nulls, 0);
  assert_int_equal(trace.len, 3 + 8 * (size + 1));
  free(text);
}

static void test_many_in_one_tick(void **state) {
  (void)state;
  for (int i = 0; i < 5000; i++) COMMAND("INCR", "n");
  until(l, answers, 5000, 5000);
  assert_int_equal(nulls, 0);
  buf_clear(&trace);
  COMMAND("GET", "n");
  until(l, answers, 5001, 1000);
  expect("5000 ");
}

static struct valkey_script script = {.text = "return {KEYS[1], ARGV[1], ARGV[2]}"};

static void eval(void) { valkey_eval(v, &script, 1, 3, (const char *[]){"k", "a", "b"}, NULL, note, ""); }

static void test_scripts_survive_a_flush(void **state) {
  (void)state;
  eval();
  until(l, answers, 1, 1000);
  expect("[k a b] ");
  while (*script.sha == '\0') loop_step(l, 100);
  assert_int_equal(strlen(script.sha), 40);
  eval();
  until(l, answers, 1, 1000);
  expect("[k a b] ");
  DIRECT("SCRIPT", "FLUSH");
  eval();
  eval();
  COMMAND("PING");
  until(l, answers, 3, 1000);
  expect("PONG [k a b] [k a b] ");
  struct valkey_script bad = {.text = "return redis.call('LPUSH', KEYS[1], '1')"};
  DIRECT("SET", "s", "x");
  valkey_eval(v, &bad, 1, 1, (const char *[]){"s"}, NULL, note, "");
  until(l, answers, 1, 1000);
  assert_int_equal(nulls, 0);
  assert_int_equal(buf_cstr(&trace)[0], '!');
  while (*bad.sha == '\0') loop_step(l, 100);
}

/* A hung server costs what is in flight one deadline, the rest nothing, and heals by itself (A04). */
static void test_A04_a_hung_server(void **state) {
  (void)state;
  log_lines("");
  kill(vk.pid, SIGSTOP);
  int64_t begin = wall_ms();
  for (int i = 0; i < 50; i++) COMMAND("INCR", "hung");
  until(l, answers, 50, 5000);
  assert_in_range(wall_ms() - begin, TIMEOUT_MS - 1, 5 * TIMEOUT_MS);
  assert_int_equal(nulls, 50);
  assert_false(valkey_up(v));
  begin = wall_ms();
  for (int i = 0; i < 1000; i++) COMMAND("INCR", "hung");
  until(l, answers, 1050, 1000);
  assert_in_range(wall_ms() - begin, 0, TIMEOUT_MS / 2);
  spin(1500); /* probes come and go */
  assert_int_equal(log_lines("valkey_down"), 1);
  assert_int_equal(downs, 1);
  kill(vk.pid, SIGCONT);
  buf_clear(&trace);
  answers = nulls = 0;
  until(l, ups, 2, 5000);
  assert_int_equal(answers, 0); /* the late replies reached nobody */
  COMMAND("PING");
  COMMAND("GET", "none");
  until(l, answers, 2, 1000);
  expect("PONG nil ");
  assert_int_equal(log_lines("valkey_up"), 1);
  assert_int_equal(valkey_stats(v).commands, 1052);
  assert_int_equal(valkey_stats(v).unavailable, 1050);
}

/* A busy loop is not a hung server: what has arrived counts. */
static void test_a_long_tick_is_not_a_missed_deadline(void **state) {
  (void)state;
  char text[2000];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\0';
  COMMAND("SET", "k", text);
  for (int i = 0; i < 100; i++) COMMAND("GET", "k"); /* more than one read of hiredis */
  usleep(2 * TIMEOUT_MS * 1000);
  loop_step(l, 0);
  usleep(2 * TIMEOUT_MS * 1000);
  until(l, answers, 101, 1000);
  assert_int_equal(nulls, 0);
}

static void test_a_restart(void **state) {
  (void)state;
  for (int i = 0; i < 10; i++) COMMAND("PING");
  kill(vk.pid, SIGSTOP);
  loop_step(l, 0);
  valkey_stop(&vk);
  until(l, answers, 10, 1000);
  assert_int_equal(nulls, 10);
  until(l, downs, 1, 1000);
  COMMAND("PING");
  until(l, answers, 11, 1000);
  assert_int_equal(nulls, 11);
  spin(300);
  valkey_start(&vk, NULL);
  until(l, ups, 2, 5000);
  buf_clear(&trace);
  answers = 0;
  eval();
  until(l, answers, 1, 1000);
  expect("[k a b] ");
}

static void test_an_idle_connection_that_is_killed(void **state) {
  (void)state;
  DIRECT("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  until(l, downs, 1, 1000);
  until(l, ups, 2, 2000);
  COMMAND("PING");
  until(l, answers, 1, 1000);
  expect("PONG ");
}

/* What says that the server is of no use now (A09). */
static void unavailable_until(const char *how_argv[], int how, const char *undo_argv[], int undo) {
  int up = ups, down = downs;
  free(valkey_ask(&vk, how, how_argv));
  log_lines("");
  COMMAND("SET", "k", "v");
  until(l, answers, 1, 2000);
  expect("NULL ");
  until(l, downs, down + 1, 1000);
  for (int64_t end = wall_ms() + 500; wall_ms() < end;) {
    int want = answers + 1;
    COMMAND("SET", "k", "v");
    until(l, answers, want, 100);
    loop_step(l, 5);
  }
  assert_int_equal(nulls, answers);
  assert_int_equal(log_lines("valkey_down"), 1);
  free(valkey_ask(&vk, undo, undo_argv));
  until(l, ups, up + 1, 5000);
  buf_clear(&trace);
  answers = nulls = 0;
  COMMAND("SET", "k", "v");
  until(l, answers, 1, 1000);
  expect("OK ");
}

static void test_A09_servers_that_refuse(void **state) {
  (void)state;
  unavailable_until((const char *[]){"CONFIG", "SET", "maxmemory", "1"}, 4, (const char *[]){"CONFIG", "SET", "maxmemory", "0"}, 4);
  unavailable_until((const char *[]){"REPLICAOF", "127.0.0.1", "1"}, 3, (const char *[]){"REPLICAOF", "NO", "ONE"}, 3);
  unavailable_until((const char *[]){"CONFIG", "SET", "min-replicas-to-write", "3"}, 4,
                    (const char *[]){"CONFIG", "SET", "min-replicas-to-write", "0"}, 4);
  unavailable_until((const char *[]){"ACL", "SETUSER", "default", "-set"}, 4, (const char *[]){"ACL", "SETUSER", "default", "+set"}, 4);
}

static void test_A09_inside_a_script(void **state) {
  (void)state;
  struct valkey_script write = {.text = "return redis.call('SET', KEYS[1], '1')"};
  DIRECT("CONFIG", "SET", "maxmemory", "1");
  valkey_eval(v, &write, 1, 1, (const char *[]){"k"}, NULL, note, "");
  until(l, answers, 1, 1000);
  expect("NULL ");
  DIRECT("CONFIG", "SET", "maxmemory", "0");
  until(l, ups, 2, 5000);
}

static void test_A09_a_script_that_holds_the_server(void **state) {
  (void)state;
  DIRECT("CONFIG", "SET", "busy-reply-threshold", "10");
  pid_t pid = fork();
  if (pid == 0) {
    redisContext *c = redisConnectUnix(vk.socket);
    redisReply *r = redisCommand(c, "EVAL %s 0", "while true do end");
    _exit(r == NULL);
  }
  while (downs == 0) {
    COMMAND("SET", "k", "v");
    spin(20);
  }
  assert_false(valkey_up(v));
  DIRECT("SCRIPT", "KILL");
  reap(pid);
  until(l, ups, 2, 5000);
}

static void test_every_refusal_is_known(void **state) {
  (void)state;
  const char *yes[] = {"OOM command not allowed", "READONLY You can't write", "LOADING Redis is loading", "NOAUTH Authentication required.",
                       "BUSY Redis is busy", "MISCONF Errors writing", "NOREPLICAS Not enough", "CLUSTERDOWN Hash slot", "MOVED 1 h:1",
                       "ERR Error running script (call to f_x): @user_script:1: -OOM command not allowed when used memory > 'maxmemory'."};
  const char *no[] = {"WRONGTYPE Operation", "ERR unknown command", "NOSCRIPT No matching", "ERR Error running script: user_script:1: OOM!",
                      "OOMPH", "ERR value is not an integer"};
  for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) assert_true(valkey_reply_unavailable(yes[i], strlen(yes[i])));
  for (size_t i = 0; i < sizeof no / sizeof *no; i++) assert_false(valkey_reply_unavailable(no[i], strlen(no[i])));
}

static void test_passwords_and_databases(void **state) {
  (void)state;
  char url[300];
  DIRECT("SET", "here", "zero");
  DIRECT("CONFIG", "SET", "requirepass", "s3cret/@:%");
  log_lines("");
  valkey_free(v);
  open_url(vk.url, TIMEOUT_MS);
  until(l, downs, 1, 2000); /* NOAUTH */
  spin(400);
  assert_int_equal(downs, 1);
  assert_int_equal(log_lines("valkey_down"), 1);
  valkey_free(v);
  snprintf(url, sizeof url, "%s?password=wrong-s3cret", vk.url);
  open_url(url, TIMEOUT_MS);
  until(l, downs, 1, 2000); /* WRONGPASS */
  valkey_free(v);
  snprintf(url, sizeof url, "%s?db=3&user=default&password=s3cret%%2F%%40:%%25", vk.url);
  open_url(url, TIMEOUT_MS);
  until(l, ups, 1, 2000);
  COMMAND("GET", "here");
  COMMAND("CONFIG", "SET", "requirepass", "");
  until(l, answers, 2, 1000);
  expect("nil OK ");
  valkey_free(v);
  snprintf(url, sizeof url, "%s?db=9999", vk.url);
  open_url(url, TIMEOUT_MS);
  until(l, downs, 1, 2000);
  log_lines("");
}

static void test_an_absent_server_is_fine(void **state) {
  (void)state;
  valkey_free(v);
  log_lines("");
  open_url("redis://127.0.0.1:1/0", TIMEOUT_MS);
  COMMAND("PING");
  until(l, answers, 1, 1000);
  expect("NULL ");
  spin(500);
  assert_int_equal(log_lines("valkey_down"), 1);
  assert_true(valkey_stats(v).probes >= 2);
  valkey_free(v);
  open_url("unix:///nonexistent/socket", TIMEOUT_MS);
  until(l, downs, 1, 1000);
}

static void test_urls(void **state) {
  (void)state;
  struct valkey_url u;
  struct err e = ERR_INIT;
  assert_int_equal(valkey_url_parse("redis://us%40er:p%3a@h.example:7000/5", &u, &e), 0);
  assert_string_equal(u.host, "h.example");
  assert_string_equal(u.user, "us@er");
  assert_string_equal(u.password, "p:");
  assert_int_equal(u.port, 7000);
  assert_int_equal(u.db, 5);
  assert_string_equal(u.shown, "redis://h.example:7000/5");
  valkey_url_fini(&u);
  assert_int_equal(valkey_url_parse("valkey://:p/w@[::1]", &u, &e), 0);
  assert_string_equal(u.host, "::1");
  assert_string_equal(u.password, "p/w");
  assert_null(u.user);
  assert_int_equal(u.port, 6379);
  valkey_url_fini(&u);
  assert_int_equal(valkey_url_parse("redis://", &u, &e), 0);
  assert_string_equal(u.host, "127.0.0.1");
  valkey_url_fini(&u);
  const char *bad[] = {"", "h:1", "rediss://h", "http://h", "redis://h:0", "redis://h:65536", "redis://h:x", "redis://h/x", "redis://[::1",
                       "redis://:s3cret%zz@h", "redis://:s3cret%00@h", "unix://relative", "unix:///p?db=x", "unix:///p?s3cret=x", "unix:///p?db",
                       "redis://user@h", "redis://:s3cret%2"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    err_clear(&e);
    assert_null(valkey_new(l, bad[i], TIMEOUT_MS, "x", &e));
    assert_int_equal(e.class, ERR_INPUT);
    assert_string_equal(e.code, "bad_valkey_url");
    assert_null(strstr(e.message, "s3cret"));
  }
}

static void free_inside(void *arg, const struct valkey_reply *r) {
  note(arg, r);
  valkey_free(v);
  v = NULL;
}

static void test_free_answers_everything_once(void **state) {
  (void)state;
  COMMAND("PING");
  valkey_command(v, 1, (const char *[]){"PING"}, NULL, free_inside, "");
  COMMAND("PING");
  until(l, answers, 3, 1000);
  assert_memory_equal(buf_cstr(&trace), "PONG PONG ", 10);
  open_url(vk.url, TIMEOUT_MS); /* while connecting */
  COMMAND("PING");
  loop_step(l, 0);
  valkey_free(v);
  v = NULL;
  loop_step(l, 0);
  assert_int_equal(nulls, answers);
}

/* NULL does not mean "not done": the command runs when the server goes on, its reply reaches nobody (A03). */
static void test_A03_a_lost_reply(void **state) {
  (void)state;
  kill(vk.pid, SIGSTOP);
  COMMAND("SET", "k", "mine", "NX");
  until(l, answers, 1, 1000);
  expect("NULL ");
  kill(vk.pid, SIGCONT);
  until(l, ups, 2, 5000);
  COMMAND("SET", "k", "mine", "NX");
  COMMAND("GET", "k");
  until(l, answers, 2, 1000);
  expect("nil mine ");
}

/* The connection is cut while a command is under way, through a proxy. */
static void test_a_cut_connection(void **state) {
  (void)state;
  struct proxy proxy;
  char path[200], url[300];
  snprintf(path, sizeof path, "%s/proxy", vk.dir);
  snprintf(url, sizeof url, "unix://%s", path);
  proxy_start(&proxy, path, vk.socket);
  valkey_free(v);
  open_url(url, 2000);
  until(l, ups, 1, 2000);
  kill(proxy.pid, SIGSTOP);
  COMMAND("PING");
  loop_step(l, 0);
  proxy_stop(&proxy);
  until(l, answers, 1, 1000);
  expect("NULL ");
  proxy_start(&proxy, path, vk.socket);
  until(l, ups, 2, 5000);
  COMMAND("PING");
  until(l, answers, 1, 1000);
  expect("PONG ");
  proxy_stop(&proxy);
}

static void test_over_tcp(void **state) {
  (void)state;
  struct server tcp = {0};
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  char port[16], url[64];
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
  close(fd);
  snprintf(port, sizeof port, "%d", ntohs(a.sin_port));
  snprintf(url, sizeof url, "redis://:pw@127.0.0.1:%s/2", port);
  valkey_free(v);
  open_url(url, TIMEOUT_MS);
  until(l, downs, 1, 1000);
  valkey_start(&tcp, (const char *const[]){"--port", port, "--bind", "127.0.0.1", "--requirepass", "pw", NULL});
  until(l, ups, 1, 5000);
  for (int i = 0; i < 100; i++) COMMAND("SET", "k", "v");
  until(l, answers, 100, 1000);
  assert_int_equal(nulls, 0);
  kill(tcp.pid, SIGSTOP);
  COMMAND("GET", "k");
  until(l, nulls, 1, 1000);
  kill(tcp.pid, SIGCONT);
  until(l, ups, 2, 5000);
  valkey_stop(&tcp);
  nservers--; /* tcp is gone with this frame */
  until(l, downs, 3, 1000);
}

static int start(void **state) {
  (void)state;
  if (pipe2(log_fd, O_NONBLOCK | O_CLOEXEC) != 0) return -1;
  log_init(LOG_INFO_, LOG_LOGFMT, log_fd[1]);
  valkey_start(&vk, NULL);
  return 0;
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_replies_of_every_type_in_order),
    T(test_a_reply_of_a_megabyte),
    T(test_many_in_one_tick),
    T(test_scripts_survive_a_flush),
    T(test_A04_a_hung_server),
    T(test_a_long_tick_is_not_a_missed_deadline),
    T(test_a_restart),
    T(test_an_idle_connection_that_is_killed),
    T(test_A09_servers_that_refuse),
    T(test_A09_inside_a_script),
    T(test_A09_a_script_that_holds_the_server),
    T(test_every_refusal_is_known),
    T(test_passwords_and_databases),
    T(test_an_absent_server_is_fine),
    T(test_urls),
    T(test_free_answers_everything_once),
    T(test_A03_a_lost_reply),
    T(test_a_cut_connection),
    T(test_over_tcp),
  };
  return cmocka_run_group_tests_name("valkey", tests, start, NULL);
}
