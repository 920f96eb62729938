/* Counting, in memory of one's own and in memory that a parent shares with its children; the page. */
#include "cm.h"

#include "base/stats_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t counted(enum stats_cell cell, int place) {
  struct stats_sum s;
  stats_sum(&s);
  uint64_t v = s.worker[(int)cell + place];
  stats_sum_fini(&s);
  return v;
}

static uint64_t of_task(int row, enum stats_task_cell cell, int place) {
  struct stats_sum s;
  stats_sum(&s);
  assert_in_range(row, 0, s.rows - 1);
  uint64_t v = s.task[row][(int)cell + place];
  stats_sum_fini(&s);
  return v;
}

static void no_samples(void *arg, const struct stats_metric *m, struct buf *out) {
  if (m->sampled == STAT_SAMPLED_QUEUE_DUE) stats_page_line(out, m, "a \"b\"\\c\nd", "7");
}

static const char *page(struct buf *b) {
  buf_clear(b);
  stats_page(b, no_samples, NULL);
  return buf_cstr(b);
}

static void a_process_counts_without_a_call_before(void **state) {
  stats_inc(STAT_TAKES);
  stats_add(STAT_GATE, STATS_GATE_RESULT_BUSY, 41);
  assert_int_equal(counted(STAT_TAKES, 0), 1);
  assert_int_equal(counted(STAT_GATE, STATS_GATE_RESULT_BUSY), 41);
  assert_int_equal(counted(STAT_GATE, STATS_GATE_RESULT_ACQUIRED), 0);
  assert_true(stats_start_ms() > 0);
}

static void rows_are_found_again(void **state) {
  int a = stats_row("t.a"), b = stats_row("t.b");
  assert_in_range(a, 1, STATS_ROWS - 1);
  assert_int_not_equal(a, b);
  assert_int_equal(stats_row("t.a"), a);
  stats_task_add(b, STAT_TASK_RUNS, STATS_RESULT_REPLAY, 3);
  assert_int_equal(of_task(b, STAT_TASK_RUNS, STATS_RESULT_REPLAY), 3);
  assert_int_equal(of_task(a, STAT_TASK_RUNS, STATS_RESULT_REPLAY), 0);
}

static void buckets_hold_their_bounds(void **state) {
  static const int64_t values[] = {INT64_MIN, 0, 100, 101, 3600000000, 3600000001};
  static const int places[] = {0, 0, 0, 1, STATS_BUCKETS_SECONDS - 1, STATS_BUCKETS_SECONDS};
  for (size_t i = 0; i < COUNT(values); i++) {
    uint64_t before = counted(STAT_COMMIT_TIME, places[i]), sum = counted(STAT_COMMIT_TIME, STATS_BUCKETS_SECONDS + 1);
    stats_observe(STAT_COMMIT_TIME, values[i]);
    assert_int_equal(counted(STAT_COMMIT_TIME, places[i]), before + 1);
    assert_int_equal(counted(STAT_COMMIT_TIME, STATS_BUCKETS_SECONDS + 1), sum + (values[i] > 0 ? (uint64_t)values[i] : 0));
  }
}

static void the_page_is_prometheus_text(void **state) {
  struct buf b = BUF_INIT;
  stats_observe_runs(STAT_BATCH_RUNS, 3);
  stats_observe_runs(STAT_BATCH_RUNS, 700);
  stats_observe(STAT_CLAIM_TIME, 1500001);
  stats_task_add(stats_row("t.\"x\""), STAT_TASK_RUNS, STATS_RESULT_COMPLETED, 9);
  const char *text = page(&b);
  assert_non_null(strstr(text, "# TYPE umavez_batch_runs histogram\numavez_batch_runs_bucket{le=\"1\"} 0\n"));
  assert_non_null(strstr(text, "umavez_batch_runs_bucket{le=\"64\"} 1\numavez_batch_runs_bucket{le=\"+Inf\"} 2\n"
                               "umavez_batch_runs_sum 703\numavez_batch_runs_count 2\n"));
  assert_non_null(strstr(text, "umavez_claim_duration_seconds_bucket{le=\"0.00025\"} 0\n"));
  assert_non_null(strstr(text, "umavez_claim_duration_seconds_bucket{le=\"3600\"} 1\n"));
  assert_non_null(strstr(text, "umavez_claim_duration_seconds_sum 1.500001\n"));
  assert_non_null(strstr(text, "umavez_runs_total{task=\"t.\\\"x\\\"\",result=\"completed\"} 9\n"));
  assert_non_null(strstr(text, "umavez_queue_due{queue=\"a \\\"b\\\"\\\\c\\nd\"} 7\n"));
  assert_null(strstr(text, "umavez_build_info")); /* nothing was told of it */
  assert_null(strstr(text, "task=\"unknown\""));
  stats_task_add(0, STAT_TASK_DEAD, 0, 1);
  assert_non_null(strstr(page(&b), "umavez_runs_dead_total{task=\"unknown\"} 1\n"));
  buf_fini(&b);
}

