/* A member is in one state and, while idle, in one list; set_state is the only place that changes it and keeps the counts.
 * serve() is the one place that decides: hand out, grow, keep one alive. It runs as a deferred task whenever something has
 * changed, so that `got` is never called from inside a function of this module. */
#include "io/pgpool.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/stats.h"
#include "io/backoff.h"
#include "io/pgoutage.h"

enum { BACKOFF_BASE_MS = 100, BACKOFF_CAP_MS = 5000 };

enum member_state { MEMBER_CONNECTING, MEMBER_IDLE, MEMBER_LENT, MEMBER_STATES };

struct member {
  struct pgpool *pool;
  struct pgconn *conn;
  enum member_state state;
  struct list node; /* in the list of its state */
};

struct pgpool {
  struct loop *loop;
  char *url;
  int size;
  int64_t connect_timeout_ms;
  bool prepare;
  bool closing;                       /* pgpool_close_later was called */
  bool freeing;
  enum pgpool_state state;
  struct err error;                   /* the last failure to connect */
  struct err reported;                /* what the log and the hook know */
  enum pgpool_state reported_state;
  struct pgoutage outage;
  struct list members[MEMBER_STATES]; /* IDLE: the last used first */
  int count[MEMBER_STATES];
  struct list waiters;
  int waiting;
  struct backoff backoff;
  struct loop_timer retry;            /* runs while tries are held back */
  struct loop_task serve;
  void (*on_state)(void *, enum pgpool_state, const struct err *);
  void *on_state_arg;
};

/* ── members ── */

static int members(const struct pgpool *p) {
  return p->count[MEMBER_CONNECTING] + p->count[MEMBER_IDLE] + p->count[MEMBER_LENT];
}

static void set_state(struct member *m, enum member_state to) {
  struct pgpool *p = m->pool;
  list_remove(&m->node);
  p->count[m->state]--;
  m->state = to;
  p->count[to]++;
  list_push_front(&p->members[to], &m->node);
  loop_defer(p->loop, &p->serve);
}

static void member_close(struct member *m) {
  struct pgpool *p = m->pool;
  list_remove(&m->node);
  p->count[m->state]--;
  pgconn_close_later(m->conn);
  free(m);
  loop_defer(p->loop, &p->serve);
}

static struct member *lent_member(struct pgpool *p, const struct pgconn *c) {
  struct member *m;
  list_for_each(m, &p->members[MEMBER_LENT], node) {
    if (m->conn == c) return m;
  }
  bug("the connection is not lent by this pool");
}

static void close_idle(struct pgpool *p) {
  struct member *m;
  while ((m = list_first(&p->members[MEMBER_IDLE], struct member, node)) != NULL) member_close(m);
}

/* ── state ── */

/* One word to the log and one call of the hook per change of the state, or of the reason while down. */
static void report(struct pgpool *p) {
  bool changed = p->state != p->reported_state;
  if (!changed && strcmp(p->error.code, p->reported.code) == 0 && strcmp(p->error.sqlstate, p->reported.sqlstate) == 0) return;
  if (!changed && !err_is_set(&p->error)) {
    p->reported = p->error;
    return;
  }
  p->reported_state = p->state;
  p->reported = p->error;
  if (p->state == PGPOOL_DOWN)
    pgoutage_down(&p->outage, &p->error);
  else if (err_is_set(&p->error))
    log_err(p->error.class == ERR_INPUT ? LOG_ERROR_ : LOG_WARN_, "postgres_pool_limited", &p->error, "hint",
            pgoutage_hint(&p->error), NULL);
  else
    pgoutage_up(&p->outage);
  if (changed && p->on_state != NULL) p->on_state(p->on_state_arg, p->state, &p->error);
  else if (p->state == PGPOOL_DOWN && p->on_state != NULL) p->on_state(p->on_state_arg, p->state, &p->error);
}

static void on_ready(void *arg) {
  struct member *m = arg;
  struct pgpool *p = m->pool;
  p->state = PGPOOL_UP;
  err_clear(&p->error);
  backoff_reset(&p->backoff);
  loop_timer_stop(&p->retry);
  set_state(m, MEMBER_IDLE);
}

