/* Numbers: exact decimals from lexemes, and the shortest decimal of a double.
 *
 * A decimal is (-1)^negative × 0.d₁d₂…d_k × 10^n with d₁ and d_k not 0 (k = 0: zero), n as in ECMAScript's
 * Number::toString (ECMA-262, 6.1.6.1.20), whose layout is used for doubles and for exact decimals alike: since it is a
 * function of the digits and n alone, equal values share a text and different values do not.
 */
#include "base/json_number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPONENT_MAX = 999999999 };
#define TWO_53 9007199254740992ULL

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The exponent's digits; saturates well outside EXPONENT_MAX. */
static int64_t parse_exponent(const char *s, size_t n) {
  size_t i = 0;
  bool negative = false;
  if (i < n && (s[i] == '+' || s[i] == '-')) negative = s[i++] == '-';
  int64_t value = 0;
  for (; i < n; i++) {
    if (value <= EXPONENT_MAX) value = value * 10 + (s[i] - '0');
  }
  return negative ? -value : value;
}

/* Points x->digits at the significant digits of the mantissa, copying only when the point stands among them. */
static void take_digits(struct decimal *x, const char *mantissa, size_t first, size_t last) {
  size_t span = last - first + 1;
  const char *point = memchr(mantissa + first, '.', span);
  if (point == NULL) {
    x->digits = mantissa + first;
    x->k = span;
    return;
  }
  x->k = span - 1;
  char *to = x->small;
  if (x->k > sizeof x->small) to = x->spill = xmalloc(x->k);
  size_t before = (size_t)(point - (mantissa + first));
  memcpy(to, mantissa + first, before);
  memcpy(to + before, point + 1, x->k - before);
  x->digits = to;
}

int decimal_init(struct decimal *x, const char *lexeme, size_t len) {
  x->spill = NULL;
  x->negative = len > 0 && lexeme[0] == '-';
  const char *s = lexeme + (x->negative ? 1 : 0);
  size_t n = len - (x->negative ? 1 : 0), mantissa = 0, point = SIZE_MAX, first = SIZE_MAX, last = 0;
  for (; mantissa < n && (is_digit(s[mantissa]) || s[mantissa] == '.'); mantissa++) {
    if (s[mantissa] == '.') {
      point = mantissa;
    } else if (s[mantissa] != '0') {
      if (first == SIZE_MAX) first = mantissa;
      last = mantissa;
    }
  }
  if (point == SIZE_MAX) point = mantissa;
  x->fraction_digits = point < mantissa ? (int64_t)(mantissa - point - 1) : 0;
  x->exponent = mantissa < n ? parse_exponent(s + mantissa + 1, n - mantissa - 1) : 0;
  if (first == SIZE_MAX) {
    x->digits = x->small;
    x->k = 0;
    x->n = 0;
    return 0;
  }
  take_digits(x, s, first, last);
  /* d₁ stands `point - first` places before the point, or behind it. */
  x->n = (first < point ? (int64_t)(point - first) : -(int64_t)(first - point - 1)) + x->exponent;
  return x->exponent > EXPONENT_MAX || x->exponent < -EXPONENT_MAX ? -1 : 0;
}

void decimal_fini(struct decimal *x) { free(x->spill); }

static void put_zeros(struct buf *out, int64_t n) { memset(buf_extend(out, (size_t)n), '0', (size_t)n); }

void decimal_write(struct buf *out, bool negative, const char *digits, size_t k, int64_t n) {
  if (k == 0) {
    buf_putc(out, '0');
    return;
  }
  if (negative) buf_putc(out, '-');
  if (n > 0 && n <= 21) {
    if ((int64_t)k <= n) {
      buf_append(out, digits, k);
      put_zeros(out, n - (int64_t)k);
    } else {
      buf_append(out, digits, (size_t)n);
      buf_putc(out, '.');
      buf_append(out, digits + n, k - (size_t)n);
    }
  } else if (n > -6 && n <= 0) {
    buf_puts(out, "0.");
    put_zeros(out, -n);
    buf_append(out, digits, k);
  } else {
    buf_putc(out, digits[0]);
    if (k > 1) {
      buf_putc(out, '.');
      buf_append(out, digits + 1, k - 1);
    }
    buf_printf(out, "e%c%lld", n > 0 ? '+' : '-', (long long)(n > 0 ? n - 1 : 1 - n));
  }
}

/* Digits and exponent as one integer with an exponent: no decimal point, so no locale can disturb strtod. */
static double nearest_double(bool negative, const char *digits, size_t k, int64_t n) {
  char small[64];
  char *text = k + 32 <= sizeof small ? small : xmalloc(k + 32);
  if (k == 0) return 0.0;
  memcpy(text, digits, k);
  /* Beyond ±10,000 above the digits' own weight every double is 0 or infinite. */
  int64_t exponent = n > 10000 ? 10000 : n < -10000 ? -10000 - (int64_t)k : n - (int64_t)k;
  snprintf(text + k, 32, "e%lld", (long long)exponent);
  double d = strtod(text, NULL);
  if (text != small) free(text);
  return negative ? -d : d;
}

