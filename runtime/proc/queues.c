#include "proc/queues.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "core/task.h"

#define NAME_MAX_BYTES 1024

enum { QUEUE_ORDER_SHARED, QUEUE_ORDER_STRICT };

static bool has(const struct queues *q, const char *name, size_t len) {
  for (int i = 0; i < q->n; i++)
    if (strlen(q->names[i]) == len && memcmp(q->names[i], name, len) == 0) return true;
  return false;
}

static void add(struct queues *q, const char *name, size_t len) {
  q->names = xrealloc(q->names, (size_t)(q->n + 1) * sizeof *q->names);
  q->names[q->n++] = xstrndup(name, len);
}

static void add_queue_of(void *arg, struct task *t) {
  struct queues *q = arg;

  if (!has(q, t->queue, strlen(t->queue))) add(q, t->queue, strlen(t->queue));
}

int queues_init(struct queues *q, const struct conf *conf, struct err *e) {
  bool strict = conf->queue_order == QUEUE_ORDER_STRICT, weighted = false;

  *q = (struct queues){0};
  for (int i = 0; i < conf->queues.n; i++) {
    const char *item = conf->queues.items[i];
    size_t len = strcspn(item, ":");
    weighted = weighted || item[len] == ':';
    if (has(q, item, len)) {
      queues_fini(q);
      return err_set(e, ERR_INPUT, "bad_option", "queues: expected each queue once, found \"%.*s\" twice", (int)len, item);
    }
    add(q, item, len);
  }
  if (strict && (weighted || q->n == 0)) {
    queues_fini(q);
    return err_set(e, ERR_INPUT, "bad_option", "queue_order: strict takes the queues in the order in which the setting queues names them, %s",
                   weighted ? "without weights: take those out, or queue_order = strict" : "but it is empty: name them");
  }
  if (weighted || strict) {
    q->weights = xcalloc((size_t)q->n, sizeof *q->weights);
    for (int i = 0; i < q->n; i++) {
      const char *colon = strchr(conf->queues.items[i], ':');
      q->weights[i] = strict ? 0 : colon ? atoi(colon + 1) : 1;
    }
  }
  if (q->n == 0) {
    add(q, "default", strlen("default"));
    task_each(add_queue_of, q);
  }
  return 0;
}

void queues_fini(struct queues *q) {
  for (int i = 0; i < q->n; i++)
    free(q->names[i]);
  free(q->names);
  free(q->weights);
  *q = (struct queues){0};
}

char *queues_json(const struct queues *q) {
  struct buf b = BUF_INIT;

  for (int i = 0; i < q->n; i++) {
    buf_putc(&b, i ? ',' : '[');
    json_write_string_lossy(&b, q->names[i], strlen(q->names[i]), NAME_MAX_BYTES);
  }
  buf_putc(&b, ']');
  return buf_take(&b);
}
