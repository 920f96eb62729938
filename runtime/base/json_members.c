#include "base/json_members.h"

#include <stdlib.h>
#include <string.h>

int json_utf16_compare(const char *a, size_t na, const char *b, size_t nb) {
  size_t n = na < nb ? na : nb, i = 0;
  while (i < n && a[i] == b[i]) i++;
  if (i == n) return (na > nb) - (na < nb);
  unsigned char x = (unsigned char)a[i], y = (unsigned char)b[i];
  /* UTF-8 sorts like code points. UTF-16 differs in one place: U+10000 and above (lead octets F0…F4) begin with a
   * surrogate, D800…DBFF, and so come before U+E000…U+FFFF (lead octets EE and EF). */
  bool x_high = x >= 0xEE, y_high = y >= 0xEE;
  if (x_high && y_high && (x >= 0xF0) != (y >= 0xF0)) return x >= 0xF0 ? -1 : 1;
  return x < y ? -1 : 1;
}

bool json_member_same_key(const struct json_member *a, const struct json_member *b) {
  return a->key_len == b->key_len && memcmp(a->key, b->key, a->key_len) == 0;
}

static int compare(const void *pa, const void *pb) {
  const struct json_member *a = pa, *b = pb;
  int c = json_utf16_compare(a->key, a->key_len, b->key, b->key_len);
  return c != 0 ? c : (a->order > b->order) - (a->order < b->order);
}

void json_members_fini(struct json_members *ms) {
  free(ms->items);
  buf_fini(&ms->keys);
}

void json_members_push(struct json_members *ms, const char *key, size_t len, size_t at) {
  if (ms->n == ms->cap) {
    ms->cap = ms->cap > 0 ? 2 * ms->cap : 16;
    ms->items = xrealloc(ms->items, ms->cap * sizeof *ms->items);
  }
  ms->items[ms->n] = (struct json_member){.key_offset = ms->keys.len, .key_len = len, .order = ms->n, .at = at};
  ms->n++;
  buf_append(&ms->keys, key, len);
}

bool json_members_sort(struct json_members *ms, size_t first) {
  const char *keys = buf_cstr(&ms->keys);
  for (size_t i = first; i < ms->n; i++) ms->items[i].key = keys + ms->items[i].key_offset;
  bool sorted = true;
  for (size_t i = first + 1; i < ms->n && sorted; i++) sorted = compare(&ms->items[i - 1], &ms->items[i]) < 0;
  if (!sorted) qsort(ms->items + first, ms->n - first, sizeof *ms->items, compare);
  return sorted;
}

void json_members_drop(struct json_members *ms, size_t first) {
  if (first == ms->n) return;
  /* The lowest key belongs to the first member in document order, which sorting may have moved. */
  size_t keys = ms->keys.len;
  for (size_t i = first; i < ms->n; i++) {
    if (ms->items[i].key_offset < keys) keys = ms->items[i].key_offset;
  }
  buf_truncate(&ms->keys, keys);
  ms->n = first;
}
