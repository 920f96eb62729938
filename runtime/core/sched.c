#include "core/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/stats.h"
#include "core/batch.h"
#include "core/gate.h"
#include "core/ledger.h"

#define RATE_WINDOW_MS 100
#define PREFETCH_MS 100 /* how much work, at the present rate, is held ready */
#define RENEW_MIN_MS 200
#define RENEW_MAX_MS 10000
#define LOOK_MS 50 /* between two looks for orders, at least: anybody can ask for them */
#define GIVE_BACK_MS 3000 /* after drain_timeout: for rollbacks and returned leases to be confirmed */
#define SKIP_MAX 64

struct sched {
  struct loop *loop;
  struct sched_options options;
  struct source *source;
  struct runner *runner;
  struct gate *gate;

  struct list ready; /* RUN_TAKEN, in order of arrival */
  struct list started;
  int nready, nstarted;
  bool taking;

  int ended; /* in the present window */
  int64_t window_ms;
  double rate; /* ended runs a second, smoothed */

  struct loop_task dispatch;
  struct loop_timer renew;
  bool looking; /* it comes early, for orders */

  bool draining, stopped;
  int64_t drain_until_ms;
  struct loop_timer drain;
  struct loop_task drain_check, drain_step;
  void (*drained)(void *arg, int left);
  void *drained_arg;
};

static void dispatch(void *arg);
static void on_renew(void *arg);
static void on_drain_time(void *arg);
static void drain_step(void *arg);
static void check_drained(void *arg);

struct sched *sched_new(struct loop *loop, const struct sched_options *options) {
  struct sched *s = xcalloc(1, sizeof *s);

  s->loop = loop;
  s->options = *options;
  list_init(&s->ready);
  list_init(&s->started);
  loop_task_init(&s->dispatch, dispatch, s);
  loop_task_init(&s->drain_check, check_drained, s);
  loop_task_init(&s->drain_step, drain_step, s);
  loop_timer_init(&s->renew, on_renew, s);
  loop_timer_init(&s->drain, on_drain_time, s);
  s->window_ms = loop_now_ms(loop);
  return s;
}

void sched_connect(struct sched *s, struct source *source, struct runner *runner, struct gate *gate) {
  s->source = source;
  s->runner = runner;
  s->gate = gate;
}

static void free_run(void *run) {
  run_free(run);
}

void sched_free(struct sched *s) {
  if (!s) return;
  if (s->nready || s->nstarted) bug("sched is freed with %d runs", s->nready + s->nstarted);
  loop_task_cancel(&s->dispatch);
  loop_task_cancel(&s->drain_check);
  loop_task_cancel(&s->drain_step);
  loop_timer_stop(&s->renew);
  loop_timer_stop(&s->drain);
  free(s);
}

bool sched_draining(const struct sched *s) {
  return s->draining;
}

bool sched_connected(const struct sched *s) {
  return s->taking;
}

bool sched_taking(const struct sched *s) {
  return s->taking && !s->draining;
}

int sched_in_flight(const struct sched *s) {
  return s->nready + s->nstarted;
}

static void tell_held(const struct sched *s) {
  stats_set(STAT_RUNS_HELD, 0, (uint64_t)sched_in_flight(s));
}

/* ---- taking ---- */

static void measure_rate(struct sched *s) {
  int64_t elapsed = loop_now_ms(s->loop) - s->window_ms;

  if (elapsed < RATE_WINDOW_MS) return;
  s->rate = 0.5 * s->rate + 0.5 * s->ended * 1000.0 / (double)elapsed;
  s->ended = 0;
  s->window_ms += elapsed;
}

/* As many as there are connections, and beyond them what will be started within PREFETCH_MS. A take has a price of its
 * own, some twenty times a run's share of it: so the runs held ahead are filled up when half of them are gone, not one
 * by one. held: those that take up places. shared: as many as batches are made of. */
static int wanted(const struct sched *s, int held, int shared) {
  int ahead = (int)(s->rate * PREFETCH_MS / 1000.0);

  if (ahead < shared) ahead = shared;
  if (ahead > s->options.prefetch) ahead = s->options.prefetch;
  return held <= s->options.pool_size + ahead / 2 ? s->options.pool_size + ahead - held : 0;
}

struct full {
  const char *name[SKIP_MAX];
  int n;
  int shared;
};

static bool is_full(const struct task *t) {
  return t->concurrency > 0 && t->running >= t->concurrency;
}

