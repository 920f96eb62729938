/* run: one delivery in this worker, from being taken to its end.
 *
 * What it is    the data that travels through the runner. States and legal moves come from the two tables below;
 *               run_set_state is the only function that changes a state, and calls bug() on an illegal move.
 *               docs/state-machine.md shows the same tables (a unit test compares).
 * Owns          its strings, its key material, its results. Borrows task and runner. The connection is lent by the
 *               pool.
 * Life cycle    run_new (source) → runner_start → … → RUN_DONE → run_free by sched, at the safe point of the tick.
 * Callers       runner changes it; handler code (bind) reads the public part and keeps handler_data. */
#ifndef UMAVEZ_CORE_RUN_H
#define UMAVEZ_CORE_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "base/list.h"
#include "core/task.h"
#include "io/loop.h"
#include "io/pgpool.h"

/* X(enumerator, name, what it means) */
#define RUN_STATES(X)                                                                           \
  X(RUN_TAKEN, "taken", "fetched from the queue, waits for its turn")                           \
  X(RUN_GATE, "gate", "Valkey has been asked")                                                  \
  X(RUN_PREPARE, "prepare", "the task's prepare step runs, before any transaction")             \
  X(RUN_POOL, "pool", "waits for a connection")                                                 \
  X(RUN_CLAIM, "claim", "BEGIN, claim and SAVEPOINT are under way")                             \
  X(RUN_TURN, "turn", "claimed with others in one transaction: waits for its turn")             \
  X(RUN_HANDLER, "handler", "the handler runs inside its transaction")                          \
  X(RUN_STOPPING, "stopping", "the handler was dropped; its last statement is being cancelled") \
  X(RUN_JOINED, "joined", "its turn is over: waits for the others of its transaction")           \
  X(RUN_COMPLETE, "complete", "completion, removal from the queue and COMMIT are under way")    \
  X(RUN_FAIL, "fail", "rollback to the savepoint, failure record and COMMIT are under way")     \
  X(RUN_LOST, "lost", "the transaction is gone: the failure is recorded in a second one")       \
  X(RUN_UNKNOWN, "unknown", "the answer to COMMIT was lost: the ledger is being asked")         \
  X(RUN_ACK, "ack", "a replay is verified and removed from the queue")                          \
  X(RUN_END, "end", "ends, or is put off, without the ledger")                                  \
  X(RUN_DONE, "done", "nothing is left to do here")

