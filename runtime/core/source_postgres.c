#include "core/source_postgres.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "core/due.h"
#include "core/run_stats.h"
#include "core/trouble.h"

#define LATE_MS 20 /* what was enqueued beside a notification may be committed so much later, without one of its own */
#define AFTER_MS 2 /* a moment of our clock that is not before the same of the database's, whose ticks are not ours */
#define AGAIN_MS 10 /* there may be more, or another taker had the lock of a limit: its statement has ended by then, as a rule */
#define LANES_MS 320 /* between two looks at as many lanes as a take looks at, while nothing in them is due */
#define FAR_MS (24 * 3600 * 1000) /* what is due later is left to polling */
#define REAP_MS 1000
#define RETURN_AGAIN_MS 1000 /* after an error that is not the connection's */
#define REAP_LIMIT "1000"
#define TAKE_MAX 200

struct returned {
  struct list node;
  char run_id[37];
  enum give_back how;
  int64_t delay_ms;
};

struct source_postgres {
  struct source base;
  struct loop *loop;
  struct control *control;
  char *worker_id;
  char *queues; /* array literals and JSON, made once */
  char *leases;
  char *weights; /* array literal; NULL: none */
  int64_t poll_interval_ms, lease_ms;
  bool listen;    /* if the session is our own */
  bool listening; /* it is */
  void (*on_up)(void *arg);
  void (*on_down)(void *arg, const struct err *why);
  void *arg;

  int want;
  char *skip; /* array literal */
  bool taking;
  bool woken;  /* by a notification, a moment that has come, a take that brought all it asked for, a task no longer full:
                * look again as soon as that is possible */
  int asked;   /* of the take under way */
  bool asleep; /* as the database knows it */
  int64_t again_ms; /* after a take that has not seen all: until the next look */
  int64_t again_at_ms; /* that look, one however many takes there are: INT64_MAX: none */
  bool any_end; /* runs taken before their limit came have places of it: any of ours may be one */
  bool limits; /* a run under a limit has been taken */
  bool tell_others; /* a place of a limit is free, and this worker wants no runs now */
  struct loop_timer look, reap;
  struct due due;     /* moments to look at, known beforehand */
  int64_t poll_at_ms; /* the next look without any reason */

  struct list returned;  /* not yet sent, or to be sent again */
  struct list returning; /* sent, not yet answered */
  struct loop_task flush, tell_freed;
  struct loop_timer flush_again;
};

static void take(struct source_postgres *s);
static void flush(void *arg);

static struct source_postgres *self(struct source *base) {
  return container_of(base, struct source_postgres, base);
}

/* ---- literals ---- */

static void array_element(struct buf *b, const char *text) {
  buf_puts(b, b->len > 1 ? ",\"" : "\"");
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') buf_putc(b, '\\');
    buf_putc(b, *text);
  }
  buf_putc(b, '"');
}

static char *array_literal(const char *const *texts, int n) {
  struct buf b;

  buf_init(&b);
  buf_putc(&b, '{');
  for (int i = 0; i < n; i++)
    array_element(&b, texts[i]);
  buf_putc(&b, '}');
  return buf_take(&b);
}

static char *int_array_literal(const int *numbers, int n) {
  struct buf b;

  buf_init(&b);
  for (int i = 0; i < n; i++)
    buf_printf(&b, i ? ",%d" : "{%d", numbers[i]);
  buf_putc(&b, '}');
  return buf_take(&b);
}

static void add_lease(void *arg, struct task *t) {
  struct buf *b = arg;

  buf_puts(b, b->len > 1 ? "," : "");
  json_write_string_lossy(b, t->name, strlen(t->name), 1024);
  buf_printf(b, ":%" PRId64, t->lease_ms);
}

static char *leases_json(void) {
  struct buf b;

  buf_init(&b);
  buf_putc(&b, '{');
  task_each(add_lease, &b);
  buf_putc(&b, '}');
  return buf_take(&b);
}

/* What is not the connection's own end (which its control tells). */
static void tell(const struct source_postgres *s, enum log_level level, const char *event, const struct err *e) {
  if (e->class == ERR_ENV) return;
  if (trouble_is(e))
    trouble_tell(s->loop, event, e);
  else
    log_err(level, event, e, NULL);
}

