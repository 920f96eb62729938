#include "cm.h"

#include <stdlib.h>

#include "core/due.h"

static struct due d;

static int64_t pop(void) {
  int64_t at = due_next(&d);
  due_pass(&d, at);
  return at;
}

static void the_earliest_comes_first_and_none_is_lost(void **state) {
  static const int64_t at[] = {500, 100, 900, 105, 500, 95};
  due_init(&d);
  assert_int_equal(due_next(&d), INT64_MAX);
  for (size_t i = 0; i < COUNT(at); i++) due_add(&d, at[i]);
  static const int64_t want[] = {95, 100, 105, 500, 900, INT64_MAX};
  for (size_t i = 0; i < COUNT(want); i++) assert_int_equal(pop(), want[i]);
}

static void an_earlier_one_does_not_push_a_later_one_out(void **state) {
  due_init(&d);
  due_add(&d, 1000);
  due_add(&d, 20);                 /* a look in between */
  due_pass(&d, 20);
  assert_int_equal(due_next(&d), 1000);
  due_pass(&d, 999);
  assert_int_equal(due_next(&d), 1000);
  due_pass(&d, 1000);
  assert_int_equal(due_next(&d), INT64_MAX);
}

static void moments_are_rounded_up(void **state) {
  static const int64_t at[][2] = {{0, 0}, {1, 5}, {5, 5}, {6, 10}, {-1, 0}, {-5, -5}, {-7, -5}};
  for (size_t i = 0; i < COUNT(at); i++) {
    due_init(&d);
    due_add(&d, at[i][0]);
    assert_int_equal(due_next(&d), at[i][1]);
  }
}

static int earlier(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void a_full_one_forgets_the_latest(void **state) {
  static int64_t all[3 * DUE_MAX];
  uint64_t seed = 7;
  due_init(&d);
  for (size_t i = 0; i < COUNT(all); i++) all[i] = (int64_t)i * DUE_GRAIN_MS;
  for (size_t i = COUNT(all) - 1; i > 0; i--) {
    size_t j = next_random(&seed) % (i + 1);
    int64_t x = all[i];
    all[i] = all[j];
    all[j] = x;
  }
  for (size_t i = 0; i < COUNT(all); i++) {
    due_add(&d, all[i]);
    due_add(&d, all[i] - 1);       /* the same, rounded */
  }
  qsort(all, COUNT(all), sizeof *all, earlier);
  for (size_t i = 0; i < DUE_MAX; i++) assert_int_equal(pop(), all[i]);
  assert_int_equal(pop(), INT64_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_earliest_comes_first_and_none_is_lost),
      cmocka_unit_test(an_earlier_one_does_not_push_a_later_one_out),
      cmocka_unit_test(moments_are_rounded_up),
      cmocka_unit_test(a_full_one_forgets_the_latest),
  };
  return RUN(tests);
}