/* X(from, to, when) */
#define RUN_MOVES(X)                                                                            \
  X(RUN_TAKEN, RUN_GATE, "key and fingerprint are known")                                       \
  X(RUN_TAKEN, RUN_END, "unknown task, wrong owner, no key; or cancelled")                                    \
  X(RUN_TAKEN, RUN_DONE, "drain: given back untouched")                                         \
  X(RUN_GATE, RUN_ACK, "settled copy of the same request: REPLAY")                              \
  X(RUN_GATE, RUN_DONE, "processing elsewhere: BUSY; drain; or a request is answered with a copy") \
  X(RUN_GATE, RUN_PREPARE, "acquired, or PostgreSQL decides; the task has a prepare step")      \
  X(RUN_GATE, RUN_POOL, "acquired, or PostgreSQL decides")                                      \
  X(RUN_PREPARE, RUN_POOL, "prepared")                                                          \
  X(RUN_PREPARE, RUN_LOST, "prepare failed, timed out or was cancelled")                                       \
  X(RUN_PREPARE, RUN_DONE, "drain: given back")                                                 \
  X(RUN_POOL, RUN_CLAIM, "a connection was lent")                                               \
  X(RUN_POOL, RUN_DONE, "PostgreSQL is away, or drain: given back")                             \
  X(RUN_CLAIM, RUN_HANDLER, "claimed, new or taken over")                                       \
  X(RUN_CLAIM, RUN_POOL, "serialization failure: claimed again at once; or the batch was refused: alone") \
  X(RUN_CLAIM, RUN_TURN, "claimed with others; or left aside, until they are done")             \
  X(RUN_CLAIM, RUN_FAIL, "claimed, but too many deliveries were lost, prepare has failed for good, or it was cancelled") \
  X(RUN_CLAIM, RUN_ACK, "settled, same request: REPLAY")                                        \
  X(RUN_CLAIM, RUN_END, "key reused with another request: CONFLICT")                            \
  X(RUN_CLAIM, RUN_DONE, "held: BUSY; the connection was lost: given back; a request is answered, or only looked") \
  X(RUN_TURN, RUN_HANDLER, "its turn has come")                                                 \
  X(RUN_TURN, RUN_POOL, "its transaction has ended without it: alone")                          \
  X(RUN_TURN, RUN_DONE, "drain: given back")                                                    \
  X(RUN_HANDLER, RUN_JOINED, "its turn is over")                                                \
  X(RUN_STOPPING, RUN_JOINED, "its turn is over: cancelled, and undone")                        \
  X(RUN_STOPPING, RUN_POOL, "taken out of its transaction, which was lost: alone")              \
  X(RUN_JOINED, RUN_COMPLETE, "settled with the others")                                        \
  X(RUN_JOINED, RUN_FAIL, "its failure is recorded with the others' outcomes")                  \
  X(RUN_JOINED, RUN_POOL, "taken out, or its transaction did not commit: alone")                \
  X(RUN_JOINED, RUN_DONE, "drain: given back")                                                  \
  X(RUN_HANDLER, RUN_COMPLETE, "returned a storable outcome")                                   \
  X(RUN_HANDLER, RUN_FAIL, "failed, or raised an error")                                        \
  X(RUN_HANDLER, RUN_STOPPING, "timed out, cancelled, drain ended or connection lost, with a statement under way") \
  X(RUN_HANDLER, RUN_POOL, "serialization failure or deadlock: the run is done again at once")  \
  X(RUN_HANDLER, RUN_LOST, "the connection was lost")                                           \
  X(RUN_HANDLER, RUN_DONE, "drain ended: rolled back and given back")                           \
  X(RUN_STOPPING, RUN_FAIL, "the statement has ended: the time-out is recorded, or that it was cancelled")                              \
  X(RUN_STOPPING, RUN_LOST, "the connection was lost or had to be closed")                      \
  X(RUN_STOPPING, RUN_DONE, "drain ended: rolled back and given back")                          \
  X(RUN_COMPLETE, RUN_DONE, "committed; or stale: rolled back, somebody else has settled")      \
  X(RUN_COMPLETE, RUN_FAIL, "the outcome was refused by the ledger's checks")                   \
  X(RUN_COMPLETE, RUN_POOL, "serialization failure or deadlock: the run is done again at once") \
  X(RUN_COMPLETE, RUN_LOST, "COMMIT was refused")                                               \
  X(RUN_COMPLETE, RUN_UNKNOWN, "the connection was lost with COMMIT under way")                 \
  X(RUN_FAIL, RUN_DONE, "recorded; or stale")                                                   \
  X(RUN_FAIL, RUN_POOL, "its transaction did not commit: alone")                                \
  X(RUN_FAIL, RUN_LOST, "the record was refused, or the connection was lost before COMMIT")     \
  X(RUN_FAIL, RUN_UNKNOWN, "the connection was lost with COMMIT under way")                     \
  X(RUN_LOST, RUN_DONE, "recorded, or left to the lease; a request leaves no record")           \
  X(RUN_UNKNOWN, RUN_DONE, "resolved, or left to the redelivery")                               \
  X(RUN_ACK, RUN_DONE, "the ledger has confirmed it; or left to the lease")                     \
  X(RUN_ACK, RUN_PREPARE, "the ledger does not hold it: the gate's word is dropped")            \
  X(RUN_ACK, RUN_POOL, "the ledger does not hold it: the gate's word is dropped")               \
  X(RUN_END, RUN_DONE, "ended, put off, or left to the lease")

#define RUN_STATE_ENUM(id, name, meaning) id,
enum run_state { RUN_STATES(RUN_STATE_ENUM) RUN_STATE_COUNT };
#undef RUN_STATE_ENUM

struct runner;
struct batch;
struct handler_ops;

enum run_end {
  END_NONE,
  END_COMPLETED,  /* committed now, or a replay of what was */
  END_FAILED,     /* failed for good, recorded; or a replay of that */
  END_RETRY,      /* failed; the same key may run again */
  END_CONFLICT,   /* the key is in use with another request */
  END_BUSY,       /* somebody else holds the key */
  END_UNSTARTED,  /* look_only: nobody holds the key, nothing is stored under it */
  END_GIVEN_BACK, /* nothing has started: PostgreSQL is away, drain */
  END_UNKNOWN,    /* it could not be found out whether COMMIT went through */
};

