/* backoff: the waiting time before the next try; doubles up to a cap, with jitter so that many processes don't try at once.
 *
 * Plain data: copy it, initialise it with BACKOFF_INIT. Each delay is random between half of the present step and the step.
 */
#ifndef UMAVEZ_IO_BACKOFF_H
#define UMAVEZ_IO_BACKOFF_H

#include <stdint.h>

struct backoff {
  int64_t base_ms; /* the first step */
  int64_t cap_ms;  /* the longest step */
  int64_t step_ms; /* the next step; 0: base_ms */
};

#define BACKOFF_INIT(base, cap) {.base_ms = (base), .cap_ms = (cap)}

int64_t backoff_next_ms(struct backoff *b); /* the delay to wait now; at least 1 */
void backoff_reset(struct backoff *b);

#endif
