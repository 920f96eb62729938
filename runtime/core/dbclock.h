/* dbclock: the database's time, as far as this process can know it without asking each time (G7: a worker's own clock counts for nothing).
 *
 * What it is    an answer of PostgreSQL's clock_timestamp(), carried on by the monotonic clock. The moment at which the server looked lies
 *               between the question and the answer, so there are two readings: one that is never ahead, one that is never behind.
 * Life cycle    zeroed with its loop by the worker, set at each look at the database's identity; gate and door read it. */
#ifndef UMAVEZ_CORE_DBCLOCK_H
#define UMAVEZ_CORE_DBCLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "io/loop.h"

struct dbclock {
  struct loop *loop;
  bool known;
  int64_t early_ms, late_ms; /* to be added to the loop's time */
};

/* db_ms: milliseconds since 1970, asked for at the loop's time asked_ms and answered now. */
static inline void dbclock_set(struct dbclock *c, int64_t db_ms, int64_t asked_ms) {
  c->known = true;
  c->early_ms = db_ms - loop_now_ms(c->loop);
  c->late_ms = db_ms - asked_ms;
}

static inline int64_t dbclock_earliest_ms(const struct dbclock *c) {
  return loop_now_ms(c->loop) + c->early_ms;
}

static inline int64_t dbclock_latest_ms(const struct dbclock *c) {
  return loop_now_ms(c->loop) + c->late_ms;
}

#endif
