/* json_number: exact decimals and shortest doubles; for base/json_*.c only. json_number.c explains the
 * representation. */
#ifndef UMAVEZ_BASE_JSON_NUMBER_H
#define UMAVEZ_BASE_JSON_NUMBER_H

#include "base/json.h"

struct decimal {
  bool negative;      /* a minus sign was written, in front of zero too */
  const char *digits; /* the k significant digits: in the lexeme, in small or in spill */
  size_t k;           /* 0: the number is zero */
  int64_t n;          /* value = ±0.digits × 10^n */
  int64_t fraction_digits; /* digits written behind the point */
  int64_t exponent;        /* as written; saturated beyond ±999,999,999 */
  char *spill;        /* owned, or NULL */
  char small[40];
};

/* Takes apart a valid lexeme, which it borrows until decimal_fini. -1: the exponent is out of range, and saturated. */
int decimal_init(struct decimal *x, const char *lexeme, size_t len);
void decimal_fini(struct decimal *x);

static inline bool decimal_is_integer(const struct decimal *x) { return x->n >= (int64_t)x->k; }

double decimal_to_double(const struct decimal *x); /* the nearest; infinite beyond the range; never -0 */

/* ECMAScript's layout of ±0.digits × 10^n. */
void decimal_write(struct buf *out, bool negative, const char *digits, size_t k, int64_t n);

/* d > 0 and finite, for both. Digits of d rounded correctly to `count` (1..17), trailing zeros dropped; gives k. */
size_t double_digits(double d, int count, char digits[17], int64_t *n);
/* The fewest digits that read back as d, of those the nearest to d; gives k. */
size_t double_shortest(double d, char digits[17], int64_t *n);

#endif
