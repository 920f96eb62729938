/* ledger_answers: what the statements of one operation on the ledger have answered so far, whether it is one run's
 * (ledger.c) or a batch's (ledger_batch.c).
 *
 * What it is    statements are queued with answers_send; each one's callback ends with answers_got. One statement's fault is
 *               the whole operation's: the server skips the rest up to the sync.
 * Owns          nothing. Borrows the connection for the call, and itself stays where it is until the last answer. */
#ifndef UMAVEZ_CORE_LEDGER_ANSWERS_H
#define UMAVEZ_CORE_LEDGER_ANSWERS_H

#include <stdbool.h>

#include "base/err.h"
#include "io/pgconn.h"

struct params;

struct ledger_answers {
  void (*done)(void *arg); /* when the last answer is there; NULL: nobody waits for it */
  void *arg;
  int left; /* answers still to come; private */

  struct err err;      /* the first error that counts; unset on success */
  bool lost;           /* the connection was lost before everything was answered */
  bool refused;        /* a statement before COMMIT was answered with an error: nothing can have been committed */
  bool commit_refused; /* COMMIT itself was: the transaction is over */
  bool committed;      /* COMMIT was answered by COMMIT */
  bool dirty;          /* after it the session still holds what a function has made: it must not serve another run */
};

/* Queues a statement (no sync). p may be NULL. Its answer comes to on_answer(arg, result), or to a's own if that is NULL: a
 * statement of which only an error is of interest. */
void answers_send(struct ledger_answers *a, struct pgconn *conn, const char *sql, const struct params *p,
                  void (*on_answer)(void *arg, struct pgresult *result), void *arg);
/* Notes result's error, if it has one; false then. What the server skipped because of an earlier error counts for nothing. */
bool answers_ok(struct ledger_answers *a, const struct pgresult *result);
/* An answer has been dealt with: takes result, and calls done if it was the last. */
void answers_got(struct ledger_answers *a, struct pgresult *result);
/* Queues umavez.reset_session(): what functions may have left in the session is gone, or a->dirty. */
void answers_send_reset(struct ledger_answers *a, struct pgconn *conn);
/* COMMIT, then what functions may have left in the session (settings, role, session-level advisory locks, …), and a sync. */
void answers_send_commit(struct ledger_answers *a, struct pgconn *conn);

#endif
