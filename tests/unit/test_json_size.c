/* json_jsonb_size. The texts on the right are what PostgreSQL prints; tests/sql/test_json_size.py asks one about many more:
 * called with "lines", this program reads a document a line and answers each with its size, or the error's code. */
#include "cm.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

static size_t size_of(const char *text) {
  size_t octets = 0, n = strlen(text);
  struct err e = ERR_INIT;
  char *copy = xmemdup(text, n);
  if (json_jsonb_size(copy, n, &octets, &e) != 0) fail_msg("%s: %s", text, e.message);
  free(copy);
  return octets;
}

static void expect_refused(const char *text, const char *code) {
  size_t octets = 77;
  struct err e = ERR_INIT;
  if (json_jsonb_size(text, strlen(text), &octets, &e) != -1) fail_msg("accepted: %.80s", text);
  assert_string_equal(e.code, code);
  assert_int_equal(octets, 77);
}

static void sizes_are_those_of_the_jsonb_text(void **state) {
  static const char *const rows[][2] = {
      {"{}", "{}"},
      {"[]", "[]"},
      {" [ null,true , false ] ", "[null, true, false]"},
      {"{\"b\":1,\"a\":[1,2],\"c\":{}}", "{\"a\": [1, 2], \"b\": 1, \"c\": {}}"},
      {"{\"a\":1,\"a\":[10],\"a\":\"xyz\"}", "{\"a\": \"xyz\"}"},
      {"{\"a\":{\"x\":1,\"x\":22},\"b\":2,\"a\":{\"y\":{\"z\":1,\"z\":3}}}", "{\"a\": {\"y\": {\"z\": 3}}, \"b\": 2}"},
      {"\"\\u0041\\u00e9\\ud83d\\ude00\\/\\u007f\"", "\"A\xC3\xA9\xF0\x9F\x98\x80/\x7f\""},
      {"\"\\b\\f\\n\\r\\t\\\"\\\\\\u0001\\u001F\"", "\"\\b\\f\\n\\r\\t\\\"\\\\\\u0001\\u001f\""},
      {"{\"k\\n\":\"\"}", "{\"k\\n\": \"\"}"},
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "0.0"},
      {"0e9", "0"},
      {"0.00e1", "0.0"},
      {"0e-3", "0.000"},
      {"1.50", "1.50"},
      {"-1.50e1", "-15.0"},
      {"1.5e1", "15"},
      {"15e-1", "1.5"},
      {"100e-1", "10.0"},
      {"1e-7", "0.0000001"},
      {"-12.34e-5", "-0.0001234"},
      {"1e3", "1000"},
      {"0.001e2", "0.1"},
      {"0.001e5", "100"},
      {"123456789012345678901234567890.10", "123456789012345678901234567890.10"},
      {"9007199254740991", "9007199254740991"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    if (size_of(rows[i][0]) != strlen(rows[i][1])) fail_msg("%s: %zu", rows[i][0], size_of(rows[i][0]));
  }
}

static void D07_large_exponents_are_expanded(void **state) {
  assert_int_equal(size_of("1e300"), 301);
  assert_int_equal(size_of("-1e300"), 302);
  assert_int_equal(size_of("1e-300"), 302);
  assert_int_equal(size_of("1e131071"), 131072);
  assert_int_equal(size_of("1e-16383"), 16385);
  expect_refused("1e131072", "json_number");
  expect_refused("1e-16384", "json_number");
  expect_refused("0e-16384", "json_number");
  expect_refused("1e99999999999999999999", "json_number");
  expect_refused("[1e-99999999999999999999]", "json_number");
  assert_int_equal(size_of("0e99999"), 1);
}

static void D01_sizes_around_the_limit(void **state) {
  for (size_t letters = 4086; letters <= 4088; letters++) {
    struct buf b = BUF_INIT;
    buf_puts(&b, "{\"s\":\"");
    memset(buf_extend(&b, letters), 'x', letters);
    buf_puts(&b, "\"}");
    assert_int_equal(b.len, letters + 8);
    assert_int_equal(size_of(b.data), letters + 9);
    buf_fini(&b);
  }
}

static void what_jsonb_refuses_is_refused(void **state) {
  expect_refused("{\"a\":\"\\u0000\"}", "json_nul");
  expect_refused("{\"\\u0000\":1}", "json_nul");
  expect_refused("\"\\ud83d\"", "json_surrogate");
  expect_refused("\"\xff\"", "json_utf8");
  expect_refused("{\"a\":1,}", "json_syntax");
  expect_refused("", "json_syntax");
}

static int answer_lines(void) {
  char *line = NULL;
  size_t room = 0, octets;
  ssize_t n;
  while ((n = getline(&line, &room, stdin)) > 0) {
    struct err e = ERR_INIT;
    if (json_jsonb_size(line, (size_t)n - 1, &octets, &e) == 0) {
      printf("%zu\n", octets);
    } else {
      printf("%s\n", e.code);
    }
  }
  free(line);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "lines") == 0) return answer_lines();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_are_those_of_the_jsonb_text),
      cmocka_unit_test(D07_large_exponents_are_expanded),
      cmocka_unit_test(D01_sizes_around_the_limit),
      cmocka_unit_test(what_jsonb_refuses_is_refused),
  };
  return RUN(tests);
}
