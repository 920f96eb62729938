/* The shared slots: between two processes, and what is left when the writer dies half-way. */
#include "cm.h"

#include "base/slots.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct slots *make(int count) {
  struct err e = ERR_INIT;
  struct slots *s = slots_new(count, &e);
  if (!s) fail_msg("%s", e.message);
  return s;
}

static struct slot_run a_run(const char *task, int64_t since) {
  struct slot_run run = {.run_id = "0123-run", .has_tenant = true, .tenant_id = 7, .since_ms = since, .deadline_ms = 99};
  err_copy_text(run.task, sizeof run.task, task);
  return run;
}

static void slots_are_reserved_and_released(void **state) {
  struct slots *s = make(3);
  assert_int_equal(slots_count(s), 3);
  for (int i = 0; i < 3; i++) assert_int_equal(slot_reserve(s, 5, false, 1000 + i), i);
  assert_int_equal(slot_reserve(s, 5, false, 1), -1);
  assert_int_equal(slot_state(slots_at(s, 1)), SLOT_STARTING);
  assert_int_equal(slots_at(s, 1)->generation, 5);
  assert_int_equal(slots_at(s, 1)->reserved_ms, 1001);
  slot_counts(slots_at(s, 1), 4, 5, 6);
  slot_release(s, 1);
  assert_int_equal(slot_state(slots_at(s, 1)), SLOT_EMPTY);
  assert_int_equal(slot_reserve(s, 6, false, 2), 1);
  assert_int_equal(slots_at(s, 1)->in_flight, 0); /* wiped */
  assert_false(slot_alone(slots_at(s, 1)));
  slot_release(s, 1);
  assert_int_equal(slot_reserve(s, 7, true, 3), 1);
  assert_true(slot_alone(slots_at(s, 1)));
  assert_true(slot_alone(NULL));
  slots_free(s);
}

static void a_child_is_seen(void **state) {
  struct slots *s = make(2);
  int i = slot_reserve(s, 1, false, 10), status;
  char id[37], trace[SLOT_TRACEBACK_MAX + 1];
  struct slot_settings settings;
  struct slot_run run;
  assert_false(slot_told(slots_at(s, i), id, &settings));
  assert_false(slot_current_run(slots_at(s, i), &run));
  assert_false(slot_traceback(slots_at(s, i), trace));

  pid_t pid = fork();
  if (pid == 0) {
    struct err e = ERR_INIT;
    struct slots *mine = slots_attach(dup(slots_fd(s)), &e);
    struct slot *slot = mine ? slot_open(mine, i, &e) : NULL;
    if (!slot) _exit(1);
    slot_tell(slot, "a-worker", &(struct slot_settings){.workers = 4, .http_listen = "127.0.0.1:80"});
    slot_busy(slot, 1234);
    slot_idle(slot);
    slot_busy(slot, 1235);
    slot_counts(slot, 3, 70, 4096);
    slot_ready(slot);
    run = a_run("payments.pix", 1236);
    slot_enter_run(slot, &run);
    slot_write_traceback(slot, "stack\n", 6);
    kill(getpid(), SIGKILL);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFSIGNALED(status));
  const struct slot *slot = slots_at(s, i);
  assert_int_equal(slot->pid, pid);
  assert_string_equal(slot_state_name(slot_state(slot)), "ready");
  assert_true(slot_told(slot, id, &settings));
  assert_string_equal(id, "a-worker");
  assert_int_equal(settings.workers, 4);
  assert_string_equal(settings.http_listen, "127.0.0.1:80");
  assert_int_equal(slot->busy_since_ms, 1235);
  assert_int_equal(slot->turns, 1);
  assert_int_equal(slot->runs_ended, 70);
  assert_true(slot_current_run(slot, &run));
  assert_string_equal(run.task, "payments.pix");
  assert_int_equal(run.tenant_id, 7);
  assert_int_equal(run.since_ms, 1236);
  assert_true(slot_traceback(slot, trace));
  assert_string_equal(trace, "stack\n");
  slots_free(s);
}

static void a_run_is_left(void **state) {
  struct slots *s = make(1);
  struct slot *slot = slots_at(s, slot_reserve(s, 1, false, 1));
  struct slot_run run = a_run("t.one", 1), seen;
  slot_enter_run(slot, &run);
  assert_true(slot_current_run(slot, &seen));
  slot_leave_run(slot);
  assert_false(slot_current_run(slot, &seen));
  slots_free(s);
}

/* A child that dies between the two halves of a write leaves the counter odd: no run, rather than a mixture. */
static void what_is_half_written_is_not_read(void **state) {
  struct slots *s = make(1);
  struct slot *slot = slots_at(s, slot_reserve(s, 1, false, 1));
  struct slot_run run = a_run("t.one", 1), seen;
  char trace[SLOT_TRACEBACK_MAX + 1];
  slot_enter_run(slot, &run);
  slot_write_traceback(slot, "x", 1);
  slot->run_seq++;
  slot->trace_seq++;
  assert_false(slot_current_run(slot, &seen));
  assert_false(slot_traceback(slot, trace));
  slots_free(s);
}

