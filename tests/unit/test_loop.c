#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/buf.h"
#include "io/backoff.h"
#include "io/loop.h"

static struct loop *l;
static struct buf trace;

static int setup(void **state) {
  (void)state;
  l = loop_new();
  buf_init(&trace);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  loop_free(l);
  buf_fini(&trace);
  return 0;
}

static void note(void *arg) { buf_puts(&trace, arg); }

static void note_and_stop(void *arg) {
  note(arg);
  loop_stop(l);
}

static void test_timers_fire_in_order_and_never_early(void **state) {
  (void)state;
  struct loop_timer t[5];
  const char *names[] = {"c", "a", "b", "x", "d"};
  int after[] = {20, 0, 10, 15, 30};
  int64_t begin = loop_now_ms(l);
  for (int i = 0; i < 5; i++) {
    loop_timer_init(&t[i], i == 4 ? note_and_stop : note, (void *)names[i]);
    loop_timer_start(l, &t[i], after[i]);
  }
  loop_timer_stop(&t[3]);
  loop_timer_stop(&t[3]);
  assert_false(loop_timer_active(&t[3]));
  loop_run(l);
  assert_string_equal(buf_cstr(&trace), "abcd");
  assert_true(loop_now_ms(l) - begin >= 30);
}

static void test_many_timers_keep_the_heap(void **state) {
  (void)state;
  enum { N = 500 };
  static struct loop_timer t[N];
  srand(7);
  for (int i = 0; i < N; i++) {
    loop_timer_init(&t[i], note, "t");
    loop_timer_start(l, &t[i], rand() % 20);
  }
  for (int i = 0; i < N; i += 3) loop_timer_stop(&t[i]);
  for (int i = 1; i < N; i += 3) loop_timer_start(l, &t[i], rand() % 20);
  loop_run(l); /* ends by itself: nothing is left */
  assert_int_equal(trace.len, N - (N + 2) / 3);
}

static struct loop_task task_a, task_b, task_c;

static void defer_more(void *arg) {
  note(arg);
  loop_defer(l, &task_c);
  loop_defer(l, &task_c);
  loop_task_cancel(&task_b);
}

static void free_note(void *p) {
  note(p);
  free(p);
}

static void test_tasks_run_once_in_order_before_the_frees(void **state) {
  (void)state;
  loop_task_init(&task_a, defer_more, "a");
  loop_task_init(&task_b, note, "b");
  loop_task_init(&task_c, note, "c");
  loop_free_later(l, free_note, xstrdup("f"));
  loop_defer(l, &task_a);
  loop_defer(l, &task_b);
  loop_defer(l, &task_a);
  assert_true(loop_task_pending(&task_b));
  loop_step(l, 1000);
  assert_string_equal(buf_cstr(&trace), "acf");
}

static void defer_self(void *arg) {
  note(arg);
  loop_defer(l, &task_a);
}

static void test_a_chain_of_tasks_does_not_starve_the_rest(void **state) {
  (void)state;
  struct loop_timer t;
  loop_task_init(&task_a, defer_self, ".");
  loop_timer_init(&t, note_and_stop, "T");
  loop_defer(l, &task_a);
  loop_timer_start(l, &t, 5);
  loop_run(l);
  loop_task_cancel(&task_a);
  assert_non_null(strchr(buf_cstr(&trace), 'T'));
}

static int fds[2];

static void on_readable(void *arg, int events) {
  char c;
  assert_int_equal(events, LOOP_READ);
  assert_int_equal(read(fds[0], &c, 1), 1);
  note(arg);
}

/* An answer that has arrived is read before its deadline is judged, however long the tick before took. */
static void test_descriptors_come_before_timers(void **state) {
  (void)state;
  struct loop_io io;
  struct loop_timer t;
  assert_int_equal(pipe(fds), 0);
  loop_io_init(&io, on_readable, "io ");
  loop_timer_init(&t, note, "timer ");
  loop_io_start(l, &io, fds[0], LOOP_READ);
  loop_timer_start(l, &t, 1);
  assert_int_equal(write(fds[1], "x", 1), 1);
  usleep(10000); /* the busy tick */
  loop_step(l, 1000);
  assert_string_equal(buf_cstr(&trace), "io timer ");
  loop_io_stop(&io);
  loop_io_stop(&io);
  close(fds[0]);
  close(fds[1]);
}

/* A timer counts from the present, not from the time at which a long tick began. */
static void test_a_long_tick_does_not_shorten_a_timer(void **state) {
  (void)state;
  struct loop_timer t;
  loop_step(l, 0);
  usleep(50000);
  loop_timer_init(&t, note, "t");
  loop_timer_start(l, &t, 40);
  loop_step(l, 0);
  assert_int_equal(trace.len, 0);
  loop_run(l);
  assert_int_equal(trace.len, 1);
}

static void test_signals_arrive_in_the_tick(void **state) {
  (void)state;
  struct loop_signal s;
  loop_signal_init(&s, note_and_stop, "s");
  loop_signal_start(l, &s, SIGUSR1);
  raise(SIGUSR1);
  loop_run(l);
  assert_string_equal(buf_cstr(&trace), "s");
  loop_signal_stop(&s);
}

static void test_stop_before_run_holds(void **state) {
  (void)state;
  struct loop_timer t;
  loop_timer_init(&t, note, "t");
  loop_timer_start(l, &t, 10000);
  loop_stop(l);
  loop_run(l);
  loop_timer_stop(&t);
  assert_int_equal(trace.len, 0);
}

static void test_loop_free_runs_a_last_safe_point(void **state) {
  (void)state;
  struct loop *other = loop_new();
  struct loop_task t;
  loop_task_init(&t, note, "t");
  loop_defer(other, &t);
  loop_free_later(other, free_note, xstrdup("f"));
  loop_free(other);
  assert_string_equal(buf_cstr(&trace), "tf");
}

static void test_backoff_doubles_to_its_cap_with_jitter(void **state) {
  (void)state;
  struct backoff b = BACKOFF_INIT(100, 1000);
  int64_t steps[] = {100, 200, 400, 800, 1000, 1000};
  for (int i = 0; i < 6; i++) {
    int64_t d = backoff_next_ms(&b);
    assert_in_range(d, steps[i] / 2, steps[i]);
  }
  backoff_reset(&b);
  assert_in_range(backoff_next_ms(&b), 50, 100);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_timers_fire_in_order_and_never_early),
    T(test_many_timers_keep_the_heap),
    T(test_tasks_run_once_in_order_before_the_frees),
    T(test_a_chain_of_tasks_does_not_starve_the_rest),
    T(test_descriptors_come_before_timers),
    T(test_a_long_tick_does_not_shorten_a_timer),
    T(test_signals_arrive_in_the_tick),
    T(test_stop_before_run_holds),
    T(test_loop_free_runs_a_last_safe_point),
    T(test_backoff_doubles_to_its_cap_with_jitter),
  };
  return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
