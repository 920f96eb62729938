/* ledger_batch: the ledger's SQL functions for many runs in one transaction (sql/functions/10_ledger.sql, begin_runs and
 * below). What ledger.h is for a run, this is for a batch (core/batch.h).
 *
 * What it is    each call queues its statements, or sends them as one group, on the batch's connection; answers come to
 *               the callbacks, once each, at the safe point of a tick, also when the connection is lost.
 * Owns          nothing; borrows runs and connection until the answer. */
#ifndef UMAVEZ_CORE_LEDGER_BATCH_H
#define UMAVEZ_CORE_LEDGER_BATCH_H

#include "core/ledger_answers.h"
#include "core/run.h"
#include "io/pgconn.h"

/* BEGIN, begin_runs; PostgreSQL ends the transaction when it has been idle for idle_ms. Fills ledger_id (0: not claimed here), attempt and backend_pid of the n runs. */
void ledger_batch_begin(struct pgconn *c, struct ledger_answers *g, struct run *const *runs, int n, int64_t idle_ms);

/* Queues what a run's turn begins with: the session as it was, tenant and time-outs, SAVEPOINT. Sent with the handler's first
 * statement. An error of it comes to g, which counts these answers without done; g->dirty if the runs before have left
 * temporary objects, which this one sees. */
void ledger_batch_turn(struct pgconn *c, struct ledger_answers *g, const struct run *r, int64_t idle_ms);
/* Queues what it ends with: the savepoint is released, or undone and released. */
void ledger_batch_keep(struct pgconn *c, struct ledger_answers *g);
void ledger_batch_undo(struct pgconn *c, struct ledger_answers *g);

/* How the runs of a batch are settled; the arrays are borrowed for the call. */
struct ledger_settlement {
  struct run *const *completed;
  int ncompleted;
  struct run *const *failed; /* r->permanent, outcome, failure, delay_ms as in ledger_fail */
  int nfailed;
  struct run *const *forgotten; /* claimed, but not settled here */
  int nforgotten;
};
/* forget_runs, fail_run for each, complete_runs, COMMIT, session reset: one round trip. Replaces r->outcome of what is
 * settled by what the ledger holds. */
void ledger_batch_settle(struct pgconn *c, struct ledger_answers *g, const struct ledger_settlement *s);

#endif
