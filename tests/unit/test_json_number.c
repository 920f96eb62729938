/* Numbers: ECMAScript's shortest form, exact canonical form, classes. */
#include "cm.h"

#include "base/json.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double from_bits(uint64_t bits) {
  double d;
  memcpy(&d, &bits, sizeof d);
  return d;
}

/* RFC 8785, appendix B. */
static void C09_appendix_b(void **state) {
  static const struct {
    uint64_t bits;
    const char *text;
  } rows[] = {
      {0x0000000000000000, "0"},
      {0x8000000000000000, "0"},
      {0x0000000000000001, "5e-324"},
      {0x8000000000000001, "-5e-324"},
      {0x7fefffffffffffff, "1.7976931348623157e+308"},
      {0xffefffffffffffff, "-1.7976931348623157e+308"},
      {0x4340000000000000, "9007199254740992"},
      {0xc340000000000000, "-9007199254740992"},
      {0x4430000000000000, "295147905179352830000"},
      {0x44b52d02c7e14af5, "9.999999999999997e+22"},
      {0x44b52d02c7e14af6, "1e+23"},
      {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
      {0x444b1ae4d6e2ef4e, "999999999999999700000"},
      {0x444b1ae4d6e2ef4f, "999999999999999900000"},
      {0x444b1ae4d6e2ef50, "1e+21"},
      {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
      {0x3eb0c6f7a0b5ed8d, "0.000001"},
      {0x41b3de4355555553, "333333333.3333332"},
      {0x41b3de4355555554, "333333333.33333325"},
      {0x41b3de4355555555, "333333333.3333333"},
      {0x41b3de4355555556, "333333333.3333334"},
      {0x41b3de4355555557, "333333333.33333343"},
      {0xbecbf647612f3696, "-0.0000033333333333333333"},
      {0x43143ff3c1cb0959, "1424953923781206.2"},
      /* of the number file that goes with the RFC's reference implementation */
      {0x4340000000000001, "9007199254740994"},
      {0x4340000000000002, "9007199254740996"},
      /* a power of two: the nearest 16 digits read back as its lower neighbour */
      {0x3d30000000000000, "5.684341886080802e-14"},
  };
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  for (size_t i = 0; i < COUNT(rows); i++) {
    buf_clear(&b);
    assert_int_equal(json_write_double(&b, from_bits(rows[i].bits)), 0);
    assert_string_equal(b.data, rows[i].text);
    buf_clear(&b);
    assert_int_equal(json_canonical(rows[i].text, strlen(rows[i].text), &b, &e), 0);
    assert_string_equal(b.data, rows[i].text);
  }
  buf_clear(&b);
  assert_int_equal(json_write_double(&b, from_bits(0x7fffffffffffffff)), -1);
  assert_int_equal(json_write_double(&b, INFINITY), -1);
  assert_int_equal(json_write_double(&b, -INFINITY), -1);
  assert_int_equal(b.len, 0);
  buf_fini(&b);
}

/* Any octets, then numbers like those that programs write. */
static double draw(uint64_t *seed, int i) {
  uint64_t r = next_random(seed);
  double d;
  switch (i % 8) {
    case 0: d = from_bits(r & 0x000FFFFFFFFFFFFF); break;                          /* subnormal */
    case 1: d = ldexp(1, (int)(r % 2098) - 1074); break;                           /* powers of two */
    case 2: d = (double)(int64_t)(r >> r % 50); break;                             /* integers */
    case 3: d = (double)(r % 1000000000000) / 100; break;                          /* amounts */
    case 4: d = (double)(r >> 11) / 9007199254740992.0; break;                     /* 0 to 1 */
    case 5: d = nextafter(pow(10, (int)(r % 640) - 320), r & 1024 ? 0 : DBL_MAX); break; /* beside powers of ten */
    default: d = from_bits(r);
  }
  return isfinite(d) ? d : 1;
}

static int count_digits(const char *text) {
  int n = 0, last = 0;
  for (; *text != '\0' && *text != 'e'; text++) {
    if (*text >= '0' && *text <= '9' && (n > 0 || *text != '0')) n++;
    if (*text >= '1' && *text <= '9') last = n;
  }
  return last;
}

/* Reads back as d, is canonical already, and no text with one digit less reads back as d. */
static void check_shortest(double d, const char *text) {
  if (strtod(text, NULL) != d) fail_msg("%s is not %a", text, d);
  int digits = count_digits(text);
  char shorter[40];
  if (digits > 1) {
    snprintf(shorter, sizeof shorter, "%.*e", digits - 2, d);
    if (strtod(shorter, NULL) == d) fail_msg("%s is longer than %s", text, shorter);
  }
  double read;
  assert_int_equal(json_number_valid(text, strlen(text)), true);
  enum json_number kind = json_number_classify(text, strlen(text), &read, NULL);
  assert_true(read == d);
  bool large = fabs(d) > 9007199254740992.0 && fabs(d) < 9223372036854775808.0;
  assert_int_equal(kind, large ? JSON_INT64 : JSON_DOUBLE);
}

static void expect_canonical_document(const char *text, const char *expected) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  if (json_canonical(text, strlen(text), &b, &e) != 0) fail_msg("%s: %s", text, e.message);
  if (strcmp(buf_cstr(&b), expected) != 0) fail_msg("%s became %s, not %s", text, b.data, expected);
  buf_fini(&b);
}

/* 10^5 lines `bits text`, checked by Python's repr, which is shortest too but a different program. */
static void C09_hundred_thousand_numbers(void **state) {
  FILE *python = popen("/usr/bin/python3 tests/support/es6_numbers.py", "w");
  assert_non_null(python);
  struct buf b = BUF_INIT;
  uint64_t seed = 8785;
  for (int i = 0; i < 100000; i++) {
    double d = draw(&seed, i);
    buf_clear(&b);
    assert_int_equal(json_write_double(&b, d), 0);
    check_shortest(d, b.data);
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    fprintf(python, "%016llx,%s\n", (unsigned long long)bits, b.data);
    expect_canonical_document(b.data, b.data);
    if (d != floor(d) && fabs(d) < 1e9) {
      /* What a writer of doubles may emit instead. */
      char full[40];
      snprintf(full, sizeof full, "%.17g", d);
      expect_canonical_document(full, b.data);
    }
  }
  buf_fini(&b);
  int status = pclose(python);
  if (status != 0) fail_msg("tests/support/es6_numbers.py: status %d", status);
}

static void expect_exact(const char *lexeme, const char *expected) {
  struct buf b = BUF_INIT;
  size_t n = strlen(lexeme);
  char *copy = xmemdup(lexeme, n);
  if (json_number_canonical(copy, n, &b) != 0) fail_msg("%s refused", lexeme);
  if (strcmp(buf_cstr(&b), expected) != 0) fail_msg("%s became %s, not %s", lexeme, b.data, expected);
  buf_fini(&b);
  free(copy);
}

static void equal_numbers_share_a_form(void **state) {
  static const char *const groups[][6] = {
      {"0", "-0", "0.0", "-0.000", "0e5", "-0E-99999999999999999999"},
      {"1", "1.0", "1e0", "10e-1", "0.001e3", "1.000E+0"},
      {"-1.5", "-1.50", "-15e-1", "-0.15e1", "-150E-2", "-1.5e+00"},
      {"100000000000000", "1e14", "1E+14", "100000000000000.00", "0.1e15", "1000e11"},
      {"9007199254740993", "9007199254740993.0", "9007199254740993e0", "900719925474099.3e1", "90071992547409930e-1",
       "0.9007199254740993E16"},
      {"0.1", "0.10", "1e-1", "0.01e1", "100e-3", "1.0e-1"},
      {"0.000001", "1e-6", "0.0000010", "10e-7", "0.1e-5", "1.0E-06"},
      {"1e-7", "0.0000001", "10e-8", "0.1e-6", "1.00e-7", "100E-9"},
      {"1e+21", "1000000000000000000000", "1e21", "10E20", "1000000000000000000000.0", "0.01e23"},
  };
  for (size_t i = 0; i < COUNT(groups); i++) {
    for (size_t j = 0; j < 6; j++) expect_exact(groups[i][j], groups[i][0]);
  }
}

static void big_numbers_are_exact(void **state) {
  expect_exact("9007199254740992", "9007199254740992");
  expect_exact("9007199254740993", "9007199254740993");
  expect_exact("18446744073709551616", "18446744073709551616");
  expect_exact("100000000000000000000", "100000000000000000000");
  expect_exact("123456789012345678901", "123456789012345678901");
  expect_exact("1234567890123456789012", "1.234567890123456789012e+21");
  expect_exact("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827");
  expect_exact("1e400", "1e+400");
  expect_exact("-12.5e-400", "-1.25e-399");
  expect_exact("1e999999999", "1e+999999999");
  struct buf b = BUF_INIT;
  assert_int_equal(json_number_canonical("1e1000000000", 12, &b), -1);
  assert_int_equal(json_number_canonical("1e-99999999999999999999999", 26, &b), -1);
  assert_int_equal(json_number_canonical("1x", 2, &b), -1);
  assert_int_equal(json_number_canonical("", 0, &b), -1);
  assert_int_equal(b.len, 0);
  buf_fini(&b);
}

/* An integer and its neighbours, as text, at every size: the forms differ. */
static void C07_two_integers_never_share_a_form(void **state) {
  struct buf a = BUF_INIT, b = BUF_INIT;
  struct err e = ERR_INIT;
  uint64_t seed = 7;
  for (int i = 0; i < 20000; i++) {
    uint64_t v = next_random(&seed) >> next_random(&seed) % 60;
    char one[64], two[64], zeros[40] = "";
    if (i % 2 == 1) memset(zeros, '1' + i % 9, (size_t)(next_random(&seed) % 30));
    snprintf(one, sizeof one, "%s%020llu", zeros[0] != '\0' ? zeros : "1", (unsigned long long)v);
    snprintf(two, sizeof two, "%s%020llu", zeros[0] != '\0' ? zeros : "1", (unsigned long long)v + 1);
    buf_clear(&a);
    buf_clear(&b);
    assert_int_equal(json_canonical(one, strlen(one), &a, &e), 0);
    assert_int_equal(json_canonical(two, strlen(two), &b, &e), 0);
    assert_string_not_equal(a.data, b.data);
  }
  buf_fini(&a);
  buf_fini(&b);
}

static void expect_class(const char *lexeme, enum json_number kind, double d, int64_t i) {
  double got = -77;
  int64_t integer = -77;
  size_t n = strlen(lexeme);
  char *copy = xmemdup(lexeme, n);
  if (json_number_classify(copy, n, &got, &integer) != kind) fail_msg("class of %s", lexeme);
  if (got != d) fail_msg("%s is %a, not %a", lexeme, got, d);
  if (integer != i) fail_msg("%s is %lld", lexeme, (long long)integer);
  free(copy);
}

static void classes(void **state) {
  const int64_t none = -77;
  expect_class("0", JSON_DOUBLE, 0, 0);
  expect_class("-0", JSON_DOUBLE, 0, 0);
  expect_class("-0.0e9", JSON_DOUBLE, 0, 0);
  expect_class("1.0", JSON_DOUBLE, 1, 1);
  expect_class("-12e2", JSON_DOUBLE, -1200, -1200);
  expect_class("0.1", JSON_DOUBLE, 0.1, none);
  expect_class("1e300", JSON_DOUBLE, 1e300, none);
  expect_class("5e-324", JSON_DOUBLE, 5e-324, none);
  expect_class("4.94065645841246544e-324", JSON_DECIMAL, 5e-324, none);
  expect_class("9007199254740992", JSON_DOUBLE, 9007199254740992.0, 9007199254740992);
  expect_class("-9007199254740992", JSON_DOUBLE, -9007199254740992.0, -9007199254740992);
  expect_class("9007199254740993", JSON_INT64, 9007199254740992.0, 9007199254740993);
  expect_class("9007199254740994", JSON_INT64, 9007199254740994.0, 9007199254740994);
  expect_class("9223372036854775807", JSON_INT64, 9223372036854775808.0, INT64_MAX);
  expect_class("-9223372036854775808", JSON_INT64, -9223372036854775808.0, INT64_MIN);
  expect_class("9223372036854775808", JSON_DECIMAL, 9223372036854775808.0, none);
  expect_class("-9223372036854775809", JSON_DECIMAL, -9223372036854775808.0, none);
  expect_class("18446744073709551616", JSON_DECIMAL, 18446744073709551616.0, none);
  expect_class("1e18", JSON_INT64, 1e18, 1000000000000000000);
  expect_class("1e19", JSON_DOUBLE, 1e19, none);
  expect_class("0.30000000000000004", JSON_DOUBLE, 0.1 + 0.2, none);
  expect_class("0.30000000000000001", JSON_DECIMAL, 0.3, none);
  expect_class("333333333.33333329", JSON_DECIMAL, 333333333.3333333, none);
  expect_class("0.1000000000000000055511151231257827", JSON_DECIMAL, 0.1, none);
  expect_class("1e400", JSON_DECIMAL, INFINITY, none);
  expect_class("-1e99999999999999999999", JSON_DECIMAL, -INFINITY, none);
  expect_class("1e-400", JSON_DECIMAL, 0, none);
  expect_class("123456789.123456", JSON_DOUBLE, 123456789.123456, none);
}

static void long_lexemes(void **state) {
  size_t n = 300000;
  char *text = xmalloc(n + 8);
  struct buf b = BUF_INIT;
  memset(text, '7', n);
  memcpy(text + n, "1", 1);
  text[n / 2] = '.';
  assert_int_equal(json_number_canonical(text, n + 1, &b), 0);
  assert_int_equal(b.len, n + 1 + strlen("e+149999"));
  memset(text, '0', n);
  text[1] = '.';
  memcpy(text + n, "1", 2);
  buf_clear(&b);
  assert_int_equal(json_number_canonical(text, n + 1, &b), 0);
  assert_string_equal(b.data, "1e-299999");
  double d;
  assert_int_equal(json_number_classify(text, n + 1, &d, NULL), JSON_DECIMAL);
  assert_true(d == 0);
  buf_fini(&b);
  free(text);
}

static void RFC8785_rounding_stops_where_digits_would_be_lost(void **state) {
  expect_canonical_document("333333333.33333329", "333333333.3333333");
  expect_canonical_document("0.30000000000000001", "0.3");
  expect_canonical_document("-0.10000000000000001", "-0.1");
  expect_canonical_document("0.100000000000000001", "0.100000000000000001");
  expect_canonical_document("8.82357994789732e-310", "8.8235799478973e-310");
  expect_canonical_document("4.9406564584124654e-324", "5e-324");
  expect_canonical_document("1e-400", "1e-400");
  /* Amounts that share a double with another amount. */
  expect_canonical_document("1234567890123456.07", "1234567890123456.07");
  expect_canonical_document("123456789012345.68", "123456789012345.68");
  expect_canonical_document("9007199254740993.5", "9007199254740993.5");
  expect_canonical_document("99999999999999.999", "99999999999999.999");
}

static void amounts_with_six_decimals_keep_apart(void **state) {
  struct buf a = BUF_INIT, b = BUF_INIT;
  struct err e = ERR_INIT;
  uint64_t seed = 6;
  for (int i = 0; i < 20000; i++) {
    char one[64], two[64];
    unsigned decimals = 1 + (unsigned)(next_random(&seed) % 6), scale = 1;
    for (unsigned j = 0; j < decimals; j++) scale *= 10;
    uint64_t v = next_random(&seed) >> (next_random(&seed) % 40);
    snprintf(one, sizeof one, "%llu.%0*llu", (unsigned long long)v / scale, (int)decimals, (unsigned long long)v % scale);
    v++;
    snprintf(two, sizeof two, "%llu.%0*llu", (unsigned long long)v / scale, (int)decimals, (unsigned long long)v % scale);
    buf_clear(&a);
    buf_clear(&b);
    assert_int_equal(json_canonical(one, strlen(one), &a, &e), 0);
    assert_int_equal(json_canonical(two, strlen(two), &b, &e), 0);
    if (strcmp(a.data, b.data) == 0) fail_msg("%s and %s share %s", one, two, a.data);
  }
  buf_fini(&a);
  buf_fini(&b);
}

/* With a locale whose decimal point is a comma, made here, because few machines have one. */
static void a_locale_changes_nothing(void **state) {
  char dir[] = "/tmp/umavez-locale-XXXXXX", command[200];
  assert_non_null(mkdtemp(dir));
  snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", dir);
  int made = system(command);
  setenv("LOCPATH", dir, 1);
  bool comma = made == 0 && setlocale(LC_ALL, "de_DE.UTF-8") != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
  if (comma) {
    struct buf b = BUF_INIT;
    json_write_double(&b, 1234.56789e-20);
    assert_string_equal(b.data, "1.23456789e-17");
    buf_fini(&b);
    expect_canonical_document("[333333333.33333329,5e-324]", "[333333333.3333333,5e-324]");
    expect_class("0.30000000000000004", JSON_DOUBLE, 0.1 + 0.2, -77);
    expect_class("0.30000000000000001", JSON_DECIMAL, 0.3, -77);
    setlocale(LC_ALL, "C");
  }
  unsetenv("LOCPATH");
  snprintf(command, sizeof command, "rm -rf %s", dir);
  assert_int_equal(system(command), 0);
  if (!comma) skip();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(C09_appendix_b),
      cmocka_unit_test(C09_hundred_thousand_numbers),
      cmocka_unit_test(equal_numbers_share_a_form),
      cmocka_unit_test(big_numbers_are_exact),
      cmocka_unit_test(C07_two_integers_never_share_a_form),
      cmocka_unit_test(classes),
      cmocka_unit_test(long_lexemes),
      cmocka_unit_test(RFC8785_rounding_stops_where_digits_would_be_lost),
      cmocka_unit_test(amounts_with_six_decimals_keep_apart),
      cmocka_unit_test(a_locale_changes_nothing),
  };
  return RUN(tests);
}
