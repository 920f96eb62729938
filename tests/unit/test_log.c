#include "cm.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int ends[2];

static int open_pipe(void **state) { return pipe2(ends, O_NONBLOCK); }

static int close_pipe(void **state) {
  close(ends[0]);
  close(ends[1]);
  log_init(LOG_INFO_, LOG_LOGFMT, STDERR_FILENO);
  log_set_common(NULL, 0);
  return 0;
}

/* One line of the log, without its time. */
static const char *line(void) {
  static char text[LOG_LINE_MAX + 1];
  ssize_t n = read(ends[0], text, sizeof text);
  if (n < 0) return "";
  assert_in_range(n, 2, LOG_LINE_MAX);
  assert_ptr_equal(memchr(text, '\n', (size_t)n), text + n - 1);
  text[n - 1] = '\0';
  char *level = strstr(text, "level");
  assert_non_null(level);
  return text[0] == '{' ? level - 1 : level;
}

static void logfmt(void **state) {
  log_init(LOG_INFO_, LOG_LOGFMT, ends[1]);
  log_kv(LOG_INFO_, "started", NULL);
  assert_string_equal(line(), "level=info event=started");
  log_kv(LOG_WARN_, "e", "a", "plain", "b", "two words", "c", "", "d", NULL, "e", "x=y", "f", "say \"hi\"", "g", "\\",
         "n", log_i64(INT64_MIN), NULL);
  assert_string_equal(line(), "level=warn event=e a=plain b=\"two words\" c=\"\" e=\"x=y\" f=\"say \\\"hi\\\"\" g=\"\\\\\""
                              " n=-9223372036854775808");
}

static void json(void **state) {
  log_init(LOG_INFO_, LOG_JSON, ends[1]);
  log_kv(LOG_ERROR_, "e", "a", "plain", "b", "", "n", log_i64(7), "s", "7", NULL);
  assert_string_equal(line(), "\"level\":\"error\",\"event\":\"e\",\"a\":\"plain\",\"b\":\"\",\"n\":7,\"s\":\"7\"}");
}

static void levels(void **state) {
  log_init(LOG_WARN_, LOG_LOGFMT, ends[1]);
  assert_false(log_enabled(LOG_INFO_));
  log_kv(LOG_INFO_, "quiet", NULL);
  log_err(LOG_DEBUG_, "quiet", NULL, NULL);
  assert_string_equal(line(), "");
  log_kv(LOG_ERROR_, "loud", NULL);
  assert_string_equal(line(), "level=error event=loud");
  assert_string_equal(log_level_name(LOG_DEBUG_), "debug");
}

static void J08_one_line_whatever_a_value_holds(void **state) {
  const char *nasty = "a\nb\r\t\x01\x1b[31m\xff\x7f\xC3";
  log_init(LOG_INFO_, LOG_LOGFMT, ends[1]);
  log_kv(LOG_INFO_, "e", "m", nasty, NULL);
  assert_string_equal(line(), "level=info event=e m=\"a\\nb\\r\\t\\u0001\\u001b[31m\xEF\xBF\xBD\x7f\xEF\xBF\xBD\"");
  log_init(LOG_INFO_, LOG_JSON, ends[1]);
  log_kv(LOG_INFO_, "e", "m", nasty, NULL);
  const char *text = line();
  assert_null(strchr(text, '\r'));
  assert_non_null(strstr(text, "a\\nb\\r\\t"));
}

static void values_and_lines_are_limited(void **state) {
  char *huge = xmalloc(1 << 20);
  memset(huge, 'x', 1 << 20);
  huge[(1 << 20) - 1] = '\0';
  for (int format = LOG_LOGFMT; format <= LOG_JSON; format++) {
    log_init(LOG_INFO_, (enum log_format)format, ends[1]);
    log_kv(LOG_INFO_, "e", "m", huge, "after", "here", NULL);
    const char *text = line();
    assert_in_range(strlen(text), LOG_VALUE_MAX, LOG_VALUE_MAX + 100);
    assert_non_null(strstr(text, "xxx…"));
    assert_non_null(strstr(text, "here"));
    log_kv(LOG_INFO_, "e", "a", huge, "b", huge, "c", huge, "d", huge, "e", "lost", NULL);
    text = line();
    assert_null(strstr(text, "lost"));
    assert_non_null(strstr(text, format == LOG_JSON ? ",\"truncated\":true}" : " truncated=true"));
  }
  free(huge);
}

