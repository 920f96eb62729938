/* stats: what a worker counts and measures, and the table of all metrics. stats_page.h makes the page of them.
 *
 * What it is    cells of 64 bits, each with one writer, which stores and never locks: recording is a load, an addition and a
 *               store. A process writes into a block of its own; a supervisor's children have theirs in memory that all of
 *               them share (base/slots.c makes it), so that whichever is asked can tell of the whole worker.
 *
 *                 area:  block 0                        block 1 … n
 *                        the supervisor's own counts    one a slot, its child's
 *                        and what dead children left
 *
 * Life cycle    a process counts into memory of its own from its start, without any call. With a supervisor:
 *               parent:  stats_area_init → stats_use(area, STATS_BASE) … child dies → stats_fold(area, its slot)
 *               child:   stats_use(area, its slot), before any task is registered
 *               stats_fold keeps all counters rising over a child's death; gauges go with their child.
 * Tasks         metrics of tasks have a row for each task that any process of the worker has registered (stats_row), at most
 *               STATS_ROWS - 1; row 0 takes what has no row. Rows stay for the life of the area, so a reload loses nothing.
 * To add one    a line in one of the three lists, and a call where it happens. docs/metrics.md follows (`make lint`).
 *               A metric that is asked of the database at each scrape (a schedule's lag, say) stands in STATS_SAMPLED, and
 *               core/queue_stats.c asks for it.
 * Callers       one thread a process. */
#ifndef UMAVEZ_BASE_STATS_H
#define UMAVEZ_BASE_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { STATS_ROWS = 512, STATS_TASK_MAX = 256, STATS_BASE = -1 };

/* ---- the values of labels: X(enumerator, value) ---- */

#define STATS_RESULTS(X) \
  X(RESULT_COMPLETED, "completed") \
  X(RESULT_REPLAY, "replay") \
  X(RESULT_FAILED_RETRYABLE, "failed_retryable") \
  X(RESULT_FAILED_PERMANENT, "failed_permanent") \
  X(RESULT_BUSY, "busy") \
  X(RESULT_CONFLICT, "conflict") \
  X(RESULT_GIVEN_BACK, "given_back") \
  X(RESULT_UNKNOWN, "unknown")

#define STATS_GATE_RESULTS(X) \
  X(GATE_RESULT_ACQUIRED, "acquired") \
  X(GATE_RESULT_REPLAY, "replay") \
  X(GATE_RESULT_BUSY, "busy") \
  X(GATE_RESULT_CONFLICT, "conflict") \
  X(GATE_RESULT_UNBELIEVED, "unbelieved") \
  X(GATE_RESULT_DOWN, "down")

#define STATS_VERDICTS(X) \
  X(VERDICT_CLAIM_CLAIMED, "claimed") \
  X(VERDICT_CLAIM_REPLAY, "replay") \
  X(VERDICT_CLAIM_BUSY, "busy") \
  X(VERDICT_CLAIM_CONFLICT, "conflict") \
  X(VERDICT_CLAIM_ERROR, "error")

#define STATS_POOL_STATES(X) \
  X(POOL_STATE_CONNECTING, "connecting") \
  X(POOL_STATE_IDLE, "idle") \
  X(POOL_STATE_LENT, "lent")

#define STATS_ANSWERS(X) \
  X(ANSWER_2XX, "2xx") \
  X(ANSWER_3XX, "3xx") \
  X(ANSWER_4XX, "4xx") \
  X(ANSWER_5XX, "5xx")

#define STATS_REMAINS(X) \
  X(REMAINS_TENANT_KEYS, "tenant_keys") \
  X(REMAINS_PLATFORM_KEYS, "platform_keys") \
  X(REMAINS_PARTITIONS, "partitions") \
  X(REMAINS_AUDIT, "audit_rows")

/* ---- shapes that have a label: X(shape, list of its values) ---- */

