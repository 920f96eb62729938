/* The tick is described in loop.h; loop_step is its only implementation. libev gives readiness and signals; timers are a
 * binary heap of our own (one ev_timer bounds the wait), so that they run behind the descriptors of the same tick and so
 * that no header of libev leaves this file. */
#include "io/loop.h"

#include "base/slots.h"
#include "base/stats.h"

#include <ev.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

struct delayed_free {
  void (*fn)(void *);
  void *p;
};

struct loop {
  struct ev_loop *ev;
  ev_check clock;            /* runs before all other watchers: reads the clock */
  ev_timer wake;             /* ends the wait when the next timer is due */
  int64_t now_us;            /* cached CLOCK_MONOTONIC */
  struct slot *slot;         /* or NULL */
  bool measured;             /* loop_measure was called */
  int64_t turn_us;           /* when this turn's work began; 0: it has not */
  bool stopping;             /* loop_stop was called */
  size_t watchers;           /* descriptors and signals that are started */
  struct loop_timer **heap;  /* by (due_us, order); heap[0] is the next */
  size_t timers, heap_cap;
  uint64_t order;            /* last order given to a timer */
  struct list tasks;         /* deferred, in order */
  struct delayed_free *frees;
  size_t nfrees, frees_cap;
};

int64_t loop_clock_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void on_wake(struct ev_loop *ev, ev_timer *w, int revents) {
  (void)ev, (void)w, (void)revents; /* having ended the wait is all it does */
}

static void on_check(struct ev_loop *ev, ev_check *w, int revents) {
  (void)ev, (void)revents;
  struct loop *l = w->data;
  loop_update(l);
  l->turn_us = l->now_us;
  slot_busy(l->slot, l->now_us / 1000);
}

struct loop *loop_new(void) {
  struct loop *l = xcalloc(1, sizeof *l);
  l->ev = ev_loop_new(EVFLAG_AUTO);
  if (l->ev == NULL) bug("libev has no usable backend");
  signal(SIGPIPE, SIG_IGN);
  ev_timer_init(&l->wake, on_wake, 0., 0.);
  ev_check_init(&l->clock, on_check);
  ev_set_priority(&l->clock, EV_MAXPRI);
  l->clock.data = l;
  ev_check_start(l->ev, &l->clock);
  list_init(&l->tasks);
  l->now_us = loop_clock_us();
  return l;
}

int64_t loop_now_ms(const struct loop *l) { return l->now_us / 1000; }

void loop_watch(struct loop *l, struct slot *slot) { l->slot = slot; }

void loop_measure(struct loop *l) { l->measured = true; }

void loop_update(struct loop *l) { l->now_us = loop_clock_us(); }

struct ev_loop *loop_ev(struct loop *l) { return l->ev; }

/* ── timers ── */

static bool timer_before(const struct loop_timer *a, const struct loop_timer *b) {
  return a->due_us != b->due_us ? a->due_us < b->due_us : a->order < b->order;
}

static void heap_put(struct loop *l, size_t i, struct loop_timer *t) {
  l->heap[i] = t;
  t->index = i;
}

