/* batch: many runs of a task in one transaction, one after the other, each under a savepoint of its own.
 *
 *   runs of a task that wait for a connection ─► BEGIN, claims set-wise ─► turn, turn, turn … ─► settled set-wise, COMMIT
 *                                                    │ not claimed here        │ waits, is slow, cannot be judged here
 *                                                    └───────► alone ◄─────────┘   (undone to its savepoint, claim forgotten)
 *
 * What it is    nothing changes for a handler but speed. Whatever is not the plain case is done again alone, in a
 *               transaction of its own, by runner: a key that is not simply free, a redelivery, a handler that waits for
 *               something else than SQL or is slow, an error that sharing may have caused, a serialization failure or
 *               deadlock; and every run of a batch that did not commit.
 * How many      a task's share: it begins with one, is doubled while handlers are quick, and falls back to one when one
 *               waits or is slow; so a task whose handlers sleep or call slow SQL keeps its connections in parallel. At most
 *               the manifest's `batch`, and no more turns once BATCH_BUDGET_US are over, so that locks are not held long.
 * Owns          its connection while it lasts; borrows the runs. Life: batch_join … the batch ends by itself.
 * Invariants    G1, G2 as in runner: a handler's turn comes after the claim, settlement is fenced by it, all in the one
 *               transaction. Nobody is charged for what another run of the batch did. */
#ifndef UMAVEZ_CORE_BATCH_H
#define UMAVEZ_CORE_BATCH_H

#include <stdbool.h>

#include "core/handler.h"
#include "core/run.h"

/* Whether r, about to wait for a connection, should wait with others of its task. */
bool batch_wants(const struct run *r);
/* r (RUN_POOL) waits with others. */
void batch_join(struct run *r);
/* r waits no more (RUN_POOL): drain, PostgreSQL away. */
void batch_leave(struct run *r);
/* How many runs of t should be held beyond those that have connections, so that its batches are full. */
int batch_ahead(const struct task *t);
/* How long the handler of r took alone: what its task's share grows from. */
void batch_learn(struct run *r, int64_t handler_us);

/* ---- for a run in a batch (r->batch), from runner ---- */
/* The handler of r (RUN_HANDLER) has ended. Takes v. */
void batch_handler_done(struct run *r, struct verdict *v);
/* The handler of r was dropped, and its statement has ended: what is to be recorded is in r (or r->draining, r->leaving). */
void batch_stopped(struct run *r);
/* Drain: nothing more is begun. */
void batch_hurry(struct run *r);
/* The connection cannot be used any more. */
void batch_discard(struct run *r);

#endif
