/* ledger: the only file that calls the ledger's SQL functions (sql/functions), for a run's own transaction and on a
 * control connection.
 *
 * What it is    each operation sends its statements as one group (one round trip), collects the answers in a struct
 *               ledger_call and calls done once, at the safe point of a tick, also when the connection is lost.
 * Owns          the struct ledger_call until done has returned; the runner may take call->outcome.
 * Invariants    one operation at a time for a run (run->call). Nothing here decides what a run becomes: that is
 *               runner's. */
#ifndef UMAVEZ_CORE_LEDGER_H
#define UMAVEZ_CORE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "core/control.h"
#include "core/ledger_answers.h"
#include "core/run.h"
#include "io/pgconn.h"

enum claim_verdict { CLAIM_NONE, CLAIM_CLAIMED, CLAIM_REPLAY, CLAIM_BUSY, CLAIM_CONFLICT };
enum commit_verdict { COMMIT_NONE, COMMIT_DONE, COMMIT_ROLLED_BACK, COMMIT_IN_PROGRESS };

struct ledger_call {
  struct run *run;
  void (*done)(struct run *r, struct ledger_call *call);
  int64_t sent_ms; /* loop time */
  struct ledger_answers got;

  enum claim_verdict claim;
  enum commit_verdict commit;
  bool found;     /* ack: the ledger holds it. fail_lost: the failure was recorded */
  bool retryable; /* resolve: what was committed is a retryable failure */
  bool failed;    /* the settled row is failed_permanent */
  int64_t ledger_id;
  int attempt;
  char *failure_code, *failure_message, *failure; /* claim: the run's last failure, if it is used up; or NULL */
  int64_t remaining_ms; /* of the lease (busy) or of the retention (settled: what is left of it now, if not less) */
  char *outcome;        /* JSON text as the ledger holds it, or NULL */
};

typedef void ledger_done(struct run *r, struct ledger_call *call);

/* ---- on the run's own connection (r->conn) ---- */
/* BEGIN, begin_run, SAVEPOINT. Fills claim, ledger_id, attempt, failed, outcome, remaining_ms; for a run that
 * is used up (run_used_up) also what had failed. hold: the transaction keeps its first snapshot (REPEATABLE READ, SERIALIZABLE), so it locks the run's row as well. idle_ms: PostgreSQL ends the
 * transaction when the worker says nothing for so long. */
void ledger_claim(struct run *r, bool hold, int64_t idle_ms, ledger_done *done);
/* complete_run (complete_request) with r->outcome, COMMIT, session reset. Fills committed, outcome, remaining_ms. */
void ledger_complete(struct run *r, ledger_done *done);
/* ROLLBACK TO the savepoint, fail_run with r->permanent, r->outcome, r->failure, r->delay_ms, COMMIT, session reset. */
void ledger_fail(struct run *r, ledger_done *done);
/* Ends whatever transaction conn is in and gives it back to the pool (or discards it) when that is answered. Takes
 * conn. */
void ledger_rollback_later(struct pgpool *pool, struct pgconn *conn);
/* Keeps PostgreSQL from ending a transaction whose handler waits for something else than SQL. */
void ledger_keep_alive(struct pgconn *conn);

/* ---- on a control connection; false when it is down, done does not come then ---- */
/* (Acknowledgements of replays: ledger_acks.h) */
/* The failure in a second transaction, if nobody has settled. Fills found. */
bool ledger_fail_lost(struct control *c, struct run *r, const char *worker_id, ledger_done *done) MUST_CHECK;
/* What became of a COMMIT. Fills commit, failed, outcome, remaining_ms. */
bool ledger_resolve(struct control *c, struct run *r, ledger_done *done) MUST_CHECK;
/* Ends the run as failed_permanent without touching the ledger. */
bool ledger_end(struct control *c, struct run *r, ledger_done *done) MUST_CHECK;
/* Puts the run off uncharged with r->failure, at most max times; without touching the ledger. Fills found (false: it has
 * ended), remaining_ms (until it is due). */
bool ledger_put_off(struct control *c, struct run *r, int max, ledger_done *done) MUST_CHECK;
/* Cancels what the backend pid is doing; done comes when the request has been delivered. */
bool ledger_cancel(struct control *c, struct run *r, int pid, ledger_done *done) MUST_CHECK;

#endif
