/* source_postgres: the queue in PostgreSQL (umavez.runs) as a source.
 *
 * What it is    takes runs in batches, renews their leases, gives them back; all over a control connection of its
 *               own, "leases". Sleeps when the queue is empty and is woken by a notification, by the time when
 *               something becomes due, or by polling.
 * Low water     a fetch starts at the youngest run_at seen when the queue was last found empty, less SLACK, so that
 *               index entries of ended runs are not read again and again while a foreign transaction holds vacuum
 *               back. Every SWEEP it starts from the beginning, for runs that were committed later than that. */
#ifndef UMAVEZ_CORE_SOURCE_POSTGRES_H
#define UMAVEZ_CORE_SOURCE_POSTGRES_H

#include "core/control.h"
#include "core/source.h"
#include "io/loop.h"

struct source_postgres_options {
  struct control_options connection;
  const char *worker_id; /* uuid text */
  const char *const *queues;
  int nqueues;
  int64_t poll_interval_ms, lease_ms; /* lease_ms: of runs whose task no manifest declares */
  bool listen;                        /* false behind a pooler in transaction mode */
  void (*on_up)(void *arg);           /* the connection is there, or was lost; may be NULL */
  void (*on_down)(void *arg, const struct err *why);
  void *arg;
};

/* Copies options and hooks. Freed by source_free. */
struct source *source_postgres_new(struct loop *loop, const struct source_postgres_options *options,
                                   const struct source_hooks *hooks);

#endif
