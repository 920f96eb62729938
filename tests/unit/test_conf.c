#include "cm.h"

#include "base/conf.h"

#include <stdio.h>
#include <stdlib.h>

extern char **environ;

static void expect_refused(const char *name, const char *text, const char *code, const char *message) {
  struct conf c;
  struct err e = ERR_INIT;
  conf_init(&c);
  if (conf_set(&c, name, text, "umavez.lua", &e) != -1) fail_msg("accepted: %s = %s", name, text);
  assert_int_equal(e.class, ERR_INPUT);
  assert_string_equal(e.code, code);
  assert_string_equal(e.message, message);
  const struct conf_option *o = conf_find(name);
  if (o != NULL) assert_string_equal(conf_source(&c, o), "default");
  conf_fini(&c);
}

static void set(struct conf *c, const char *name, const char *text) {
  struct err e = ERR_INIT;
  if (conf_set(c, name, text, "--flag", &e) != 0) fail_msg("%s", e.message);
}

static void defaults(void **state) {
  struct conf c;
  conf_init(&c);
  assert_string_equal(c.database_url, "");
  assert_string_equal(c.valkey_url, "");
  assert_string_equal(c.tenants_table, "public.tenants");
  assert_string_equal(c.tasks_dir, "tasks");
  assert_int_equal(c.queues.n, 0);
  assert_int_equal(c.pool_size, 16);
  assert_int_equal(c.poll_interval_ms, 1000);
  assert_int_equal(c.replay_cache_ms, 3600000);
  assert_int_equal(c.gate_timeout_ms, 100);
  assert_true(c.prepare);
  assert_int_equal(c.log_level, 1);
  assert_int_equal(c.log_format, 0);
  conf_fini(&c);
}

static void every_type_is_set(void **state) {
  struct conf c;
  conf_init(&c);
  set(&c, "database_url", "postgresql://u@h/db");
  set(&c, "database-url", "postgresql://u@h/other");
  assert_string_equal(c.database_url, "postgresql://u@h/other");
  set(&c, "pool-size", "1000");
  assert_int_equal(c.pool_size, 1000);
  set(&c, "drain_timeout", "0s");
  assert_int_equal(c.drain_timeout_ms, 0);
  set(&c, "prepare", "off");
  assert_false(c.prepare);
  set(&c, "prepare", "1");
  assert_true(c.prepare);
  set(&c, "log_level", "error");
  assert_int_equal(c.log_level, 3);
  set(&c, "log_format", "json");
  assert_int_equal(c.log_format, 1);
  set(&c, "queues", " payments , default,x");
  assert_int_equal(c.queues.n, 3);
  assert_string_equal(c.queues.items[0], "payments");
  assert_string_equal(c.queues.items[1], "default");
  assert_string_equal(c.queues.items[2], "x");
  set(&c, "queues", "  ");
  assert_int_equal(c.queues.n, 0);
  assert_string_equal(conf_source(&c, conf_find("queues")), "--flag");
  assert_string_equal(conf_source(&c, conf_find("lease")), "default");
  conf_fini(&c);
}