/* ---- sleeping ---- */

static void set_look(struct source_postgres *s) {
  int64_t at = due_next(&s->due);

  if (s->poll_at_ms < at) at = s->poll_at_ms;
  if (s->again_at_ms < at) at = s->again_at_ms;
  loop_timer_start(s->loop, &s->look, at - loop_now_ms(s->loop));
}

static void on_look(void *arg) {
  struct source_postgres *s = arg;

  due_pass(&s->due, loop_now_ms(s->loop));
  if (s->again_at_ms <= loop_now_ms(s->loop)) s->again_at_ms = INT64_MAX;
  s->poll_at_ms = loop_now_ms(s->loop) + s->poll_interval_ms;
  set_look(s);
  s->woken = true;
  take(s);
}

static void look_in(struct source_postgres *s, int64_t ms) {
  due_add(&s->due, loop_now_ms(s->loop) + ms);
  set_look(s);
}

static void source_postgres_due_in(struct source *base, int64_t ms) {
  if (ms < FAR_MS) look_in(self(base), ms + AFTER_MS);
}

static void on_notify(void *arg, const char *channel, const char *payload) {
  struct source_postgres *s = arg;

  stats_inc(STAT_NOTIFICATIONS);
  if (strcmp(payload, "look") == 0) { /* umavez.notify_look(); says nothing itself: anybody can send it */
    s->base.hooks.look(s->base.hooks.arg);
    return;
  }
  s->woken = true;
  s->again_ms = 0;
  /* Rounded up, so that many notifications cost no more than one such look each LATE_MS. */
  due_add(&s->due, (loop_now_ms(s->loop) / LATE_MS + 2) * LATE_MS);
  set_look(s);
  take(s);
}

/* ---- taking ---- */

static char *column(struct pgresult *r, int row, int col) {
  return pgresult_null(r, row, col) ? NULL : xstrdup(pgresult_value(r, row, col));
}

/* Columns: run_id, task, tenant_id, args, deliveries, traceparent, crashes, for how long it has been due in us, limited */
static struct run *run_from_row(struct pgresult *r, int row) {
  struct run *run = run_new(pgresult_value(r, row, 0), pgresult_value(r, row, 1), pgresult_value(r, row, 3),
                            (size_t)pgresult_length(r, row, 3));

  run->has_tenant = !pgresult_null(r, row, 2);
  if (run->has_tenant) run->tenant_id = strtoll(pgresult_value(r, row, 2), NULL, 10);
  run->deliveries = atoi(pgresult_value(r, row, 4));
  run->traceparent = column(r, row, 5);
  run->crashes = atoi(pgresult_value(r, row, 6));
  run->limited = pgresult_value(r, row, 8)[0] == 't';
  run_stats_taken(run, strtoll(pgresult_value(r, row, 7), NULL, 10));
  return run;
}

/* ---- asleep: enqueue sends a notification only while some worker has told the database that it sleeps. A worker that
 * notifications feed, fewer runs at a time than it has room for, stays asleep in this sense ---- */

static void on_sleep_told(void *arg, struct pgresult *result) {
  if (!pgresult_ok(result)) tell(arg, LOG_WARN_, "sleep_not_told", pgresult_err(result));
  pgresult_free(result);
}

static void tell_sleep(struct source_postgres *s, bool asleep) {
  struct pgquery q = {.sql = asleep ? "SELECT umavez.sleep_begin()" : "SELECT umavez.sleep_end()",
                      .done = on_sleep_told,
                      .arg = s};

  if (s->listening && s->asleep != asleep && control_query(s->control, &q)) s->asleep = asleep;
}

/* umavez.take_shared says that there may be more, and why. Ever later, when it is only a lock that does not become free, or lanes that it
 * has not seen. */
static void look_again(struct source_postgres *s, char why, bool progress) {
  s->any_end = why == '2';
  if (s->any_end) return;
  s->again_ms = progress || why == '1' || s->again_ms == 0 ? AGAIN_MS : 2 * s->again_ms;
  if (why == '3' && s->again_ms > LANES_MS) s->again_ms = LANES_MS;
  s->again_at_ms = s->again_ms < s->poll_interval_ms ? loop_now_ms(s->loop) + s->again_ms : INT64_MAX;
  set_look(s);
}

