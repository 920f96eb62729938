#include "io/backoff.h"

#include "base/digest.h"

int64_t backoff_next_ms(struct backoff *b) {
  int64_t step = b->step_ms > 0 ? b->step_ms : b->base_ms;
  if (step > b->cap_ms) step = b->cap_ms;
  if (step < 1) step = 1;
  b->step_ms = step > b->cap_ms / 2 ? b->cap_ms : step * 2;
  int64_t half = step / 2;
  int64_t delay = step - half + (int64_t)(random_unit() * (double)(half + 1));
  return delay > 0 ? delay : 1;
}

void backoff_reset(struct backoff *b) { b->step_ms = 0; }
