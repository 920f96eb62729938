/* keeper: what a supervisor must tell PostgreSQL about its children: that one is dead, so that its runs go back at once, and that
 * one is alive although its loop is busy, so that its leases go on.
 *
 * Owns          one connection to one database (the watchdog has a keeper for each: a reload may change it), opened when there is something to tell and closed when there has been nothing for a while.
 * Burials       are told again until PostgreSQL has answered, and then some seconds more: what the dead child had sent last (a take,
 *               an end) may still be under way in the server. Without PostgreSQL the leases do the same, later.
 * Callbacks     come at the loop's safe point. */
#ifndef UMAVEZ_PROC_KEEPER_H
#define UMAVEZ_PROC_KEEPER_H

#include "base/conf.h"
#include "io/loop.h"

struct keeper;

struct keeper_hooks {
  /* The leases of the worker were prolonged; asked_ms: loop time of the asking, from which they count at least. */
  void (*renewed)(void *arg, const char *worker_id, int64_t asked_ms);
  void *arg;
};

/* For the database at url. Keeps conf; copies url and hooks. */
struct keeper *keeper_new(struct loop *loop, const struct conf *conf, const char *url, const struct keeper_hooks *hooks);
void keeper_free(struct keeper *k);
bool keeper_idle(const struct keeper *k); /* nothing to tell, and no connection */

struct keeper_burial {
  const char *worker_id;
  const char (*charged)[37]; /* the runs that are to blame, and stay charged */
  int ncharged;
  const char *failure; /* JSON text: what is recorded of them; NULL: nothing (then ncharged is 0) */
};
/* Copies. */
void keeper_bury(struct keeper *k, const struct keeper_burial *burial);
/* A burial has not been answered once. */
bool keeper_pending(const struct keeper *k);
/* All leases of the worker last lease_ms from now, at least. Without an answer within that time it counts for nothing. */
void keeper_renew(struct keeper *k, const char *worker_id, int64_t lease_ms);

#endif