static void on_taken(void *arg, struct pgresult *result) {
  struct source_postgres *s = arg;
  int n;

  s->taking = false;
  s->poll_at_ms = loop_now_ms(s->loop) + s->poll_interval_ms;
  s->again_at_ms = INT64_MAX;
  set_look(s);
  if (!pgresult_ok(result)) {
    tell(s, LOG_ERROR_, "take_failed", pgresult_err(result));
    pgresult_free(result);
    return;
  }
  n = pgresult_rows(result);
  if (n > 0 && pgresult_null(result, n - 1, 0)) {
    n--;
    look_again(s, pgresult_value(result, n, 4)[0], n > 0);
  } else {
    s->again_ms = 0;
    s->any_end = false;
  }
  stats_add(STAT_RUNS_TAKEN, 0, (uint64_t)n);
  if (n == 0) stats_inc(STAT_TAKES_EMPTY);
  for (int i = 0; i < n; i++) {
    struct run *run = run_from_row(result, i);
    s->limits = s->limits || run->limited;
    s->base.hooks.taken(s->base.hooks.arg, run);
  }
  pgresult_free(result);
  if (n > 0 && (n == s->asked || !s->listening)) {
    tell_sleep(s, false);
    s->woken = true;
  } else if (s->listening && !s->asleep) {
    tell_sleep(s, true);
    s->woken = true; /* what was enqueued before the database knew: look once more */
  }
  if (s->woken) s->base.hooks.more(s->base.hooks.arg);
}

static void take(struct source_postgres *s) {
  char limit[16], lease[24];

  if (s->taking || s->want <= 0 || !control_up(s->control)) return;
  s->asked = s->want < TAKE_MAX ? s->want : TAKE_MAX;
  snprintf(limit, sizeof limit, "%d", s->asked);
  snprintf(lease, sizeof lease, "%" PRId64, s->lease_ms);
  const char *values[7] = {s->worker_id, s->queues, limit, s->leases, lease, s->skip, s->weights};
  struct pgquery q = {
      .sql =
          "SELECT run_id, task, tenant_id, args, deliveries, traceparent, crashes,"
          " (extract(epoch FROM clock_timestamp() - run_at) * 1000000)::bigint, limited FROM "
          "umavez.take_runs($1::uuid, $2::text[], $3::int, $4::jsonb, $5::bigint, 'infinity', $6::text[], $7::int[])",
      .nparams = 7,
      .values = values,
      .done = on_taken,
      .arg = s,
  };
  s->taking = control_query(s->control, &q);
  if (!s->taking) return;
  stats_inc(STAT_TAKES);
  s->woken = false;
}

static void source_postgres_want(struct source *base, int n, const char *const *skip, int nskip) {
  struct source_postgres *s = self(base);
  char *before = s->skip;

  s->skip = array_literal(skip, nskip);
  /* What was left for lack of a slot is there still, and no notification tells of it. */
  if (strcmp(before, "{}") != 0 && strcmp(before, s->skip) != 0) s->woken = true;
  free(before);
  s->want = n;
  /* After the queue was found empty, the timer or a notification looks again, not every ended run. */
  if (n > 0 && s->woken) take(s);
}

/* ---- places of limits ---- */

static void on_told(void *arg, struct pgresult *result) {
  if (!pgresult_ok(result)) tell(arg, LOG_WARN_, "free_place_not_told", pgresult_err(result));
  pgresult_free(result);
}

static void tell_freed(void *arg) {
  struct source_postgres *s = arg;
  struct pgquery q = {.sql = "SELECT umavez.wake()", .done = on_told, .arg = s};

  if (s->tell_others && s->want <= 0 && control_up(s->control) && !control_query(s->control, &q))
    log_kv(LOG_DEBUG_, "free_place_not_told", NULL);
  s->tell_others = false;
}

/* This worker takes again by itself when it wants runs after the end of this one; otherwise those that sleep are told, once for all
 * places of this tick. */
static void source_postgres_ended(struct source *base, bool limited) {
  struct source_postgres *s = self(base);

  if (!limited && !s->any_end) return;
  s->woken = true;
  s->tell_others = true;
  loop_defer(s->loop, &s->tell_freed);
}

