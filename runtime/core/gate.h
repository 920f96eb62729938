/* gate: the Valkey entry in front of the ledger. The only file that knows the entry's format.
 *
 * What it does  makes a duplicate wait, or hands out an authenticated copy of an outcome that PostgreSQL has committed.
 *               It never decides that an effect may happen, nor that it has happened (G4): every doubt is
 *               GATE_UNAVAILABLE, and PostgreSQL decides.
 * Entry         key    <prefix>:gate:{t<tenant>:<key hex>} or <prefix>:gate:{p:<key hex>}
 *               value  uv3:S:<fingerprint 64>:<dbid 16>:<ledger id 19>:<attempt 10>:<time 16>:<token 32>:<run_id 36>:
 *                      <hmac 64>: and the outcome, or {}
 *               S      P processing, C completed, F failed_permanent; numbers are decimal with leading zeros
 *               time   the database's, in ms since 1970. P: when it was acquired; C, F: when the retention ends. The TTL
 *                      is Valkey's word alone; this is signed, so that a server that brings back what is past is not
 *                      believed
 *               hmac   HMAC-SHA256(secret, owner ":" key hex ":" all that stands before the hmac, and the outcome)
 *                      in hex, where owner is "t<tenant>" or "p"
 *               dbid   the first 16 hex digits of SHA-256(umavez.database_identity()): an entry of another database,
 *                      or timeline of it, is ignored (G8)
 *               TTL    P: the task's lease; C, F: at most replay_cache and at most the remaining retention
 * Changes       server-side scripts that compare: release and renewal compare the token, a copy never replaces a newer
 *               (ledger id, attempt).
 * Callers       runner (acquire, release, settle), worker (identity), sched (renew). Answers arrive at the safe point
 *               of a tick. */
#ifndef UMAVEZ_CORE_GATE_H
#define UMAVEZ_CORE_GATE_H

#include <stddef.h>
#include <stdint.h>

#include "core/dbclock.h"
#include "core/run.h"
#include "io/valkey.h"

enum gate_result {
  GATE_ACQUIRED,    /* our processing entry stands there (new, or over this run's own earlier delivery's) */
  GATE_BUSY,        /* somebody else's believable processing entry: remaining_ms */
  GATE_SETTLED,     /* an authentic settled copy with the same fingerprint */
  GATE_UNAVAILABLE, /* down, unreadable, unbelievable, other fingerprint: PostgreSQL decides */
};

struct gate_answer {
  enum gate_result result;
  int64_t remaining_ms; /* GATE_BUSY: of the holder's lease; GATE_SETTLED: of the retention */
  bool failed;         /* GATE_SETTLED: failed_permanent rather than completed */
  const char *outcome; /* GATE_SETTLED: JSON text, borrows for the callback */
  size_t outcome_len;
};

/* Keeps v (NULL: no gate at all, everything is GATE_UNAVAILABLE) and clock. Copies prefix. */
struct gate *gate_new(struct valkey *v, const struct dbclock *clock, const char *prefix, int64_t replay_cache_ms);
void gate_free(struct gate *g);

/* The database behind us, as umavez.database_identity() and gate_secret() say; the clock is set before. identity NULL:
 * unknown, the gate is not used. */
void gate_set_identity(struct gate *g, const char *identity, const uint8_t *secret, size_t secret_len);

/* Before PostgreSQL is asked for what gate_settle may have to copy: which database that will be of. By the time that the answer
 * is there, the gate may know another one (a failover), which need not have it (G8). */
void gate_bind(const struct gate *g, struct run *r);

/* Asks for the run's key. Sets r->token. done comes once. The run must live until then. */
void gate_acquire(struct gate *g, struct run *r, void (*done)(struct run *r, const struct gate_answer *a));

/* Fire and forget: gives up, or prolongs, our processing entry if it is still ours. */
void gate_release(struct gate *g, struct run *r);
void gate_renew(struct gate *g, struct run *r);

/* Fire and forget: the copy after COMMIT, if the database is still the one of gate_bind. remaining_ms of the retention; id and attempt of the ledger row. */
void gate_settle(struct gate *g, struct run *r, bool failed, int64_t ledger_id, int attempt, const char *outcome,
                 int64_t remaining_ms);

#endif
