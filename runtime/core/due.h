/* due: the moments at which something is known to become due, earliest first; a source looks at its queue then, however
 * seldom it polls.
 *
 * Life: due_init → (due_add, due_next, due_pass); it owns nothing. Moments are int64_t milliseconds of the loop's clock.
 *
 * A moment is rounded up to a multiple of DUE_GRAIN_MS, so that many runs that fail together cost a look each few
 * milliseconds and not one each. At most DUE_MAX are kept; beyond that the latest is forgotten, and polling finds what it
 * stood for. */
#ifndef UMAVEZ_CORE_DUE_H
#define UMAVEZ_CORE_DUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DUE_MAX = 1024, DUE_GRAIN_MS = 5 };

struct due {
  size_t n;            /* private from here on */
  int64_t at[DUE_MAX]; /* latest first, each once: the earliest goes without moving the others */
};

void due_init(struct due *d);
void due_add(struct due *d, int64_t at_ms);
int64_t due_next(const struct due *d); /* INT64_MAX: none */
/* Forgets the moments up to now_ms, that one included. */
void due_pass(struct due *d, int64_t now_ms);

#endif
