/* worker: one worker process's life: connections, gate, runner, sched, identity of the database, signals.
 *
 *   worker_new ─► (PostgreSQL up: register tasks, read identity) ─► taking ─SIGTERM─► draining ─► ended ─► worker_free
 *
 * With a supervisor (proc/child.h) it tells its slot what becomes of it, and serves the supervisor's listening socket. */
#ifndef UMAVEZ_PROC_WORKER_H
#define UMAVEZ_PROC_WORKER_H

#include "base/conf.h"
#include "core/handler.h"
#include "io/loop.h"

struct worker;

/* What the program tells of itself; copies all. */
struct worker_program {
  const char *version;
  const char *openapi; /* what the door serves as /openapi.json, or NULL */
  const char *ui_dir;  /* the dashboard's files */
};

struct worker_hooks {
  /* Once, at the safe point. 0: drained. 1: some runs could not be given back. 4: the database cannot be used
   * (message names why). */
  void (*ended)(void *arg, int exit_code, const char *message);
  void *arg;
};

/* Tasks must be registered (core/task.h) before. Keeps conf and ops; copies hooks. NULL: e says which setting is
 * wrong. */
struct worker *worker_new(struct loop *loop, const struct conf *conf, const struct handler_ops *ops,
                          const struct worker_program *program, const struct worker_hooks *hooks, struct err *e) MUST_CHECK;
/* As SIGTERM does: the first call drains within drain_timeout, the second within a second, the third at once. */
void worker_stop(struct worker *w);
void worker_free(struct worker *w);

#endif
