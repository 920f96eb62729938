#include "cm.h"

#include "base/duration.h"

static void expect(const char *text, int64_t ms) {
  int64_t got = -1;
  struct err e = ERR_INIT;
  if (duration_parse(text, &got, &e) != 0) fail_msg("%s", e.message);
  assert_int_equal(got, ms);
}

static void durations_are_read(void **state) {
  expect("500ms", 500);
  expect("0s", 0);
  expect("30s", 30000);
  expect("1.5s", 1500);
  expect("0.001s", 1);
  expect("10m", 600000);
  expect("0.5m", 30000);
  expect("24h", 86400000);
  expect("7d", 604800000);
  expect("36500d", DURATION_MAX_MS);
  expect("3153600000000ms", DURATION_MAX_MS);
  expect("007s", 7000);
  expect("2.000ms", 2);
}

static void anything_else_is_refused(void **state) {
  static const char *const bad[] = {
      "",      "s",     "30",      "30 s",  " 30s",    "30s ",     "-1s",  "+1s",     "1e3s", "30S",       "30sec",
      "1h30m", "1.s",   ".5s",     "1,5s",  "0.5ms",   "1.0001s",  "36501d", "36500.5d", "99999999999999999999s",
      "1d1",   "1.1234567890s", "NaNs", "infs", "0x1s", "3153600000001ms", "1..5s",
  };
  for (size_t i = 0; i < COUNT(bad); i++) {
    int64_t ms = 77;
    struct err e = ERR_INIT;
    if (duration_parse(bad[i], &ms, &e) != -1) fail_msg("accepted: %s", bad[i]);
    assert_int_equal(ms, 77);
    assert_int_equal(e.class, ERR_INPUT);
    assert_string_equal(e.code, "duration");
    assert_non_null(strstr(e.message, bad[i]));
  }
}

static void texts_read_back(void **state) {
  static const struct {
    int64_t ms;
    const char *text;
  } rows[] = {{0, "0s"},          {1, "1ms"},    {1500, "1500ms"},    {90000, "90s"}, {600000, "10m"},
              {5400000, "90m"}, {86400000, "1d"}, {90000000, "25h"}, {DURATION_MAX_MS, "36500d"}};
  char text[32];
  for (size_t i = 0; i < COUNT(rows); i++) {
    duration_format(rows[i].ms, text);
    assert_string_equal(text, rows[i].text);
  }
  uint64_t seed = 1;
  for (int i = 0; i < 10000; i++) {
    int64_t ms = (int64_t)(next_random(&seed) % (uint64_t)DURATION_MAX_MS) >> next_random(&seed) % 40;
    duration_format(ms, text);
    expect(text, ms);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(durations_are_read),
      cmocka_unit_test(anything_else_is_refused),
      cmocka_unit_test(texts_read_back),
  };
  return RUN(tests);
}
