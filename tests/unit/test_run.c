/* The states and moves of a run: docs/state-machine.md says what the code does, and an illegal move is a bug. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "core/run.h"

static char *read_page(void) {
  FILE *f = fopen("docs/state-machine.md", "r");
  struct buf b;
  char chunk[4096];
  size_t n;

  assert_non_null(f);
  buf_init(&b);
  while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) buf_append(&b, chunk, n);
  fclose(f);
  return buf_take(&b);
}

static int count(const char *text, const char *what) {
  int n = 0;

  for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
  return n;
}

static void test_docs_follow_the_tables(void **state) {
  char *page = read_page(), line[512];
  int rows = 0;

  for (int s = 0; s < RUN_STATE_COUNT; s++) {
    snprintf(line, sizeof line, "| %s | %s |\n", run_state_name(s), run_state_meaning(s));
    if (!strstr(page, line)) fail_msg("docs/state-machine.md lacks: %s", line);
    rows++;
    for (int t = 0; t < RUN_STATE_COUNT; t++) {
      if (!run_move_reason(s, t)) continue;
      snprintf(line, sizeof line, "| %s | %s | %s |\n", run_state_name(s), run_state_name(t), run_move_reason(s, t));
      if (!strstr(page, line)) fail_msg("docs/state-machine.md lacks: %s", line);
      rows++;
    }
  }
  assert_int_equal(count(page, "\n| "), rows + 2);
  free(page);
}

static void test_every_state_is_reached_and_left(void **state) {
  for (int s = 0; s < RUN_STATE_COUNT; s++) {
    int in = 0, out = 0;
    for (int t = 0; t < RUN_STATE_COUNT; t++) {
      in += run_move_reason(t, s) != NULL;
      out += run_move_reason(s, t) != NULL;
    }
    assert_true(in > 0 || s == RUN_TAKEN);
    assert_true(out > 0 || s == RUN_DONE);
  }
  for (int t = 0; t < RUN_STATE_COUNT; t++) assert_null(run_move_reason(RUN_DONE, t));
}

/* G2: the handler is entered from a claim only. */
static void test_handler_is_entered_from_a_claim_only(void **state) {
  for (int s = 0; s < RUN_STATE_COUNT; s++)
    assert_int_equal(run_move_reason(s, RUN_HANDLER) != NULL, s == RUN_CLAIM || s == RUN_TURN);
  for (int s = 0; s < RUN_STATE_COUNT; s++)
    assert_int_equal(run_move_reason(s, RUN_TURN) != NULL, s == RUN_CLAIM);
}

static void test_illegal_move_aborts(void **state) {
  int status;
  pid_t child = fork();

  if (child == 0) {
    struct run *r = run_new("6b1d1d2e-9d3f-4f0e-8f0a-2f6d1c1b0a99", "t.one", "{}", 2);
    freopen("/dev/null", "w", stderr);
    run_set_state(r, RUN_HANDLER);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void test_backoff_grows_jitters_and_is_capped(void **state) {
  struct task *t = task_new("t.backoff");
  struct err e = {0};
  int64_t wait;

  t->retry_base_ms = 100;
  t->retry_cap_ms = 1000;
  assert_int_equal(task_register(t, &e), 0);
  for (int i = 0; i < 200; i++) {
    wait = task_backoff_ms(t, 1);
    assert_in_range(wait, 80, 120);
    wait = task_backoff_ms(t, 3);
    assert_in_range(wait, 320, 480);
    wait = task_backoff_ms(t, 60);
    assert_in_range(wait, 800, 1000);
  }
  /* jitter at the cap, too: it was clipped away there */
  bool below = false;
  for (int i = 0; i < 200; i++) below |= task_backoff_ms(t, 60) < 1000;
  assert_true(below);
  task_forget_all();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_docs_follow_the_tables),
      cmocka_unit_test(test_every_state_is_reached_and_left),
      cmocka_unit_test(test_handler_is_entered_from_a_claim_only),
      cmocka_unit_test(test_illegal_move_aborts),
      cmocka_unit_test(test_backoff_grows_jitters_and_is_capped),
  };
  return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
