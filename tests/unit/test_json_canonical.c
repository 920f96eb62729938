/* RFC 8785: whole documents. */
#include "cm.h"

#include "base/json.h"

#include <stdlib.h>

static void expect(const char *text, const char *canonical) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  size_t n = strlen(text);
  char *copy = xmemdup(text, n);
  if (json_canonical(copy, n, &b, &e) != 0) fail_msg("%s: %s", text, e.message);
  assert_string_equal(buf_cstr(&b), canonical);
  /* Canonical text is canonical. */
  struct buf again = BUF_INIT;
  assert_int_equal(json_canonical(b.data, b.len, &again, &e), 0);
  assert_string_equal(buf_cstr(&again), canonical);
  buf_fini(&again);
  buf_fini(&b);
  free(copy);
}

static void expect_refused(const char *text, const char *code) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  buf_puts(&b, "before");
  if (json_canonical(text, strlen(text), &b, &e) != -1) fail_msg("accepted: %s", text);
  assert_int_equal(e.class, ERR_INPUT);
  assert_string_equal(e.code, code);
  assert_string_equal(b.data, "before");
  buf_fini(&b);
}

/* RFC 8785 sections 3.2.2 and 3.2.3. */
static void C09_samples_of_the_rfc(void **state) {
  expect("{\n"
         "  \"numbers\": [333333333.33333329, 1E30, 4.50,\n"
         "              2e-3, 0.000000000000000000000000001],\n"
         "  \"string\": \"\\u20ac$\\u000F\\u000aA'\\u0042\\u0022\\u005c\\\\\\\"\\/\",\n"
         "  \"literals\": [null, true, false]\n"
         "}",
         "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],"
         "\"string\":\"\xE2\x82\xAC$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}");
  expect("{\n"
         "  \"\\u20ac\": \"Euro Sign\",\n"
         "  \"\\r\": \"Carriage Return\",\n"
         "  \"\\ufb33\": \"Hebrew Letter Dalet With Dagesh\",\n"
         "  \"1\": \"One\",\n"
         "  \"\\ud83d\\ude00\": \"Emoji: Grinning Face\",\n"
         "  \"\\u0080\": \"Control\",\n"
         "  \"\\u00f6\": \"Latin Small Letter O With Diaeresis\"\n"
         "}",
         "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\xC2\x80\":\"Control\","
         "\"\xC3\xB6\":\"Latin Small Letter O With Diaeresis\",\"\xE2\x82\xAC\":\"Euro Sign\","
         "\"\xF0\x9F\x98\x80\":\"Emoji: Grinning Face\",\"\xEF\xAC\xB3\":\"Hebrew Letter Dalet With Dagesh\"}");
}

/* The files that the RFC's reference implementation is published with. */
static void C09_published_files(void **state) {
  expect("[\n  56,\n  {\n    \"d\": true,\n    \"10\": null,\n    \"1\": [ ]\n  }\n]", "[56,{\"1\":[],\"10\":null,\"d\":true}]");
  expect("{\n  \"peach\": \"a\",\n  \"p\xC3\xA9" "ch\xC3\xA9\": \"b\",\n  \"p\xC3\xAA" "che\": \"c\",\n  \"sin\":   \"d\"\n}\n",
         "{\"peach\":\"a\",\"p\xC3\xA9" "ch\xC3\xA9\":\"b\",\"p\xC3\xAA" "che\":\"c\",\"sin\":\"d\"}");
  expect("{\n  \"1\": {\"f\": {\"f\": \"hi\",\"F\": 5} ,\"\\n\": 56.0},\n  \"10\": { },\n  \"\": \"empty\",\n"
         "  \"a\": { },\n  \"111\": [ { } ],\n  \"A\": { }\n}",
         "{\"\":\"empty\",\"1\":{\"\\n\":56,\"f\":{\"F\":5,\"f\":\"hi\"}},\"10\":{},\"111\":[{}],\"A\":{},\"a\":{}}");
  expect("{\n  \"Unnormalized Unicode\":\"A\\u030a\"\n}\n", "{\"Unnormalized Unicode\":\"A\xCC\x8A\"}");
  expect("{\"</script>\":\"Browser Challenge\",\"\\u0080\":\"Control\\u007f\"}",
         "{\"</script>\":\"Browser Challenge\",\"\xC2\x80\":\"Control\x7f\"}");
}

