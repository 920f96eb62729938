#include "base/stats.h"

#include <inttypes.h>
#include <string.h>

struct histogram {
  uint64_t buckets[STATS_BUCKETS];
  uint64_t count;
  uint64_t sum;
};

static struct {
  uint64_t counters[STAT_COUNT];
  struct histogram histograms[STAT_HISTOGRAM_COUNT];
} stats;

struct description {
  const char *name;
  const char *help;
};

static const struct description counters[] = {
#define X(id, name, help) {#name, help},
    STATS_COUNTERS(X)
#undef X
};

static const struct description histograms[] = {
#define X(id, name, help) {#name, help},
    STATS_HISTOGRAMS(X)
#undef X
};

void stats_add(enum stats_counter c, uint64_t n) {
  if ((unsigned)c >= STAT_COUNT) bug("stats: counter %d", (int)c);
  stats.counters[c] += n;
}

void stats_inc(enum stats_counter c) { stats_add(c, 1); }

uint64_t stats_get(enum stats_counter c) {
  if ((unsigned)c >= STAT_COUNT) bug("stats: counter %d", (int)c);
  return stats.counters[c];
}

const char *stats_name(enum stats_counter c) {
  if ((unsigned)c >= STAT_COUNT) bug("stats: counter %d", (int)c);
  return counters[c].name;
}

static struct histogram *get(enum stats_histogram h) {
  if ((unsigned)h >= STAT_HISTOGRAM_COUNT) bug("stats: histogram %d", (int)h);
  return &stats.histograms[h];
}

void stats_observe(enum stats_histogram id, int64_t value) {
  struct histogram *h = get(id);
  uint64_t v = value > 0 ? (uint64_t)value : 0;
  /* The smallest i with v <= 2^i. */
  int bucket = v <= 1 ? 0 : 64 - __builtin_clzll(v - 1);
  h->buckets[bucket < STATS_BUCKETS ? bucket : STATS_BUCKETS - 1]++;
  h->count++;
  h->sum += v;
}

uint64_t stats_observed(enum stats_histogram h) { return get(h)->count; }

int64_t stats_quantile(enum stats_histogram id, double q) {
  const struct histogram *h = get(id);
  if (h->count == 0) return 0;
  uint64_t seen = 0;
  int i = 0;
  for (; i < STATS_BUCKETS - 1; i++) {
    seen += h->buckets[i];
    if ((double)seen >= q * (double)h->count && seen > 0) break;
  }
  return INT64_C(1) << i;
}

static void dump_histogram(struct buf *out, const struct description *d, const struct histogram *h) {
  buf_printf(out, "# HELP umavez_%s %s.\n# TYPE umavez_%s histogram\n", d->name, d->help, d->name);
  uint64_t seen = 0;
  for (int i = 0; i < STATS_BUCKETS - 1; i++) {
    seen += h->buckets[i];
    buf_printf(out, "umavez_%s_bucket{le=\"%" PRIu64 "\"} %" PRIu64 "\n", d->name, UINT64_C(1) << i, seen);
  }
  buf_printf(out, "umavez_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", d->name, h->count);
  buf_printf(out, "umavez_%s_sum %" PRIu64 "\numavez_%s_count %" PRIu64 "\n", d->name, h->sum, d->name, h->count);
}

void stats_dump(struct buf *out) {
  for (int i = 0; i < STAT_COUNT; i++) {
    const struct description *d = &counters[i];
    buf_printf(out, "# HELP umavez_%s_total %s.\n# TYPE umavez_%s_total counter\n", d->name, d->help, d->name);
    buf_printf(out, "umavez_%s_total %" PRIu64 "\n", d->name, stats.counters[i]);
  }
  for (int i = 0; i < STAT_HISTOGRAM_COUNT; i++) dump_histogram(out, &histograms[i], &stats.histograms[i]);
}

void stats_reset(void) { memset(&stats, 0, sizeof stats); }
