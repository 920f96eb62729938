#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST = 64 };

void buf_init(struct buf *b) { *b = (struct buf)BUF_INIT; }

void buf_fini(struct buf *b) {
  free(b->data);
  buf_init(b);
}

void buf_clear(struct buf *b) { buf_truncate(b, 0); }

void buf_reserve(struct buf *b, size_t n) {
  if (n >= SIZE_MAX / 2 - b->len) bug("buf_reserve: %zu octets more than %zu", n, b->len);
  size_t need = b->len + n + 1;
  if (need <= b->cap) return;
  size_t cap = b->cap > 0 ? b->cap : BUF_FIRST;
  while (cap < need) cap *= 2;
  b->data = xrealloc(b->data, cap);
  b->cap = cap;
  b->data[b->len] = '\0';
}

char *buf_extend(struct buf *b, size_t n) {
  buf_reserve(b, n);
  char *p = b->data + b->len;
  b->len += n;
  b->data[b->len] = '\0';
  return p;
}

void buf_append(struct buf *b, const void *p, size_t n) {
  char *to = buf_extend(b, n);
  if (n > 0) memcpy(to, p, n);
}

void buf_puts(struct buf *b, const char *s) { buf_append(b, s, strlen(s)); }

void buf_putc(struct buf *b, char c) { *buf_extend(b, 1) = c; }

void buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
  va_list again;
  va_copy(again, ap);
  size_t room = b->cap > 0 ? b->cap - b->len : 0;
  int n = vsnprintf(room > 0 ? b->data + b->len : NULL, room, fmt, ap);
  if (n < 0) bug("buf_printf: bad format \"%s\"", fmt);
  if ((size_t)n < room) {
    b->len += (size_t)n;
  } else {
    char *to = buf_extend(b, (size_t)n);
    vsnprintf(to, (size_t)n + 1, fmt, again);
  }
  va_end(again);
}

void buf_printf(struct buf *b, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(b, fmt, ap);
  va_end(ap);
}

void buf_truncate(struct buf *b, size_t len) {
  if (len > b->len) bug("buf_truncate: %zu of %zu", len, b->len);
  b->len = len;
  if (b->cap > 0) b->data[len] = '\0';
}

char *buf_cstr(struct buf *b) {
  buf_reserve(b, 0);
  return b->data;
}

char *buf_take(struct buf *b) {
  char *data = buf_cstr(b);
  buf_init(b);
  return data;
}
