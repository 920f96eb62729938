/* stats: counters and histograms of one process, from one list each; read as the Prometheus text format (version
 * 0.0.4).
 *
 * To add one: a line below, and stats_inc or stats_observe where it happens. Values live as long as the process; no
 * locks, call from the loop's thread only. Names in the page: umavez_<name>_total for counters, umavez_<name> for
 * histograms.
 */
#ifndef UMAVEZ_BASE_STATS_H
#define UMAVEZ_BASE_STATS_H

#include "base/buf.h"

/* X(enumerator, name, help) */
#define STATS_COUNTERS(X) \
  X(RUNS_TAKEN, runs_taken, "Deliveries taken from the queue") \
  X(RUNS_COMPLETED, runs_completed, "Runs whose effect this process committed") \
  X(RUNS_REPLAYED, runs_replayed, "Deliveries answered with a stored outcome") \
  X(RUNS_FAILED_PERMANENT, runs_failed_permanent, "Runs that ended as failed_permanent") \
  X(RUNS_FAILED_RETRYABLE, runs_failed_retryable, "Attempts recorded as failed_retryable") \
  X(RUNS_BUSY, runs_busy, "Deliveries put back because their key was held") \
  X(RUNS_CONFLICT, runs_conflict, "Deliveries that reused a key with another request") \
  X(RUNS_RELEASED, runs_released, "Deliveries given back untouched") \
  X(RUNS_LOST, runs_lost, "Runs whose lease was lost while they ran") \
  X(RUNS_UNKNOWN, runs_unknown, "Commits whose result was lost with the connection") \
  X(RUNS_REAPED, runs_reaped, "Expired leases put back into the queue") \
  X(HANDLERS_STARTED, handlers_started, "Handlers started") \
  X(HANDLER_TIMEOUTS, handler_timeouts, "Handlers stopped by their timeout") \
  X(BATCHES, batches, "Transactions that several runs shared") \
  X(BATCHED_RUNS, batched_runs, "Runs settled in a shared transaction") \
  X(BATCH_ALONE, batch_alone, "Runs taken out of a shared transaction to be done alone") \
  X(SERIALIZATION_RETRIES, serialization_retries, "Attempts repeated at once after 40001 or 40P01") \
  X(LEASES_RENEWED, leases_renewed, "Leases renewed") \
  X(POLLS, polls, "Questions for work put to the queue") \
  X(POLLS_EMPTY, polls_empty, "Questions that found no work") \
  X(NOTIFICATIONS, notifications, "Notifications received") \
  X(GATE_ACQUIRED, gate_acquired, "Gate entries acquired") \
  X(GATE_REPLAY, gate_replay, "Outcomes found in the gate") \
  X(GATE_BUSY, gate_busy, "Keys found held in the gate") \
  X(GATE_UNAVAILABLE, gate_unavailable, "Deliveries that went past the gate because Valkey did not answer") \
  X(GATE_UNREADABLE, gate_unreadable, "Gate entries that were not believed") \
  X(GATE_COPIES, gate_copies, "Outcomes copied to the gate") \
  X(PG_CONNECTED, pg_connected, "PostgreSQL connections made") \
  X(PG_LOST, pg_lost, "PostgreSQL connections lost") \
  X(PG_QUERIES, pg_queries, "Statements sent to PostgreSQL") \
  X(VALKEY_CONNECTED, valkey_connected, "Valkey connections made") \
  X(VALKEY_LOST, valkey_lost, "Valkey connections lost") \
  X(VALKEY_COMMANDS, valkey_commands, "Commands sent to Valkey") \
  X(VALKEY_OPENED, valkey_opened, "Times the Valkey breaker opened")

#define STATS_HISTOGRAMS(X) \
  X(RUN_US, run_microseconds, "From the start of a delivery to its end") \
  X(HANDLER_US, handler_microseconds, "From a handler's start to its end") \
  X(COMMIT_US, commit_microseconds, "From sending complete, ack and COMMIT to their answer") \
  X(GATE_US, gate_microseconds, "From asking the gate to its answer") \
  X(TAKE_US, take_microseconds, "From asking the queue for work to its answer") \
  X(WAIT_US, wait_microseconds, "From a run's due time to the start of its delivery")

enum stats_counter {
#define X(id, name, help) STAT_##id,
  STATS_COUNTERS(X)
#undef X
  STAT_COUNT
};

enum stats_histogram {
#define X(id, name, help) STAT_HISTOGRAM_##id,
  STATS_HISTOGRAMS(X)
#undef X
  STAT_HISTOGRAM_COUNT
};

enum { STATS_BUCKETS = 32 }; /* bucket i counts values up to 2^i; the last counts all above too */

void stats_inc(enum stats_counter c);
void stats_add(enum stats_counter c, uint64_t n);
uint64_t stats_get(enum stats_counter c);
const char *stats_name(enum stats_counter c); /* static text */

void stats_observe(enum stats_histogram h, int64_t value); /* a negative value counts as 0 */
uint64_t stats_observed(enum stats_histogram h);           /* how many values so far */
/* An upper bound, within a factor of two, of the smallest value that a share `q` (0…1) of the values does not exceed;
 * 0 without values. */
int64_t stats_quantile(enum stats_histogram h, double q);

void stats_dump(struct buf *out); /* appends the page */
void stats_reset(void);           /* for tests, and after fork */

#endif