static void collect_full(void *arg, struct task *t) {
  struct full *f = arg;

  if (is_full(t) && f->n < SKIP_MAX) f->name[f->n++] = t->name;
  if (batch_ahead(t) > f->shared) f->shared = batch_ahead(t);
}

static void ask_source(struct sched *s) {
  struct full f = {.n = 0};
  int want = 0;

  if (s->taking && !s->draining && s->options.queue) {
    task_each(collect_full, &f);
    /* What is still in the ready list waits for its own task (skipped until then): others need not wait with it. */
    want = wanted(s, s->nstarted + (f.n < SKIP_MAX ? 0 : s->nready), f.shared);
  }
  source_want(s->source, want > 0 ? want : 0, f.name, f.n);
}

static void put_among_started(struct sched *s, struct run *r) {
  list_remove(&r->node);
  s->nready--;
  list_push_back(&s->started, &r->node);
  s->nstarted++;
  if (r->task) r->task->running++;
}

static void start_run(struct sched *s, struct run *r) {
  put_among_started(s, r);
  runner_start(s->runner, r);
}

static void dispatch(void *arg) {
  struct sched *s = arg;
  struct list *n, *next;

  for (n = s->ready.next; n != &s->ready && s->taking; n = next) {
    struct run *r = container_of(n, struct run, node);
    next = n->next;
    if (!r->task || !is_full(r->task)) start_run(s, r);
  }
  measure_rate(s);
  ask_source(s);
}

void sched_on_taken(void *arg, struct run *r) {
  struct sched *s = arg;

  list_push_back(&s->ready, &r->node);
  s->nready++;
  tell_held(s);
  if (s->draining || !s->taking || !s->options.queue) {
    put_among_started(s, r);
    runner_give_back(s->runner, r);
    return;
  }
  loop_defer(s->loop, &s->dispatch);
}

void sched_on_more(void *arg) {
  struct sched *s = arg;

  loop_defer(s->loop, &s->dispatch);
}

void sched_held(void *arg, void (*each)(void *each_arg, const struct run *r), void *each_arg) {
  struct sched *s = arg;
  struct list *lists[2] = {&s->ready, &s->started};

  for (int i = 0; i < 2; i++)
    for (struct list *n = lists[i]->next; n != lists[i]; n = n->next)
      if (!container_of(n, struct run, node)->request) each(each_arg, container_of(n, struct run, node));
}

void sched_adopt(struct sched *s, struct run *r) {
  list_push_back(&s->started, &r->node);
  s->nstarted++;
  if (!r->look_only) r->task->running++;
  tell_held(s);
  runner_start(s->runner, r);
}

void sched_on_ended(void *arg, struct run *r) {
  struct sched *s = arg;

  list_remove(&r->node);
  s->nstarted--;
  s->ended++;
  tell_held(s);
  if (r->task && !r->look_only) r->task->running--;
  if (r->ended) r->ended(r);
  loop_free_later(s->loop, free_run, r);
  loop_defer(s->loop, s->draining ? &s->drain_check : &s->dispatch);
  source_ended(s->source, r->limited); /* after dispatch has asked for more, if it does */
}

/* ---- leases ---- */

static void shortest_lease(void *arg, struct task *t) {
  int64_t *ms = arg;

  if (t->lease_ms / 3 < *ms) *ms = t->lease_ms / 3;
}

static int64_t renew_interval_ms(void) {
  int64_t ms = RENEW_MAX_MS;

  task_each(shortest_lease, &ms);
  return ms > RENEW_MIN_MS ? ms : RENEW_MIN_MS;
}

/* While a run is being settled its row is locked by its own transaction: a renewal would wait for that, and hold up
 * all others. */
static bool renewable(const struct run *r) {
  return r->state != RUN_COMPLETE && r->state != RUN_FAIL && r->state != RUN_ACK && r->state != RUN_END &&
         r->state != RUN_DONE;
}

static void on_renew(void *arg) {
  struct sched *s = arg;
  struct list *lists[2] = {&s->ready, &s->started};
  struct run **runs = xcalloc((size_t)(s->nready + s->nstarted + 1), sizeof *runs);
  int n = 0;

  s->looking = false;
  for (int i = 0; i < 2; i++) {
    for (struct list *l = lists[i]->next; l != lists[i]; l = l->next) {
      struct run *r = container_of(l, struct run, node);
      if (!r->request && renewable(r)) runs[n++] = r;
      if (r->task && r->token[0]) gate_renew(s->gate, r);
      if (r->state == RUN_HANDLER && r->pending == 0 && pgconn_state(r->conn) == PGCONN_READY)
        ledger_keep_alive(r->conn);
      if (r->request) FAILPOINT(RENEW_SENT, r->task_name, r->conn ? pgconn_fd(r->conn) : -1);
      runner_look(s->runner, r);
    }
  }
  if (n > 0) source_renew(s->source, runs, n);
  free(runs);
  loop_timer_start(s->loop, &s->renew, renew_interval_ms());
}

