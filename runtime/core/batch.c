#include "core/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "core/ledger_batch.h"
#include "core/run_stats.h"
#include "core/runner_internal.h"

#define BATCH_LANES 4          /* connections on which a task's batches run beside each other, when its turns are quick */
#define BATCH_TURN_US 500      /* a turn that takes longer waits for the network or the disk: more of them in parallel */
#define BATCH_FORGETS 64       /* … and how many slow ones in a row it takes to be believed */
#define BATCH_BUDGET_US 20000  /* no turn begins later than that after the claims; */
#define BATCH_BUDGET_TRIPS 16  /* … or than so many round trips, where the database is far or busy */
#define BATCH_QUICK_US 10000   /* a handler alone that took less, */
#define BATCH_QUICK_TRIPS 4    /* … or less than so many round trips, is tried in a batch of two */
#define BATCH_LOOK_MS 5        /* between two looks at the handler whose turn it is */
#define BATCH_SLOW_US 100000   /* a handler that takes longer is done alone */
#define BATCH_QUIET_MS 1000    /* after one that waited or was slow, its task shares nothing */

/* Runs of a task that wait for a connection, and their places in the pool's queue. */
struct forming {
  struct runner *rn;
  struct task *task;
  struct list runs; /* run.member */
  int nruns;
  struct list waits;
  int nwaits;
  int batches; /* at work */
};

struct wait {
  struct pgwait w;
  struct forming *forming;
  struct list node;
};

struct batch {
  struct runner *rn;
  struct forming *forming;
  struct pgconn *conn; /* NULL: discarded */
  struct list turns;   /* RUN_TURN: claimed, their turn comes */
  struct list kept;    /* their effects are in */
  struct list failed;  /* their failures are to be recorded */
  struct list out;     /* to be done alone afterwards; ledger_id tells whether their claim must be forgotten */
  int nturns;          /* begun so far */
  struct run *current;
  struct ledger_answers begin, turn, settle;
  int64_t begun_us; /* asked for its claims; then: got them */
  int64_t turn_us, settled_us;
  bool closing; /* no turn begins any more */
  bool dead;    /* freed when the last answer has come */
  struct loop_task step, look;
  struct loop_timer watch;
};

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t budget_us(const struct batch *b) {
  return larger(BATCH_BUDGET_US, BATCH_BUDGET_TRIPS * b->rn->trip_us);
}

/* ---- a task's share ---- */

/* For tests: every task shares so many from the start, whatever its handlers do. 0: as described in batch.h. */
static int fixed_share(void) {
  static int share = -1;

  if (share < 0) {
    const char *text = getenv("UMAVEZ_TEST_SHARE");
    share = text ? atoi(text) : 0;
    if (text && (share < 2 || share > TASK_BATCH_MAX)) die("UMAVEZ_TEST_SHARE is %s: 2 to %d are expected", text, TASK_BATCH_MAX);
    if (text) log_kv(LOG_WARN_, "test_setting", "UMAVEZ_TEST_SHARE", text, "what", "for tests: every task shares so many", NULL);
  }
  return share;
}

static int share_of(const struct task *t) {
  int share = fixed_share() ? fixed_share() : t->share;

  return share < t->batch ? share : t->batch;
}

static void share_nothing(const struct runner *rn, struct task *t) {
  t->share = 1;
  t->share_from_ms = loop_now_ms(rn->loop) + BATCH_QUIET_MS;
}

static void share_more(struct task *t) {
  t->share = t->share * 2 < t->batch ? t->share * 2 : t->batch;
}

void batch_learn(struct run *r, int64_t handler_us) {
  struct task *t = r->task;

  if (handler_us > larger(BATCH_QUICK_US, BATCH_QUICK_TRIPS * r->runner->trip_us))
    t->share = 1;
  else if (t->share < 2)
    share_more(t);
}

/* On how many connections its batches run: few when PostgreSQL's CPU is what bounds them, more when it is waiting. */
static int64_t lanes_of(const struct task *t) {
  return BATCH_LANES * larger(BATCH_TURN_US, t->turn_us) / BATCH_TURN_US;
}

int batch_ahead(const struct task *t) {
  return share_of(t) > 1 ? (int)(2 * lanes_of(t) * share_of(t)) : 0;
}

bool batch_wants(const struct run *r) {
  const struct task *t = r->task;

  if (r->alone || r->request || r->ops || r->draining || r->deliveries > 1 || r->crashes > 0) return false;
  if (!fixed_share() && loop_now_ms(r->runner->loop) < t->share_from_ms) return false;
  return share_of(t) > 1 && !control_snapshots(r->runner->control);
}