static bool any_alive(const struct pgpool *p) {
  struct member *m;
  list_for_each(m, &p->members[MEMBER_LENT], node) {
    if (pgconn_state(m->conn) == PGCONN_READY) return true;
  }
  return p->count[MEMBER_IDLE] > 0;
}

static void on_closed(void *arg, const struct err *why) {
  struct member *m = arg;
  struct pgpool *p = m->pool;
  switch (m->state) {
    case MEMBER_LENT:
      return; /* its borrower hears it through his queries */
    case MEMBER_IDLE:
      log_err(LOG_DEBUG_, "postgres_connection_lost", why, NULL);
      break;
    default:
      p->error = *why;
      if (!any_alive(p)) p->state = PGPOOL_DOWN;
      if (!loop_timer_active(&p->retry)) loop_timer_start(p->loop, &p->retry, backoff_next_ms(&p->backoff));
      break;
  }
  member_close(m);
}

static void member_connect(struct pgpool *p) {
  static const struct pgconn_hooks hooks = {.on_ready = on_ready, .on_closed = on_closed};
  struct member *m = xcalloc(1, sizeof *m);
  m->pool = p;
  m->state = MEMBER_CONNECTING;
  list_init(&m->node);
  list_push_front(&p->members[MEMBER_CONNECTING], &m->node);
  p->count[MEMBER_CONNECTING]++;
  m->conn = pgconn_new(p->loop, p->url, &hooks, m, p->connect_timeout_ms);
  pgconn_set_prepare(m->conn, p->prepare);
}

/* ── the decision ── */

static void hand_out(struct pgpool *p) {
  struct member *m;
  while (p->waiting > 0 && !p->closing && (m = list_first(&p->members[MEMBER_IDLE], struct member, node)) != NULL) {
    if (pgconn_state(m->conn) != PGCONN_READY) {
      member_close(m); /* its on_closed is on the way */
      continue;
    }
    if (pgconn_read_only(m->conn)) {
      close_idle(p);
      return;
    }
    struct pgwait *w = list_pop_front(&p->waiters, struct pgwait, node);
    p->waiting--;
    stats_observe(STAT_POOL_WAIT, loop_clock_us() - w->since_us);
    set_state(m, MEMBER_LENT);
    w->got(w->arg, m->conn, NULL);
  }
}

/* While down, one try at a time; while up, as many as there are waiters without one, within the size. */
static void grow(struct pgpool *p) {
  if (loop_timer_active(&p->retry)) return;
  int connecting = p->count[MEMBER_CONNECTING];
  int want = p->waiting;
  if (members(p) == 0 && want == 0) want = 1;
  if (p->state != PGPOOL_UP && want > 1) want = 1;
  for (; connecting < want && members(p) < p->size; connecting++) member_connect(p);
}

static void pool_free(void *arg) {
  struct pgpool *p = arg;
  loop_task_cancel(&p->serve);
  loop_timer_stop(&p->retry);
  free(p->url);
  free(p);
}

static void serve_closing(struct pgpool *p) {
  struct err e;
  struct pgwait *w;
  struct member *m;
  err_set(&e, ERR_CANCELLED, "pool_closed", "the pool of connections is closed");
  while ((w = list_pop_front(&p->waiters, struct pgwait, node)) != NULL) {
    p->waiting--;
    w->got(w->arg, NULL, &e);
  }
  close_idle(p);
  while ((m = list_first(&p->members[MEMBER_CONNECTING], struct member, node)) != NULL) member_close(m);
  if (members(p) > 0 || p->freeing) return;
  p->freeing = true;
  loop_free_later(p->loop, pool_free, p);
}

