/* source_postgres: the queue in PostgreSQL (umavez.runs) as a source.
 *
 * What it is    takes runs in batches, renews their leases, gives them back; all over a control connection of its
 *               own, "leases". Sleeps when the queue is empty and is woken by a notification, by the time when
 *               something becomes due, or by polling. A notification `look` says that an operator may have ordered
 *               something: see umavez.held_orders.
 * Wake-ups      enqueue notifies only while a worker has said that it sleeps; a lost wake-up is what polling is for.
 * Reconnecting  gives back what was taken for this worker by a statement whose answer it never got. */
#ifndef UMAVEZ_CORE_SOURCE_POSTGRES_H
#define UMAVEZ_CORE_SOURCE_POSTGRES_H

#include "core/control.h"
#include "core/source.h"
#include "io/loop.h"

struct source_postgres_options {
  struct control_options connection;
  const char *worker_id; /* uuid text */
  const char *const *queues;
  const int *weights; /* of the queues; NULL: none; all 0: strictly in their order */
  int nqueues;
  int64_t poll_interval_ms, lease_ms; /* lease_ms: of runs whose task no manifest declares */
  bool listen;                        /* for notifications, unless a pooler is found in between */
  void (*on_up)(void *arg);           /* the connection is there, or was lost; may be NULL */
  void (*on_down)(void *arg, const struct err *why);
  void *arg;
};

/* Copies options and hooks. Freed by source_free. */
struct source *source_postgres_new(struct loop *loop, const struct source_postgres_options *options,
                                   const struct source_hooks *hooks);

#endif