/* ---- forming ---- */

static void batch_new(struct forming *f, struct pgconn *conn, int size);
static void ask(struct forming *f);

static void maybe_free_forming(struct forming *f) {
  if (f->nruns > 0 || f->nwaits > 0 || f->batches > 0) return;
  f->task->forming = NULL;
  free(f);
}

static struct run *pop_run(struct forming *f) {
  f->nruns--;
  return list_pop_front(&f->runs, struct run, member);
}

static void on_connection(void *arg, struct pgconn *conn, const struct err *e) {
  struct wait *w = arg;
  struct forming *f = w->forming;
  int size;

  list_remove(&w->node);
  free(w);
  f->nwaits--;
  if (!conn) { /* the pool ends */
    while (f->nruns > 0) runner_connected(pop_run(f), NULL, e);
    maybe_free_forming(f);
    return;
  }
  size = (f->nruns + f->nwaits) / (f->nwaits + 1);
  if (size > share_of(f->task)) size = share_of(f->task);
  if (f->nruns == 0)
    pgpool_release(f->rn->pool, conn);
  else if (size <= 1)
    runner_connected(pop_run(f), conn, NULL);
  else
    batch_new(f, conn, size);
  ask(f);
}

/* More connections than the pool has there are not, however many would be used. */
static int free_lanes(const struct forming *f) {
  int size = pgpool_counts(f->rn->pool).size;
  int64_t lanes = lanes_of(f->task);

  return (lanes < size ? (int)lanes : size) - f->batches;
}

/* As many places in the pool's queue as there is use for: at low load each run has a connection of its own at once. */
static void ask(struct forming *f) {
  int lanes = share_of(f->task) > 1 ? free_lanes(f) : f->nruns;
  int wanted = f->nruns < lanes ? f->nruns : lanes;

  while (f->nwaits < wanted) {
    struct wait *w = xcalloc(1, sizeof *w);
    w->forming = f;
    pgwait_init(&w->w, on_connection, w);
    list_init(&w->node);
    list_push_back(&f->waits, &w->node);
    f->nwaits++;
    pgpool_acquire(f->rn->pool, &w->w);
  }
  while (f->nruns == 0 && f->nwaits > 0) {
    struct wait *w = list_pop_front(&f->waits, struct wait, node);
    pgpool_cancel_wait(f->rn->pool, &w->w);
    free(w);
    f->nwaits--;
  }
  maybe_free_forming(f);
}

void batch_join(struct run *r) {
  struct forming *f = r->task->forming;

  if (!f) {
    f = r->task->forming = xcalloc(1, sizeof *f);
    f->rn = r->runner;
    f->task = r->task;
    list_init(&f->runs);
    list_init(&f->waits);
  }
  list_push_back(&f->runs, &r->member);
  f->nruns++;
  ask(f);
}

void batch_leave(struct run *r) {
  struct forming *f = r->task->forming;

  list_remove(&r->member);
  f->nruns--;
  ask(f);
}

/* ---- the end of a batch ---- */

static void maybe_free(struct batch *b) {
  if (!b->dead || b->begin.left > 0 || b->turn.left > 0 || b->settle.left > 0) return;
  free(b);
}

static void on_turn_answers(void *arg) {
  maybe_free(arg);
}

static void free_connection(struct batch *b, bool usable) {
  struct pgconn *conn = b->conn;

  b->conn = NULL;
  if (!conn) return;
  if (usable)
    pgpool_release(b->rn->pool, conn);
  else
    pgpool_discard(b->rn->pool, conn);
}

static void undo_all(struct batch *b) {
  struct pgconn *conn = b->conn;

  if (!conn) return;
  if (pgconn_state(conn) == PGCONN_CLOSED) {
    free_connection(b, false);
    return;
  }
  b->conn = NULL;
  ledger_rollback_later(b->rn->pool, conn);
}

static void dismiss(struct run *r) {
  list_remove(&r->member);
  r->batch = NULL;
  r->leaving = false;
}

static void do_alone(struct run *r) {
  dismiss(r);
  r->alone = true;
  r->ledger_id = 0;
  if (r->draining) {
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
    return;
  }
  stats_inc(STAT_BATCH_ALONE);
  runner_to_pool(r);
}

static void all_alone(struct list *runs) {
  struct run *r;

  while ((r = list_first(runs, struct run, member)) != NULL) do_alone(r);
}

