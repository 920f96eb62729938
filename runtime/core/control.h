/* control: one connection of the worker's own, beside the handlers' pool, that is always there when PostgreSQL is.
 *
 * What it is    leases, acks and second-transaction records go over it, so that handlers can never starve them. Statements are sent one
 *               after the other without waiting, each a transaction of its own.
 * Owns          a pgpool of one connection, which it keeps lent to itself. Reconnects by the pool's backoff.
 * Life cycle    control_new → on_up … on_down … on_up … → control_free.
 * Danger        a statement that waits for a row lock holds up what comes behind it: the SQL functions used here skip locked rows. */
#ifndef UMAVEZ_CORE_CONTROL_H
#define UMAVEZ_CORE_CONTROL_H

#include <stdbool.h>

#include "io/loop.h"
#include "io/pgconn.h"
#include "io/pgpool.h"

struct control_hooks {
	void (*on_up)(void *arg);      /* a fresh connection is there */
	void (*on_down)(void *arg);    /* it was lost; every pending statement has been, or is being, answered as lost */
	void (*on_notify)(void *arg, const char *channel, const char *payload);
	void *arg;
};

/* name appears in logs and application_name's place in errors; answer_timeout_ms: how long a silent server is waited for. Copies hooks. */
struct control *control_new(struct loop *loop, const char *name, const struct pgpool_options *options, int64_t answer_timeout_ms,
                            const struct control_hooks *hooks);
void control_free(struct control *c);
bool control_up(const struct control *c);

/* Sends q as a group of its own. Borrows q, copies. q->done comes once. False when down: nothing was sent, done does not come. */
bool control_query(struct control *c, const struct pgquery *q) MUST_CHECK;

#endif