/* Every JSON line is JSON, whatever goes in. */
static void json_lines_are_json(void **state) {
  static const struct json_events nothing;
  uint64_t seed = 3;
  log_init(LOG_INFO_, LOG_JSON, ends[1]);
  for (int i = 0; i < 2000; i++) {
    char values[6][1500];
    for (int j = 0; j < 6; j++) {
      size_t n = next_random(&seed) % sizeof values[0];
      for (size_t k = 0; k < n; k++) values[j][k] = (char)(1 + next_random(&seed) % 255);
      values[j][n] = '\0';
    }
    log_kv(LOG_INFO_, "e", "a", values[0], "b", values[1], "c", values[2], "d", values[3], "e", values[4], "f", values[5], NULL);
    char text[LOG_LINE_MAX + 1];
    ssize_t n = read(ends[0], text, sizeof text);
    assert_in_range(n, 2, LOG_LINE_MAX);
    struct err e = ERR_INIT;
    if (json_read(text, (size_t)n, &nothing, NULL, &e) != 0) fail_msg("%s: %.*s", e.message, (int)n, text);
  }
}

static void common_pairs_and_errors(void **state) {
  log_init(LOG_INFO_, LOG_LOGFMT, ends[1]);
  log_set_common((struct log_pair[]){{"worker", "w1"}, {"none", NULL}}, 2);
  struct err e = ERR_INIT;
  err_set(&e, ERR_SQL, "sql", "it broke");
  strcpy(e.sqlstate, "23505");
  log_err(LOG_INFO_, "e", &e, "task", "t.one", NULL);
  assert_string_equal(line(), "level=info event=e worker=w1 task=t.one class=sql code=sql sqlstate=23505 message=\"it broke\"");
  log_set_common((struct log_pair[]){{"worker", "w2"}}, 1);
  log_err(LOG_INFO_, "e", NULL, NULL);
  assert_string_equal(line(), "level=info event=e worker=w2");
  log_pairs(LOG_INFO_, "e", (struct log_pair[]){{"a", "1"}}, 1);
  assert_string_equal(line(), "level=info event=e worker=w2 a=1");
}

static void a_full_pipe_drops_and_counts(void **state) {
  log_init(LOG_INFO_, LOG_LOGFMT, ends[1]);
  uint64_t before = log_dropped();
  for (int i = 0; i < 10000; i++) {
    errno = 42;
    log_kv(LOG_INFO_, "e", "a", "0123456789012345678901234567890123456789", NULL);
    assert_int_equal(errno, 42);
  }
  assert_true(log_dropped() > before);
  static char all[1 << 20];
  ssize_t n = read(ends[0], all, sizeof all);
  assert_true(n > 0);
  assert_int_equal(all[n - 1], '\n');
}

static void i64_texts_live_in_a_ring(void **state) {
  const char *texts[16];
  for (int i = 0; i < 16; i++) texts[i] = log_i64(i);
  for (int i = 0; i < 16; i++) assert_int_equal(atoi(texts[i]), i);
}

#define PIPED(test) cmocka_unit_test_setup_teardown(test, open_pipe, close_pipe)

int main(void) {
  const struct CMUnitTest tests[] = {
      PIPED(logfmt),
      PIPED(json),
      PIPED(levels),
      PIPED(J08_one_line_whatever_a_value_holds),
      PIPED(values_and_lines_are_limited),
      PIPED(json_lines_are_json),
      PIPED(common_pairs_and_errors),
      PIPED(a_full_pipe_drops_and_counts),
      cmocka_unit_test(i64_texts_live_in_a_ring),
  };
  return RUN(tests);
}
