/* The reader, json_find and the string writers. */
#include "cm.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- a trace of the events, as text ---- */

static int on_null(void *arg) { return buf_puts(arg, "null "), 0; }
static int on_boolean(void *arg, bool v) { return buf_puts(arg, v ? "true " : "false "), 0; }
static int on_number(void *arg, const char *s, size_t n) { return buf_printf(arg, "#%.*s ", (int)n, s), 0; }
static int on_string(void *arg, const char *s, size_t n) {
  buf_putc(arg, '\'');
  buf_append(arg, s, n);
  buf_puts(arg, "' ");
  return 0;
}
static int on_key(void *arg, const char *s, size_t n) { return buf_printf(arg, "%.*s= ", (int)n, s), 0; }
static int on_begin_object(void *arg) { return buf_puts(arg, "{ "), 0; }
static int on_end_object(void *arg) { return buf_puts(arg, "} "), 0; }
static int on_begin_array(void *arg) { return buf_puts(arg, "[ "), 0; }
static int on_end_array(void *arg) { return buf_puts(arg, "] "), 0; }

static struct json_events tracing = {on_null,         on_boolean,    on_number,      on_string,    on_key,
                                     on_begin_object, on_end_object, on_begin_array, on_end_array, false};

/* Reads from memory of just that size, so that a sanitizer sees every step beyond it. */
static int read_exact(const char *text, size_t len, const struct json_events *events, struct buf *trace, struct err *e) {
  char *copy = xmemdup(text, len);
  int result = json_read(copy, len, events, trace, e);
  free(copy);
  return result;
}

static void expect_trace(const char *text, const char *trace) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  if (read_exact(text, strlen(text), &tracing, &b, &e) != 0) fail_msg("%s: %s", text, e.message);
  assert_false(err_is_set(&e));
  assert_string_equal(buf_cstr(&b), trace);
  buf_fini(&b);
}

static void expect_refused_n(const char *text, size_t len, const char *code) {
  static const struct json_events nothing;
  struct err e = ERR_INIT;
  if (read_exact(text, len, &nothing, NULL, &e) != -1) fail_msg("accepted: %s", text);
  assert_int_equal(e.class, ERR_INPUT);
  if (strcmp(e.code, code) != 0) fail_msg("%s: %s, not %s", text, e.code, code);
}

static void expect_refused(const char *text, const char *code) { expect_refused_n(text, strlen(text), code); }

static void events_follow_the_text(void **state) {
  expect_trace(" { \"a\" : [ 1 , -0.5e+3, null,true , false ] , \"b\":{ } ,\"c\":[]}\r\n\t",
               "{ a= [ #1 #-0.5e+3 null true false ] b= { } c= [ ] } ");
  expect_trace("7", "#7 ");
  expect_trace("\"\"", "'' ");
  expect_trace("[[[]],{\"\":\"\"}]", "[ [ [ ] ] { = '' } ] ");
  expect_trace("{\"a\":1,\"a\":2}", "{ a= #1 a= #2 } ");
}

static void strings_are_decoded(void **state) {
  expect_trace("\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83d\\ude00z\"",
               "'a\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z' ");
  expect_trace("\"\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\x7F\"",
               "'\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\x7F' ");
}

static void grammar_is_strict(void **state) {
  static const char *const bad[] = {
      "",         " ",        "{",        "}",       "[",        "]",         "[1",      "[1,",     "[1,]",    "[,1]",
      "[1 2]",    "{\"a\"}",  "{\"a\":}", "{a:1}",   "{\"a\":1,}", "{1:2}",   "{\"a\" 1}", "{,}",   "[1}",     "{\"a\":1]",
      "1 2",      "{} {}",    "nul",      "nulll",   "True",     "tru",       "fals",    "NaN",     "Infinity", "-Infinity",
      "01",       "-01",      "00",       "1.",      ".5",       "-.5",       "-",       "+1",      "1e",      "1e+",
      "1.e1",     "0x10",     "1_0",      "--1",     "1.2.3",    "\"",        "\"a",     "\"\\",    "\"\\\"",  "\"\\x\"",
      "\"\\u12\"", "\"\\u12G4\"", "\"\\u",  "\"\\U0041\"", "'a'",  "\"\n\"",   "\"\t\"",  "\"\x01\"", "\"\x1f\"", "/**/1",
      "1//",      "\xEF\xBB\xBF{}", "\f1", "\v1",    "[1]]",     "{\"a\":1}}", "\"a\" \"b\"", "[\"a\",", "{\"a\":", "{\"a\"",
  };
  for (size_t i = 0; i < COUNT(bad); i++) expect_refused(bad[i], "json_syntax");
  expect_refused_n("1\0", 2, "json_syntax");
  expect_refused_n("\"\0\"", 3, "json_syntax");
  expect_refused_n("\0", 1, "json_syntax");
}