/* ---- orders ---- */

void sched_on_look(void *arg) {
  struct sched *s = arg;

  if (s->looking || !s->taking || sched_in_flight(s) == 0) return;
  s->looking = true;
  loop_timer_start(s->loop, &s->renew, LOOK_MS);
}

static struct run *find_run(struct list *runs, const char *run_id) {
  struct run *r;

  list_for_each(r, runs, node) if (!r->request && strcmp(r->run_id, run_id) == 0) return r;
  return NULL;
}

void sched_on_ordered(void *arg, const char *run_id, enum source_order order, const char *message) {
  struct sched *s = arg;
  struct run *ready = find_run(&s->ready, run_id), *r = ready ? ready : find_run(&s->started, run_id);

  if (!r) return;
  if (ready) put_among_started(s, r);
  if (order == ORDER_RETURN)
    runner_give_back(s->runner, r);
  else
    runner_cancel(s->runner, r, message);
}

/* ---- start, pause, drain ---- */

void sched_start(struct sched *s) {
  s->taking = true;
  runner_pause(s->runner, false);
  if (!loop_timer_active(&s->renew)) loop_timer_start(s->loop, &s->renew, renew_interval_ms());
  loop_defer(s->loop, s->draining ? &s->drain_check : &s->dispatch);
}

static void each_run(struct sched *s, void (*act)(struct runner *rn, struct run *r)) {
  struct list *n, *next;

  while (s->ready.next != &s->ready) {
    put_among_started(s, container_of(s->ready.next, struct run, node));
  }
  for (n = s->started.next; n != &s->started; n = next) {
    next = n->next;
    act(s->runner, container_of(n, struct run, node));
  }
}

void sched_pause(struct sched *s) {
  s->taking = false;
  runner_pause(s->runner, true);
  each_run(s, runner_give_back);
  ask_source(s);
}

void sched_leave_queue(struct sched *s) {
  struct list *n, *next;

  s->options.queue = false;
  for (n = s->ready.next; n != &s->ready; n = next) {
    struct run *r = container_of(n, struct run, node);
    next = n->next;
    put_among_started(s, r);
    runner_give_back(s->runner, r);
  }
  ask_source(s);
}

static void check_drained(void *arg) {
  struct sched *s = arg;
  void (*drained)(void *, int) = s->drained;

  if (!drained || sched_in_flight(s) > 0 || source_pending(s->source)) return;
  s->drained = NULL;
  loop_timer_stop(&s->drain);
  drained(s->drained_arg, 0);
}

static void on_drain_time(void *arg) {
  struct sched *s = arg;

  loop_defer(s->loop, &s->drain_step);
}

static void drain_step(void *arg) {
  struct sched *s = arg;
  int64_t now = loop_now_ms(s->loop);

  if (sched_in_flight(s) == 0 && now < s->drain_until_ms) s->drain_until_ms = now; /* only returns are outstanding */
  if (now >= s->drain_until_ms && !s->stopped) {
    s->stopped = true;
    if (sched_in_flight(s) > 0) log_kv(LOG_WARN_, "drain_timeout", "runs", log_i64(sched_in_flight(s)), NULL);
    each_run(s, runner_stop);
  }
  if (s->stopped && now >= s->drain_until_ms + GIVE_BACK_MS && s->drained) {
    void (*drained)(void *, int) = s->drained;
    s->drained = NULL;
    drained(s->drained_arg, sched_in_flight(s) + (source_pending(s->source) ? 1 : 0));
    return;
  }
  check_drained(s);
  if (s->drained) loop_timer_start(s->loop, &s->drain, 50);
}

void sched_drain(struct sched *s, int64_t timeout_ms, void (*drained)(void *arg, int left), void *arg) {
  int64_t until = loop_now_ms(s->loop) + timeout_ms;

  if (!s->draining || until < s->drain_until_ms) s->drain_until_ms = until;
  s->drained = drained;
  s->drained_arg = arg;
  if (!s->draining) {
    s->draining = true;
    each_run(s, runner_give_back);
    ask_source(s);
  }
  loop_timer_start(s->loop, &s->drain, 0);
}
