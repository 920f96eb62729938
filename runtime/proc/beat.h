/* beat: this worker's row in umavez.workers, from which an operator sees who is there.
 *
 * What it is    a statement on a control connection at the start, and one each BEAT_MS; the row goes when the worker ends. Nothing
 *               depends on it: a killed worker's row is removed by its supervisor's
 *               burial, or grows old.
 * Owns          its timer and texts; borrows the control connection.
 * Life cycle    beat_new → beat_now at each connection → beat_end → beat_free. */
#ifndef UMAVEZ_PROC_BEAT_H
#define UMAVEZ_PROC_BEAT_H

#include "base/conf.h"
#include "core/control.h"
#include "io/loop.h"

struct beat;

/* Keeps control and worker_id, copies the rest. queues: a JSON array, or NULL when nothing is taken from the queue. */
struct beat *beat_new(struct loop *loop, struct control *control, const char *worker_id, const char *version, const char *queues,
                      const struct conf *conf);
void beat_now(struct beat *b);
/* The worker ends: its row goes. done is called once, when that is answered, at once when PostgreSQL is away, or after a second. */
void beat_end(struct beat *b, void (*done)(void *arg), void *arg);
void beat_free(struct beat *b);

#endif
