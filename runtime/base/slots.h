/* slots: what a supervisor and its children know of each other, in memory that they share: one slot a child.
 *
 * What it is    a memfd with a fixed number of slots. It outlives any of its users, so what a child was doing when it
 *               died can be read afterwards.
 * Life cycle    parent:  slots_new → slot_reserve → (fork, exec) → … → the child is waited for → slot_release → slots_free
 *               child:   slots_attach → slot_open → … → exit
 *                 EMPTY ─reserve─► STARTING ─slot_ready─► READY ─slot_draining─► DRAINING ─slot_ended─► ENDED
 *                   ▲                                                                                     │
 *                   └─────────────────────────── release, by the parent, after the child's death ─────────┘
 * Who writes    the child alone, after exec; the parent only in slot_reserve, slot_retire and slot_release. A child calls
 *               from its loop's thread, or from a signal handler where a function says so.
 * Who reads     the parent, at any time. Single values are atomics. The run that is executing and the traceback are
 *               copied under a sequence counter: a reader that meets a writer tries again, and one that meets what a
 *               dying child left half-written gets nothing.
 * Counts        behind the slots lies what the worker counts (base/stats.h), a block a slot: slots_stats.
 * A NULL slot   a worker without supervisor: every function that a child calls does nothing then.
 *
 * Times are CLOCK_MONOTONIC in milliseconds, which all processes of a machine share (loop_now_ms). */
#ifndef UMAVEZ_BASE_SLOTS_H
#define UMAVEZ_BASE_SLOTS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/stats.h"

enum {
  SLOT_TASK_MAX = 256,
  SLOT_TRACEBACK_MAX = 4096,
  SLOT_LISTEN_MAX = 128,
  SLOT_FAULT_MAX = 1024,
  SLOT_URL_MAX = 2048,
  SLOT_STARTED_MAX = 256
};

/* X(enumerator, name in logs) */
#define SLOT_STATES(X) \
  X(EMPTY, "empty") \
  X(STARTING, "starting") \
  X(READY, "ready") \
  X(DRAINING, "draining") \
  X(ENDED, "ended")

enum slot_state {
#define X(id, name) SLOT_##id,
  SLOT_STATES(X)
#undef X
};

/* A run whose code is being executed. While the child loads: the file whose code is, with an empty run_id. */
struct slot_run {
  char run_id[37];
  char task[SLOT_TASK_MAX];
  bool has_tenant;
  int64_t tenant_id;
  int64_t since_ms;    /* this resume began */
  int64_t deadline_ms; /* of its time-out; 0: none */
};

/* What the parent must know of a child's settings, which may be newer than its own. */
struct slot_settings {
  int64_t workers, max_runs, max_memory_bytes;
  int64_t stall_ms, load_timeout_ms, drain_timeout_ms, lease_ms; /* lease_ms: the shortest of all its tasks */
  char database_url[SLOT_URL_MAX]; /* where its runs and leases are; "": longer than that */
  char http_listen[SLOT_LISTEN_MAX];
};

struct slot {
  /* ---- public to read, by the parent; written by the functions below ---- */
  _Atomic int32_t state; /* enum slot_state */
  _Atomic int32_t pid;   /* 0: the child has not come to slot_open */
  _Atomic int64_t generation, reserved_ms;
  _Atomic int32_t alone; /* no other child is ready */
  _Atomic int64_t busy_since_ms; /* 0: waits in poll */
  _Atomic uint64_t turns;        /* of the loop */
  _Atomic int32_t in_flight;     /* runs held: ready and started */
  _Atomic int64_t runs_ended;
  _Atomic int64_t lua_bytes;
  /* ---- private ---- */
  _Atomic uint32_t retired;    /* the parent's word to the child */
  _Atomic uint32_t fault_told; /* fault stands there, for good */
  char fault[SLOT_FAULT_MAX];
  _Atomic uint32_t told; /* worker_id and settings stand there, for good */
  char worker_id[37];
  struct slot_settings settings;
  _Atomic uint32_t run_seq;
  struct slot_current {
    bool set;
    struct slot_run run;
  } current;
  struct slot_started {
    _Atomic uint32_t set;
    char run_id[37];
  } started[SLOT_STARTED_MAX];
  _Atomic uint32_t trace_seq;
  struct slot_trace {
    uint32_t len;
    char text[SLOT_TRACEBACK_MAX];
  } trace;
};