static void C09_lone_and_reversed_surrogates_are_refused(void **state) {
  static const char *const bad[] = {
      "\"\\ud800\"",       "\"\\udbff\"",       "\"\\udc00\"",       "\"\\uDFFF\"",        "\"\\ude00\\ud83d\"",
      "\"\\ud83dx\"",      "\"\\ud83d\\n\"",    "\"\\ud83d\\u0041\"", "\"\\ud83d\\ud83d\\ude00\"",
      "\"\\ud83d\\ude0\"", "\"\\ud83d\\ude\"",  "\"\\ud83d\\\"",     "{\"\\ud800\":1}",     "\"\\ud83d\\",
  };
  for (size_t i = 0; i < COUNT(bad); i++) expect_refused(bad[i], "json_surrogate");
}

static void C09_invalid_utf8_is_refused(void **state) {
  static const char *const bad[] = {
      "\x80",         "\xBF",         "\xC0\x80",         "\xC1\xBF",         "\xC2",             "\xC2\x41",
      "\xE0\x80\x80", "\xE0\x9F\xBF", "\xE2\x82",         "\xE2\x82\x41",     "\xED\xA0\x80",     "\xED\xBF\xBF",
      "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF0\x9F\x98", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xFE",
      "\xF8\x88\x80\x80\x80",
  };
  for (size_t i = 0; i < COUNT(bad); i++) {
    char text[32];
    snprintf(text, sizeof text, "\"x%s\"", bad[i]);
    expect_refused(text, "json_utf8");
    snprintf(text, sizeof text, "{\"%s\":1}", bad[i]);
    expect_refused(text, "json_utf8");
    snprintf(text, sizeof text, "\"%s", bad[i]); /* nothing behind it */
    expect_refused(text, "json_utf8");
  }
}

static void nul_needs_the_flag(void **state) {
  expect_refused("\"\\u0000\"", "json_nul");
  expect_refused("{\"\\u0000\":1}", "json_nul");
  struct json_events events = tracing;
  events.allow_nul = true;
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  assert_int_equal(read_exact("\"a\\u0000b\"", 10, &events, &b, &e), 0);
  assert_int_equal(b.len, 6);
  assert_memory_equal(b.data, "'a\0b' ", 6);
  buf_fini(&b);
}

static void depth_is_limited(void **state) {
  char text[2 * (JSON_DEPTH_MAX + 1) + 1];
  static const struct json_events nothing;
  struct err e = ERR_INIT;
  memset(text, '[', JSON_DEPTH_MAX);
  memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
  assert_int_equal(json_read(text, 2 * JSON_DEPTH_MAX, &nothing, NULL, &e), 0);
  memset(text, '[', JSON_DEPTH_MAX + 1);
  expect_refused_n(text, JSON_DEPTH_MAX + 1, "json_depth");
  char *deep = xmalloc(100000);
  memset(deep, '[', 100000);
  expect_refused_n(deep, 100000, "json_depth");
  free(deep);
}

static int stop(void *arg, const char *s, size_t n) { return 42; }

static void a_callback_can_stop(void **state) {
  const struct json_events events = {.number = stop};
  struct err e = ERR_INIT;
  assert_int_equal(json_read("[null,1,oops", 12, &events, NULL, &e), 42);
  assert_false(err_is_set(&e));
}