static void an_unknown_name_gets_the_nearest(void **state) {
  static const char *const rows[][2] = {
      {"pol_size", "pool_size"},       {"poolsize", "pool_size"},       {"pool_sizes", "pool_size"}, {"POOL_SIZE", "pool_size"},
      {"databse_url", "database_url"}, {"drain-timeuot", "drain_timeout"}, {"log_levle", "log_level"},  {"quues", "queues"},
      {"leas", "lease"},               {"valkey", "valkey_url"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    char message[200];
    snprintf(message, sizeof message, "umavez.lua: unknown option %s; did you mean %s?", rows[i][0], rows[i][1]);
    expect_refused(rows[i][0], "1", "unknown_option", message);
  }
  expect_refused("frobnicate", "1", "unknown_option", "umavez.lua: unknown option frobnicate");
  expect_refused("", "1", "unknown_option", "umavez.lua: unknown option ");
}

static void bad_values_name_place_option_and_expectation(void **state) {
  expect_refused("pool_size", "0", "bad_option", "umavez.lua: pool_size: expected an integer from 1 to 1000, found \"0\"");
  expect_refused("pool_size", "1001", "bad_option", "umavez.lua: pool_size: expected an integer from 1 to 1000, found \"1001\"");
  expect_refused("pool_size", "", "bad_option", "umavez.lua: pool_size: expected an integer from 1 to 1000, found \"\"");
  expect_refused("pool_size", " 5", "bad_option", "umavez.lua: pool_size: expected an integer from 1 to 1000, found \" 5\"");
  expect_refused("pool_size", "5x", "bad_option", "umavez.lua: pool_size: expected an integer from 1 to 1000, found \"5x\"");
  expect_refused("pool_size", "99999999999999999999", "bad_option",
                 "umavez.lua: pool_size: expected an integer from 1 to 1000, found \"99999999999999999999\"");
  expect_refused("lease", "999ms", "bad_option", "umavez.lua: lease: expected a duration from 1s to 1d, found \"999ms\"");
  expect_refused("lease", "30", "duration",
                 "umavez.lua: lease: \"30\" is no duration: the unit is missing (ms, s, m, h or d)");
  expect_refused("prepare", "maybe", "bad_option", "umavez.lua: prepare: expected true or false, found \"maybe\"");
  expect_refused("log_level", "inf", "bad_option",
                 "umavez.lua: log_level: expected one of debug|info|warn|error, found \"inf\"");
  expect_refused("queues", "a,,b", "bad_option",
                 "umavez.lua: queues: expected names parted by commas, none of them empty, found \"a,,b\"");
  expect_refused("queues", "a,b:0", "bad_option",
                 "umavez.lua: queues: expected names of queues parted by commas, each perhaps with a weight from 1 to 1000 "
                 "(payments:6,mail:3,default), found \"b:0\"");
  expect_refused("queues", "a:1001", "bad_option",
                 "umavez.lua: queues: expected names of queues parted by commas, each perhaps with a weight from 1 to 1000 "
                 "(payments:6,mail:3,default), found \"a:1001\"");
  expect_refused("queues", ":3", "bad_option",
                 "umavez.lua: queues: expected names of queues parted by commas, each perhaps with a weight from 1 to 1000 "
                 "(payments:6,mail:3,default), found \":3\"");
  expect_refused("queues", "a:x", "bad_option",
                 "umavez.lua: queues: expected names of queues parted by commas, each perhaps with a weight from 1 to 1000 "
                 "(payments:6,mail:3,default), found \"a:x\"");
  expect_refused("queues", "a,", "bad_option",
                 "umavez.lua: queues: expected names parted by commas, none of them empty, found \"a,\"");
  expect_refused("tenants_table", "public.tenants; DROP TABLE x", "bad_option",
                 "umavez.lua: tenants_table: expected a table's name like public.tenants (lower-case letters, digits and '_'),"
                 " found \"public.tenants; DROP TABLE x\"");
  expect_refused("valkey_prefix", "a{b}", "bad_option",
                 "umavez.lua: valkey_prefix: expected 1 to 64 letters, digits, '_', '-', '.' or ':', found \"a{b}\"");
}

static void table_names(void **state) {
  struct conf c;
  conf_init(&c);
  set(&c, "tenants_table", "tenants");
  set(&c, "tenants_table", "app_1.t2");
  struct err e = ERR_INIT;
  static const char *const bad[] = {"", ".", "a.", ".a", "a.b.c", "1a", "A", "a b", "a-b", "\"a\"", "a..b"};
  for (size_t i = 0; i < COUNT(bad); i++) assert_int_equal(conf_set(&c, "tenants_table", bad[i], "x", &e), -1);
  assert_string_equal(c.tenants_table, "app_1.t2");
  conf_fini(&c);
}

static void J08_a_bad_url_is_not_repeated(void **state) {
  expect_refused("valkey_url", "http://:tok_SECRET@h", "bad_option",
                 "umavez.lua: valkey_url: expected redis://host:port/db, unix:///path, or nothing");
}

/* ---- the environment ---- */

static void with_environment(char **variables, int result, const char *message, struct conf *c) {
  char **before = environ;
  struct err e = ERR_INIT;
  environ = variables;
  int got = conf_load_env(c, &e);
  environ = before;
  if (got != result) fail_msg("%s", e.message);
  if (message != NULL) assert_string_equal(e.message, message);
}

static void the_environment_overrides(void **state) {
  struct conf c;
  conf_init(&c);
  set(&c, "pool_size", "3");
  set(&c, "tasks_dir", "here");
  with_environment((char *[]){"PATH=/bin", "DATABASE_URL=postgresql://h/db", "VALKEY_URL=", "UMAVEZ_POOL_SIZE=7", "UMAVEZ_TASKS_DIR=",
                              "UMAVEZ_LEASE=5s", "UMAVEZ_CONFIG=x", "UMAVEZ_TEST_ANYTHING=x", "UMAVEZ_LONG=1", "UMAVEZ=1", NULL},
                   0, NULL, &c);
  assert_string_equal(c.database_url, "postgresql://h/db");
  assert_int_equal(c.pool_size, 7);
  assert_string_equal(c.tasks_dir, "here");
  assert_int_equal(c.lease_ms, 5000);
  assert_string_equal(conf_source(&c, conf_find("pool_size")), "environment variable UMAVEZ_POOL_SIZE");
  with_environment((char *[]){"DATABASE_URL=a=b", "UMAVEZ_DATABASE_URL=c=d", NULL}, 0, NULL, &c);
  assert_string_equal(c.database_url, "c=d");
  conf_fini(&c);
}

static void an_unknown_variable_is_an_error(void **state) {
  struct conf c;
  conf_init(&c);
  with_environment((char *[]){"UMAVEZ_POOLSIZE=7", NULL}, -1,
                   "environment: unknown variable UMAVEZ_POOLSIZE; did you mean UMAVEZ_POOL_SIZE?", &c);
  with_environment((char *[]){"UMAVEZ_DATABASEURL=x", NULL}, -1,
                   "environment: unknown variable UMAVEZ_DATABASEURL; did you mean DATABASE_URL?", &c);
  with_environment((char *[]){"UMAVEZ_FROBNICATE=7", NULL}, -1, "environment: unknown variable UMAVEZ_FROBNICATE", &c);
  with_environment((char *[]){"UMAVEZ_LEASE=x", NULL}, -1,
                   "environment variable UMAVEZ_LEASE: lease: \"x\" is no duration: write number and unit, like 500ms, "
                   "30s, 10m, 24h or 7d",
                   &c);
  conf_fini(&c);
}

/* ---- the table ---- */

static int check_row(const struct conf_option *o, void *arg) {
  struct conf *c = arg;
  struct buf text = BUF_INIT, again = BUF_INIT;
  assert_ptr_equal(conf_find(o->name), o);
  assert_non_null(o->env);
  assert_true(strlen(o->doc) > 10);
  assert_non_null(conf_type_name(o->type));
  /* What conf_get shows can be set. */
  conf_get(c, o, &text);
  set(c, o->name, buf_cstr(&text));
  conf_get(c, o, &again);
  assert_string_equal(buf_cstr(&text), buf_cstr(&again));
  buf_fini(&text);
  buf_fini(&again);
  return 0;
}

static int stop_at_third(const struct conf_option *o, void *arg) { return ++*(int *)arg == 3 ? 33 : 0; }

static void every_row_is_whole(void **state) {
  struct conf c;
  conf_init(&c);
  assert_int_equal(conf_each(check_row, &c), 0);
  set(&c, "queues", "a,b");
  struct buf text = BUF_INIT;
  conf_get(&c, conf_find("queues"), &text);
  assert_string_equal(text.data, "a,b");
  buf_fini(&text);
  int calls = 0;
  assert_int_equal(conf_each(stop_at_third, &calls), 33);
  conf_fini(&c);
}

static void J08_urls_are_redacted(void **state) {
  static const char *const rows[][2] = {
      {"postgresql://app:tok_SECRET@h:5432/db?sslmode=require", "postgresql://app:***@h:5432/db?sslmode=require"},
      {"postgresql://app:a@b:tok_SECRET@h/db", "postgresql://app:***@h/db"},
      {"postgresql://app@h/db?password=tok_SECRET&x=y", "postgresql://app@h/db?password=***&x=y"},
      {"postgresql://h:5432/db", "postgresql://h:5432/db"},
      {"postgresql:///db?host=/run/x@y:z", "postgresql:///db?host=/run/x@y:z"},
      {"redis://:tok_SECRET@h:6379/0", "redis://:***@h:6379/0"},
      {"host=h password=tok_SECRET dbname=d", "host=h password=*** dbname=d"},
      {"password = 'tok \\' SECRET' user=u sslpassword=tok_SECRET", "password = *** user=u sslpassword=***"},
      {"PASSWORD='tok_SECRET", "PASSWORD=***"},
      {"host=h", "host=h"},
      {"", ""},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    struct buf b = BUF_INIT;
    conf_redact_url(rows[i][0], &b);
    assert_string_equal(buf_cstr(&b), rows[i][1]);
    buf_fini(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults),
      cmocka_unit_test(every_type_is_set),
      cmocka_unit_test(an_unknown_name_gets_the_nearest),
      cmocka_unit_test(bad_values_name_place_option_and_expectation),
      cmocka_unit_test(table_names),
      cmocka_unit_test(J08_a_bad_url_is_not_repeated),
      cmocka_unit_test(the_environment_overrides),
      cmocka_unit_test(an_unknown_variable_is_an_error),
      cmocka_unit_test(every_row_is_whole),
      cmocka_unit_test(J08_urls_are_redacted),
  };
  return RUN(tests);
}