struct slots;

/* ---- the parent ---- */

MUST_CHECK struct slots *slots_new(int count, struct err *e); /* gives: slots_free */
void slots_free(struct slots *s);                             /* either side; NULL is fine */
int slots_fd(const struct slots *s);                          /* close-on-exec; whoever spawns a child clears that there */
int slots_count(const struct slots *s);
struct slot *slots_at(struct slots *s, int index); /* borrows; bug() outside of 0…count-1 */
struct stats_area *slots_stats(struct slots *s);   /* borrows */

/* Wipes an EMPTY slot and makes it STARTING; -1: all are in use. */
int slot_reserve(struct slots *s, int64_t generation, bool alone, int64_t now_ms);
/* Makes it EMPTY. Not before the child has been waited for and all that is wanted has been copied. */
void slot_release(struct slots *s, int index);

/* Before the child is told to stop: others take its place, so it may serve what still comes on its connections. */
void slot_retire(struct slot *slot);

enum slot_state slot_state(const struct slot *slot);
const char *slot_state_name(enum slot_state state);
/* Copies what the child has told by slot_tell; false: nothing yet (outputs untouched). Either output may be NULL. */
bool slot_told(const struct slot *slot, char worker_id[37], struct slot_settings *settings);
/* Why the child could not start, in its own words, into out[SLOT_FAULT_MAX]; false: it has said nothing. */
bool slot_fault(const struct slot *slot, char *out);
/* Copies the run whose code is being executed, or was when the child died; false: none. */
bool slot_current_run(const struct slot *slot, struct slot_run *out);
/* Copies the id of a run that had been started and had not ended; false: none at this place (0…SLOT_STARTED_MAX-1). */
bool slot_started_run(const struct slot *slot, int place, char run_id[37]);
uint32_t slot_traces(const struct slot *slot); /* changes with each traceback that is written */
/* Copies the last traceback, NUL-ended, into out[SLOT_TRACEBACK_MAX + 1]; false: none was written. */
bool slot_traceback(const struct slot *slot, char *out);

/* ---- the child; slot may be NULL ---- */

/* Maps what the parent has made; keeps fd open. NULL: e says why. */
MUST_CHECK struct slots *slots_attach(int fd, struct err *e);
/* Borrows from s. NULL, e filled: index is none of s, or the slot is not STARTING. */
MUST_CHECK struct slot *slot_open(struct slots *s, int index, struct err *e);

void slot_tell(struct slot *slot, const char *worker_id, const struct slot_settings *settings); /* once; copies */
void slot_tell_fault(struct slot *slot, const char *text); /* the first one is kept; cut at SLOT_FAULT_MAX - 1 */
bool slot_alone(const struct slot *slot);                  /* true without slot, too */
bool slot_retired(const struct slot *slot);                /* false without slot */
void slot_ready(struct slot *slot);    /* settings, code and database are fine: runs are taken */
void slot_draining(struct slot *slot); /* takes nothing new */
void slot_ended(struct slot *slot);    /* drained: exit follows */

void slot_busy(struct slot *slot, int64_t now_ms); /* the loop has left poll */
void slot_idle(struct slot *slot);                 /* …and goes back: a turn is complete */
void slot_counts(struct slot *slot, int in_flight, int64_t runs_ended, int64_t lua_bytes);

/* Around each resume of a run's code. Copies; a long task name is cut. They nest no deeper than one. */
void slot_enter_run(struct slot *slot, const struct slot_run *run);
void slot_leave_run(struct slot *slot);
/* From a run's start to its end. Gives its place, -1 when all are taken: then a crash in nobody's code leaves it out. */
int slot_start_run(struct slot *slot, const char *run_id);
void slot_end_run(struct slot *slot, int place); /* -1 is fine */
/* Copies the first SLOT_TRACEBACK_MAX octets. Async-signal-safe. */
void slot_write_traceback(struct slot *slot, const char *text, size_t len);

#endif