double decimal_to_double(const struct decimal *x) { return nearest_double(x->negative, x->digits, x->k, x->n); }

size_t double_digits(double d, int count, char digits[17], int64_t *n) {
  char text[40];
  snprintf(text, sizeof text, "%.*e", count - 1, d);
  size_t k = 0;
  const char *p = text;
  for (; *p != 'e'; p++) { /* the decimal point may be the locale's */
    if (is_digit(*p)) digits[k++] = *p;
  }
  *n = strtol(p + 1, NULL, 10) + 1;
  while (k > 1 && digits[k - 1] == '0') k--;
  return k;
}

/* Adds one unit in the last of `count` places. */
static void increment(char *digits, size_t *k, int count, int64_t *n) {
  while (*k < (size_t)count) digits[(*k)++] = '0';
  size_t i = *k;
  while (i > 0 && digits[i - 1] == '9') i--;
  if (i == 0) {
    digits[0] = '1';
    *k = 1;
    ++*n;
    return;
  }
  digits[i - 1]++;
  *k = i;
}

/* Is there a decimal of `count` digits that reads back as d? The nearest such. */
static bool try_digits(double d, int count, bool both_sides, char digits[17], size_t *k, int64_t *n) {
  *k = double_digits(d, count, digits, n);
  if (nearest_double(false, digits, *k, *n) == d) return true;
  if (!both_sides) return false;
  increment(digits, k, count, n);
  return nearest_double(false, digits, *k, *n) == d;
}

size_t double_shortest(double d, char digits[17], int64_t *n) {
  size_t k;
  if (d < (double)TWO_53 && d == floor(d)) {
    char text[24];
    k = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)d);
    *n = (int64_t)k;
    while (k > 1 && text[k - 1] == '0') k--;
    memcpy(digits, text, k);
    return k;
  }
  /* Any decimal of up to DBL_DIG digits survives a normal double, so if one reads back as d, rounding d to DBL_DIG
   * digits finds it. A subnormal has less precision: search from one digit on. */
  int exponent;
  bool subnormal = d < DBL_MIN;
  /* At a power of two the doubles below lie twice as dense: the decimal nearest to d may read back as another one
   * while the next decimal above reads back as d. */
  bool both_sides = subnormal || frexp(d, &exponent) == 0.5;
  for (int count = subnormal ? 1 : DBL_DIG; count < DBL_DECIMAL_DIG; count++) {
    if (try_digits(d, count, both_sides, digits, &k, n)) return k;
  }
  return double_digits(d, DBL_DECIMAL_DIG, digits, n);
}

int json_write_double(struct buf *out, double d) {
  if (!isfinite(d)) return -1;
  if (d == 0) {
    buf_putc(out, '0');
    return 0;
  }
  char digits[17];
  int64_t n;
  size_t k = double_shortest(fabs(d), digits, &n);
  decimal_write(out, d < 0, digits, k, n);
  return 0;
}

/* The magnitude of an integer of up to 19 digits. */
static uint64_t magnitude(const struct decimal *x) {
  uint64_t value = 0;
  for (int64_t i = 0; i < x->n; i++) value = value * 10 + (i < (int64_t)x->k ? (uint64_t)(x->digits[i] - '0') : 0);
  return value;
}

static bool is_shortest(const struct decimal *x, double d) {
  if (x->k > DBL_DECIMAL_DIG || !isfinite(d) || d == 0) return false;
  if (x->k <= DBL_DIG && fabs(d) >= DBL_MIN) return true;
  char digits[17];
  int64_t n;
  size_t k = double_shortest(fabs(d), digits, &n);
  return k == x->k && n == x->n && memcmp(digits, x->digits, k) == 0;
}

static enum json_number classify(const struct decimal *x, double *d, int64_t *i) {
  if (decimal_is_integer(x) && x->n <= 19) {
    uint64_t value = magnitude(x);
    bool fits = value <= (uint64_t)INT64_MAX + (x->negative ? 1 : 0);
    if (fits && i != NULL) *i = (int64_t)(x->negative ? 0 - value : value);
    if (d != NULL) *d = x->negative && value > 0 ? -(double)value : (double)value;
    if (fits) return value <= TWO_53 ? JSON_DOUBLE : JSON_INT64;
  }
  double near = decimal_to_double(x);
  if (d != NULL) *d = near;
  return is_shortest(x, near) ? JSON_DOUBLE : JSON_DECIMAL;
}

enum json_number json_number_classify(const char *lexeme, size_t len, double *d, int64_t *i) {
  struct decimal x;
  if (!json_number_valid(lexeme, len)) bug("json_number_classify: not a number");
  decimal_init(&x, lexeme, len); /* an exponent out of range is saturated: still 0 or infinite as a double */
  enum json_number kind = classify(&x, d, i);
  decimal_fini(&x);
  return kind;
}

int json_number_canonical(const char *lexeme, size_t len, struct buf *out) {
  struct decimal x;
  if (!json_number_valid(lexeme, len)) return -1;
  int result = decimal_init(&x, lexeme, len);
  if (result == 0) decimal_write(out, x.negative, x.digits, x.k, x.n);
  decimal_fini(&x);
  return result;
}