static void tell_counts(const struct pgpool *p) {
  stats_set(STAT_POOL, STATS_POOL_STATE_CONNECTING, (uint64_t)p->count[MEMBER_CONNECTING]);
  stats_set(STAT_POOL, STATS_POOL_STATE_IDLE, (uint64_t)p->count[MEMBER_IDLE]);
  stats_set(STAT_POOL, STATS_POOL_STATE_LENT, (uint64_t)p->count[MEMBER_LENT]);
  stats_set(STAT_POOL_SIZE, 0, (uint64_t)p->size);
  stats_set(STAT_POOL_WAITING, 0, (uint64_t)p->waiting);
}

static void serve(void *arg) {
  struct pgpool *p = arg;
  if (p->closing) {
    serve_closing(p);
    return;
  }
  report(p);
  if (!p->closing) hand_out(p);
  if (!p->closing) grow(p);
  tell_counts(p);
}

static void on_retry(void *arg) {
  struct pgpool *p = arg;
  loop_defer(p->loop, &p->serve);
}

/* ── interface ── */

void pgwait_init(struct pgwait *w, void (*got)(void *, struct pgconn *, const struct err *), void *arg) {
  w->got = got;
  w->arg = arg;
  list_init(&w->node);
}

bool pgwait_waiting(const struct pgwait *w) { return list_linked(&w->node); }

struct pgpool *pgpool_new(struct loop *l, const char *url, int size, int64_t connect_timeout_ms, bool prepare) {
  struct pgpool *p = xcalloc(1, sizeof *p);
  if (size < 1) bug("a pool of %d connections", size);
  p->loop = l;
  p->url = xstrdup(url);
  p->size = size;
  p->connect_timeout_ms = connect_timeout_ms;
  p->prepare = prepare;
  pgoutage_init(&p->outage, "handlers");
  for (int i = 0; i < MEMBER_STATES; i++) list_init(&p->members[i]);
  list_init(&p->waiters);
  p->backoff = (struct backoff)BACKOFF_INIT(BACKOFF_BASE_MS, BACKOFF_CAP_MS);
  loop_timer_init(&p->retry, on_retry, p);
  loop_task_init(&p->serve, serve, p);
  loop_defer(l, &p->serve);
  return p;
}

void pgpool_close_later(struct pgpool *p) {
  if (p->closing) bug("pgpool_close_later twice");
  p->closing = true;
  pgoutage_fini(&p->outage);
  loop_timer_stop(&p->retry);
  loop_defer(p->loop, &p->serve);
}

void pgpool_acquire(struct pgpool *p, struct pgwait *w) {
  if (p->closing) bug("pgpool_acquire after pgpool_close_later");
  list_push_back(&p->waiters, &w->node);
  p->waiting++;
  w->since_us = loop_clock_us();
  loop_defer(p->loop, &p->serve);
}

void pgpool_cancel_wait(struct pgpool *p, struct pgwait *w) {
  if (!list_linked(&w->node)) return;
  list_remove(&w->node);
  p->waiting--;
  stats_set(STAT_POOL_WAITING, 0, (uint64_t)p->waiting);
}

void pgpool_release(struct pgpool *p, struct pgconn *c) {
  struct member *m = lent_member(p, c);
  if (pgconn_read_only(c)) close_idle(p);
  else if (!p->closing && pgconn_idle(c) && pgconn_txn(c) == 'I') {
    set_state(m, MEMBER_IDLE);
    return;
  }
  member_close(m);
}

void pgpool_discard(struct pgpool *p, struct pgconn *c) {
  struct member *m = lent_member(p, c);
  if (pgconn_read_only(c)) close_idle(p);
  member_close(m);
}

enum pgpool_state pgpool_state(const struct pgpool *p) { return p->state; }

const struct err *pgpool_error(const struct pgpool *p) { return &p->error; }

void pgpool_on_state(struct pgpool *p, void (*cb)(void *, enum pgpool_state, const struct err *), void *arg) {
  p->on_state = cb;
  p->on_state_arg = arg;
}

struct pgpool_counts pgpool_counts(const struct pgpool *p) {
  return (struct pgpool_counts){.size = p->size,
                                .connecting = p->count[MEMBER_CONNECTING],
                                .idle = p->count[MEMBER_IDLE],
                                .lent = p->count[MEMBER_LENT],
                                .waiting = p->waiting};
}