static void C09_members_sort_by_utf16_code_units(void **state) {
  expect("{\"\\ufb33\":1,\"\xF0\x9F\x98\x80\":2}", "{\"\xF0\x9F\x98\x80\":2,\"\xEF\xAC\xB3\":1}");
  /* U+D7FF, then everything that is a surrogate pair, then U+E000. */
  expect("{\"\\ue000\":1,\"\\udbff\\udfff\":2,\"\\ud800\\udc00\":3,\"\\ud7ff\":4,\"\\uffff\":5}",
         "{\"\xED\x9F\xBF\":4,\"\xF0\x90\x80\x80\":3,\"\xF4\x8F\xBF\xBF\":2,\"\xEE\x80\x80\":1,\"\xEF\xBF\xBF\":5}");
  expect("{\"x\\ufb33\":1,\"x\xF0\x9F\x98\x80\":2,\"x\":3,\"\":4,\"y\":5,\"X\":6}",
         "{\"\":4,\"X\":6,\"x\":3,\"x\xF0\x9F\x98\x80\":2,\"x\xEF\xAC\xB3\":1,\"y\":5}");
}

static void C09_bad_documents_have_no_form(void **state) {
  expect_refused("{\"a\":\"\\ud83d\"}", "json_surrogate");
  expect_refused("{\"\\ude00\\ud83d\":1}", "json_surrogate");
  expect_refused("{\"a\":\"\xff\"}", "json_utf8");
  expect_refused("{\"a\":\"\\u0000\"}", "json_nul");
  expect_refused("{\"a\":1} ,", "json_syntax");
  expect_refused("{\"a\":1e1000000000}", "json_number");
  expect_refused("1e-1000000000", "json_number");
}

static void duplicate_keys_are_refused(void **state) {
  expect_refused("{\"a\":1,\"a\":1}", "json_duplicate_key");
  expect_refused("{\"b\":{\"x\":1,\"a\":2,\"\\u0078\":3}}", "json_duplicate_key");
  expect_refused("[{\"\":1,\"z\":2,\"\":3}]", "json_duplicate_key");
  expect("[{\"a\":1},{\"a\":1,\"A\":{\"a\":2}}]", "[{\"a\":1},{\"A\":{\"a\":2},\"a\":1}]");
  struct err e = ERR_INIT;
  struct buf b = BUF_INIT;
  assert_int_equal(json_canonical("{\"k\\n\":1,\"k\\n\":2}", 17, &b, &e), -1);
  assert_string_equal(e.message, "the key \"k\\n\" stands twice in one object");
  buf_fini(&b);
}

static void C05_order_space_and_spelling_do_not_matter(void **state) {
  static const char *const same[] = {
      "{\"a\":1,\"b\":{\"c\":[1.5,\"\xC3\xA9\"],\"d\":-0},\"e\":100000000000000}",
      " { \"e\" : 1e14, \"b\" : { \"d\" : 0.00, \"c\" : [ 15e-1 , \"\\u00e9\" ] } , \"a\" : 1.0 } ",
      "{\"b\":{\"c\":[1.50,\"\\u00E9\"],\"d\":0e9},\"e\":100000000000000.0,\"a\":10E-1}",
  };
  for (size_t i = 0; i < COUNT(same); i++) {
    expect(same[i], "{\"a\":1,\"b\":{\"c\":[1.5,\"\xC3\xA9\"],\"d\":0},\"e\":100000000000000}");
  }
}

static void C07_neighbours_beyond_doubles_differ(void **state) {
  expect("[9007199254740992,9007199254740993,18446744073709551615,18446744073709551616]",
         "[9007199254740992,9007199254740993,18446744073709551615,18446744073709551616]");
  expect("[0.12345678901234567890,-1234567890.1234567890123]", "[0.1234567890123456789,-1234567890.1234567890123]");
}