/* Nobody is in it any more. */
static void finish(struct batch *b) {
  struct forming *f = b->forming;

  if (!list_empty(&b->turns) || !list_empty(&b->kept) || !list_empty(&b->failed) || !list_empty(&b->out) || b->current)
    bug("a batch ends with runs in it");
  loop_timer_stop(&b->watch);
  loop_task_cancel(&b->step);
  loop_task_cancel(&b->look);
  b->dead = true;
  f->batches--;
  ask(f);
  maybe_free(b);
}

/* The transaction did not commit: every run is done again, alone. */
static void scatter(struct batch *b) {
  undo_all(b);
  all_alone(&b->turns);
  all_alone(&b->kept);
  all_alone(&b->failed);
  all_alone(&b->out);
  finish(b);
}

/* ---- settlement ---- */

static void log_undone(const struct batch *b, const struct err *e) {
  log_kv(LOG_INFO_, "batch_undone", "task", b->forming->task->name, "runs",
         log_i64((int64_t)(list_length(&b->kept) + list_length(&b->failed) + list_length(&b->out) + list_length(&b->turns))),
         "code", e->code, "sqlstate", e->sqlstate, "why", e->message, NULL);
}

/* PostgreSQL counted the retention from a moment after the settlement was sent. */
static int64_t retention_left_ms(const struct batch *b, const struct run *r) {
  int64_t left_ms = r->task->retention_ms - (runner_now_us() - b->settled_us) / 1000 - 1;

  return left_ms > 0 ? left_ms : 0;
}

/* committed: what COMMIT has settled of them; NULL: its answer was lost. */
static void tell(const struct batch *b, struct list *runs,
                 void (*committed)(struct run *r, const char *outcome, int64_t remaining_ms)) {
  struct run *r;

  while ((r = list_first(runs, struct run, member)) != NULL) {
    dismiss(r);
    if (committed)
      committed(r, r->outcome, retention_left_ms(b, r));
    else
      runner_unknown(r);
  }
}

static void on_settled(void *arg) {
  struct batch *b = arg;
  const struct ledger_answers *g = &b->settle;

  /* Lost with COMMIT under way, and nothing before it refused, as far as is known: the ledger has to be asked. */
  if (!g->committed && !(g->lost && !g->refused && !b->turn.refused)) {
    log_undone(b, &g->err);
    scatter(b);
    return;
  }
  if (g->committed) stats_observe(STAT_COMMIT_TIME, runner_now_us() - b->settled_us);
  if (g->committed) FAILPOINT(COMMIT_ANSWERED, b->forming->task->name, pgconn_fd(b->conn));
  free_connection(b, g->committed && !g->lost && !g->dirty);
  tell(b, &b->kept, g->committed ? runner_completed : NULL);
  tell(b, &b->failed, g->committed ? runner_recorded : NULL);
  all_alone(&b->out);
  finish(b);
}

static int collect(struct list *runs, struct run **into, enum run_state to) {
  struct run *r;
  int n = 0;

  list_for_each(r, runs, member) {
    if (to != RUN_TURN) run_set_state(r, to);
    if (to != RUN_TURN || r->ledger_id) into[n++] = r;
  }
  return n;
}

/* The least of a row of durations, which forgets slowly: what is far is always slow, what waits for a processor only now and
 * then. (A mean would take a crowded machine for a distant one, and crowd it more.) 0: none yet. */
static int64_t least(int64_t so_far, int64_t us) {
  return so_far == 0 || us < so_far ? us : so_far + (us - so_far) / BATCH_FORGETS;
}

/* From how long the turns took, how many there shall be next time. */
static void adapt(const struct batch *b) {
  struct task *t = b->forming->task;
  int64_t took_us = b->settled_us - b->begun_us;

  if (b->nturns == 0) return;
  t->turn_us = least(t->turn_us, took_us / b->nturns);
  if (took_us > budget_us(b) && b->nturns < t->share)
    t->share = b->nturns;
  else if (took_us < budget_us(b) / 2 && b->nturns >= t->share && t->share > 1)
    share_more(t);
}

static void settle(struct batch *b) {
  struct run *kept[TASK_BATCH_MAX], *failed[TASK_BATCH_MAX], *out[TASK_BATCH_MAX];
  struct ledger_settlement s = {.completed = kept, .failed = failed, .forgotten = out};

  list_splice_back(&b->out, &b->turns);
  if ((list_empty(&b->kept) && list_empty(&b->failed)) || pgconn_state(b->conn) == PGCONN_CLOSED) {
    scatter(b);
    return;
  }
  s.ncompleted = collect(&b->kept, kept, RUN_COMPLETE);
  s.nfailed = collect(&b->failed, failed, RUN_FAIL);
  s.nforgotten = collect(&b->out, out, RUN_TURN);
  stats_observe_runs(STAT_BATCH_RUNS, s.ncompleted + s.nfailed);
  b->settled_us = runner_now_us();
  adapt(b);
  ledger_batch_settle(b->conn, &b->settle, &s);
}

