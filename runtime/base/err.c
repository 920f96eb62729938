#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_continuation(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

size_t err_copy_text(char *dst, size_t size, const char *src) {
  if (size == 0) bug("err_copy_text: no room for the NUL");
  size_t n = strnlen(src, size);
  if (n == size) {
    n = size - 1;
    while (n > 0 && is_continuation(src[n])) n--;
  }
  memmove(dst, src, n);
  dst[n] = '\0';
  return n;
}

int err_setv(struct err *e, enum err_class c, const char *code, const char *fmt, va_list ap) {
  if (e == NULL) return -1;
  if (c == ERR_NONE) bug("err_set with ERR_NONE: %s", code);
  /* One octet more than the message holds, so that the cut below sees whether a character was split. */
  char text[sizeof e->message + 4];
  vsnprintf(text, sizeof text, fmt, ap);
  char code_copy[sizeof e->code];
  err_copy_text(code_copy, sizeof code_copy, code);
  memset(e, 0, sizeof *e);
  e->class = c;
  err_copy_text(e->code, sizeof e->code, code_copy);
  err_copy_text(e->message, sizeof e->message, text);
  return -1;
}

int err_set(struct err *e, enum err_class c, const char *code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  err_setv(e, c, code, fmt, ap);
  va_end(ap);
  return -1;
}

int err_prefix(struct err *e, const char *fmt, ...) {
  if (!err_is_set(e)) return -1;
  char text[2 * sizeof e->message];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text / 2, fmt, ap);
  va_end(ap);
  if (n < 0) return -1;
  size_t used = strlen(text);
  snprintf(text + used, sizeof text - used, ": %s", e->message);
  err_copy_text(e->message, sizeof e->message, text);
  return -1;
}

void err_clear(struct err *e) {
  if (e != NULL) memset(e, 0, sizeof *e);
}

bool err_is_set(const struct err *e) { return e != NULL && e->class != ERR_NONE; }

const char *err_class_name(enum err_class c) {
  static const char *const names[] = {
#define X(name, text, meaning) [ERR_##name] = text,
      ERR_CLASSES(X)
#undef X
  };
  if ((size_t)c >= sizeof names / sizeof names[0]) bug("err_class_name: %d is no class", (int)c);
  return names[c];
}

noreturn void bug_at(const char *file, int line, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  fprintf(stderr, "umavez: bug at %s:%d: %s\n", file, line, text);
  fflush(stderr);
  abort();
}

noreturn void die(const char *fmt, ...) {
  char text[2048];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  fprintf(stderr, "umavez: %s\n", text);
  fflush(stderr);
  exit(1);
}

static noreturn void out_of_memory(size_t size) {
  fprintf(stderr, "umavez: out of memory (%zu bytes)\n", size);
  abort();
}

void *xmalloc(size_t size) {
  void *p = malloc(size > 0 ? size : 1);
  if (p == NULL) out_of_memory(size);
  return p;
}

void *xcalloc(size_t count, size_t size) {
  void *p = count == 0 || size == 0 ? calloc(1, 1) : calloc(count, size);
  if (p == NULL) out_of_memory(size);
  return p;
}

void *xrealloc(void *old, size_t size) {
  void *p = realloc(old, size > 0 ? size : 1);
  if (p == NULL) out_of_memory(size);
  return p;
}

void *xmemdup(const void *p, size_t n) {
  void *copy = xmalloc(n);
  if (n > 0) memcpy(copy, p, n);
  return copy;
}

char *xstrndup(const char *s, size_t n) {
  char *copy = xmalloc(n + 1);
  if (n > 0) memcpy(copy, s, n);
  copy[n] = '\0';
  return copy;
}

char *xstrdup(const char *s) { return xstrndup(s, strlen(s)); }

char *xasprintf(const char *fmt, ...) {
  char *text = NULL;
  va_list ap;
  va_start(ap, fmt);
  int n = vasprintf(&text, fmt, ap);
  va_end(ap);
  if (n < 0) out_of_memory(0);
  return text;
}
