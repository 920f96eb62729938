#include "core/schedules.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/stats.h"
#include "core/task.h"

#define LATE_MS 60000   /* a slot that is enqueued so late is a warning */
#define AGAIN_MS 5000   /* after a question that was not answered */
#define LEAST_MS 1

struct schedules {
  struct loop *loop;
  struct control *control;
  char *declared; /* JSON array */
  bool fresh;     /* what is declared is news: until the database has looked at all of it */
  bool asking, stopped;
  struct loop_timer timer;
};

enum { EVENT, TASK, SLOT, UNTIL, SLOTS, RUNS, LAG_MS, ERROR, WAIT_MS };

static const char *text(const struct pgresult *r, int row, int col) {
  return pgresult_null(r, row, col) ? NULL : pgresult_value(r, row, col);
}

/* One row is one event. */
static void tell(const struct pgresult *r, int row) {
  const char *event = pgresult_value(r, row, EVENT), *task = text(r, row, TASK), *slot = text(r, row, SLOT),
             *until = text(r, row, UNTIL), *lag = text(r, row, LAG_MS);

  if (strcmp(event, "enqueued") == 0) {
    int64_t lag_ms = lag ? strtoll(lag, NULL, 10) : 0;
    bool late = lag_ms >= LATE_MS;
    stats_observe(STAT_SCHEDULE_LAG, lag_ms * 1000);
    log_kv(late ? LOG_WARN_ : LOG_INFO_, "schedule_enqueued", "task", task, "slot", slot, "until",
           until && slot && strcmp(until, slot) != 0 ? until : NULL, "slots", text(r, row, SLOTS), "runs",
           text(r, row, RUNS), "lag_ms", lag, NULL);
  } else if (strcmp(event, "skipped") == 0) {
    log_kv(LOG_WARN_, "schedule_skipped", "task", task, "slot", slot, "before", until, NULL);
  } else if (strcmp(event, "declared") == 0) {
    log_kv(LOG_INFO_, "schedule_declared", "task", task, "next", slot ? slot : "never", NULL);
  } else if (strcmp(event, "busy") == 0) {
    log_kv(LOG_INFO_, "schedule_busy", "task", task, "slot", slot, "why", text(r, row, ERROR), NULL);
  } else {
    log_kv(LOG_ERROR_, "schedule_failed", "task", task, "slot", slot, "error", text(r, row, ERROR), NULL);
  }
}

static void on_answer(void *arg, struct pgresult *r) {
  struct schedules *s = arg;
  int64_t wait = AGAIN_MS;
  bool busy = false;

  s->asking = false;
  if (!pgresult_ok(r)) {
    if (pgresult_err(r)->class != ERR_ENV) log_err(LOG_ERROR_, "schedules_not_read", pgresult_err(r), NULL);
  } else {
    for (int row = 0; row < pgresult_rows(r); row++) {
      if (strcmp(pgresult_value(r, row, EVENT), "wait") == 0) {
        wait = strtoll(pgresult_value(r, row, WAIT_MS), NULL, 10);
      } else {
        busy |= strcmp(pgresult_value(r, row, EVENT), "busy") == 0;
        tell(r, row);
      }
    }
    if (!busy) s->fresh = false;
  }
  pgresult_free(r);
  if (!s->stopped) loop_timer_start(s->loop, &s->timer, wait > LEAST_MS ? wait : LEAST_MS);
}

static void ask(void *arg) {
  struct schedules *s = arg;
  const char *values[2] = {s->declared, s->fresh ? "true" : "false"};
  struct pgquery q = {.sql = "SELECT event, task, slot, until, slots, runs, lag_ms, error, wait_ms"
                             " FROM umavez.tick_schedules($1::jsonb, $2::boolean)",
                      .nparams = 2,
                      .values = values,
                      .done = on_answer,
                      .arg = s};

  if (s->asking || s->stopped) return;
  s->asking = control_query(s->control, &q); /* down: schedules_start comes when it is up again */
}

static void add(void *arg, struct task *t) {
  struct buf *b = arg;

  if (!t->schedule) return;
  buf_putc(b, b->len > 0 ? ',' : '[');
  buf_puts(b, t->schedule);
}

struct schedules *schedules_new(struct loop *loop, struct control *control) {
  struct schedules *s;
  struct buf b = BUF_INIT;

  task_each(add, &b);
  if (b.len == 0) {
    buf_fini(&b);
    return NULL;
  }
  buf_putc(&b, ']');
  s = xcalloc(1, sizeof *s);
  s->loop = loop;
  s->control = control;
  s->declared = buf_take(&b);
  s->fresh = true;
  loop_timer_init(&s->timer, ask, s);
  return s;
}

void schedules_start(struct schedules *s) {
  if (!s) return;
  loop_timer_stop(&s->timer);
  ask(s);
}

void schedules_stop(struct schedules *s) {
  if (!s) return;
  s->stopped = true;
  loop_timer_stop(&s->timer);
}

void schedules_free(struct schedules *s) {
  if (!s) return;
  loop_timer_stop(&s->timer);
  free(s->declared);
  free(s);
}
