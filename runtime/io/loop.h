/* loop: the process's event loop; the only owner of the ev_loop.
 *
 * Life: loop_new → (timers, descriptors, signals, tasks) → loop_run until loop_stop → loop_free. One thread.
 *
 * One tick:
 *   1. wait for descriptors, signals, or the next timer's time (no wait when step 5 left something over)
 *   2. loop_now_ms moves on; signals and descriptor callbacks run
 *   3. timers that are due run, earliest first: an answer that has arrived is read before its deadline is judged
 *   4. the safe point: deferred tasks run, first deferred, first run; what they defer runs behind them in the same safe
 *      point, up to LOOP_ROUNDS rounds, then in the next tick (a busy chain cannot starve the descriptors)
 *   5. delayed frees
 * Callbacks of steps 2 and 3 only record and defer; what may touch Lua, free a connection or re-enter a module happens in 4.
 *
 * The structs below belong to the caller, who keeps them alive and in place while they are started; their members are
 * private. Each must be initialised before any other call. Stopping is idempotent and may be done from any callback;
 * a stopped thing is never called back again.
 *
 * loop_new ignores SIGPIPE for the process: a peer that is gone is an error value here, not a signal.
 */
#ifndef UMAVEZ_IO_LOOP_H
#define UMAVEZ_IO_LOOP_H

#include "base/err.h"
#include "base/list.h"

enum { LOOP_ROUNDS = 16 };

struct loop;
struct ev_loop;
struct slot;

struct loop *loop_new(void); /* gives: loop_free. Aborts when the kernel refuses. */
/* Runs a last safe point (tasks and delayed frees, no descriptors, no timers), then frees. Descriptors and
 * signals must have been stopped. */
void loop_free(struct loop *l);

void loop_run(struct loop *l);  /* until loop_stop; returns too when nothing is left that could ever happen */
void loop_stop(struct loop *l); /* loop_run (the next one, if none is running) returns at the end of the tick */
void loop_step(struct loop *l, int64_t max_wait_ms); /* one tick, waiting at most that long; for tests and shut-down */

/* Tells slot (base/slots.h) when the loop is busy and when it waits. Keeps slot; NULL: nobody is told. */
void loop_watch(struct loop *l, struct slot *slot);

/* Measures from now on how long turns last (STAT_LOOP_TURN). */
void loop_measure(struct loop *l);

int64_t loop_clock_us(void);               /* CLOCK_MONOTONIC, now */
int64_t loop_now_ms(const struct loop *l); /* CLOCK_MONOTONIC, as of this tick's step 2 or last loop_update */
void loop_update(struct loop *l);          /* read the clock again, after something that took long */
struct ev_loop *loop_ev(struct loop *l);   /* for io/ only */

/* A timer that fires once. Times are counted from the real present, not from the tick's cached time, so a tick that took
 * long does not shorten them; a timer never fires early. */
struct loop_timer {
  void (*cb)(void *arg);
  void *arg;
  struct loop *loop; /* private from here on; NULL while not started */
  int64_t due_us;    /* when it fires */
  uint64_t order;    /* among equals: first started, first fired */
  size_t index;      /* its place in the heap */
};
void loop_timer_init(struct loop_timer *t, void (*cb)(void *), void *arg);
void loop_timer_start(struct loop *l, struct loop_timer *t, int64_t after_ms); /* restarts a started one; ≤ 0: next step 3 */
void loop_timer_stop(struct loop_timer *t);
bool loop_timer_active(const struct loop_timer *t);

/* Deferred work. Deferring a task that is already deferred does nothing: it keeps its place and runs once. It is no longer
 * deferred while its callback runs, which may defer it again or free it. */
struct loop_task {
  void (*cb)(void *arg);
  void *arg;
  struct list node; /* private */
};
void loop_task_init(struct loop_task *t, void (*cb)(void *), void *arg);
void loop_defer(struct loop *l, struct loop_task *t);
void loop_task_cancel(struct loop_task *t);
bool loop_task_pending(const struct loop_task *t);

/* Calls fn(p) in step 5 of this tick; takes p. */
void loop_free_later(struct loop *l, void (*fn)(void *), void *p);

/* A descriptor. The caller stops it before the descriptor is closed. */
enum { LOOP_READ = 1, LOOP_WRITE = 2 };
struct loop_io {
  void (*cb)(void *arg, int events);
  void *arg;
  struct loop *loop; /* private from here on; NULL while not started */
  void *watcher;
  int fd;
  int events;
};
void loop_io_init(struct loop_io *io, void (*cb)(void *, int), void *arg);
/* Starts, or changes what is waited for; events 0 stops. A descriptor number whose file may be another one than before must
 * be stopped and started. */
void loop_io_start(struct loop *l, struct loop_io *io, int fd, int events);
void loop_io_stop(struct loop_io *io);

/* A signal, delivered as an event of step 2. */
struct loop_signal {
  void (*cb)(void *arg);
  void *arg;
  struct loop *loop; /* private from here on; NULL while not started */
  void *watcher;
};
void loop_signal_init(struct loop_signal *s, void (*cb)(void *), void *arg);
void loop_signal_start(struct loop *l, struct loop_signal *s, int signum);
void loop_signal_stop(struct loop_signal *s);

#endif
