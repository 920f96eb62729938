/* sched: which runs this worker has, how many it may have, and when they start.
 *
 *   source ─taken─► ready list ─► runner_start ─► … ─► ended ─► freed at the end of the tick
 *
 * What it is    keeps every run of the worker in one of two lists (waiting for its task's concurrency, or started),
 *               asks the source for as many as fit, renews leases, keeps idle transactions alive, and empties itself
 *               for a shut-down.
 * Owns          the runs, from source.taken to the end.
 * Life cycle    sched_new → sched_start → … → sched_drain → hooks.drained → sched_free. */
#ifndef UMAVEZ_CORE_SCHED_H
#define UMAVEZ_CORE_SCHED_H

#include <stdbool.h>

#include "core/runner.h"
#include "core/source.h"
#include "io/loop.h"

struct sched;

struct sched_options {
  int pool_size; /* connections for handlers */
  bool queue;    /* false: takes nothing from the queue, serves requests only */
  int prefetch;  /* runs held ready beyond them, at most */
};

struct sched *sched_new(struct loop *loop, const struct sched_options *options);
/* Borrows nothing, keeps all. */
void sched_connect(struct sched *s, struct source *source, struct runner *runner, struct gate *gate);
void sched_free(struct sched *s);

/* Starts taking runs. Idempotent. */
void sched_start(struct sched *s);
/* PostgreSQL is away: stops taking, and gives back what waits for a connection. sched_start goes on. */
void sched_pause(struct sched *s);

/* Takes nothing more from the queue and gives back what has not started; requests are served as before. For good. */
void sched_leave_queue(struct sched *s);
/* Takes nothing new, gives back what has not started, lets the rest end within timeout_ms, then rolls back and gives
 * back. drained is
 * called once, with 0, or about how many runs could not even be given back. Calling it again with a shorter time
 * hurries. */
void sched_drain(struct sched *s, int64_t timeout_ms, void (*drained)(void *arg, int left), void *arg);

/* Starts a request (run.h): renewed, drained and freed like the others. Takes r, which is in RUN_TAKEN, its key and
 * fingerprint filled. Not while draining (sched_draining). */
void sched_adopt(struct sched *s, struct run *r);
bool sched_draining(const struct sched *s);
/* PostgreSQL is there. */
bool sched_connected(const struct sched *s);
/* PostgreSQL is there, and runs are taken. */
bool sched_taking(const struct sched *s);

/* For runner_hooks and source_hooks; arg is the sched. */
void sched_on_ended(void *arg, struct run *r);
void sched_on_taken(void *arg, struct run *r);
void sched_on_more(void *arg);
void sched_held(void *arg, void (*each)(void *each_arg, const struct run *r), void *each_arg);
void sched_on_ordered(void *arg, const char *run_id, enum source_order order, const char *message);
void sched_on_look(void *arg);

int sched_in_flight(const struct sched *s);

#endif