/* ---- expired leases ---- */

static void on_reaped(void *arg, struct pgresult *result) {
  struct source_postgres *s = arg;

  if (!pgresult_ok(result)) {
    tell(s, LOG_ERROR_, "reap_failed", pgresult_err(result));
  } else if (strcmp(pgresult_value(result, 0, 0), "0") != 0) {
    stats_add(STAT_LEASES_ENDED, 0, strtoull(pgresult_value(result, 0, 0), NULL, 10));
    log_kv(LOG_WARN_, "leases_expired", "runs", pgresult_value(result, 0, 0), NULL);
    look_in(s, 0);
  }
  pgresult_free(result);
}

static void on_reap(void *arg) {
  struct source_postgres *s = arg;
  struct pgquery q = {.sql = "SELECT umavez.reap_runs(" REAP_LIMIT ")", .done = on_reaped, .arg = s};

  if (s->want > 0 && !control_query(s->control, &q)) log_kv(LOG_DEBUG_, "reap_not_sent", NULL);
  loop_timer_start(s->loop, &s->reap, REAP_MS);
}

/* ---- renewing ---- */

/* Columns: run_id, what, message */
static void on_renewed(void *arg, struct pgresult *result) {
  struct source_postgres *s = arg;

  if (!pgresult_ok(result)) tell(s, LOG_ERROR_, "renew_failed", pgresult_err(result));
  for (int i = 0; pgresult_ok(result) && i < pgresult_rows(result); i++) {
    const char *run_id = pgresult_value(result, i, 0), *what = pgresult_value(result, i, 1);
    if (strcmp(what, "lost") == 0)
      log_kv(LOG_DEBUG_, "lease_lost", "run_id", run_id, NULL);
    else
      s->base.hooks.ordered(s->base.hooks.arg, run_id, strcmp(what, "cancel") == 0 ? ORDER_CANCEL : ORDER_RETURN,
                            pgresult_value(result, i, 2));
  }
  pgresult_free(result);
}

static void source_postgres_renew(struct source *base, struct run *const *runs, int n) {
  struct source_postgres *s = self(base);
  struct buf ids, leases;

  buf_init(&ids);
  buf_init(&leases);
  buf_putc(&ids, '{');
  buf_putc(&leases, '{');
  for (int i = 0; i < n; i++) {
    buf_printf(&ids, i ? ",%s" : "%s", runs[i]->run_id);
    buf_printf(&leases, i ? ",%" PRId64 : "%" PRId64, runs[i]->task ? runs[i]->task->lease_ms : s->lease_ms);
  }
  buf_putc(&ids, '}');
  buf_putc(&leases, '}');
  const char *values[3] = {s->worker_id, buf_cstr(&ids), buf_cstr(&leases)};
  struct pgquery q = {.sql = "SELECT r.run_id, 'lost', NULL FROM umavez.renew_runs($1::uuid, $2::uuid[], $3::bigint[]) AS r(run_id) "
                             "UNION ALL SELECT o.run_id, o.what, o.message FROM umavez.held_orders($2::uuid[]) o",
                      .nparams = 3,
                      .values = values,
                      .done = on_renewed,
                      .arg = s};
  if (!control_query(s->control, &q)) log_kv(LOG_DEBUG_, "renew_not_sent", "runs", log_i64(n), NULL);
  FAILPOINT(RENEW_SENT, runs[0]->task_name, control_fd(s->control));
  buf_fini(&ids);
  buf_fini(&leases);
}

/* ---- giving back ---- */

static void splice(struct list *to, struct list *from) {
  while (!list_empty(from)) {
    struct list *n = from->next;
    list_remove(n);
    list_push_back(to, n);
  }
}

static void source_postgres_give_back(struct source *base, const char *run_id, enum give_back how, int64_t delay_ms) {
  struct source_postgres *s = self(base);
  struct returned *r = xcalloc(1, sizeof *r);

  list_init(&r->node);
  memcpy(r->run_id, run_id, sizeof r->run_id);
  r->how = how;
  r->delay_ms = delay_ms;
  list_push_back(&s->returned, &r->node);
  loop_defer(s->loop, &s->flush);
}