#define STATS_SHAPES(X) \
  X(RESULT, STATS_RESULTS) \
  X(GATE, STATS_GATE_RESULTS) \
  X(VERDICT, STATS_VERDICTS) \
  X(POOL, STATS_POOL_STATES) \
  X(ANSWER, STATS_ANSWERS) \
  X(REMAINS, STATS_REMAINS)

#define STATS_ENUM(id, text) STATS_##id,
enum stats_result { STATS_RESULTS(STATS_ENUM) STATS_SIZE_RESULT };
enum stats_gate { STATS_GATE_RESULTS(STATS_ENUM) STATS_SIZE_GATE };
enum stats_verdict { STATS_VERDICTS(STATS_ENUM) STATS_SIZE_VERDICT };
enum stats_pool { STATS_POOL_STATES(STATS_ENUM) STATS_SIZE_POOL };
enum stats_answer { STATS_ANSWERS(STATS_ENUM) STATS_SIZE_ANSWER };
enum stats_remains { STATS_REMAINS(STATS_ENUM) STATS_SIZE_REMAINS };
#undef STATS_ENUM

/* Histograms: bounds of the buckets, in microseconds, and in runs. Behind the buckets stand the one for all above, and the sum. */
#define STATS_BOUNDS_SECONDS \
  100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000, 10000000, \
      30000000, 60000000, 300000000, 3600000000
#define STATS_BOUNDS_RUNS 1, 2, 4, 8, 16, 32, 64
enum {
  STATS_SIZE_ONE = 1,
  STATS_BUCKETS_SECONDS = 20,
  STATS_BUCKETS_RUNS = 7,
  STATS_SIZE_SECONDS = STATS_BUCKETS_SECONDS + 2,
  STATS_SIZE_RUNS = STATS_BUCKETS_RUNS + 2
};

/* ---- the table: X(cell, type, name without umavez_, shape, help) ---- */

/* By task: the label `task`, then the shape's. */
#define STATS_TASK(X) \
  X(RUNS, COUNTER, runs_total, RESULT, \
    "Deliveries that have ended, requests of the HTTP door among them, each with one result") \
  X(RETRIES, COUNTER, retries_total, ONE, "Deliveries of runs that had been delivered before") \
  X(DEAD, COUNTER, runs_dead_total, ONE, "Runs of the queue that have ended for good without their effect") \
  X(TIMEOUTS, COUNTER, handler_timeouts_total, ONE, "Handlers stopped by their timeout") \
  X(HANDLER, HISTOGRAM, handler_duration_seconds, SECONDS, "From a handler's start to its end, commit not included") \
  X(LATENCY, HISTOGRAM, queue_latency_seconds, SECONDS, \
    "From the moment at which a run was due (enqueued, or its delay over) to the start of its prepare step or handler")

