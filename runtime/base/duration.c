#include "base/duration.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *unit;
  int64_t ms;
} units[] = {{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

enum { UNITS = sizeof units / sizeof units[0], FRACTION_MAX = 9 };

static int not_a_duration(const char *text, const char *why, struct err *e) {
  return err_set(e, ERR_INPUT, "duration", "\"%.60s\" is no duration: %s", text, why);
}

int duration_parse(const char *text, int64_t *ms, struct err *e) {
  const char *p = text;
  int64_t whole = 0, fraction = 0, scale = 1;
  if (*p < '0' || *p > '9') return not_a_duration(text, "write number and unit, like 500ms, 30s, 10m, 24h or 7d", e);
  for (; *p >= '0' && *p <= '9'; p++) {
    whole = whole * 10 + (*p - '0');
    if (whole > DURATION_MAX_MS) return not_a_duration(text, "it is above 36500d", e);
  }
  if (*p == '.') {
    const char *first = ++p;
    for (; *p >= '0' && *p <= '9'; p++) {
      if (p - first == FRACTION_MAX) return not_a_duration(text, "it has too many decimals", e);
      fraction = fraction * 10 + (*p - '0');
      scale *= 10;
    }
    if (p == first) return not_a_duration(text, "a digit is missing behind the point", e);
  }
  for (int i = 0; i < UNITS; i++) {
    if (strcmp(p, units[i].unit) != 0) continue;
    int64_t unit = units[i].ms;
    if (whole > DURATION_MAX_MS / unit) return not_a_duration(text, "it is above 36500d", e);
    if (fraction * unit % scale != 0) return not_a_duration(text, "it is not a whole number of milliseconds", e);
    int64_t sum = whole * unit + fraction * unit / scale;
    if (sum > DURATION_MAX_MS) return not_a_duration(text, "it is above 36500d", e);
    *ms = sum;
    return 0;
  }
  const char *why = *p == '\0' ? "the unit is missing (ms, s, m, h or d)" : "the unit must be ms, s, m, h or d";
  return not_a_duration(text, why, e);
}

void duration_format(int64_t ms, char out[32]) {
  if (ms < 0) bug("duration_format: %" PRId64, ms);
  int i = ms == 0 ? 3 : 0;
  while (ms % units[i].ms != 0) i++;
  snprintf(out, 32, "%" PRId64 "%s", ms / units[i].ms, units[i].unit);
}