static void on_flushed(void *arg, struct pgresult *result) {
  struct source_postgres *s = arg;

  if (pgresult_ok(result)) {
    while (!list_empty(&s->returning)) {
      struct returned *r = container_of(s->returning.next, struct returned, node);
      list_remove(&r->node);
      source_postgres_due_in(&s->base, r->how == GIVE_BACK_BUSY && r->delay_ms > 100 ? 100 : r->delay_ms);
      free(r);
    }
    if (!list_empty(&s->returned)) loop_defer(s->loop, &s->flush);
    if (s->limits) look_in(s, 0); /* places may be free now */
  } else {
    tell(s, LOG_ERROR_, "give_back_failed", pgresult_err(result));
    splice(&s->returned, &s->returning);
    loop_timer_start(s->loop, &s->flush_again, RETURN_AGAIN_MS);
  }
  pgresult_free(result);
}

static void on_flush_again(void *arg) {
  struct source_postgres *s = arg;

  loop_defer(s->loop, &s->flush);
}

static void flush(void *arg) {
  static const char *const reason[] = {"busy", "back", "counted"};
  struct source_postgres *s = arg;
  struct buf b[3];

  if (list_empty(&s->returned) || !list_empty(&s->returning) || !control_up(s->control)) return;
  splice(&s->returning, &s->returned);
  for (int i = 0; i < 3; i++) {
    buf_init(&b[i]);
    buf_putc(&b[i], '{');
  }
  for (struct list *n = s->returning.next; n != &s->returning; n = n->next) {
    struct returned *r = container_of(n, struct returned, node);
    const char *comma = b[0].len > 1 ? "," : "";
    buf_printf(&b[0], "%s%s", comma, r->run_id);
    buf_printf(&b[1], "%s%" PRId64, comma, r->delay_ms);
    buf_printf(&b[2], "%s%s", comma, reason[r->how]);
  }
  for (int i = 0; i < 3; i++)
    buf_putc(&b[i], '}');
  const char *values[4] = {s->worker_id, buf_cstr(&b[0]), buf_cstr(&b[1]), buf_cstr(&b[2])};
  struct pgquery q = {.sql = "SELECT umavez.release_runs($1::uuid, $2::uuid[], $3::bigint[], $4::text[])",
                      .nparams = 4,
                      .values = values,
                      .done = on_flushed,
                      .arg = s};
  if (!control_query(s->control, &q)) splice(&s->returned, &s->returning);
  for (int i = 0; i < 3; i++)
    buf_fini(&b[i]);
}

static bool source_postgres_pending(const struct source *base) {
  const struct source_postgres *s = container_of(base, const struct source_postgres, base);

  return s->taking || !list_empty(&s->returned) || !list_empty(&s->returning);
}

/* ---- life ---- */

static void add_kept(void *arg, const struct run *r) {
  struct buf *b = arg;

  buf_printf(b, b->len > 1 ? ",%s" : "%s", r->run_id);
}

static void on_orphans(void *arg, struct pgresult *result) {
  if (!pgresult_ok(result)) {
    tell(arg, LOG_WARN_, "orphans_not_returned", pgresult_err(result));
  } else if (strcmp(pgresult_value(result, 0, 0), "0") != 0) {
    log_kv(LOG_INFO_, "orphans_returned", "runs", pgresult_value(result, 0, 0), NULL);
  }
  pgresult_free(result);
}

/* Runs that were taken for us by a statement whose answer was lost with the connection: nothing of them has started. */
static void return_orphans(struct source_postgres *s) {
  struct buf kept;

  buf_init(&kept);
  buf_putc(&kept, '{');
  s->base.hooks.held(s->base.hooks.arg, add_kept, &kept);
  for (struct list *n = s->returned.next; n != &s->returned; n = n->next)
    buf_printf(&kept, kept.len > 1 ? ",%s" : "%s", container_of(n, struct returned, node)->run_id);
  buf_putc(&kept, '}');
  const char *values[2] = {s->worker_id, buf_cstr(&kept)};
  struct pgquery q = {.sql = "SELECT umavez.release_orphans($1::uuid, $2::uuid[])",
                      .nparams = 2,
                      .values = values,
                      .done = on_orphans,
                      .arg = s};
  if (!control_query(s->control, &q)) bug("a connection that has just come up is down");
  buf_fini(&kept);
}