static void messages_name_the_place(void **state) {
  struct err e = ERR_INIT;
  static const struct json_events nothing;
  assert_int_equal(json_read("{\"a\" 1}", 7, &nothing, NULL, &e), -1);
  assert_string_equal(e.message, "expected ':', found '1' at offset 5");
  assert_int_equal(json_read("[1,", 3, &nothing, NULL, &e), -1);
  assert_string_equal(e.message, "the text ends where a value should be, at offset 3");
  assert_int_equal(json_read("[1,\x01", 4, &nothing, NULL, NULL), -1);
}

static void expect_found(const char *text, const char *path, enum json_type type, const char *slice) {
  struct json_value v;
  assert_int_equal(json_find(text, strlen(text), path, &v), 0);
  if (v.type != type) fail_msg("%s in %s is %s", path, text, json_type_name(v.type));
  if (slice == NULL) {
    assert_null(v.text);
  } else {
    assert_int_equal(v.len, strlen(slice));
    assert_memory_equal(v.text, slice, v.len);
  }
}

static void find_follows_dotted_paths(void **state) {
  const char *text = " {\"order\": {\"id\" : 12.50 , \"l\":[1, {\"id\":2}]}, \"t\":true,\"n\" : null,\"f\":false, \"s\":\"x\\n\"} ";
  expect_found(text, "order.id", JSON_NUMBER, "12.50");
  expect_found(text, "order.l", JSON_ARRAY, "[1, {\"id\":2}]");
  expect_found(text, "order", JSON_OBJECT, "{\"id\" : 12.50 , \"l\":[1, {\"id\":2}]}");
  expect_found(text, "t", JSON_TRUE, "true");
  expect_found(text, "f", JSON_FALSE, "false");
  expect_found(text, "n", JSON_NULL, "null");
  expect_found(text, "s", JSON_STRING, "\"x\\n\"");
  expect_found(text, "x", JSON_ABSENT, NULL);
  expect_found(text, "order.x", JSON_ABSENT, NULL);
  expect_found(text, "order.l.id", JSON_ABSENT, NULL);
  expect_found(text, "order.id.x", JSON_ABSENT, NULL);
  expect_found(text, "n.x", JSON_ABSENT, NULL);
  expect_found("[1]", "", JSON_ARRAY, "[1]");
  expect_found("[1]", "a", JSON_ABSENT, NULL);
  expect_found("{\"\":{\"\":1}}", ".", JSON_NUMBER, "1");
}

static void find_takes_the_last_duplicate_and_decodes_keys(void **state) {
  expect_found("{\"a\":1,\"a\":{\"b\":2},\"a\":{\"c\":3}}", "a.c", JSON_NUMBER, "3");
  expect_found("{\"a\":1,\"a\":{\"b\":2},\"a\":{\"c\":3}}", "a.b", JSON_ABSENT, NULL);
  expect_found("{\"\\u0061\":1}", "a", JSON_NUMBER, "1");
  expect_found("{\"\xC3\xA9\":1}", "\xC3\xA9", JSON_NUMBER, "1");
}

static void find_refuses_bad_documents(void **state) {
  static const char *const bad[] = {"", "{", "{\"a\":1", "{\"a\":1}x", "{\"a\":}", "[1", "{\"a\":[1}", "{\"b\":tru,\"a\":1}"};
  for (size_t i = 0; i < COUNT(bad); i++) {
    struct json_value v;
    assert_int_equal(json_find(bad[i], strlen(bad[i]), "a", &v), -1);
    assert_int_equal(v.type, JSON_ABSENT);
  }
}

static void value_string_decodes(void **state) {
  struct json_value v;
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  const char *text = "{\"a\":\"x\\u0041\\n\",\"n\":1,\"z\":\"\\u0000\"}";
  assert_int_equal(json_find(text, strlen(text), "a", &v), 0);
  assert_int_equal(json_value_string(&v, &b, &e), 0);
  assert_string_equal(b.data, "xA\n");
  assert_int_equal(json_find(text, strlen(text), "n", &v), 0);
  assert_int_equal(json_value_string(&v, &b, &e), -1);
  assert_string_equal(e.message, "expected a string, found number");
  assert_int_equal(json_find(text, strlen(text), "z", &v), 0);
  assert_int_equal(json_value_string(&v, &b, &e), -1);
  assert_string_equal(e.code, "json_nul");
  assert_string_equal(b.data, "xA\n");
  buf_fini(&b);
}

