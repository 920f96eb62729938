#include "io/backoff.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

/* Not cryptographic: it only has to differ between processes that start together. */
static uint64_t random_u64(void) {
  static uint64_t state;
  if (state == 0) {
    if (getrandom(&state, sizeof state, GRND_NONBLOCK) != sizeof state || state == 0) {
      struct timespec t;
      clock_gettime(CLOCK_MONOTONIC, &t);
      state = (uint64_t)t.tv_nsec * 2654435761u + (uint64_t)(uintptr_t)&state + 1;
    }
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

int64_t backoff_next_ms(struct backoff *b) {
  int64_t step = b->step_ms > 0 ? b->step_ms : b->base_ms;
  if (step > b->cap_ms) step = b->cap_ms;
  if (step < 1) step = 1;
  b->step_ms = step > b->cap_ms / 2 ? b->cap_ms : step * 2;
  int64_t half = step / 2;
  int64_t delay = step - half + (int64_t)(random_u64() % (uint64_t)(half + 1));
  return delay > 0 ? delay : 1;
}

void backoff_reset(struct backoff *b) { b->step_ms = 0; }
