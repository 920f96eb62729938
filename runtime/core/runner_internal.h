/* runner_internal: what runner.c (from delivery to handler), runner_settle.c (from verdict to end) and runner_key.c
 * share. Nobody else
 * includes it. */
#ifndef UMAVEZ_CORE_RUNNER_INTERNAL_H
#define UMAVEZ_CORE_RUNNER_INTERNAL_H

#include "core/batch.h"
#include "core/control.h"
#include "core/gate.h"
#include "core/ledger.h"
#include "core/runner.h"
#include "core/source.h"

#define RUNNER_AGAIN_MAX 5     /* immediate repeats after 40001/40P01 before it counts as an attempt */
#define RUNNER_BUSY_MS 200     /* how long to wait for a key whose holder's end is not known */
#define RUNNER_TROUBLE_MS 5000 /* put-off of a run that met a fault of the installation */
#define RUNNER_CANCEL_MS 5000  /* a cancelled statement that does not end by then: the connection is closed */
#define RUNNER_SHUTDOWN_MS 500 /* by then a server that shuts down has ended the control connection, too */
#define RUNNER_RESOLVE_MS 250  /* between two questions about an unknown COMMIT */
#define RUNNER_RESOLVES_MAX 60
#define RUNNER_PUT_OFF_MAX 10 /* times that a run whose task nobody knows is put off, until it ends: 8 min */

struct runner {
  struct loop *loop;
  struct gate *gate;
  struct control *control;
  struct ledger_acks *acks; /* owns */
  struct pgpool *pool;
  struct source *source;
  const struct handler_ops *ops;
  struct runner_hooks hooks;
  const char *worker_id; /* uuid text; keeps */
  bool paused;           /* runner_pause */
  int64_t patience_ms;   /* runner_set_patience; 0: none */
  int64_t trip_us;       /* how long PostgreSQL takes to answer a claim, smoothed */
};

static inline const struct handler_ops *runner_ops(const struct run *r) {
  return r->ops ? r->ops : r->runner->ops;
}

/* ---- runner_key.c ---- */
/* Fills key, fingerprint and their hex forms from the args as delivered. -1: e->code is key_missing or key_error. */
int runner_digests(struct runner *rn, struct run *r, struct err *e) MUST_CHECK;

/* ---- runner.c ---- */
int64_t runner_now_us(void); /* CLOCK_MONOTONIC, now */
int64_t runner_idle_ms(const struct run *r);
void runner_learn_trip(struct runner *rn, int64_t us);
/* Waits for a connection, then claims. Legal from GATE, PREPARE, ACK. */
void runner_to_pool(struct run *r);
/* A connection was lent (takes conn), or the pool ends (NULL). Legal from POOL. */
void runner_connected(struct run *r, struct pgconn *conn, const struct err *e);
/* Claimed, alone or with others: its handler's turn. */
void runner_start_handler(struct run *r);
/* Drops the handler; its statement is cancelled on the server. Then batch_stopped, or the failure that was set. */
void runner_stop_handler(struct run *r);
/* Rolls back and does the whole run again at once. False: too often, it counts as an attempt now. */
bool runner_again(struct run *r, const struct err *e);
/* 40001, 40P01; or a pooler's server session without our prepared statements (nothing was executed). */
bool runner_is_again(const struct err *e);
/* Prepare step if there is one, else straight to the pool. Legal from GATE and ACK. */
void runner_after_gate(struct run *r);

/* ---- runner_settle.c ---- */
void runner_complete(struct run *r, struct verdict *v);
/* Records r->outcome as failure (r->permanent, r->delay_ms say which) in the run's own transaction. */
void runner_fail(struct run *r);
/* A handler's verdict that is no success. Takes outcome and failure of v. */
void runner_failed_by(struct run *r, struct verdict *v);
/* The same without a transaction: records in a second one. */
void runner_lost(struct run *r);
/* The same when it was the connection that ended, with r->failure set for that: nobody is charged if the whole server goes
 * away, which shows a moment later. */
void runner_cut_off(struct run *r);
void runner_ack(struct run *r);
/* COMMIT was answered: what it had settled was r's completion (failure). */
void runner_completed(struct run *r, const char *outcome, int64_t remaining_ms);
void runner_recorded(struct run *r, const char *outcome, int64_t remaining_ms);
/* The answer to COMMIT was lost. */
void runner_unknown(struct run *r);
/* Ends for good without the ledger: code and message become the outcome. Legal from TAKEN and CLAIM. */
void runner_end(struct run *r, const char *code, const char *message);
void runner_put_off(struct run *r, const char *code, const char *message);
/* Back to the queue, gate given up. The transaction, if any, is rolled back. */
void runner_back(struct run *r, enum give_back how, int64_t delay_ms);
/* Back to the queue uncharged: e is trouble (trouble.h), and event could not be done for it. */
void runner_trouble(struct run *r, const char *event, const struct err *e);
/* Sets outcome (and decides permanent, delay) of a failure made by core itself. */
void runner_set_failure(struct run *r, const char *code, const char *message, const char *sqlstate);
/* Takes outcome and failure of v. */
void runner_take_verdict(struct run *r, struct verdict *v);
/* The end: everything lent is given back, hooks.ended is told. what: for the log line. */
void runner_finish(struct run *r, enum run_end end, const char *what);
/* What a request is answered with: copies. */
void runner_answer(struct run *r, const char *outcome, size_t len, int64_t remaining_ms);

#endif
