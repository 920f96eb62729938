/* duration: lengths of time as people write them, "500ms", "30s", "1.5s", "10m", "24h", "7d"; milliseconds inside. */
#ifndef UMAVEZ_BASE_DURATION_H
#define UMAVEZ_BASE_DURATION_H

#include "base/err.h"

#define DURATION_MAX_MS (INT64_C(36500) * 24 * 60 * 60 * 1000) /* 36500d: sums of a few stay far from overflow */

/* One number, a fraction allowed where whole milliseconds come out, and one unit (ms, s, m, h, d; d is 24 h); nothing
 * else, no sign, no space. -1: ERR_INPUT "duration", *ms untouched. */
MUST_CHECK int duration_parse(const char *text, int64_t *ms, struct err *e);

/* The shortest text that duration_parse reads back: the largest unit that divides ms. ms must not be negative. */
void duration_format(int64_t ms, char out[32]);

#endif