/* Of the worker. */
#define STATS_WORKER(X) \
  X(CHILDREN, GAUGE, children, ONE, "Processes of the worker that are ready for work") \
  X(CHILD_DEATHS, COUNTER, child_deaths_total, ONE, "Children that did not end well") \
  X(RUNS_HELD, GAUGE, runs_held, ONE, "Runs in the worker's hands: taken ahead, at work, or being settled") \
  X(RUNS_TAKEN, COUNTER, runs_taken_total, ONE, "Deliveries taken from the queue") \
  X(TAKES, COUNTER, takes_total, ONE, "Questions for work put to the queue") \
  X(TAKES_EMPTY, COUNTER, takes_empty_total, ONE, "Questions for work that found none") \
  X(NOTIFICATIONS, COUNTER, notifications_total, ONE, "Notifications of PostgreSQL received") \
  X(CLAIMS, COUNTER, claims_total, VERDICT, "Answers of the ledger to claims") \
  X(CLAIM_TIME, HISTOGRAM, claim_duration_seconds, SECONDS, "From sending a claim, of one run or of several, to its answer") \
  X(COMMIT_TIME, HISTOGRAM, commit_duration_seconds, SECONDS, "From sending completion and COMMIT to their answer") \
  X(BATCH_RUNS, HISTOGRAM, batch_runs, RUNS, "Runs settled in one shared transaction") \
  X(BATCH_ALONE, COUNTER, batch_alone_total, ONE, "Runs taken out of a shared transaction to be done alone") \
  X(SERIALIZATION, COUNTER, serialization_retries_total, ONE, "Attempts repeated at once after 40001 or 40P01") \
  X(LEASES_LOST, COUNTER, leases_lost_total, ONE, "Runs that somebody else had settled by the time that they were to be") \
  X(LEASES_ENDED, COUNTER, leases_expired_total, ONE, "Expired leases, of any worker, put back into the queue") \
  X(COMMITS_UNKNOWN, COUNTER, commits_unknown_total, ONE, "Commits whose answer was lost with the connection") \
  X(POOL, GAUGE, pool_connections, POOL, "PostgreSQL connections for handlers") \
  X(POOL_SIZE, GAUGE, pool_size, ONE, "PostgreSQL connections for handlers that there may be") \
  X(POOL_WAITING, GAUGE, pool_waiting, ONE, "Runs and batches that wait for a connection") \
  X(POOL_WAIT, HISTOGRAM, pool_wait_seconds, SECONDS, "From asking for a connection to getting one") \
  X(GATE, COUNTER, gate_total, GATE, "What the gate said to deliveries; down: it was passed by") \
  X(GATE_TIME, HISTOGRAM, gate_duration_seconds, SECONDS, "From asking the gate to its answer") \
  X(BREAKER_OPEN, GAUGE, gate_breaker_open, ONE, "Children whose breaker is open: they work without the gate") \
  X(BREAKER_OPENED, COUNTER, gate_breaker_opened_total, ONE, "Times that a breaker has opened") \
  X(ANSWERS, COUNTER, http_answers_total, ANSWER, "Answers of the HTTP door, by class of status") \
  X(LOOP_TURN, HISTOGRAM, loop_turn_seconds, SECONDS, \
    "How long a turn of the event loop lasted: what comes meanwhile waits so long") \
  X(LUA_BYTES, GAUGE, lua_memory_bytes, ONE, "Memory of the Lua states") \
  X(SCHEDULE_LAG, HISTOGRAM, schedule_lag_seconds, SECONDS, \
    "How late due slots of schedules were enqueued; of several together the first") \
  X(PURGED, COUNTER, purged_total, REMAINS, "What maintenance.purge has removed, counted when a purge is done")

/* Asked for when the page is: X(enumerator, type, name without umavez_, label or "", help). */
#define STATS_SAMPLED(X) \
  X(QUEUE_DUE, GAUGE, queue_due, "queue", "Runs that are due and wait, counted up to 10000") \
  X(QUEUE_LATER, GAUGE, queue_later, "queue", "Runs that wait for their time (delayed, or to be retried), counted up to 10000") \
  X(QUEUE_AGE, GAUGE, queue_oldest_seconds, "queue", "For how long the run that waits longest has been due; 0: none is") \
  X(DATABASE_UP, GAUGE, database_up, "", "Whether PostgreSQL is there, as /readyz sees it") \
  X(QUEUES_KNOWN, GAUGE, queues_known, "", "Whether PostgreSQL has told of the queues; 0: their metrics are left out") \
  X(QUEUE_LIMIT, GAUGE, queue_limit, "queue", "Runs that may be at work at once in all workers; queues without a limit are left out") \
  X(QUEUE_USED, GAUGE, queue_limit_used, "queue", "Of them: those that are in some worker's hands") \
  X(TASK_LIMIT, GAUGE, task_limit, "task", "Runs that may be at work at once in all workers; tasks without a limit are left out") \
  X(TASK_USED, GAUGE, task_limit_used, "task", "Of them: those that are in some worker's hands") \
  X(START, GAUGE, start_time_seconds, "", "When the worker was started, in seconds since 1970; counters count from then on") \
  X(BUILD, GAUGE, build_info, "version", "1; the label tells the version")