static void heap_up(struct loop *l, size_t i) {
  struct loop_timer *t = l->heap[i];
  while (i > 0 && timer_before(t, l->heap[(i - 1) / 2])) {
    heap_put(l, i, l->heap[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
  heap_put(l, i, t);
}

static void heap_down(struct loop *l, size_t i) {
  struct loop_timer *t = l->heap[i];
  for (;;) {
    size_t child = 2 * i + 1;
    if (child >= l->timers) break;
    if (child + 1 < l->timers && timer_before(l->heap[child + 1], l->heap[child])) child++;
    if (!timer_before(l->heap[child], t)) break;
    heap_put(l, i, l->heap[child]);
    i = child;
  }
  heap_put(l, i, t);
}

void loop_timer_init(struct loop_timer *t, void (*cb)(void *), void *arg) {
  *t = (struct loop_timer){.cb = cb, .arg = arg};
}

void loop_timer_start(struct loop *l, struct loop_timer *t, int64_t after_ms) {
  loop_timer_stop(t);
  if (after_ms < 0) after_ms = 0;
  if (after_ms > INT64_C(1000) * 366 * 86400 * 1000) after_ms = INT64_C(1000) * 366 * 86400 * 1000;
  if (l->timers == l->heap_cap) {
    l->heap_cap = l->heap_cap ? l->heap_cap * 2 : 64;
    l->heap = xrealloc(l->heap, l->heap_cap * sizeof *l->heap);
  }
  t->loop = l;
  t->due_us = loop_clock_us() + after_ms * 1000;
  t->order = ++l->order;
  l->heap[l->timers] = t;
  heap_up(l, l->timers++);
}

void loop_timer_stop(struct loop_timer *t) {
  struct loop *l = t->loop;
  if (l == NULL) return;
  t->loop = NULL;
  size_t i = t->index;
  struct loop_timer *last = l->heap[--l->timers];
  if (last == t) return;
  heap_put(l, i, last);
  heap_up(l, i);
  heap_down(l, last->index);
}

bool loop_timer_active(const struct loop_timer *t) { return t->loop != NULL; }

/* Only timers that were started before this step: one that re-arms itself with 0 runs in the next tick. */
static void run_timers(struct loop *l) {
  uint64_t newest = l->order;
  while (l->timers > 0) {
    struct loop_timer *t = l->heap[0];
    if (t->due_us > l->now_us || t->order > newest) break;
    loop_timer_stop(t);
    t->cb(t->arg);
  }
}

/* ── deferred work ── */

void loop_task_init(struct loop_task *t, void (*cb)(void *), void *arg) {
  t->cb = cb;
  t->arg = arg;
  list_init(&t->node);
}

void loop_defer(struct loop *l, struct loop_task *t) {
  if (!list_linked(&t->node)) list_push_back(&l->tasks, &t->node);
}

void loop_task_cancel(struct loop_task *t) { list_remove(&t->node); }

bool loop_task_pending(const struct loop_task *t) { return list_linked(&t->node); }

void loop_free_later(struct loop *l, void (*fn)(void *), void *p) {
  if (l->nfrees == l->frees_cap) {
    l->frees_cap = l->frees_cap ? l->frees_cap * 2 : 32;
    l->frees = xrealloc(l->frees, l->frees_cap * sizeof *l->frees);
  }
  l->frees[l->nfrees++] = (struct delayed_free){fn, p};
}

static void run_tasks(struct loop *l, int rounds) {
  for (int round = 0; round < rounds && !list_empty(&l->tasks); round++) {
    struct list batch = LIST_INIT(batch);
    list_splice_back(&batch, &l->tasks);
    struct loop_task *t;
    while ((t = list_pop_front(&batch, struct loop_task, node)) != NULL) t->cb(t->arg);
  }
}

/* A free may ask for further frees. */
static void run_frees(struct loop *l) {
  for (size_t i = 0; i < l->nfrees; i++) {
    struct delayed_free f = l->frees[i];
    f.fn(f.p);
  }
  l->nfrees = 0;
}

/* ── the tick ── */

static void tick(struct loop *l, int64_t max_wait_ms) {
  int64_t wait_us = max_wait_ms < 0 ? INT64_MAX : max_wait_ms * 1000;
  if (!list_empty(&l->tasks) || l->nfrees > 0) wait_us = 0;
  if (l->timers > 0 && wait_us > 0) {
    int64_t until = l->heap[0]->due_us - loop_clock_us();
    if (until < 0) until = 0;
    if (until < wait_us) wait_us = until;
  }
  slot_idle(l->slot);
  if (wait_us > 0 && wait_us != INT64_MAX) {
    ev_now_update(l->ev); /* the wait counts from libev's cached time, which this tick's work may have left behind */
    ev_timer_set(&l->wake, (double)wait_us / 1e6, 0.);
    ev_timer_start(l->ev, &l->wake);
    ev_run(l->ev, EVRUN_ONCE);
    ev_timer_stop(l->ev, &l->wake);
  } else {
    ev_run(l->ev, wait_us == 0 ? EVRUN_NOWAIT : EVRUN_ONCE);
  }
  loop_update(l);
  run_timers(l);
  run_tasks(l, LOOP_ROUNDS);
  run_frees(l);
  if (l->measured) stats_observe(STAT_LOOP_TURN, loop_clock_us() - l->turn_us);
}

void loop_step(struct loop *l, int64_t max_wait_ms) { tick(l, max_wait_ms < 0 ? 0 : max_wait_ms); }

void loop_run(struct loop *l) {
  while (!l->stopping && (l->watchers > 0 || l->timers > 0 || !list_empty(&l->tasks) || l->nfrees > 0)) tick(l, -1);
  l->stopping = false;
}

void loop_stop(struct loop *l) { l->stopping = true; }

void loop_free(struct loop *l) {
  if (l == NULL) return;
  while (!list_empty(&l->tasks) || l->nfrees > 0) {
    run_tasks(l, LOOP_ROUNDS);
    run_frees(l);
  }
  while (l->timers > 0) loop_timer_stop(l->heap[0]);
  ev_loop_destroy(l->ev);
  free(l->heap);
  free(l->frees);
  free(l);
}

/* ── descriptors and signals ── the watcher lives from start to stop */

static void on_io(struct ev_loop *ev, ev_io *w, int revents) {
  (void)ev;
  struct loop_io *io = w->data;
  int events = (revents & EV_READ ? LOOP_READ : 0) | (revents & EV_WRITE ? LOOP_WRITE : 0);
  if (revents & EV_ERROR) events |= io->events; /* a broken descriptor: let its reader find out */
  io->cb(io->arg, events);
}

void loop_io_init(struct loop_io *io, void (*cb)(void *, int), void *arg) {
  *io = (struct loop_io){.cb = cb, .arg = arg, .fd = -1};
}

void loop_io_start(struct loop *l, struct loop_io *io, int fd, int events) {
  if (io->loop != NULL && io->fd == fd && io->events == events) return;
  loop_io_stop(io);
  if (events == 0) return;
  ev_io *w = xcalloc(1, sizeof *w);
  ev_io_init(w, on_io, fd, (events & LOOP_READ ? EV_READ : 0) | (events & LOOP_WRITE ? EV_WRITE : 0));
  w->data = io;
  io->loop = l;
  io->watcher = w;
  io->fd = fd;
  io->events = events;
  ev_io_start(l->ev, w);
  l->watchers++;
}

void loop_io_stop(struct loop_io *io) {
  if (io->loop == NULL) return;
  ev_io_stop(io->loop->ev, io->watcher);
  io->loop->watchers--;
  free(io->watcher);
  io->watcher = NULL;
  io->loop = NULL;
  io->fd = -1;
  io->events = 0;
}

static void on_signal(struct ev_loop *ev, ev_signal *w, int revents) {
  (void)ev, (void)revents;
  struct loop_signal *s = w->data;
  s->cb(s->arg);
}

void loop_signal_init(struct loop_signal *s, void (*cb)(void *), void *arg) {
  *s = (struct loop_signal){.cb = cb, .arg = arg};
}

void loop_signal_start(struct loop *l, struct loop_signal *s, int signum) {
  loop_signal_stop(s);
  ev_signal *w = xcalloc(1, sizeof *w);
  ev_signal_init(w, on_signal, signum);
  w->data = s;
  s->loop = l;
  s->watcher = w;
  ev_signal_start(l->ev, w);
  l->watchers++;
}

void loop_signal_stop(struct loop_signal *s) {
  if (s->loop == NULL) return;
  ev_signal_stop(s->loop->ev, s->watcher);
  s->loop->watchers--;
  free(s->watcher);
  s->watcher = NULL;
  s->loop = NULL;
}
