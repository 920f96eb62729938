#include "io/pgitem.h"

#include <stdlib.h>
#include <string.h>

struct item *pgitem_new(enum item_kind kind) {
  struct item *it = xcalloc(1, sizeof *it);
  it->kind = kind;
  it->txn = '?';
  list_init(&it->node);
  return it;
}

void pgitem_free(struct item *it) {
  if (it->stmt != NULL) pgstmt_unref(it->stmt);
  pgresult_free(it->result);
  free(it->copy);
  free(it);
}

static size_t value_length(const struct pgquery *q, int i) {
  if (q->formats != NULL && q->formats[i] != 0) return q->lengths != NULL ? (size_t)q->lengths[i] : 0;
  return strlen(q->values[i]) + 1;
}

/* One allocation holds the query and all that it points at. */
struct pgquery *pgitem_copy(const struct pgquery *q) {
  size_t n = q->nparams > 0 ? (size_t)q->nparams : 0;
  size_t size = sizeof *q + n * (sizeof *q->values + sizeof *q->lengths + sizeof *q->formats + sizeof *q->types);
  size_t sql = strlen(q->sql) + 1;
  size += sql;
  for (size_t i = 0; i < n; i++) size += q->values[i] ? value_length(q, (int)i) : 0;
  char *p = xcalloc(1, size);
  struct pgquery *copy = (struct pgquery *)p;
  *copy = *q;
  p += sizeof *q;
  const char **values = (const char **)p;
  p += n * sizeof *values;
  int *lengths = (int *)p;
  p += n * sizeof *lengths;
  int *formats = (int *)p;
  p += n * sizeof *formats;
  unsigned *types = (unsigned *)p;
  p += n * sizeof *types;
  copy->sql = memcpy(p, q->sql, sql);
  p += sql;
  for (size_t i = 0; i < n; i++) {
    if (q->lengths) lengths[i] = q->lengths[i];
    if (q->formats) formats[i] = q->formats[i];
    if (q->types) types[i] = q->types[i];
    if (q->values[i] == NULL) continue;
    size_t len = value_length(q, (int)i);
    values[i] = memcpy(p, q->values[i], len);
    p += len;
  }
  copy->values = n > 0 ? values : NULL;
  copy->lengths = q->lengths ? lengths : NULL;
  copy->formats = q->formats ? formats : NULL;
  copy->types = q->types ? types : NULL;
  return copy;
}
