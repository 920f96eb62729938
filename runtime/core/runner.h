/* runner: the gated idempotency runner. One delivery goes in, and what becomes of it is decided here and nowhere else.
 *
 *   gate (Valkey) → [prepare] → connection → claim (PostgreSQL) → handler → settle → copy to the gate
 *
 * What it is    the state machine over struct run (core/run.h has the states and moves; docs/state-machine.md shows
 *               them). It is driven by answers of gate, ledger and handler, each of which arrives at the safe point
 *               of a tick.
 * Owns          nothing but the runs' time-outs; borrows gate, ledger control, pool, source.
 * Life cycle    runner_new → runner_start(run)… → each run ends once through hooks.ended → runner_free when none is
 *               left.
 * Invariants    G2: effect() is only called with the ledger row claimed in the run's own open transaction. A run's
 *               fate is reported once. Nothing is recorded by guess: an unknown COMMIT is read from the ledger. */
#ifndef UMAVEZ_CORE_RUNNER_H
#define UMAVEZ_CORE_RUNNER_H

#include "core/handler.h"
#include "core/run.h"
#include "io/loop.h"
#include "io/pgconn.h"
#include "io/pgpool.h"

struct gate;
struct control;
struct source;

struct runner_hooks {
  void (*ended)(void *arg, struct run *r); /* the run is RUN_DONE; the callee frees it later in this tick */
  void *arg;
};

struct runner *runner_new(struct loop *loop, struct gate *gate, struct control *control, struct pgpool *pool,
                          struct source *source, const char *worker_id,
                          const struct runner_hooks *hooks); /* keeps worker_id and all but hooks */
void runner_free(struct runner *rn);

/* Registers how user code runs. Keeps ops. */
void runner_set_handler(struct runner *rn, const struct handler_ops *ops);

/* PostgreSQL ends a transaction whose worker says nothing for as long as the task's lease. For a worker whose supervisor ends
 * it when it hangs: not before the task's timeout and ms have passed, so that code may compute until then, its own and
 * that of its neighbours. */
void runner_set_patience(struct runner *rn, int64_t ms);

/* PostgreSQL is away: until it is there again, what would wait for a connection is given back at once. */
void runner_pause(struct runner *rn, bool paused);

/* For who puts a run into the queue: what keeps its args from being what its task declares, as JSON; gives. NULL: nothing. */
char *runner_args_fault(struct run *r);

/* Takes a RUN_TAKEN run to its end. The run stays owned by the caller, who frees it after hooks.ended. */
void runner_start(struct runner *rn, struct run *r);

/* To be called now and then: a handler that waits (sleeps) while its connection is lost is stopped, at the next safe
 * point, rather than at its next statement. */
void runner_look(struct runner *rn, struct run *r);

/* An operator's order: r ends as failed for good, `cancelled`, its effect rolled back: at once where it waits in its handler or
 * prepare step, else as soon as its key is claimed. What is being settled goes on. message borrows. */
void runner_cancel(struct runner *rn, struct run *r, const char *message);

/* Drain, first step: a run that has not started its handler is given back. */
void runner_give_back(struct runner *rn, struct run *r);
/* Drain, last step: a run in its handler is rolled back and given back, uncharged; one that is being settled goes on.
 * */
void runner_stop(struct runner *rn, struct run *r);

/* ---- for the bind layer ---- */

/* prepare ended well. */
void runner_prepared(struct run *r);
/* The handler's one end. Takes v->outcome and v->failure. */
void runner_handler_done(struct run *r, struct verdict *v);
/* A statement of the handler on the run's own transaction, a group of its own (a sync follows). Borrows q, copies.
 * -1 with code "run_over" when the run is not in its handler: nothing is sent then. */
int runner_query(struct run *r, const struct pgquery *q, struct err *e) MUST_CHECK;
/* The next statement changes the transaction for whatever comes after it: if others share it, r is done alone. */
void runner_taint(struct run *r);

#endif
