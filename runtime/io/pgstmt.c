#include "io/pgstmt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"

void pgstmts_init(struct pgstmts *s, int limit) {
  memset(s, 0, sizeof *s);
  s->limit = limit;
  random_bytes(&s->id, sizeof s->id);
  list_init(&s->used);
  list_init(&s->doomed);
  list_init(&s->closing);
  for (int i = 0; i < PGSTMT_BUCKETS; i++) list_init(&s->bucket[i]);
}

void pgstmts_fini(struct pgstmts *s) { pgstmts_forget(s); }

static uint64_t statement_hash(const char *sql, const unsigned *types, int ntypes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const unsigned char *p = (const unsigned char *)sql; *p; p++) h = (h ^ *p) * 0x100000001b3u;
  for (int i = 0; i < ntypes; i++) h = (h ^ types[i]) * 0x100000001b3u;
  return h ^ h >> 32;
}

void pgstmt_ref(struct pgstmt *t) { t->refs++; }

void pgstmt_unref(struct pgstmt *t) {
  if (--t->refs > 0) return;
  free(t->types);
  free(t->sql);
  free(t);
}

static void gone(struct pgstmts *s, struct pgstmt *t) {
  t->state = PGSTMT_GONE;
  list_remove(&t->chain);
  list_remove(&t->node);
  s->count--;
  pgstmt_unref(t);
}

static struct pgstmt *find(struct pgstmts *s, uint64_t hash, const char *sql, const unsigned *types, int ntypes) {
  struct pgstmt *t;
  list_for_each(t, &s->bucket[hash % PGSTMT_BUCKETS], chain) {
    if (t->hash != hash || t->ntypes != ntypes || strcmp(t->sql, sql) != 0) continue;
    if (ntypes == 0 || memcmp(t->types, types, (size_t)ntypes * sizeof *types) == 0) return t;
  }
  return NULL;
}

/* Makes room for a later use by dooming the statement that was used longest ago. One at a time: as long as one is on
 * its way out, new texts run without a name. */
static void evict(struct pgstmts *s) {
  if (!list_empty(&s->doomed) || !list_empty(&s->closing)) return;
  for (struct list *l = s->used.prev; l != &s->used; l = l->prev) {
    struct pgstmt *t = container_of(l, struct pgstmt, node);
    if (t->state != PGSTMT_READY) continue;
    pgstmts_doom(s, t);
    return;
  }
}

struct pgstmt *pgstmts_use(struct pgstmts *s, const char *sql, const unsigned *types, int ntypes, uint64_t group,
                           bool *parse) {
  *parse = false;
  uint64_t hash = statement_hash(sql, types, ntypes);
  struct pgstmt *t = find(s, hash, sql, types, ntypes);
  if (t != NULL) {
    if (t->state == PGSTMT_PREPARING && t->group != group) return NULL;
    list_remove(&t->node);
    list_push_front(&s->used, &t->node);
    pgstmt_ref(t);
    return t;
  }
  if (s->count >= s->limit) {
    evict(s);
    return NULL;
  }
  t = xcalloc(1, sizeof *t);
  t->state = PGSTMT_PREPARING;
  t->refs = 2;
  t->group = group;
  t->hash = hash;
  t->sql = xstrdup(sql);
  t->ntypes = ntypes;
  t->types = ntypes > 0 ? xmemdup(types, (size_t)ntypes * sizeof *types) : NULL;
  snprintf(t->name, sizeof t->name, "uv_%08x_%lld", s->id, (long long)++s->made);
  list_init(&t->chain);
  list_init(&t->node);
  list_push_front(&s->bucket[hash % PGSTMT_BUCKETS], &t->chain);
  list_push_front(&s->used, &t->node);
  s->count++;
  *parse = true;
  return t;
}

void pgstmts_parsed(struct pgstmts *s, struct pgstmt *t, bool ok) {
  if (t->state != PGSTMT_PREPARING) return;
  if (ok) t->state = PGSTMT_READY;
  else gone(s, t);
}

void pgstmts_doom(struct pgstmts *s, struct pgstmt *t) {
  if (t->state != PGSTMT_READY) return;
  t->state = PGSTMT_DOOMED;
  list_remove(&t->chain);
  list_remove(&t->node);
  list_push_back(&s->doomed, &t->node);
}

struct pgstmt *pgstmts_close_next(struct pgstmts *s) {
  struct pgstmt *t = list_pop_front(&s->doomed, struct pgstmt, node);
  if (t == NULL) return NULL;
  t->state = PGSTMT_CLOSING;
  list_push_back(&s->closing, &t->node);
  pgstmt_ref(t);
  return t;
}

void pgstmts_closed(struct pgstmts *s, struct pgstmt *t, bool skipped) {
  if (t->state != PGSTMT_CLOSING) return;
  if (!skipped) {
    s->evicted++;
    gone(s, t);
    return;
  }
  t->state = PGSTMT_DOOMED;
  list_remove(&t->node);
  list_push_back(&s->doomed, &t->node);
}

void pgstmts_forget(struct pgstmts *s) {
  struct list *all[] = {&s->used, &s->doomed, &s->closing};
  for (size_t i = 0; i < 3; i++) {
    while (!list_empty(all[i])) gone(s, container_of(all[i]->next, struct pgstmt, node));
  }
}