struct run {
  /* ---- public: what handler code may read ---- */
  char run_id[37];
  struct task *task; /* NULL: no such task here */
  char *task_name;
  bool has_tenant;
  int64_t tenant_id; /* meaningful if has_tenant */
  char *args;        /* JSON text, as jsonb prints it; NUL ended */
  size_t args_len;
  int deliveries; /* counted on the run, this one included */
  bool limited;   /* it holds a place of a limit across all workers */
  int crashes;    /* of them: those in which its own code cost the worker its life */
  int attempt;    /* of the ledger row; 0 before the claim */
  uint8_t key[DIGEST_BYTES];
  uint8_t fingerprint[DIGEST_BYTES];
  int64_t deadline_ms; /* loop time at which the handler is stopped; 0 outside a handler */
  char *traceparent;   /* or NULL */
  /* ---- for a run that no queue holds (a request of the HTTP door) ---- */
  bool request;              /* its maker fills key and fingerprint, and hears the end */
  bool past_gate;            /* ask PostgreSQL at once: the gate's entry may be a dead holder's */
  bool look_only;            /* answer it if its key is settled, but start nothing: END_UNSTARTED. Takes none of the task's slots */
  void (*ended)(struct run *r); /* the run is RUN_DONE; it is freed after this tick */
  void *maker;
  const struct handler_ops *ops; /* its own, instead of the runner's; NULL: the runner's */
  bool no_history;               /* leaves no row in finished_runs */
  enum run_end end;          /* how it ended */
  bool replay;               /* END_COMPLETED, END_FAILED: the answer is a stored one */
  char *answer;              /* END_COMPLETED, END_FAILED, END_RETRY: JSON text */
  int64_t answer_ms;         /* of the answer: what is left of its retention; END_BUSY: of the holder's lease, if known */

  void *handler_data;  /* bind's own; it frees it in handler_ops.drop */

  /* ---- private to core ---- */
  enum run_state state;
  struct runner *runner;
  struct list node; /* in the list of its state's owner (sched) */
  int64_t started_ms; /* loop time */
  char key_hex[2 * DIGEST_BYTES + 1], fingerprint_hex[2 * DIGEST_BYTES + 1];

  char token[33];       /* gate: hex; empty: no acquire was ever sent */
  char bound[17];       /* gate: the database's identity before the outcome to be copied was settled; empty: unknown */
  bool gate_distrusted; /* an entry was read that could not be believed: our copy replaces it whatever it says */

  struct pgconn *conn; /* lent by the pool while in CLAIM…FAIL, else NULL */
  struct pgwait wait;  /* in POOL */
  int64_t ledger_id;
  int backend_pid;         /* of the server process that has the transaction: behind a pooler it is not the connection's */
  struct batch *batch;     /* shares a transaction with others, or NULL */
  struct list member;      /* in the batch, or among those that form one; or among the acknowledgements that wait */
  bool alone;              /* in this delivery, no batch any more */
  bool leaving;            /* its handler was stopped so that it is done alone */
  bool taints;             /* it sends what would reach the runs after it in its batch: undone when its handler ends, and done alone */
  bool cut_off;            /* its connection ended while its handler ran */
  bool refused;            /* a request whose prepare step has failed for good: recorded when its key is claimed */
  int64_t handler_us;      /* when the claim was sent; then, when the handler was started; then, when its completion was sent */
  int64_t due_us;          /* monotonic: when the queue's run was due; 0: a request, or its code has been started */
  bool reused;             /* ends because its key is in use with another request */
  int again;               /* immediate repeats after 40001/40P01 */
  int pending;             /* handler statements under way */
  bool draining;           /* drain ended: give back instead of recording */
  char *cancelled;         /* an operator's order and its words; or NULL */
  struct loop_timer timer; /* time-out, cancel deadline or next question, by state; see run_timer_start */
  struct loop_task due;    /* what the timer defers to the safe point */
  struct loop *due_loop;

  bool permanent;           /* of the failure being recorded */
  char *outcome;            /* JSON text: what is being recorded */
  char *failure;            /* JSON text with traceback, or NULL */
  int64_t delay_ms;         /* until the next try */
  int epoch;              /* of the control connection when the handler started: whether the whole server went away since */
  int resolves;             /* tries in UNKNOWN */
  struct ledger_call *call; /* the ledger operation under way, or NULL */
};

/* Borrows everything, copies. Gives a run in RUN_TAKEN. */
struct run *run_new(const char *run_id, const char *task_name, const char *args, size_t args_len);
void run_free(struct run *r);

/* No start is left: its deliveries, or its crashes, have reached what its task allows. Such a run is ended when its key
 * can be claimed, without its code being started again: neither prepare nor effect. */
bool run_used_up(const struct run *r);

/* One timer a run: after ms, cb(run) is called at a safe point, unless run_timer_stop came first. Restarts a started
 * one. */
void run_timer_start(struct run *r, struct loop *loop, int64_t after_ms, void (*cb)(void *run));
void run_timer_stop(struct run *r);

/* The one setter of state: checks RUN_MOVES, traces, bug() on an illegal move. */
void run_set_state(struct run *r, enum run_state to);
const char *run_state_name(enum run_state s);
const char *run_state_meaning(enum run_state s);
/* When a move from → to is legal, why it is made; else NULL. */
const char *run_move_reason(enum run_state from, enum run_state to);

#endif