/* ---- turns ---- */

static bool is_gone(const struct batch *b) {
  return !b->conn || pgconn_state(b->conn) == PGCONN_CLOSED;
}

static struct run *next_turn(struct batch *b) {
  struct run *r;

  if (!fixed_share() && runner_now_us() - b->begun_us > budget_us(b) && b->nturns > 0) b->closing = true;
  while (!b->closing && (r = list_pop_front(&b->turns, struct run, member)) != NULL) {
    if (!r->draining && !r->cancelled) return r;
    list_push_back(&b->out, &r->member);
  }
  return NULL;
}

static void on_step(void *arg) {
  struct batch *b = arg;
  struct run *r;

  if (is_gone(b)) {
    scatter(b);
    return;
  }
  r = next_turn(b);
  if (!r) {
    settle(b);
    return;
  }
  b->current = r;
  r->conn = b->conn;
  ledger_batch_turn(b->conn, &b->turn, r, runner_idle_ms(r));
  b->nturns++;
  b->turn_us = runner_now_us();
  loop_timer_start(b->rn->loop, &b->watch, BATCH_LOOK_MS);
  runner_start_handler(r);
}

/* Its turn is over; where it waits for the others' end. */
static void end_turn(struct batch *b, struct run *r, struct list *where) {
  b->current = NULL;
  r->conn = NULL;
  loop_timer_stop(&b->watch);
  loop_task_cancel(&b->look);
  if (!where) return;
  run_set_state(r, RUN_JOINED);
  list_push_back(where, &r->member);
  loop_defer(b->rn->loop, &b->step);
}

static void undo_turn(struct batch *b, struct run *r, struct list *where) {
  ledger_batch_undo(b->conn, &b->turn);
  end_turn(b, r, where);
}

/* What sharing a transaction may have caused, or what a second look decides better: locks and snapshots (40, 55), names that
 * a run before has used (42), states and limits of the session (25, 26, 34, 53, 57). */
static bool is_doubtful(const struct err *e) {
  static const char *const classes[] = {"25", "26", "34", "40", "42", "53", "55", "57"};

  for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
    if (strncmp(e->sqlstate, classes[i], 2) == 0) return true;
  return strcmp(e->code, "prepared_lost") == 0;
}

/* What a run before has left in the transaction, this one has seen; or it leaves something itself that its savepoint does not
 * undo when it is kept. Such tasks share nothing, as long as this process lives. */
static bool is_tainted(struct batch *b, struct run *r) {
  const char *why = b->turn.dirty ? "a run before has left a temporary table" : r->taints ? "SET CONSTRAINTS" : NULL;

  if (!why) return false;
  if (r->task->share_from_ms != INT64_MAX)
    log_kv(LOG_INFO_, "task_shares_nothing", "task", r->task_name, "why", why, "what",
           "its runs have a transaction each from now on; batch = 1 in its manifest says so from the start", NULL);
  r->task->share = 1;
  r->task->share_from_ms = INT64_MAX;
  b->closing = true;
  return true;
}

void batch_handler_done(struct run *r, struct verdict *v) {
  struct batch *b = r->batch;

  if (is_gone(b)) { /* the connection was lost in its turn: judged like a run alone; the others were innocent */
    end_turn(b, r, NULL);
    dismiss(r);
    if (v->kind == VERDICT_RETURNED)
      runner_complete(r, v);
    else
      runner_failed_by(r, v);
    scatter(b);
    return;
  }
  if (is_tainted(b, r)) {
    free(v->outcome);
    free(v->failure);
    undo_turn(b, r, &b->out);
  } else if (v->kind == VERDICT_RETURNED) {
    free(v->failure);
    free(r->outcome);
    r->outcome = v->outcome;
    ledger_batch_keep(b->conn, &b->turn);
    end_turn(b, r, &b->kept);
  } else if (v->kind == VERDICT_ERROR && err_is_set(&v->err) && is_doubtful(&v->err)) {
    free(v->outcome);
    free(v->failure);
    if (runner_is_again(&v->err)) b->closing = true;
    undo_turn(b, r, &b->out);
  } else {
    runner_take_verdict(r, v);
    undo_turn(b, r, &b->failed);
  }
}