static void names_are_told_once(void **state) {
  for (int i = 0; i < stats_metrics(); i++) {
    const struct stats_metric *m = stats_metric_at(i);
    bool total = strlen(m->name) > 6 && strcmp(m->name + strlen(m->name) - 6, "_total") == 0;
    assert_int_equal(total, m->type == STATS_COUNTER);
    assert_true(m->help[strlen(m->help) - 1] != '.');
    for (int j = 0; j < i; j++) assert_string_not_equal(m->name, stats_metric_at(j)->name);
  }
}

/* ---- shared ---- */

static struct stats_area *share(int slots, int *fd) {
  *fd = memfd_create("stats", 0);
  size_t size = stats_area_size(slots);
  assert_int_equal(ftruncate(*fd, (off_t)size), 0);
  struct stats_area *a = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  assert_true(a != MAP_FAILED);
  stats_area_init(a, slots);
  stats_use(a, STATS_BASE, *fd);
  return a;
}

static void unshare(struct stats_area *a, int slots, int fd) {
  stats_use(NULL, 0, -1);
  munmap(a, stats_area_size(slots));
  close(fd);
}

static void in_child(struct stats_area *a, int slot, int fd, int n) {
  pid_t pid = fork();
  if (pid == 0) {
    stats_use(a, slot, fd);
    for (int i = 0; i < n; i++) {
      stats_inc(STAT_TAKES);
      stats_task_add(stats_row("t.shared"), STAT_TASK_RUNS, STATS_RESULT_BUSY, 1);
      stats_task_observe(stats_row(i % 2 ? "t.odd" : "t.even"), STAT_TASK_HANDLER, 1000);
    }
    stats_set(STAT_RUNS_HELD, 0, 5);
    raise(SIGKILL);
  }
  assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void the_dead_stay_counted(void **state) {
  int fd;
  struct stats_area *a = share(2, &fd);
  assert_true(stats_area_fits(a, 2));
  assert_false(stats_area_fits(a, 3));
  in_child(a, 0, fd, 100);
  in_child(a, 1, fd, 10);
  stats_inc(STAT_CHILD_DEATHS);
  stats_set(STAT_RUNS_HELD, 0, 99); /* the supervisor's own gauges are nobody's business */
  for (int folded = 0; folded <= 2; folded++) {
    assert_int_equal(counted(STAT_TAKES, 0), 110);
    assert_int_equal(counted(STAT_CHILD_DEATHS, 0), 1);
    assert_int_equal(of_task(stats_row("t.shared"), STAT_TASK_RUNS, STATS_RESULT_BUSY), 110);
    assert_int_equal(of_task(stats_row("t.odd"), STAT_TASK_HANDLER, 3), 55); /* the bucket of a millisecond */
    assert_int_equal(counted(STAT_RUNS_HELD, 0), 10 - 5 * folded);
    if (folded < 2) stats_fold(a, folded);
  }
  in_child(a, 0, fd, 1); /* the slot's next child begins at nothing */
  assert_int_equal(counted(STAT_TAKES, 0), 111);
  unshare(a, 2, fd);
}

static void children_register_at_once(void **state) {
  int fd;
  struct stats_area *a = share(4, &fd);
  pid_t pids[4];
  for (int c = 0; c < 4; c++) {
    pids[c] = fork();
    if (pids[c] == 0) {
      char name[32];
      stats_use(a, c, fd);
      for (int i = 0; i < STATS_ROWS + 50; i++) {
        snprintf(name, sizeof name, "t.%d", (i + c * 17) % (STATS_ROWS + 50));
        stats_task_add(stats_row(name), STAT_TASK_RETRIES, 0, 1);
      }
      _exit(0);
    }
  }
  for (int c = 0; c < 4; c++) assert_int_equal(waitpid(pids[c], NULL, 0), pids[c]);
  struct stats_sum s;
  stats_sum(&s);
  assert_int_equal(s.rows, STATS_ROWS);
  for (int r = 1; r < s.rows; r++) {
    assert_int_equal(s.task[r][STAT_TASK_RETRIES], 4);
    for (int q = 1; q < r; q++) assert_string_not_equal(s.names[r], s.names[q]);
  }
  assert_int_equal(s.task[0][STAT_TASK_RETRIES], 4 * 51); /* those for which there was no row */
  stats_sum_fini(&s);
  unshare(a, 4, fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_process_counts_without_a_call_before),
      cmocka_unit_test(rows_are_found_again),
      cmocka_unit_test(buckets_hold_their_bounds),
      cmocka_unit_test(the_page_is_prometheus_text),
      cmocka_unit_test(names_are_told_once),
      cmocka_unit_test(the_dead_stay_counted),
      cmocka_unit_test(children_register_at_once),
  };
  return RUN(tests);
}
