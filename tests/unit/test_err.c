#include "cm.h"

#include "base/err.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void set_fills_and_returns_minus_one(void **state) {
  struct err e = {.class = ERR_SQL, .sqlstate = "23505", .constraint = "c", .detail = "d"};
  assert_int_equal(err_set(&e, ERR_ENV, "connection_lost", "host %s, port %d", "h", 5432), -1);
  assert_int_equal(e.class, ERR_ENV);
  assert_string_equal(e.code, "connection_lost");
  assert_string_equal(e.message, "host h, port 5432");
  assert_string_equal(e.sqlstate, "");
  assert_string_equal(e.constraint, "");
  assert_string_equal(e.detail, "");
}

static void set_takes_no_error_value(void **state) { assert_int_equal(err_set(NULL, ERR_INPUT, "x", "y"), -1); }

static void set_may_read_the_error_it_writes(void **state) {
  struct err e = ERR_INIT;
  err_set(&e, ERR_INPUT, "first", "inner");
  err_set(&e, ERR_INPUT, e.code, "outer: %s", e.message);
  assert_string_equal(e.code, "first");
  assert_string_equal(e.message, "outer: inner");
}

static void long_messages_are_cut_at_a_character(void **state) {
  struct err e = ERR_INIT;
  char text[2000];
  for (size_t shift = 0; shift < 4; shift++) {
    memset(text, 'x', sizeof text);
    for (size_t i = shift; i + 4 < sizeof text; i += 4) memcpy(text + i, "\xF0\x9F\x98\x80", 4);
    text[sizeof text - 1] = '\0';
    err_set(&e, ERR_INPUT, "long", "%s", text);
    size_t n = strlen(e.message);
    assert_in_range(n, sizeof e.message - 4, sizeof e.message - 1);
    assert_int_equal((n - shift) % 4, 0);
  }
}

static void prefix_keeps_class_and_code(void **state) {
  struct err e = ERR_INIT;
  assert_int_equal(err_prefix(&e, "nothing"), -1);
  assert_false(err_is_set(&e));
  err_set(&e, ERR_TIMEOUT, "timeout", "no answer");
  strcpy(e.sqlstate, "57014");
  err_prefix(&e, "task %s", "t.one");
  assert_string_equal(e.message, "task t.one: no answer");
  assert_string_equal(e.sqlstate, "57014");
  assert_int_equal(e.class, ERR_TIMEOUT);
}

static void clear_and_is_set(void **state) {
  struct err e = ERR_INIT;
  assert_false(err_is_set(NULL));
  assert_false(err_is_set(&e));
  err_set(&e, ERR_CANCELLED, "c", "m");
  assert_true(err_is_set(&e));
  err_clear(&e);
  err_clear(NULL);
  assert_false(err_is_set(&e));
}

static void classes_have_names(void **state) {
  assert_string_equal(err_class_name(ERR_NONE), "none");
  assert_string_equal(err_class_name(ERR_INPUT), "input");
  assert_string_equal(err_class_name(ERR_CANCELLED), "cancelled");
}

static void copy_text_fits(void **state) {
  char dst[6];
  assert_int_equal(err_copy_text(dst, sizeof dst, "hello"), 5);
  assert_string_equal(dst, "hello");
  assert_int_equal(err_copy_text(dst, sizeof dst, "hell\xC3\xA9"), 4);
  assert_string_equal(dst, "hell");
  assert_int_equal(err_copy_text(dst, 1, "x"), 0);
  assert_string_equal(dst, "");
}

static int status_of(void (*fn)(void)) {
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    signal(SIGABRT, SIG_DFL);
    if (freopen("/dev/null", "w", stderr) == NULL) _exit(99);
    fn();
    _exit(98);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return status;
}

static void call_bug(void) { bug("of mine: %d", 1); }
static void call_die(void) { die("of the start: %s", "x"); }

static void bug_aborts_and_die_exits(void **state) {
  int status = status_of(call_bug);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  status = status_of(call_die);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

static void allocators(void **state) {
  char *p = xmalloc(0);
  assert_non_null(p);
  p = xrealloc(p, 10);
  p = xrealloc(p, 0);
  free(p);
  p = xcalloc(3, 4);
  for (int i = 0; i < 12; i++) assert_int_equal(p[i], 0);
  free(p);
  free(xcalloc(0, 8));
  p = xstrndup("ab\0cd", 5);
  assert_memory_equal(p, "ab\0cd", 6);
  free(p);
  p = xasprintf("%s-%d", "a", 7);
  assert_string_equal(p, "a-7");
  free(p);
  free(xmemdup(NULL, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(set_fills_and_returns_minus_one),  cmocka_unit_test(set_takes_no_error_value),
      cmocka_unit_test(set_may_read_the_error_it_writes), cmocka_unit_test(long_messages_are_cut_at_a_character),
      cmocka_unit_test(prefix_keeps_class_and_code),      cmocka_unit_test(clear_and_is_set),
      cmocka_unit_test(classes_have_names),               cmocka_unit_test(copy_text_fits),
      cmocka_unit_test(bug_aborts_and_die_exits),         cmocka_unit_test(allocators),
  };
  return RUN(tests);
}