void batch_stopped(struct run *r) {
  struct batch *b = r->batch;

  if (is_gone(b)) {
    bool aside = r->draining || r->leaving;
    end_turn(b, r, NULL);
    if (aside) {
      do_alone(r);
    } else {
      dismiss(r);
      runner_cut_off(r);
    }
    scatter(b);
    return;
  }
  if (r->draining) b->closing = true;
  undo_turn(b, r, r->draining || r->leaving ? &b->out : &b->failed);
}

void batch_hurry(struct run *r) {
  r->batch->closing = true;
}

void batch_discard(struct run *r) {
  r->conn = NULL;
  free_connection(r->batch, false);
}

/* ---- the watch ---- */

static void on_watch(void *arg) {
  struct batch *b = arg;

  loop_defer(b->rn->loop, &b->look);
}

static void on_look(void *arg) {
  struct batch *b = arg;
  struct run *r = b->current;
  bool others = !list_empty(&b->turns) || !list_empty(&b->kept) || !list_empty(&b->failed);

  if (!r || r->state != RUN_HANDLER || !others) return;
  if (r->pending > 0 && runner_now_us() - b->turn_us < BATCH_SLOW_US) {
    loop_timer_start(b->rn->loop, &b->watch, BATCH_LOOK_MS);
    return;
  }
  log_kv(LOG_DEBUG_, "batch_left", "run_id", r->run_id, "task", r->task_name, "why",
         r->pending > 0 ? "a slow statement" : "waits for something else than SQL", NULL);
  share_nothing(b->rn, r->task);
  r->leaving = true;
  runner_stop_handler(r);
}

/* ---- begin ---- */

static void on_begun(void *arg) {
  struct batch *b = arg;
  const struct ledger_answers *g = &b->begin;
  struct run *r, *next;

  if (g->lost) {
    free_connection(b, false);
    while ((r = list_first(&b->turns, struct run, member)) != NULL) {
      dismiss(r);
      runner_back(r, GIVE_BACK_UNTOUCHED, 0);
    }
    finish(b);
    return;
  }
  if (err_is_set(&g->err)) {
    log_undone(b, &g->err);
    scatter(b);
    return;
  }
  list_for_each_safe(r, next, &b->turns, member) {
    run_set_state(r, RUN_TURN);
    if (r->ledger_id) {
      run_stats_claim(CLAIM_CLAIMED);
      continue;
    }
    list_remove(&r->member);
    list_push_back(&b->out, &r->member);
  }
  FAILPOINT(CLAIM_ANSWERED, b->forming->task->name, pgconn_fd(b->conn));
  runner_learn_trip(b->rn, runner_now_us() - b->begun_us);
  b->begun_us = runner_now_us();
  loop_defer(b->rn->loop, &b->step);
}

/* The first runs that wait, each key once: a duplicate stays behind. */
static int choose(struct forming *f, int size, struct run **chosen) {
  struct run *r, *next;
  int n = 0;

  list_for_each_safe(r, next, &f->runs, member) {
    bool twice = false;
    for (int i = 0; i < n && !twice; i++)
      twice = memcmp(chosen[i]->key, r->key, sizeof r->key) == 0 && chosen[i]->tenant_id == r->tenant_id;
    if (twice) continue;
    list_remove(&r->member);
    f->nruns--;
    chosen[n++] = r;
    if (n == size) break;
  }
  return n;
}

/* Takes conn. */
static void batch_new(struct forming *f, struct pgconn *conn, int size) {
  struct batch *b = xcalloc(1, sizeof *b);
  struct run *chosen[TASK_BATCH_MAX];
  int n = choose(f, size, chosen);

  b->rn = f->rn;
  b->forming = f;
  b->conn = conn;
  list_init(&b->turns);
  list_init(&b->kept);
  list_init(&b->failed);
  list_init(&b->out);
  b->begin = (struct ledger_answers){.done = on_begun, .arg = b};
  b->turn = (struct ledger_answers){.done = on_turn_answers, .arg = b};
  b->settle = (struct ledger_answers){.done = on_settled, .arg = b};
  loop_task_init(&b->step, on_step, b);
  loop_task_init(&b->look, on_look, b);
  loop_timer_init(&b->watch, on_watch, b);
  f->batches++;
  for (int i = 0; i < n; i++) {
    run_set_state(chosen[i], RUN_CLAIM);
    chosen[i]->batch = b;
    gate_bind(b->rn->gate, chosen[i]);
    list_push_back(&b->turns, &chosen[i]->member);
  }
  b->begun_us = runner_now_us();
  ledger_batch_begin(conn, &b->begin, chosen, n, runner_idle_ms(chosen[0]));
}
