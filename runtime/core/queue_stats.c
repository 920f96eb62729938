#include "core/queue_stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum what { DEPTH, QUEUE_LIMIT, TASK_LIMIT };

/* Texts as PostgreSQL wrote them: of a queue's depth due, later, age; of a limit how many, and how many of them are used. */
struct depth {
  enum what what;
  char *name, *value[3];
};

struct queue_stats {
  struct loop *loop;
  struct control *control;
  const struct sched *sched;
  char *queues; /* JSON array */
  char *version;
  bool asking;
  bool known;
  int64_t known_ms; /* when the answer came */
  struct depth *depth;
  int n;
  struct list looks;
};

struct queue_stats *queue_stats_new(struct loop *loop, struct control *control, const struct sched *sched, const char *queues,
                                    const char *version) {
  struct queue_stats *q = xcalloc(1, sizeof *q);

  q->loop = loop;
  q->control = control;
  q->sched = sched;
  q->version = xstrdup(version);
  q->queues = xstrdup(queues);
  list_init(&q->looks);
  return q;
}

static void forget(struct queue_stats *q) {
  for (int i = 0; i < q->n; i++) {
    free(q->depth[i].name);
    for (int v = 0; v < 3; v++)
      free(q->depth[i].value[v]);
  }
  free(q->depth);
  q->depth = NULL;
  q->n = 0;
  q->known = false;
}

void queue_stats_free(struct queue_stats *q) {
  if (!q) return;
  forget(q);
  free(q->queues);
  free(q->version);
  free(q);
}

static bool is_fresh(const struct queue_stats *q) {
  return q->known && loop_now_ms(q->loop) - q->known_ms < QUEUE_STATS_MS;
}

static void tell_all(struct queue_stats *q) {
  struct queue_look *l;

  while ((l = list_pop_front(&q->looks, struct queue_look, node)) != NULL) l->done(l->arg);
}

/* Columns: what, name, and three values: due, later, oldest_s; or places, used, 0 */
static void on_depths(void *arg, struct pgresult *result) {
  struct queue_stats *q = arg;

  q->asking = false;
  forget(q);
  if (pgresult_ok(result)) {
    q->n = pgresult_rows(result);
    q->depth = xcalloc((size_t)q->n + 1, sizeof *q->depth);
    for (int i = 0; i < q->n; i++)
      q->depth[i] = (struct depth){(enum what)atoi(pgresult_value(result, i, 0)),
                                   xstrdup(pgresult_value(result, i, 1)),
                                   {xstrdup(pgresult_value(result, i, 2)), xstrdup(pgresult_value(result, i, 3)),
                                    xstrdup(pgresult_value(result, i, 4))}};
    q->known = true;
    q->known_ms = loop_now_ms(q->loop);
  } else if (pgresult_err(result)->class != ERR_ENV) {
    log_err(LOG_WARN_, "queues_not_counted", pgresult_err(result), NULL);
  }
  pgresult_free(result);
  tell_all(q);
}

void queue_look_init(struct queue_look *l, void (*done)(void *arg), void *arg) {
  l->done = done;
  l->arg = arg;
  list_init(&l->node);
}

void queue_stats_look(struct queue_stats *q, struct queue_look *l) {
  char limit[16];
  const char *values[2] = {q->queues, limit};
  struct pgquery query = {.sql = "SELECT 0, queue, due, later, round(oldest_s::numeric, 3) FROM umavez.queue_depths("
                                 "ARRAY(SELECT jsonb_array_elements_text($1::jsonb)), $2::int) "
                                 "UNION ALL SELECT CASE kind WHEN 'queue' THEN 1 ELSE 2 END, name, places, used, 0 "
                                 "FROM umavez.list_limits() WHERE places IS NOT NULL",
                          .nparams = 2,
                          .once = true, /* rare, and a pooler may lead to another session each time */
                          .values = values,
                          .done = on_depths,
                          .arg = q};

  if (is_fresh(q)) {
    l->done(l->arg);
    return;
  }
  snprintf(limit, sizeof limit, "%d", QUEUE_STATS_LIMIT);
  if (!q->asking && !control_query(q->control, &query)) {
    l->done(l->arg);
    return;
  }
  q->asking = true;
  list_push_back(&q->looks, &l->node);
}

void queue_stats_cancel(struct queue_look *l) {
  list_remove(&l->node);
}

static void sample(const struct queue_stats *q, const struct stats_metric *m, enum what what, int value, struct buf *out) {
  for (int i = 0; is_fresh(q) && i < q->n; i++)
    if (q->depth[i].what == what) stats_page_line(out, m, q->depth[i].name, q->depth[i].value[value]);
}

void queue_stats_sample(void *arg, const struct stats_metric *m, struct buf *out) {
  const struct queue_stats *q = arg;
  int64_t start_ms = stats_start_ms();
  char text[32];

  switch ((enum stats_sampled)m->sampled) {
    case STAT_SAMPLED_DATABASE_UP:
      stats_page_line(out, m, NULL, sched_connected(q->sched) ? "1" : "0");
      return;
    case STAT_SAMPLED_QUEUES_KNOWN:
      stats_page_line(out, m, NULL, is_fresh(q) ? "1" : "0");
      return;
    case STAT_SAMPLED_START:
      snprintf(text, sizeof text, "%" PRId64 ".%03d", start_ms / 1000, (int)(start_ms % 1000));
      stats_page_line(out, m, NULL, text);
      return;
    case STAT_SAMPLED_BUILD:
      stats_page_line(out, m, q->version, "1");
      return;
    case STAT_SAMPLED_QUEUE_DUE:
      sample(q, m, DEPTH, 0, out);
      return;
    case STAT_SAMPLED_QUEUE_LATER:
      sample(q, m, DEPTH, 1, out);
      return;
    case STAT_SAMPLED_QUEUE_AGE:
      sample(q, m, DEPTH, 2, out);
      return;
    case STAT_SAMPLED_QUEUE_LIMIT:
      sample(q, m, QUEUE_LIMIT, 0, out);
      return;
    case STAT_SAMPLED_QUEUE_USED:
      sample(q, m, QUEUE_LIMIT, 1, out);
      return;
    case STAT_SAMPLED_TASK_LIMIT:
      sample(q, m, TASK_LIMIT, 0, out);
      return;
    case STAT_SAMPLED_TASK_USED:
      sample(q, m, TASK_LIMIT, 1, out);
      return;
    case STATS_SAMPLES:
      return;
  }
}
