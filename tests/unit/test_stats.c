#include "cm.h"

#include "base/stats.h"

#include <stdlib.h>

static void counters_count(void **state) {
  stats_reset();
  stats_inc(STAT_RUNS_TAKEN);
  stats_add(STAT_RUNS_TAKEN, 41);
  assert_int_equal(stats_get(STAT_RUNS_TAKEN), 42);
  assert_int_equal(stats_get(STAT_RUNS_COMPLETED), 0);
  assert_string_equal(stats_name(STAT_RUNS_TAKEN), "runs_taken");
  stats_reset();
  assert_int_equal(stats_get(STAT_RUNS_TAKEN), 0);
}

static void quantiles_are_within_a_factor_of_two(void **state) {
  stats_reset();
  assert_int_equal(stats_quantile(STAT_HISTOGRAM_RUN_US, 0.5), 0);
  for (int i = 1; i <= 1000; i++) stats_observe(STAT_HISTOGRAM_RUN_US, i);
  assert_int_equal(stats_observed(STAT_HISTOGRAM_RUN_US), 1000);
  assert_in_range(stats_quantile(STAT_HISTOGRAM_RUN_US, 0.5), 500, 1000);
  assert_in_range(stats_quantile(STAT_HISTOGRAM_RUN_US, 0.99), 990, 1980);
  assert_int_equal(stats_quantile(STAT_HISTOGRAM_RUN_US, 0), 1);
}

static void buckets_hold_their_bounds(void **state) {
  static const int64_t values[] = {INT64_MIN, -1, 0, 1, 2, 3, 4, 5, 8, 9, 1 << 20, (1 << 20) + 1, INT64_MAX};
  static const int64_t bounds[] = {1, 1, 1, 1, 2, 4, 4, 8, 8, 16, 1 << 20, 1 << 21, INT64_C(1) << 31};
  for (size_t i = 0; i < COUNT(values); i++) {
    stats_reset();
    stats_observe(STAT_HISTOGRAM_GATE_US, values[i]);
    assert_int_equal(stats_quantile(STAT_HISTOGRAM_GATE_US, 1), bounds[i]);
  }
}

static void the_page_is_prometheus_text(void **state) {
  stats_reset();
  stats_add(STAT_GATE_COPIES, 3);
  stats_observe(STAT_HISTOGRAM_COMMIT_US, 3);
  stats_observe(STAT_HISTOGRAM_COMMIT_US, 700);
  struct buf b = BUF_INIT;
  stats_dump(&b);
  assert_non_null(strstr(b.data, "# TYPE umavez_gate_copies_total counter\numavez_gate_copies_total 3\n"));
  assert_non_null(strstr(b.data, "# TYPE umavez_commit_microseconds histogram\n"));
  assert_non_null(strstr(b.data, "umavez_commit_microseconds_bucket{le=\"2\"} 0\n"));
  assert_non_null(strstr(b.data, "umavez_commit_microseconds_bucket{le=\"4\"} 1\n"));
  assert_non_null(strstr(b.data, "umavez_commit_microseconds_bucket{le=\"1024\"} 2\n"));
  assert_non_null(strstr(b.data, "umavez_commit_microseconds_bucket{le=\"+Inf\"} 2\n"));
  assert_non_null(strstr(b.data, "umavez_commit_microseconds_sum 703\numavez_commit_microseconds_count 2\n"));
  assert_int_equal(b.data[b.len - 1], '\n');
  buf_fini(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counters_count),
      cmocka_unit_test(quantiles_are_within_a_factor_of_two),
      cmocka_unit_test(buckets_hold_their_bounds),
      cmocka_unit_test(the_page_is_prometheus_text),
  };
  return RUN(tests);
}
