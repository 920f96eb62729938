/* run_stats: what is counted and measured of runs (base/stats.h), in one place: a delivery is counted once, at its end, with
 * one result. */
#ifndef UMAVEZ_CORE_RUN_STATS_H
#define UMAVEZ_CORE_RUN_STATS_H

#include "base/stats.h"
#include "core/ledger.h"
#include "core/run.h"

/* The queue has given r, which had been due for so long. */
void run_stats_taken(struct run *r, int64_t due_for_us);
/* The ledger's word on a claim. */
void run_stats_claim(enum claim_verdict verdict);
/* Code of r (prepare step or handler) starts now. Counts the first time in a delivery. */
void run_stats_started(struct run *r, int64_t now_us);
/* A handler has ended, or was dropped; r->handler_us is when it was started. */
void run_stats_handler(const struct run *r, int64_t now_us);
/* r->end is set. */
void run_stats_ended(const struct run *r);
/* Completed: what an outcome of the built-in task maintenance.purge says that was removed. */
void run_stats_purged(const struct run *r, const char *outcome);

#endif
