#include "core/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crash.h"
#include "base/log.h"

#define RUN_STATE_NAME(id, name, meaning) [id] = name,
static const char *const names[RUN_STATE_COUNT] = {RUN_STATES(RUN_STATE_NAME)};
#define RUN_STATE_MEANING(id, name, meaning) [id] = meaning,
static const char *const meanings[RUN_STATE_COUNT] = {RUN_STATES(RUN_STATE_MEANING)};
#define RUN_MOVE_REASON(from, to, when) [from][to] = when,
static const char *const reasons[RUN_STATE_COUNT][RUN_STATE_COUNT] = {RUN_MOVES(RUN_MOVE_REASON)};

static void on_timer(void *arg) {
  struct run *r = arg;

  loop_defer(r->due_loop, &r->due);
}

void run_timer_start(struct run *r, struct loop *loop, int64_t after_ms, void (*cb)(void *run)) {
  run_timer_stop(r);
  r->due_loop = loop;
  r->due.cb = cb;
  loop_timer_start(loop, &r->timer, after_ms);
}

void run_timer_stop(struct run *r) {
  loop_timer_stop(&r->timer);
  loop_task_cancel(&r->due);
}

struct run *run_new(const char *run_id, const char *task_name, const char *args, size_t args_len) {
  struct run *r = xcalloc(1, sizeof *r);

  snprintf(r->run_id, sizeof r->run_id, "%s", run_id);
  r->task_name = xstrdup(task_name);
  r->task = task_find(task_name);
  r->args = xmemdup(args, args_len + 1);
  r->args_len = args_len;
  list_init(&r->node);
  list_init(&r->member);
  loop_timer_init(&r->timer, on_timer, r);
  loop_task_init(&r->due, NULL, r);
  return r;
}

void run_free(struct run *r) {
  if (r->conn || r->call || r->pending || r->handler_data || r->batch || list_linked(&r->member))
    bug("run %s is freed in state %s with something still held", r->run_id, run_state_name(r->state));
  list_remove(&r->node);
  run_timer_stop(r);
  free(r->task_name);
  free(r->args);
  free(r->traceparent);
  free(r->outcome);
  free(r->cancelled);
  free(r->failure);
  free(r->answer);
  free(r);
}

bool run_used_up(const struct run *r) {
  return !r->request && r->task && (r->deliveries > r->task->max_attempts || r->crashes >= r->task->max_crashes);
}

void run_set_state(struct run *r, enum run_state to) {
  const char *why = run_move_reason(r->state, to);

  if (!why) bug("run %s cannot go from %s to %s", r->run_id, run_state_name(r->state), run_state_name(to));
  log_kv(LOG_DEBUG_, "run_state", "run_id", r->run_id, "from", names[r->state], "to", names[to], "why", why, NULL);
  crash_note(r->run_id, names[to]);
  r->state = to;
}

const char *run_state_name(enum run_state s) {
  return names[s];
}

const char *run_state_meaning(enum run_state s) {
  return meanings[s];
}

const char *run_move_reason(enum run_state from, enum run_state to) {
  return reasons[from][to];
}
