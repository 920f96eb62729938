/* pgoutage: one word in the log when PostgreSQL goes away, and one when it is back.
 *
 * What it is    a process has several ways to the server (each struct control, the pool), and an outage cuts all of them. The
 *               first that is cut says `postgres_down`, with the reason and what to do; the others at level debug; when all
 *               are there again the last one says `postgres_up`. A reason that somebody can do something about (a password, too
 *               many connections, a standby) is said whenever it is a new one.
 * Owns          nothing: a part belongs to whoever has the connection. The sum over all parts is one static a process; call
 *               from the loop's thread only.
 * Life cycle    init → up, down … in any order, repeatedly → fini. */
#ifndef UMAVEZ_IO_PGOUTAGE_H
#define UMAVEZ_IO_PGOUTAGE_H

#include "base/err.h"

struct pgoutage {
  const char *name; /* for the log: "leases"; kept */
  enum { PGOUTAGE_UNKNOWN, PGOUTAGE_UP, PGOUTAGE_DOWN } state;
};

void pgoutage_init(struct pgoutage *part, const char *name); /* keeps name */
void pgoutage_up(struct pgoutage *part);
void pgoutage_down(struct pgoutage *part, const struct err *why);
void pgoutage_fini(struct pgoutage *part); /* it is gone, and no reason to call the server down */

/* What a user can do about a failure to connect. */
const char *pgoutage_hint(const struct err *why);

#endif