/* Behind a pooler the session belongs to others as well: what is set up in it (LISTEN, the sleepers' lock) would stay with them. */
static void on_session(void *arg, struct pgresult *result) {
  struct source_postgres *s = arg;
  struct pgquery q = {.sql = "LISTEN umavez_runs", .once = true, .done = on_sleep_told, .arg = s};

  if (pgresult_ok(result) && control_up(s->control)) {
    s->listening = atoi(pgresult_value(result, 0, 0)) == control_backend_pid(s->control);
    if (!s->listening)
      log_kv(LOG_INFO_, "pooler_found", "what", "notifications do not come through it: the queue is polled", "poll_interval_ms",
             log_i64(s->poll_interval_ms), NULL);
    else if (control_query(s->control, &q))
      look_in(s, 0); /* what was enqueued before */
  }
  pgresult_free(result);
}

static void on_control_up(void *arg) {
  struct source_postgres *s = arg;
  struct pgquery q = {.sql = "SELECT pg_catalog.pg_backend_pid()", .done = on_session, .arg = s};

  s->asleep = s->listening = false;
  if (s->listen && !control_query(s->control, &q)) bug("a connection that has just come up is down");
  return_orphans(s);
  loop_defer(s->loop, &s->flush);
  if (s->on_up) s->on_up(s->arg);
  look_in(s, 0);
}

static void on_control_down(void *arg, const struct err *why) {
  struct source_postgres *s = arg;

  if (s->on_down) s->on_down(s->arg, why);
}

static void source_postgres_free(struct source *base) {
  struct source_postgres *s = self(base);

  loop_timer_stop(&s->look);
  loop_timer_stop(&s->reap);
  loop_timer_stop(&s->flush_again);
  loop_task_cancel(&s->flush);
  loop_task_cancel(&s->tell_freed);
  control_free(s->control);
  splice(&s->returned, &s->returning);
  while (!list_empty(&s->returned)) {
    struct returned *r = container_of(s->returned.next, struct returned, node);
    list_remove(&r->node);
    free(r);
  }
  free(s->worker_id);
  free(s->queues);
  free(s->leases);
  free(s->weights);
  free(s->skip);
  free(s);
}

static const struct source_ops ops = {
    .want = source_postgres_want,
    .give_back = source_postgres_give_back,
    .renew = source_postgres_renew,
    .ended = source_postgres_ended,
    .due_in = source_postgres_due_in,
    .pending = source_postgres_pending,
    .free = source_postgres_free,
};

struct source *source_postgres_new(struct loop *loop, const struct source_postgres_options *o,
                                   const struct source_hooks *hooks) {
  struct source_postgres *s = xcalloc(1, sizeof *s);
  struct control_hooks control_hooks = {on_control_up, on_control_down, on_notify, s};

  s->base.ops = &ops;
  s->base.hooks = *hooks;
  s->loop = loop;
  s->worker_id = xstrdup(o->worker_id);
  s->queues = array_literal(o->queues, o->nqueues);
  s->weights = o->weights ? int_array_literal(o->weights, o->nqueues) : NULL;
  s->skip = array_literal(NULL, 0);
  s->leases = leases_json();
  s->poll_interval_ms = o->poll_interval_ms;
  s->poll_at_ms = loop_now_ms(loop) + o->poll_interval_ms;
  s->again_at_ms = INT64_MAX;
  s->woken = true; /* nobody has looked yet */
  s->lease_ms = o->lease_ms;
  s->listen = o->listen;
  s->on_up = o->on_up;
  s->on_down = o->on_down;
  s->arg = o->arg;
  list_init(&s->returned);
  list_init(&s->returning);
  loop_task_init(&s->flush, flush, s);
  loop_task_init(&s->tell_freed, tell_freed, s);
  loop_timer_init(&s->look, on_look, s);
  due_init(&s->due);
  loop_timer_init(&s->reap, on_reap, s);
  loop_timer_init(&s->flush_again, on_flush_again, s);
  loop_timer_start(loop, &s->reap, REAP_MS);
  s->control = control_new(loop, &o->connection, &control_hooks);
  return &s->base;
}
