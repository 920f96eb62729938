/* queue_stats: how deep the queues are, as PostgreSQL tells, for the metrics page.
 *
 * What it is    one question (umavez.queue_depths) at a time, whose answer counts for QUEUE_STATS_MS, however often it is looked
 *               at. The question reads a bounded part of one index.
 * Owns          the last answer. Borrows control and sched.
 * Life cycle    queue_stats_new → looks, samples … → queue_stats_free, with no look left.
 * Room          another thing that only the database knows (a schedule's lag) is a further column or question here, and a line
 *               of STATS_SAMPLED. */
#ifndef UMAVEZ_CORE_QUEUE_STATS_H
#define UMAVEZ_CORE_QUEUE_STATS_H

#include "base/list.h"
#include "base/stats_page.h"
#include "core/control.h"
#include "core/sched.h"
#include "io/loop.h"

enum { QUEUE_STATS_MS = 5000, QUEUE_STATS_LIMIT = 10000 };

struct queue_stats;

/* queues: those of this worker, a JSON array; others that the manifests of any worker name are told of as well. Copies. version:
 * for umavez_build_info; copies. */
struct queue_stats *queue_stats_new(struct loop *loop, struct control *control, const struct sched *sched, const char *queues,
                                    const char *version);
void queue_stats_free(struct queue_stats *q);

/* Who waits for an answer. The caller keeps it alive until done was called, or queue_stats_cancel. */
struct queue_look {
  void (*done)(void *arg);
  void *arg;
  struct list node; /* private */
};
void queue_look_init(struct queue_look *l, void (*done)(void *arg), void *arg);
/* done comes, perhaps before this returns, when there is an answer to show, or none is to be had. */
void queue_stats_look(struct queue_stats *q, struct queue_look *l);
void queue_stats_cancel(struct queue_look *l); /* idempotent */

/* For stats_page; arg is the queue_stats. */
void queue_stats_sample(void *arg, const struct stats_metric *m, struct buf *out);

#endif
