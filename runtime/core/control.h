/* control: one connection of the worker's own, beside the handlers' pool, that is always there when PostgreSQL is.
 *
 * What it is    leases, acks and second-transaction records go over it, so that handlers can never starve them.
 *               Statements are sent one after the other without waiting, each a transaction of its own.
 * Owns          its pgconn. Reconnects by itself, with backoff.
 * Life cycle    control_new → on_up … on_down … on_up … → control_free.
 * Danger        a statement that waits for a row lock holds up what comes behind it: the SQL functions used here skip
 *               locked rows. */
#ifndef UMAVEZ_CORE_CONTROL_H
#define UMAVEZ_CORE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"
#include "io/pgconn.h"

struct control_hooks {                               /* called at the safe point; on_notify and on_down may be NULL */
  void (*on_up)(void *arg);                          /* a fresh connection is there */
  void (*on_down)(void *arg, const struct err *why); /* lost, or the first try failed; once until the next on_up */
  void (*on_notify)(void *arg, const char *channel, const char *payload);
  void *arg;
};

struct control_options {
  const char *name; /* for the log: "leases" */
  const char *url;
  int64_t connect_timeout_ms;
  int64_t answer_timeout_ms; /* how long a silent server is waited for */
  bool prepare;
  int64_t statement_timeout_ms; /* 0: the session's; else of each statement, behind a pooler too */
  bool apart; /* the worker does without it: its outages are no outages of PostgreSQL, and its owner's to tell */
};

/* Copies options and hooks. */
struct control *control_new(struct loop *loop, const struct control_options *options,
                            const struct control_hooks *hooks);
/* No hook and no q->done is called afterwards. */
void control_free(struct control *c);
bool control_up(const struct control *c);
/* How often the connection has come up: two equal answers mean that it was not lost in between. */
int control_epoch(const struct control *c);
int control_backend_pid(const struct control *c); /* as the connection knows it; behind a pooler no server process has it. 0: down */
/* True when the database's default isolation is not READ COMMITTED: transactions then keep their first snapshot. */
bool control_snapshots(const struct control *c);
/* Why it is down; class ERR_NONE while it is up or was never tried. Borrows. */
const struct err *control_error(const struct control *c);

/* Sends q as a group of its own. Borrows q, copies. q->done comes once, or never
 * after control_free. False when down: nothing was sent, done does
 * not come. */
bool control_query(struct control *c, const struct pgquery *q) MUST_CHECK;

#ifdef UMAVEZ_FAILPOINTS
int control_fd(struct control *c); /* pgconn_fd of its connection; -1 when there is none */
#endif

#endif
