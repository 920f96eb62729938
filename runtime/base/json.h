/* json: reading, writing, RFC 8785 canonical form, exact numbers, the size of PostgreSQL's jsonb text.
 *
 * One strict reader (json_reader.h) for all: RFC 8259 with UTF-8 checked (RFC 3629: no surrogates, no overlong forms),
 * lone and reversed surrogate escapes refused, nothing but white space after the value, no byte order mark, nesting to
 * JSON_DEPTH_MAX. It is iterative; memory grows with the longest escaped string and the number of members, so callers
 * limit `len`. Numbers stay text (their lexeme) until somebody asks, because "numbers are exact" does not survive a
 * double.
 *
 * Errors of a document are ERR_INPUT with one of these codes, and name the octet offset:
 *   json_syntax  json_utf8  json_surrogate  json_nul  json_depth  json_duplicate_key  json_number
 * Texts and lexemes are borrowed for the call, and what callbacks get is borrowed for the callback. Nothing is kept.
 */
#ifndef UMAVEZ_BASE_JSON_H
#define UMAVEZ_BASE_JSON_H

#include "base/buf.h"
#include "base/err.h"

enum { JSON_DEPTH_MAX = 128 };

/* ---- reading ---- */

/* Any member may be NULL: the event is passed over. A callback returns 0 to go on; anything else stops the reader. */
struct json_events {
  int (*null)(void *arg);
  int (*boolean)(void *arg, bool value);
  int (*number)(void *arg, const char *lexeme, size_t n); /* as written; no NUL at the end */
  int (*string)(void *arg, const char *utf8, size_t n);   /* decoded; no NUL at the end */
  int (*key)(void *arg, const char *utf8, size_t n);      /* decoded; duplicates are reported as they come */
  int (*begin_object)(void *arg);
  int (*end_object)(void *arg);
  int (*begin_array)(void *arg);
  int (*end_array)(void *arg);
  bool allow_nul; /* \u0000 in strings and keys is let through instead of refused (jsonb cannot hold it) */
};

/* 0, or -1 with *e for a bad document (events that came before the fault have been delivered), or what a callback
 * returned (*e untouched by the reader). */
MUST_CHECK int json_read(const char *text, size_t len, const struct json_events *events, void *arg, struct err *e);

enum json_type { JSON_ABSENT, JSON_NULL, JSON_TRUE, JSON_FALSE, JSON_NUMBER, JSON_STRING, JSON_OBJECT, JSON_ARRAY };

struct json_value {
  enum json_type type;
  const char *text; /* slice of the source, strings with their quotes; NULL when absent */
  size_t len;
};

const char *json_type_name(enum json_type type);

/* Finds the value at a dotted path ("order.id"; "" is the document itself) through objects; keys are compared
 * decoded. The last of duplicate keys counts, as in jsonb. A missing member, or a step into something that is no
 * object, is JSON_ABSENT and still 0. -1: the document is no JSON (*out is absent). A key that contains a dot cannot
 * be addressed. */
MUST_CHECK int json_find(const char *text, size_t len, const char *path, struct json_value *out);

/* Calls each(arg, key, key_len, value) for every member of an object, in the document's order; keys are decoded, borrowed
 * for the call. Stops and returns what each returned when that is not 0. -1 with *e: no JSON, or no object. */
MUST_CHECK int json_each_member(const char *text, size_t len,
                                int (*each)(void *arg, const char *key, size_t key_len, const struct json_value *v),
                                void *arg, struct err *e);

/* Appends the decoded text of a JSON_STRING value. -1 for other types and bad strings. */
MUST_CHECK int json_value_string(const struct json_value *v, struct buf *out, struct err *e);

/* ---- numbers: the lexemes of RFC 8259; json_number_valid says whether a text is one ---- */

enum json_number { JSON_DOUBLE, JSON_INT64, JSON_DECIMAL };

bool json_number_valid(const char *lexeme, size_t n);

/* What the number, taken by its value and not by its spelling, needs to stay exact:
 *   JSON_DOUBLE   integer up to 2^53 in magnitude, or a decimal that is the shortest text of the double nearest to it
 *   JSON_INT64    any other integer that an int64_t holds
 *   JSON_DECIMAL  everything else
 * *d (may be NULL) gets the nearest double in every case (infinite beyond the range, 0 for -0); *i (may be NULL) the
 * integer when int64_t holds the value, else it is untouched. The lexeme must be valid. */
enum json_number json_number_classify(const char *lexeme, size_t n, double *d, int64_t *i);

/* Appends the exact canonical form: the significant digits without leading or trailing zeros, laid out as ECMAScript
 * lays out a number (plain up to 21 integer digits and 6 zeros after the point, else d.ddde±x). Equal numbers get the
 * same octets however they were spelled (1.0, 1, 1e0; -0 is 0), different numbers never do; for a JSON_DOUBLE it is
 * RFC 8785's form.
 * -1, nothing appended: the lexeme is invalid or its exponent is beyond ±999,999,999. */
MUST_CHECK int json_number_canonical(const char *lexeme, size_t n, struct buf *out);

/* Appends ECMAScript's Number::toString: the fewest digits that read back as d, the nearest of those; -0 is 0. -1 and
 * nothing appended for NaN and infinities. Independent of the locale. */
int json_write_double(struct buf *out, double d);

/* ---- writing strings (with quotes; escapes as PostgreSQL's jsonb and RFC 8785 write them, everything else raw
 * UTF-8) ---- */

/* -1 with json_utf8 or json_nul, nothing appended, when the octets are no UTF-8 or hold NUL; the message has the
 * offset. */
MUST_CHECK int json_write_string(struct buf *out, const char *s, size_t n, struct err *e);

/* For diagnostics: NUL and invalid octets become U+FFFD, and the text is cut, at a character boundary, so that what is
 * appended, quotes and escapes included, has at most max_bytes (≥ 2) octets. False when it was cut. */
bool json_write_string_lossy(struct buf *out, const char *s, size_t n, size_t max_bytes);

/* Length of the longest valid UTF-8 prefix of s; equal to n when all of it is valid. */
size_t json_utf8_span(const char *s, size_t n);

/* ---- whole documents ---- */

/* Appends the document's canonical form: RFC 8785 (members sorted by UTF-16 code units, no white space, ECMAScript
 * numbers), except that a number which a double cannot hold keeps its exact form (json_number_canonical): every
 * integer, every fraction of more than 17 significant digits, and every fraction above 10^9. So two different
 * integers never share a form, nor do two amounts of up to six decimals. Duplicate keys are refused, and NUL, which
 * jsonb could not hold. On -1 nothing is appended. Idempotent: the canonical form of a canonical form is itself. */
MUST_CHECK int json_canonical(const char *text, size_t len, struct buf *out, struct err *e);

/* octet_length(text::jsonb::text) as PostgreSQL (UTF8 database) computes it: ": " and ", " between members, numbers
 * printed by numeric_out, escapes decoded, the last of duplicate keys kept. json_nul and json_number (beyond
 * numeric's range: 131072 digits before the point, 16383 after) where the cast itself would fail. */
MUST_CHECK int json_jsonb_size(const char *text, size_t len, size_t *octets, struct err *e);

#endif
