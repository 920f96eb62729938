/* pgpool: a bounded set of PostgreSQL connections that are lent, one borrower each, first come first served.
 *
 * Life: pgpool_new → acquire / release … → pgpool_close_later. The pool makes its first connection at once, so that its state
 * is known without demand, more when somebody waits, `size` at most.
 *
 * A connection: connecting → idle ⇄ lent → closed. Who borrowed one gives it back exactly once: pgpool_release when its
 * work is done, pgpool_discard when the connection is lost or its state unknown. A connection that dies while lent stays valid
 * (its queries are answered as lost) until the borrower discards it. The borrower never calls pgconn_close_later.
 *
 * While the server is away, waiters wait: there is no error but the end of the pool. Tries are spaced by a jittered
 * exponential backoff, 100 ms to 5 s, one at a time. State: PGPOOL_STARTING until the first connection or failure, PGPOOL_UP
 * with a connection, PGPOOL_DOWN without one and the last try failed. One log line per change of state or of reason.
 *
 * Standbys: connections are asked to be read-write; a session that turns read-only (25006) is closed when it comes back,
 * and the idle ones with it.
 */
#ifndef UMAVEZ_IO_PGPOOL_H
#define UMAVEZ_IO_PGPOOL_H

#include "io/pgconn.h"

enum pgpool_state { PGPOOL_STARTING, PGPOOL_UP, PGPOOL_DOWN };

struct pgpool;

/* A place in the queue. The caller keeps it alive until `got` is called or the wait is cancelled; then it can be used again. */
struct pgwait {
  /* At the safe point, once. c (lent, READY, idle, outside a transaction), or NULL with why (borrows): pool_closed. */
  void (*got)(void *arg, struct pgconn *c, const struct err *why);
  void *arg;
  struct list node; /* private from here on */
  int64_t since_us; /* it waits */
};
void pgwait_init(struct pgwait *w, void (*got)(void *, struct pgconn *, const struct err *), void *arg);
bool pgwait_waiting(const struct pgwait *w);

/* prepare false: behind a pooler in transaction mode. Gives: pgpool_close_later. */
struct pgpool *pgpool_new(struct loop *l, const char *url, int size, int64_t connect_timeout_ms, bool prepare);
/* Takes. Waiters get pool_closed, idle connections are closed; lent ones may be used on and must still be given back, after
 * which the pool is gone. No acquire afterwards. The state hook is not called any more. */
void pgpool_close_later(struct pgpool *p);

void pgpool_acquire(struct pgpool *p, struct pgwait *w); /* keeps w */
void pgpool_cancel_wait(struct pgpool *p, struct pgwait *w); /* idempotent; `got` is not called afterwards */
/* From within the `done` of the last query at the earliest. A connection that is not idle and outside a transaction ('I'),
 * or cannot write, is closed instead. */
void pgpool_release(struct pgpool *p, struct pgconn *c);
void pgpool_discard(struct pgpool *p, struct pgconn *c); /* closes it, whatever its state; pending queries answered as lost */

enum pgpool_state pgpool_state(const struct pgpool *p);
/* The last failure to connect, class ERR_NONE while the state is PGPOOL_UP. class ERR_INPUT (bad_url, auth_failed,
 * no_database): waiting does not help; a worker that starts may give up on it. */
const struct err *pgpool_error(const struct pgpool *p);
/* One hook, called at the safe point after each change of state, or of the reason while down; borrows why. */
void pgpool_on_state(struct pgpool *p, void (*cb)(void *arg, enum pgpool_state, const struct err *why), void *arg);

struct pgpool_counts {
  int size, connecting, idle, lent, waiting;
};
struct pgpool_counts pgpool_counts(const struct pgpool *p);

#endif
