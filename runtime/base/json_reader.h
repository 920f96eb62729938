/* json_reader: the pull reader under json.h; for base/json_*.c only, others use json_read.
 *
 * Borrows the text until json_reader_fini. After each JSON_TOKEN_… the members below describe that token. Once -1 has
 * been returned the reader must not be asked again.
 */
#ifndef UMAVEZ_BASE_JSON_READER_H
#define UMAVEZ_BASE_JSON_READER_H

#include "base/json.h"

enum json_token {
  JSON_TOKEN_END, /* the document is complete and nothing but white space follows */
  JSON_TOKEN_NULL,
  JSON_TOKEN_TRUE,
  JSON_TOKEN_FALSE,
  JSON_TOKEN_NUMBER,
  JSON_TOKEN_STRING,
  JSON_TOKEN_KEY,
  JSON_TOKEN_BEGIN_OBJECT,
  JSON_TOKEN_END_OBJECT,
  JSON_TOKEN_BEGIN_ARRAY,
  JSON_TOKEN_END_ARRAY,
};

/* What may come next, white space aside. */
enum json_expect {
  JSON_EXPECT_VALUE,
  JSON_EXPECT_FIRST_ELEMENT, /* a value or ']' */
  JSON_EXPECT_FIRST_KEY,     /* a key or '}' */
  JSON_EXPECT_KEY,
  JSON_EXPECT_SEPARATOR, /* ',' or the container's end */
  JSON_EXPECT_END,
};

struct json_reader {
  const char *text; /* the document */
  size_t len;
  size_t pos; /* next unread octet */
  enum json_expect expect;
  int depth;                       /* open containers */
  bool is_object[JSON_DEPTH_MAX];  /* kind of each open container */
  bool allow_nul;
  struct buf scratch; /* decoded string, when it had escapes */
  /* the token */
  size_t start;     /* offset of its first octet; its end is pos (for keys: before the colon) */
  size_t end;       /* offset behind its last octet */
  const char *data; /* number's lexeme, or decoded text of string or key: in text, or in scratch until the next token */
  size_t data_len;
};

void json_reader_init(struct json_reader *r, const char *text, size_t len, bool allow_nul);
void json_reader_fini(struct json_reader *r);

/* An enum json_token, or -1 with *e. */
MUST_CHECK int json_reader_next(struct json_reader *r, struct err *e);

/* Length of the UTF-8 character at p (of n octets, n > 0), or 0 when there is no valid one. RFC 3629. */
size_t json_utf8_char(const unsigned char *p, size_t n);

/* Octets that PostgreSQL's escape_json adds for the text: the size of the JSON string without its quotes. */
size_t json_string_size(const char *s, size_t n);

#endif
