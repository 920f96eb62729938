/* err: the error value, our own faults, and memory.
 *
 * Three things that are never mixed:
 *   struct err   something outside went wrong: a user's text, the network, the server. The caller owns the value,
 *                a callee fills it when it returns -1 (or NULL), and leaves it untouched on success.
 *   bug()        our own fault: reports file and line, aborts.
 *   die()        start-up cannot go on: reports to stderr, exits with 1.
 * Running out of memory aborts, so the x-allocators never return NULL; whoever takes a size from outside limits it
 * first.
 *
 * A struct err is plain data: copy it by assignment; it owns nothing. No function here keeps a pointer to it.
 */
#ifndef UMAVEZ_BASE_ERR_H
#define UMAVEZ_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* X(enumerator, name in logs, meaning) */
#define ERR_CLASSES(X) \
  X(NONE, "none", "no error") \
  X(INPUT, "input", "what a user wrote: a manifest, an option, a document, an argument") \
  X(ENV, "env", "the environment: network, a server that is away, a file") \
  X(SQL, "sql", "the server refused the statement; sqlstate says why") \
  X(TIMEOUT, "timeout", "a deadline passed") \
  X(CANCELLED, "cancelled", "somebody asked for the end")

enum err_class {
#define X(name, text, meaning) ERR_##name,
  ERR_CLASSES(X)
#undef X
};

struct err {
  enum err_class class;
  char code[32];       /* short and stable, lower_case: part of the interface */
  char sqlstate[6];    /* five characters, or "" */
  char constraint[64]; /* the violated constraint, or "" */
  char message[1024];  /* one sentence for a person; UTF-8 when its parts were, cut at a character boundary */
  char detail[512];    /* the server's DETAIL, or "" */
};

#define ERR_INIT {.class = ERR_NONE}

/* Fills *e (borrows everything; e may be NULL) and clears sqlstate, constraint and detail. Arguments may point into *e.
 * Always returns -1, so that `return err_set(e, ...)` reads well. */
int err_set(struct err *e, enum err_class c, const char *code, const char *fmt, ...) PRINTF_LIKE(4, 5);
int err_setv(struct err *e, enum err_class c, const char *code, const char *fmt, va_list ap) PRINTF_LIKE(4, 0);

/* Puts "text: " in front of the message of an error that is set; class, code and the rest stay. Returns -1. */
int err_prefix(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

void err_clear(struct err *e); /* e may be NULL */
bool err_is_set(const struct err *e);
const char *err_class_name(enum err_class c); /* static text */

/* Copies the longest prefix of src that fits into dst[size] (with its NUL) without cutting a UTF-8 character; gives
 * its length. */
size_t err_copy_text(char *dst, size_t size, const char *src);

#define bug(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
noreturn void bug_at(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);
noreturn void die(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* All give memory that the caller frees with free(); size 0 gives a unique pointer. */
void *xmalloc(size_t size) __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t count, size_t size) __attribute__((malloc, returns_nonnull));
void *xrealloc(void *p, size_t size) __attribute__((returns_nonnull)); /* takes p */
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
char *xstrndup(const char *s, size_t n) __attribute__((malloc, returns_nonnull)); /* n octets exactly, then NUL */
void *xmemdup(const void *p, size_t n) __attribute__((malloc, returns_nonnull));
char *xasprintf(const char *fmt, ...) PRINTF_LIKE(1, 2) __attribute__((malloc, returns_nonnull));

#endif