static void write_string_escapes_or_refuses(void **state) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  assert_int_equal(json_write_string(&b, "a\"\\/\b\f\n\r\t\x01\x1f\x7f\xC3\xA9", 14, &e), 0);
  assert_string_equal(b.data, "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xC3\xA9\"");
  buf_clear(&b);
  assert_int_equal(json_write_string(&b, "", 0, &e), 0);
  assert_string_equal(b.data, "\"\"");
  assert_int_equal(json_write_string(&b, "ab\xff", 3, &e), -1);
  assert_string_equal(e.message, "invalid UTF-8 at offset 2 of a string");
  assert_int_equal(json_write_string(&b, "\xed\xa0\x80", 3, &e), -1);
  assert_string_equal(e.code, "json_utf8");
  assert_int_equal(json_write_string(&b, "a\0b", 3, &e), -1);
  assert_string_equal(e.code, "json_nul");
  assert_string_equal(b.data, "\"\"");
  buf_fini(&b);
}

static void D08_lossy_strings_are_clean_and_cut(void **state) {
  struct buf b = BUF_INIT;
  assert_true(json_write_string_lossy(&b, "a\0b\xff\xC3\n", 6, 100));
  assert_string_equal(b.data, "\"a\xEF\xBF\xBD" "b\xEF\xBF\xBD\xEF\xBF\xBD\\n\"");
  size_t len = 1 << 20;
  char *text = xmalloc(len);
  uint64_t seed = 8;
  for (size_t i = 0; i < len; i++) text[i] = (char)next_random(&seed);
  for (size_t max = 2; max < 200; max++) {
    static const struct json_events nothing;
    buf_clear(&b);
    assert_false(json_write_string_lossy(&b, text, len, max));
    assert_in_range(b.len, max > 7 ? max - 5 : 2, max);
    assert_int_equal(json_read(b.data, b.len, &nothing, NULL, NULL), 0);
  }
  buf_clear(&b);
  assert_true(json_write_string_lossy(&b, "12345678", 8, 10));
  buf_clear(&b);
  assert_false(json_write_string_lossy(&b, "12345678", 8, 9));
  assert_string_equal(b.data, "\"1234567\"");
  free(text);
  buf_fini(&b);
}

static void utf8_span(void **state) {
  assert_int_equal(json_utf8_span("", 0), 0);
  assert_int_equal(json_utf8_span("a\xC3\xA9\xF0\x9F\x98\x80", 7), 7);
  assert_int_equal(json_utf8_span("a\xC3\xA9\xF0\x9F\x98\x80", 6), 3);
  assert_int_equal(json_utf8_span("a\0\xff", 3), 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(events_follow_the_text),
      cmocka_unit_test(strings_are_decoded),
      cmocka_unit_test(grammar_is_strict),
      cmocka_unit_test(C09_lone_and_reversed_surrogates_are_refused),
      cmocka_unit_test(C09_invalid_utf8_is_refused),
      cmocka_unit_test(nul_needs_the_flag),
      cmocka_unit_test(depth_is_limited),
      cmocka_unit_test(a_callback_can_stop),
      cmocka_unit_test(messages_name_the_place),
      cmocka_unit_test(find_follows_dotted_paths),
      cmocka_unit_test(find_takes_the_last_duplicate_and_decodes_keys),
      cmocka_unit_test(find_refuses_bad_documents),
      cmocka_unit_test(value_string_decodes),
      cmocka_unit_test(write_string_escapes_or_refuses),
      cmocka_unit_test(D08_lossy_strings_are_clean_and_cut),
      cmocka_unit_test(utf8_span),
  };
  return RUN(tests);
}