/* The reader never sees one run's id with another's time, however the writer hurries. */
static void a_reader_gets_one_run(void **state) {
  struct slots *s = make(1);
  int i = slot_reserve(s, 1, false, 1);
  pid_t pid = fork();
  if (pid == 0) {
    struct slot *slot = slots_at(s, i);
    for (int64_t n = 0;; n++) {
      struct slot_run run = a_run("t.x", n);
      memset(run.run_id, 'a' + n % 26, 36);
      run.deadline_ms = -n;
      slot_enter_run(slot, &run);
      slot_leave_run(slot);
    }
  }
  int seen = 0;
  for (long tries = 0; seen < 2000 && tries < 200000000; tries++) {
    struct slot_run run;
    if (!slot_current_run(slots_at(s, i), &run)) continue;
    seen++;
    assert_int_equal(run.deadline_ms, -run.since_ms);
    for (int c = 0; c < 36; c++) assert_int_equal(run.run_id[c], 'a' + run.since_ms % 26);
  }
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  assert_int_equal(seen, 2000);
  slots_free(s);
}

static void long_texts_are_cut(void **state) {
  struct slots *s = make(1);
  struct slot *slot = slots_at(s, slot_reserve(s, 1, false, 1));
  char text[2 * SLOT_TRACEBACK_MAX], trace[SLOT_TRACEBACK_MAX + 1];
  memset(text, 'y', sizeof text);
  slot_write_traceback(slot, text, sizeof text);
  assert_true(slot_traceback(slot, trace));
  assert_int_equal(strlen(trace), SLOT_TRACEBACK_MAX);
  slot->trace.len = UINT32_MAX; /* spoiled by the child */
  assert_false(slot_traceback(slot, trace));
  slots_free(s);
}

static void faults_and_retirement_are_told(void **state) {
  struct slots *s = make(1);
  struct slot *slot = slots_at(s, slot_reserve(s, 1, false, 1));
  char text[SLOT_FAULT_MAX], far[2 * SLOT_FAULT_MAX];
  assert_false(slot_fault(slot, text));
  slot_tell_fault(slot, "tasks/a/manifest.lua: wrong");
  slot_tell_fault(slot, "and more");
  assert_true(slot_fault(slot, text));
  assert_string_equal(text, "tasks/a/manifest.lua: wrong");
  assert_false(slot_retired(slot));
  slot_retire(slot);
  assert_true(slot_retired(slot));
  assert_false(slot_retired(NULL));
  slot_release(s, 0);
  slot = slots_at(s, slot_reserve(s, 2, false, 2));
  assert_false(slot_fault(slot, text));
  assert_false(slot_retired(slot));
  memset(far, 'x', sizeof far);
  far[sizeof far - 1] = 0;
  slot_tell_fault(slot, far);
  assert_true(slot_fault(slot, text));
  assert_int_equal(strlen(text), SLOT_FAULT_MAX - 1);
  slots_free(s);
}

static void started_runs_are_known(void **state) {
  struct slots *s = make(1);
  struct slot *slot = slots_at(s, slot_reserve(s, 1, false, 1));
  char id[37];
  int first = slot_start_run(slot, "run-a"), second = slot_start_run(slot, "run-b");
  assert_int_not_equal(first, second);
  assert_true(slot_started_run(slot, first, id));
  assert_string_equal(id, "run-a");
  slot_end_run(slot, first);
  assert_false(slot_started_run(slot, first, id));
  assert_true(slot_started_run(slot, second, id));
  assert_int_equal(slot_start_run(slot, "run-c"), first);
  int started = 2;
  while (slot_start_run(slot, "more") >= 0) started++;
  assert_int_equal(started, SLOT_STARTED_MAX);
  slot_end_run(slot, -1); /* one that found no place */
  assert_int_equal(slot_start_run(NULL, "x"), -1);
  slot_end_run(NULL, 0);
  uint32_t traces = slot_traces(slot);
  slot_write_traceback(slot, "t", 1);
  assert_int_not_equal(slot_traces(slot), traces);
  slots_free(s);
}

static void no_slot_is_fine(void **state) {
  struct slot_run run = a_run("t", 1);
  slot_tell(NULL, "x", &(struct slot_settings){0});
  slot_ready(NULL);
  slot_draining(NULL);
  slot_ended(NULL);
  slot_tell_fault(NULL, "x");
  slot_busy(NULL, 1);
  slot_idle(NULL);
  slot_counts(NULL, 1, 2, 3);
  slot_enter_run(NULL, &run);
  slot_leave_run(NULL);
  slot_write_traceback(NULL, "x", 1);
  slots_free(NULL);
}

static void strangers_are_refused(void **state) {
  struct err e = ERR_INIT;
  struct slots *s = make(1);
  assert_null(slot_open(s, 0, &e)); /* nobody has reserved it */
  assert_string_equal(e.code, "shared_memory");
  assert_null(slot_open(s, 1, &e));
  assert_null(slots_attach(-1, &e));
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  assert_null(slots_attach(pipes[0], &e));
  /* Another build's layout. */
  assert_int_equal(pwrite(slots_fd(s), "other", 5, 0), 5);
  assert_null(slots_attach(slots_fd(s), &e));
  assert_non_null(strstr(e.message, "another build"));
  close(pipes[0]);
  close(pipes[1]);
  slots_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slots_are_reserved_and_released), cmocka_unit_test(a_child_is_seen),
      cmocka_unit_test(a_run_is_left),                   cmocka_unit_test(what_is_half_written_is_not_read),
      cmocka_unit_test(a_reader_gets_one_run),           cmocka_unit_test(long_texts_are_cut),
      cmocka_unit_test(faults_and_retirement_are_told),
      cmocka_unit_test(started_runs_are_known),          cmocka_unit_test(no_slot_is_fine),                 cmocka_unit_test(strangers_are_refused),
  };
  return RUN(tests);
}
