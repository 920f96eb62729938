#include "core/due.h"

#include <string.h>

void due_init(struct due *d) {
  d->n = 0;
}

/* The first place whose moment is not later than at. */
static size_t place(const struct due *d, int64_t at) {
  size_t low = 0, high = d->n;

  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (d->at[mid] > at)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

void due_add(struct due *d, int64_t at_ms) {
  int64_t over = at_ms % DUE_GRAIN_MS, at = at_ms + (over > 0 ? DUE_GRAIN_MS - over : -over);
  size_t i = place(d, at);

  if (i < d->n && d->at[i] == at) return;
  if (d->n == DUE_MAX) {
    if (i == 0) return;
    memmove(d->at, d->at + 1, --i * sizeof *d->at);
  } else {
    memmove(d->at + i + 1, d->at + i, (d->n++ - i) * sizeof *d->at);
  }
  d->at[i] = at;
}

int64_t due_next(const struct due *d) {
  return d->n ? d->at[d->n - 1] : INT64_MAX;
}

void due_pass(struct due *d, int64_t now_ms) {
  d->n = place(d, now_ms);
}
