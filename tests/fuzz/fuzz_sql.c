/* fuzz_sql: any text as a handler's statement, and as a script.
 *
 * Invariants: what is refused is refused in words; what passes is one statement: as a script it is one, and with another one behind it
 * both are seen, and refused; the statements of a script lie in it one behind the other, in pieces that the lexer reads as one again;
 * a token lies in its text, and each but the last takes some of it.
 */
// fuzz-sources: runtime/base/*.c runtime/bind/sql_guard.c runtime/bind/sql_lexer.c
// fuzz-libs: -lcrypto -lm
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "bind/sql_guard.h"
#include "bind/sql_lexer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) \
  do { \
    if (!(condition)) bug("broken: %s", #condition); \
  } while (0)

static void tokens(const char *sql, size_t len) {
  struct sql_lexer x = {sql, sql + len, NULL};
  struct sql_token t;

  do {
    const char *before = x.p;
    t = sql_lex(&x);
    MUST(x.p >= before && x.p <= x.end && t.p >= before && t.p + t.len <= x.end);
    MUST(t.type == TOKEN_END || t.type == TOKEN_BROKEN || x.p > before);
    MUST(t.type != TOKEN_END || x.p == x.end);
    MUST((t.type == TOKEN_BROKEN) == (x.broken != NULL));
  } while (t.type != TOKEN_END && t.type != TOKEN_BROKEN);
}

static int statements(const char *sql, size_t len) {
  struct sql_lexer x = {sql, sql + len, NULL}, inner;
  const char *s, *last = sql, *again;
  size_t n, m;
  int count = 0;

  while (sql_next_statement(&x, &s, &n)) {
    MUST(s >= last && s + n <= sql + len);
    inner = (struct sql_lexer){s, s + n, NULL};
    MUST(sql_next_statement(&inner, &again, &m) && again == s && m == n);
    MUST(!sql_next_statement(&inner, &again, &m));
    last = s + n;
    count++;
  }
  return count;
}

static void guard(const char *sql, size_t len) {
  struct buf two = BUF_INIT;
  struct err e = ERR_INIT;

  sql_sets_constraints(sql, len);
  if (sql_guard(sql, len, &e) < 0) {
    MUST(strcmp(e.code, "statement_refused") == 0 && e.message[0]);
    return;
  }
  MUST(!e.message[0] && statements(sql, len) == 1);
  buf_append(&two, sql, len);
  buf_puts(&two, "\n; COMMIT"); /* the line's end ends a comment */
  MUST(sql_guard(two.data, two.len, &e) < 0 && strstr(e.message, "more than one statement"));
  buf_fini(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = xmalloc(size ? size : 1); /* of just that size, for the sanitizer */

  memcpy(text, data, size);
  tokens(text, size);
  statements(text, size);
  guard(text, size);
  free(text);
  return 0;
}
