/* queues: which queues a worker serves, and how it shares its takes among them; from the settings queues and queue_order, or from
 * the manifests.
 *
 * Life: queues_init → queues_fini. It owns its names. */
#ifndef UMAVEZ_PROC_QUEUES_H
#define UMAVEZ_PROC_QUEUES_H

#include "base/conf.h"
#include "base/err.h"

struct queues {
  char **names;
  int *weights; /* NULL: none; all 0: strictly in their order (umavez.take_shared) */
  int n;
};

/* The tasks must be registered. -1: the settings contradict each other. */
int queues_init(struct queues *q, const struct conf *conf, struct err *e) MUST_CHECK;
void queues_fini(struct queues *q);

/* Their names as a JSON array; gives. */
char *queues_json(const struct queues *q);

#endif
