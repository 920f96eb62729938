#include "core/task.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/stats.h"

static struct list registry = {&registry, &registry};
static char *declared; /* JSON; NULL: nothing */

struct task *task_new(const char *name) {
  struct task *t = xcalloc(1, sizeof *t);

  list_init(&t->node);
  t->name = xstrdup(name);
  t->lease_ms = 30000;
  t->timeout_ms = 20000;
  t->retention_ms = 24 * 3600 * 1000LL;
  t->max_attempts = 8;
  t->max_crashes = 3;
  t->retry_base_ms = 1000;
  t->retry_cap_ms = 600000;
  t->history = true;
  t->batch = 50;
  t->share = 1;
  return t;
}

static void free_strings(char **strings, int n) {
  for (int i = 0; i < n; i++)
    free(strings[i]);
  free(strings);
}

static void task_http_free(struct task_http *h) {
  if (!h) return;
  free(h->method);
  free(h->path);
  free(h->key_header);
  free(h->scope);
  free(h->signature_header);
  free(h->signature_prefix);
  free(h->signature_env);
  free(h);
}

static void task_free(struct task *t) {
  task_http_free(t->http);
  free_strings(t->key_paths, t->nkey_paths);
  free_strings(t->fingerprint_paths, t->nfingerprint_paths);
  free(t->schedule);
  free(t->queue);
  free(t->name);
  free(t);
}

int task_register(struct task *t, struct err *e) {
  if (task_find(t->name)) {
    err_set(e, ERR_INPUT, "duplicate_task", "task %s is declared twice", t->name);
    task_free(t);
    return -1;
  }
  if (!t->queue) t->queue = xstrdup("default");
  t->stats_row = stats_row(t->name);
  list_push_back(&registry, &t->node);
  return 0;
}

struct task *task_find(const char *name) {
  for (struct list *n = registry.next; n != &registry; n = n->next) {
    struct task *t = container_of(n, struct task, node);
    if (strcmp(t->name, name) == 0) return t;
  }
  return NULL;
}

void task_each(void (*each)(void *arg, struct task *t), void *arg) {
  for (struct list *n = registry.next; n != &registry; n = n->next)
    each(arg, container_of(n, struct task, node));
}

int64_t task_backoff_ms(const struct task *t, int failures) {
  int64_t wait = t->retry_base_ms;
  uint32_t random;

  for (int i = 1; i < failures && wait < t->retry_cap_ms; i++)
    wait *= 2;
  if (wait > t->retry_cap_ms) wait = t->retry_cap_ms;
  random_bytes(&random, sizeof random);
  wait = wait * (80 + random % 41) / 100;
  /* What jitter puts beyond the cap goes as far below it: waits at the cap must differ, too. */
  return wait <= t->retry_cap_ms ? wait : 2 * t->retry_cap_ms - wait;
}

void task_declare(const char *limits) {
  free(declared);
  declared = xstrdup(limits);
}

const char *task_declared(void) {
  return declared ? declared : "[]";
}

void task_forget_all(void) {
  free(declared);
  declared = NULL;
  while (registry.next != &registry) {
    struct task *t = container_of(registry.next, struct task, node);
    list_remove(&t->node);
    task_free(t);
  }
}
