/* task: the registry of tasks, as their manifests declare them.
 *
 * What it is    one struct task per declared task, found by name; plain data that the bind layer fills once at
 *               start-up.
 * Owns          every struct task and the strings inside it.
 * Life cycle    task_new → (fields set by the caller) → task_register → … → task_forget_all at the end of the
 *               process.
 * Callers       bind registers; runner, sched and source read. Nobody changes a task after task_register but for
 *               `running`.
 * Invariants    names are unique; durations are positive milliseconds. */
#ifndef UMAVEZ_CORE_TASK_H
#define UMAVEZ_CORE_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"

#define TASK_BATCH_MAX 64 /* as many subtransactions as a PostgreSQL backend shows without a look at the disk */

struct forming;

enum task_owner { TASK_OWNER_TENANT, TASK_OWNER_PLATFORM };

/* Where the idempotency key comes from. */
enum task_key { TASK_KEY_RUN_ID, TASK_KEY_PATHS, TASK_KEY_FUNCTION };

/* How a task is reached over HTTP; core/door reads it. */
enum task_http_mode { TASK_HTTP_RUN, TASK_HTTP_ENQUEUE };
enum task_http_key { TASK_HTTP_KEY_REQUIRED, TASK_HTTP_KEY_OPTIONAL, TASK_HTTP_KEY_HEADER };
enum task_http_auth { TASK_HTTP_AUTH_TOKEN, TASK_HTTP_AUTH_NONE, TASK_HTTP_AUTH_SIGNATURE };

struct task_http {
  char *method; /* "POST" */
  char *path;   /* "/orders/{order_id}/refunds" */
  enum task_http_mode mode;
  enum task_http_key key;
  char *key_header; /* TASK_HTTP_KEY_HEADER: the sender's header that names the operation */
  bool key_uuid;
  int64_t wait_ms; /* how long a duplicate waits for the first one's answer */
  enum task_http_auth auth;
  char *scope;             /* TASK_HTTP_AUTH_TOKEN: what the token must allow; the task's name by default */
  char *signature_header;  /* TASK_HTTP_AUTH_SIGNATURE: HMAC-SHA-256 of the body, in hex, behind signature_prefix */
  char *signature_prefix;  /* "sha256=" or "" */
  char *signature_env;     /* the environment variable with the secret */
  int64_t max_body_bytes;
};

struct task {
  struct list node; /* in the registry */
  char *name;       /* "payments.pix" */
  char *queue;      /* where enqueue() puts its runs unless told otherwise */
  enum task_owner owner;
  enum task_key key;
  char **key_paths; /* TASK_KEY_PATHS: dotted paths into args */
  int nkey_paths;
  char **fingerprint_paths; /* empty: the whole args count */
  int nfingerprint_paths;
  int64_t lease_ms;     /* how long a silent worker keeps a run, and PX of the gate's processing entry */
  int64_t timeout_ms;   /* of one handler start */
  int64_t retention_ms; /* of a settled ledger row */
  int max_attempts;     /* deliveries whose handler started */
  int max_crashes;      /* of them: those that ended with the worker's death, by the run's own code. At most max_attempts */
  int64_t retry_base_ms, retry_cap_ms;
  int concurrency;  /* runs of this task at once in one worker; 0: no limit of its own */
  bool history;     /* false: a completed run leaves no finished_runs row */
  bool has_prepare; /* has a step before the transaction */
  int batch;        /* runs that may share a transaction, at most; 1: none */
  char *schedule;              /* JSON object for umavez.tick_schedules; NULL: none */
  struct task_http *http;      /* NULL: no door. The task owns it */
  int share;               /* core/batch: how many runs share a transaction now */
  int64_t turn_us;         /* core/batch: how long a run's turn in a shared transaction takes, at least */
  int64_t share_from_ms;   /* core/batch: until then (loop time) none do */
  struct forming *forming; /* core/batch: its runs that wait for a connection, or NULL */
  int stats_row;    /* of its counts, base/stats.h */
  int running;      /* runs that sched has started and not yet ended */
};

/* A task with the defaults of the manifest table. Borrows name. Gives the task to the caller until task_register. */
struct task *task_new(const char *name);

/* Takes the task (also on failure). -1: a task of that name is registered already. */
int task_register(struct task *t, struct err *e) MUST_CHECK;

/* The task of that name, or NULL. The registry keeps it. */
struct task *task_find(const char *name);

/* Calls each(arg, task) for every registered task, in order of registration. */
void task_each(void (*each)(void *arg, struct task *t), void *arg);

/* The wait before retry number `failures` (1 = after the first failure): exponential, capped, with jitter of ±20 %. */
int64_t task_backoff_ms(const struct task *t, int failures);

/* What the manifests declare of limits across all workers, as umavez.declare_limits takes it. Copies. */
void task_declare(const char *limits);
/* The registry keeps it; "[]" before task_declare. */
const char *task_declared(void);

void task_forget_all(void);

#endif
