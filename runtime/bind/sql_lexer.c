#include "bind/sql_lexer.h"

#include <string.h>
#include <strings.h>

static bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
static bool is_start(unsigned char c) { return ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c >= 0x80; }
static bool is_word(unsigned char c) { return is_start(c) || is_digit(c) || c == '$'; }

/* false: a comment is not closed */
static bool skip_blanks(struct sql_lexer *x) {
  while (x->p < x->end) {
    if (is_space((unsigned char)*x->p)) {
      x->p++;
    } else if (x->end - x->p >= 2 && x->p[0] == '-' && x->p[1] == '-') {
      while (x->p < x->end && *x->p != '\n' && *x->p != '\r') x->p++;
    } else if (x->end - x->p >= 2 && x->p[0] == '/' && x->p[1] == '*') {
      int depth = 0;
      do { /* comments nest */
        if (x->end - x->p < 2) {
          x->broken = "comment";
          return false;
        }
        if (x->p[0] == '/' && x->p[1] == '*') {
          depth++;
          x->p += 2;
        } else if (x->p[0] == '*' && x->p[1] == '/') {
          depth--;
          x->p += 2;
        } else {
          x->p++;
        }
      } while (depth > 0);
    } else {
      break;
    }
  }
  return true;
}

/* x->p is after the opening quote; a doubled quote stands for itself, with escapes a backslash takes the next */
static bool skip_quoted(struct sql_lexer *x, char quote, bool escapes) {
  while (x->p < x->end) {
    char c = *x->p++;
    if (c == '\\' && escapes && x->p < x->end) {
      x->p++;
    } else if (c == quote) {
      if (x->p < x->end && *x->p == quote) {
        x->p++;
      } else {
        return true;
      }
    }
  }
  x->broken = quote == '"' ? "quoted name" : "string";
  return false;
}

/* At '$': a dollar-quoted string is skipped (1), its end is missing (-1), or it is none (0). */
static int skip_dollar(struct sql_lexer *x) {
  const char *tag_end = x->p + 1;
  if (tag_end < x->end && *tag_end != '$' && !is_start((unsigned char)*tag_end)) return 0;
  while (tag_end < x->end && *tag_end != '$' && (is_start((unsigned char)*tag_end) || is_digit((unsigned char)*tag_end)))
    tag_end++;
  if (tag_end >= x->end || *tag_end != '$') return 0;
  size_t n = (size_t)(tag_end + 1 - x->p);
  const char *tag = x->p;
  for (const char *q = x->p + n; (size_t)(x->end - q) >= n; q++) {
    if (*q == '$' && memcmp(q, tag, n) == 0) {
      x->p = q + n;
      return 1;
    }
  }
  x->broken = "dollar-quoted string";
  return -1;
}

struct sql_token sql_lex(struct sql_lexer *x) {
  struct sql_token t = {TOKEN_END, x->p, x->p, 0};
  if (x->broken || !skip_blanks(x)) {
    t.type = TOKEN_BROKEN;
    return t;
  }
  t.start = t.p = x->p;
  if (x->p >= x->end) return t;
  unsigned char c = (unsigned char)*x->p;
  if (c == '\'') {
    x->p++;
    t.type = skip_quoted(x, '\'', false) ? TOKEN_STRING : TOKEN_BROKEN;
  } else if (c == '"') {
    t.p = ++x->p;
    t.type = skip_quoted(x, '"', false) ? TOKEN_QUOTED : TOKEN_BROKEN;
    t.len = (size_t)(x->p - t.p) - (t.type == TOKEN_QUOTED);
    return t;
  } else if (c == '$') {
    int dollar = skip_dollar(x);
    t.type = dollar > 0 ? TOKEN_STRING : dollar < 0 ? TOKEN_BROKEN : TOKEN_SYMBOL;
    if (dollar == 0) {
      x->p++;
      while (x->p < x->end && is_digit((unsigned char)*x->p)) x->p++;
    }
  } else if (is_start(c)) {
    while (x->p < x->end && is_word((unsigned char)*x->p)) x->p++;
    t.type = TOKEN_WORD;
    t.len = (size_t)(x->p - t.p);
    bool prefix = t.len == 1 && strchr("eEbBxXnN", c);
    if (prefix && x->p < x->end && *x->p == '\'') {
      x->p++;
      t.type = skip_quoted(x, '\'', c == 'e' || c == 'E') ? TOKEN_STRING : TOKEN_BROKEN;
    } else if (t.len == 1 && (c | 32) == 'u' && x->end - x->p >= 2 && x->p[0] == '&' && (x->p[1] == '\'' || x->p[1] == '"')) {
      char quote = x->p[1];
      x->p += 2;
      t.p = x->p;
      t.type = !skip_quoted(x, quote, false) ? TOKEN_BROKEN : quote == '"' ? TOKEN_QUOTED : TOKEN_STRING;
      t.len = (size_t)(x->p - t.p) - (t.type != TOKEN_BROKEN);
    }
    return t;
  } else if (is_digit(c)) {
    while (x->p < x->end && (is_digit((unsigned char)*x->p) || *x->p == '.' || *x->p == '_')) x->p++;
    t.type = TOKEN_NUMBER;
  } else {
    x->p++;
    t.type = TOKEN_SYMBOL;
  }
  t.len = (size_t)(x->p - t.p);
  return t;
}

bool sql_token_is(const struct sql_token *t, const char *word) {
  return t->type == TOKEN_WORD && strlen(word) == t->len && strncasecmp(t->p, word, t->len) == 0;
}

bool sql_token_is_symbol(const struct sql_token *t, char c) { return t->type == TOKEN_SYMBOL && t->len == 1 && *t->p == c; }

bool sql_next_statement(struct sql_lexer *x, const char **statement, size_t *len) {
  if (x->broken) return false;
  struct sql_token t = sql_lex(x), before = t;
  while (sql_token_is_symbol(&t, ';')) t = sql_lex(x);
  if (t.type == TOKEN_END) return false;
  *statement = t.start;
  bool create = sql_token_is(&t, "create");
  int parens = 0, blocks = 0; /* BEGIN ATOMIC … END of a function's body, and CASE … END inside */
  for (; t.type != TOKEN_END && t.type != TOKEN_BROKEN; before = t, t = sql_lex(x)) {
    if (sql_token_is_symbol(&t, '(')) parens++;
    if (sql_token_is_symbol(&t, ')')) parens--;
    if (create && sql_token_is(&before, "begin") && sql_token_is(&t, "atomic")) blocks++;
    if (blocks > 0 && sql_token_is(&t, "case")) blocks++;
    if (blocks > 0 && sql_token_is(&t, "end")) blocks--;
    if (parens <= 0 && blocks == 0 && sql_token_is_symbol(&t, ';')) {
      *len = (size_t)(t.p - *statement);
      return true;
    }
  }
  *len = (size_t)(x->end - *statement);
  return true;
}
