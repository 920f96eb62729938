/* ledger_batch: the ledger's SQL functions for many runs in one transaction (sql/functions/10_ledger.sql, begin_runs and
 * below). What ledger.h is for a run, this is for a batch (core/batch.h).
 *
 * What it is    each call queues its statements, or sends them as one group, on the batch's connection; answers come to
 *               the callbacks, once each, at the safe point of a tick, also when the connection is lost.
 * Owns          nothing; borrows runs and connection until the answer. */
#ifndef UMAVEZ_CORE_LEDGER_BATCH_H
#define UMAVEZ_CORE_LEDGER_BATCH_H

#include "core/run.h"
#include "io/pgconn.h"

/* What a group has said so far. One statement's fault is the whole group's: the server skips the rest up to the sync. */
struct ledger_group {
  void (*done)(void *arg, struct ledger_group *g); /* once, when every answer is there */
  void *arg;
  int left; /* answers still to come; private */
  struct err err;      /* the first that counts; unset on success */
  bool lost;           /* the connection was lost before everything was answered */
  bool refused;        /* answered with an error before COMMIT: nothing can have been committed */
  bool committed;      /* COMMIT was answered by COMMIT */
  bool dirty;          /* after it the session holds what a function has made: it must not serve another run */
};

/* BEGIN, begin_runs; PostgreSQL ends the transaction when it has been idle for idle_ms. Fills ledger_id (0: not claimed here), attempt and backend_pid of the n runs. */
void ledger_batch_begin(struct pgconn *c, struct ledger_group *g, struct run *const *runs, int n, int64_t idle_ms);

/* Queues what a run's turn begins with: the session as it was (not before the first), SAVEPOINT, tenant and time-outs. Sent
 * with the handler's first statement. An error of it comes to g, which counts these answers without done. */
void ledger_batch_turn(struct pgconn *c, struct ledger_group *g, const struct run *r, int64_t idle_ms,
                       bool first);
/* Queues what it ends with: the savepoint is released, or undone and released. */
void ledger_batch_keep(struct pgconn *c, struct ledger_group *g);
void ledger_batch_undo(struct pgconn *c, struct ledger_group *g);

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
void ledger_batch_settle(struct pgconn *c, struct ledger_group *g, const struct ledger_settlement *s);

#endif
