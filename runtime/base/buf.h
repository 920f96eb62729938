/* buf: a growing octet string.
 *
 * Owns its memory. Life: buf_init (or BUF_INIT, or all zero) → append → buf_fini, or buf_take to hand it over.
 * Invariants: len < cap or cap == 0; when cap > 0, data[len] is NUL, so data can be read as a C string (buf_cstr also
 * covers the empty buffer). Appending may move data: pointers into it end with the next append. Growth doubles.
 * What is appended must not point into the same buffer.
 */
#ifndef UMAVEZ_BASE_BUF_H
#define UMAVEZ_BASE_BUF_H

#include "base/err.h"

struct buf {
  char *data; /* NULL while cap is 0 */
  size_t len; /* octets in use, without the closing NUL */
  size_t cap; /* octets allocated */
};

#define BUF_INIT {NULL, 0, 0}

void buf_init(struct buf *b);
void buf_fini(struct buf *b);  /* frees; leaves an empty, usable buffer */
void buf_clear(struct buf *b); /* len = 0; keeps the memory */

void buf_reserve(struct buf *b, size_t n); /* room for n more octets without a move */
char *buf_extend(struct buf *b, size_t n); /* len += n; borrows: the n new octets, which the caller writes */
void buf_append(struct buf *b, const void *p, size_t n); /* p may be NULL when n is 0 */
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) PRINTF_LIKE(2, 0);
void buf_truncate(struct buf *b, size_t len); /* len must not be above b->len */

char *buf_cstr(struct buf *b); /* borrows: NUL ended, valid until the next change */
char *buf_take(struct buf *b); /* gives: NUL ended, never NULL; the buffer is empty afterwards (read len before) */

#endif