/* A cell's number is its place in a block. */
#define STATS_CELLS(id, type, name, shape, help) _Atomic uint64_t id[STATS_SIZE_##shape];
struct stats_worker_cells {
  STATS_WORKER(STATS_CELLS)
};
struct stats_task_cells {
  STATS_TASK(STATS_CELLS)
};
#undef STATS_CELLS
#define STATS_ENUM(id, type, name, shape, help) STAT_##id = offsetof(struct stats_worker_cells, id) / sizeof(uint64_t),
enum stats_cell { STATS_WORKER(STATS_ENUM) };
#undef STATS_ENUM
#define STATS_ENUM(id, type, name, shape, help) STAT_TASK_##id = offsetof(struct stats_task_cells, id) / sizeof(uint64_t),
enum stats_task_cell { STATS_TASK(STATS_ENUM) };
#undef STATS_ENUM
#define STATS_ENUM(id, type, name, label, help) STAT_SAMPLED_##id,
enum stats_sampled { STATS_SAMPLED(STATS_ENUM) STATS_SAMPLES };
#undef STATS_ENUM
enum {
  STATS_WORKER_CELLS = sizeof(struct stats_worker_cells) / sizeof(uint64_t),
  STATS_TASK_CELLS = sizeof(struct stats_task_cells) / sizeof(uint64_t)
};

/* ---- recording; place: one of the shape's enumerators, 0 for ONE ---- */

void stats_add(enum stats_cell cell, int place, uint64_t n);
void stats_inc(enum stats_cell cell); /* shape ONE */
void stats_set(enum stats_cell cell, int place, uint64_t value); /* gauges; a supervisor has none */
void stats_observe(enum stats_cell cell, int64_t us);     /* shape SECONDS; a negative time counts as 0 */
void stats_observe_runs(enum stats_cell cell, int64_t n); /* shape RUNS */
/* row: of stats_row */
void stats_task_add(int row, enum stats_task_cell cell, int place, uint64_t n);
void stats_task_observe(int row, enum stats_task_cell cell, int64_t us);

/* The task's row, the same in all processes of a worker; 0: all are taken. Not for the hot path. */
int stats_row(const char *task);

/* ---- the memory ---- */

struct stats_area;

size_t stats_area_size(int slots);
void stats_area_init(struct stats_area *a, int slots); /* memory that is all zero, of that size; counters count from now on */
bool stats_area_fits(const struct stats_area *a, int slots); /* made by a process of this build */
/* From now on this process counts there. slot: STATS_BASE, or its own. fd: the memory's, to lock names by. Keeps
 * a; NULL: into its own memory again. */
void stats_use(struct stats_area *a, int slot, int fd);
/* The child of that slot is dead: what it has counted stays. By the parent alone. */
void stats_fold(struct stats_area *a, int slot);

/* ---- reading ---- */

enum stats_type { STATS_COUNTER, STATS_GAUGE, STATS_HISTOGRAM };

struct stats_metric {
  const char *name; /* with umavez_ */
  enum stats_type type;
  const char *help;
  bool by_task;
  int sampled;               /* enum stats_sampled, or -1 */
  const char *label;         /* of the shape or the sample; "": none */
  const char *const *values; /* of that label; NULL for a sample and without label */
  int cell, size;            /* in cells of the worker or of a task */
  const int64_t *bounds;     /* STATS_HISTOGRAM: nbounds of them */
  int nbounds;
  bool in_seconds; /* its bounds and sum are in microseconds */
};

int stats_metrics(void); /* their number */
const struct stats_metric *stats_metric_at(int i);

/* All that the worker has counted, as it was at one time. Owns its memory. */
struct stats_sum {
  uint64_t worker[STATS_WORKER_CELLS];
  int rows;
  uint64_t (*task)[STATS_TASK_CELLS]; /* rows of them */
  const char **names;                 /* of the rows; [0] is "unknown" */
};
void stats_sum(struct stats_sum *out);
void stats_sum_fini(struct stats_sum *s);
int64_t stats_start_ms(void); /* since 1970: from then on the counters count */

#endif