static void scalars_and_empties(void **state) {
  expect("\"\"", "\"\"");
  expect(" null ", "null");
  expect("[ ]", "[]");
  expect("{ }", "{}");
  expect("[[],[[]],{},[{}]]", "[[],[[]],{},[{}]]");
  expect("{\"b\":[],\"a\":{}}", "{\"a\":{},\"b\":[]}");
}

/* ---- random documents: written with members in random order, read back in the one true order ---- */

static void write_value(struct buf *out, uint64_t *seed, int depth, bool shuffled);

static void write_object(struct buf *out, uint64_t *seed, int depth, bool shuffled) {
  unsigned n = next_random(seed) % 6;
  uint64_t values = next_random(seed), turn = next_random(seed);
  buf_putc(out, '{');
  for (unsigned i = 0; i < n; i++) {
    unsigned member = shuffled ? (unsigned)((i + turn) % n) : i;
    uint64_t own = values + member;
    buf_printf(out, "%s%s\"k%u%s\"%s:", i > 0 ? "," : "", shuffled ? " " : "", member, member % 2 ? "\xC3\xA9" : "", shuffled ? "\n" : "");
    write_value(out, &own, depth + 1, shuffled);
  }
  buf_putc(out, '}');
}

static void write_value(struct buf *out, uint64_t *seed, int depth, bool shuffled) {
  unsigned kind = next_random(seed) % (depth > 5 ? 4 : 7);
  if (kind == 0) {
    buf_puts(out, "null");
  } else if (kind == 1) {
    buf_printf(out, "%llu%s", (unsigned long long)next_random(seed), shuffled ? ".0" : "");
  } else if (kind == 2) {
    buf_puts(out, shuffled ? "\"\\u00e9\\/\"" : "\"\xC3\xA9/\"");
  } else if (kind == 3) {
    buf_puts(out, "true");
  } else if (kind == 4) {
    unsigned n = next_random(seed) % 4;
    buf_putc(out, '[');
    for (unsigned i = 0; i < n; i++) {
      if (i > 0) buf_putc(out, ',');
      write_value(out, seed, depth + 1, shuffled);
    }
    buf_putc(out, ']');
  } else {
    write_object(out, seed, depth, shuffled);
  }
}

static void random_documents(void **state) {
  for (uint64_t i = 0; i < 3000; i++) {
    struct buf plain = BUF_INIT, shuffled = BUF_INIT;
    uint64_t one = i, two = i;
    write_value(&plain, &one, 0, false);
    write_value(&shuffled, &two, 0, true);
    expect(buf_cstr(&shuffled), buf_cstr(&plain));
    buf_fini(&plain);
    buf_fini(&shuffled);
  }
}

static void many_members(void **state) {
  struct buf text = BUF_INIT, sorted = BUF_INIT;
  buf_putc(&text, '{');
  buf_putc(&sorted, '{');
  for (int i = 0; i < 20000; i++) {
    buf_printf(&text, "%s\"%05d\":[%d]", i > 0 ? "," : "", i * 7919 % 20000, i * 7919 % 20000);
    buf_printf(&sorted, "%s\"%05d\":[%d]", i > 0 ? "," : "", i, i);
  }
  buf_putc(&text, '}');
  buf_putc(&sorted, '}');
  expect(buf_cstr(&text), buf_cstr(&sorted));
  buf_fini(&text);
  buf_fini(&sorted);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(C09_samples_of_the_rfc),
      cmocka_unit_test(C09_published_files),
      cmocka_unit_test(C09_members_sort_by_utf16_code_units),
      cmocka_unit_test(C09_bad_documents_have_no_form),
      cmocka_unit_test(duplicate_keys_are_refused),
      cmocka_unit_test(C05_order_space_and_spelling_do_not_matter),
      cmocka_unit_test(C07_neighbours_beyond_doubles_differ),
      cmocka_unit_test(scalars_and_empties),
      cmocka_unit_test(random_documents),
      cmocka_unit_test(many_members),
  };
  return RUN(tests);
}
