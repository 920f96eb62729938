#include "bind/sql_guard.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

enum token_type { TOKEN_END, TOKEN_WORD, TOKEN_QUOTED, TOKEN_STRING, TOKEN_NUMBER, TOKEN_SYMBOL, TOKEN_BROKEN };

struct token {
  enum token_type type;
  const char *p; /* of a word or quoted name: its first character (inside the quotes) */
  size_t len;
};

struct lexer {
  const char *p, *end;
  const char *broken; /* what is not closed */
};

static bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
static bool is_start(unsigned char c) { return ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c >= 0x80; }
static bool is_word(unsigned char c) { return is_start(c) || is_digit(c) || c == '$'; }

/* false: a comment is not closed */
static bool skip_blanks(struct lexer *x) {
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
static bool skip_quoted(struct lexer *x, char quote, bool escapes) {
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
static int skip_dollar(struct lexer *x) {
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

static struct token lex(struct lexer *x) {
  struct token t = {TOKEN_END, x->p, 0};
  if (!skip_blanks(x)) {
    t.type = TOKEN_BROKEN;
    return t;
  }
  t.p = x->p;
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
      t.len = (size_t)(x->p - t.p) - 1;
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

/* ---- rules ---- */

static bool is(const struct token *t, const char *word) {
  return t->type == TOKEN_WORD && strlen(word) == t->len && strncasecmp(t->p, word, t->len) == 0;
}

static bool is_symbol(const struct token *t, char c) { return t->type == TOKEN_SYMBOL && t->len == 1 && *t->p == c; }

/* a name, quoted or not */
static bool is_name(const struct token *t, const char *name) {
  return is(t, name) || (t->type == TOKEN_QUOTED && strlen(name) == t->len && strncasecmp(t->p, name, t->len) == 0);
}

static bool is_temporary(const struct token *t) { return is(t, "temp") || is(t, "temporary"); }

static const struct {
  const char *word, *rule;
} refused[] = {
#define TRANSACTION "the runner begins and ends the transaction"
  {"begin", TRANSACTION},
  {"start", TRANSACTION},
  {"commit", TRANSACTION},
  {"end", TRANSACTION},
  {"rollback", TRANSACTION "; to undo a part, use ctx.sql:savepoint(fn); to undo all, raise an error or call ctx:fail"},
  {"abort", TRANSACTION},
  {"savepoint", "savepoints are made by ctx.sql:savepoint(fn)"},
  {"release", "savepoints are made by ctx.sql:savepoint(fn)"},
#define SESSION "it would leave state in the session, which serves other runs afterwards"
  {"prepare", SESSION " (statements are prepared by themselves)"},
  {"execute", SESSION " (statements are prepared by themselves)"},
  {"deallocate", SESSION},
  {"reset", SESSION},
  {"discard", SESSION},
  {"listen", SESSION},
  {"unlisten", SESSION},
  {"load", SESSION},
};

static int refuse(struct err *e, const struct token *verb, const char *rule) {
  char word[32];
  size_t n = verb->len < sizeof word - 1 ? verb->len : sizeof word - 1;
  for (size_t i = 0; i < n; i++) word[i] = (char)(verb->p[i] >= 'a' && verb->p[i] <= 'z' ? verb->p[i] - 32 : verb->p[i]);
  word[n] = 0;
  return err_set(e, ERR_INPUT, "statement_refused", "%s is refused: %s", word, rule);
}

/* x stands after SET */
static int check_set(struct lexer *x, const struct token *verb, struct err *e) {
  static const char *const guarded[] = {"role", "session", "session_authorization", "idle_in_transaction_session_timeout",
                                        "idle_session_timeout", "transaction_timeout", "transaction", "transaction_isolation",
                                        "transaction_read_only", "transaction_deferrable", "umavez"};
  struct token t = lex(x);
  if (is(&t, "constraints")) return 0;
  if (is(&t, "transaction")) return refuse(e, verb, TRANSACTION);
  if (!is(&t, "local")) return refuse(e, verb, SESSION "; SET LOCAL ends with the transaction");
  t = lex(x);
  for (size_t i = 0; i < sizeof guarded / sizeof *guarded; i++)
    if (is_name(&t, guarded[i])) return refuse(e, verb, "this setting belongs to the runner");
  return 0;
}

/* What may stand after the first word. Lexes to the end of the statement; *last is the token that ended it. */
static int check_rest(struct lexer *x, const struct token *verb, struct token *last, struct err *e) {
  bool create = is(verb, "create"), declare = is(verb, "declare"), copy = is(verb, "copy");
  bool head = create; /* still among the words that may stand before TEMP */
  int depth = is_symbol(verb, '(') ? 1 : 0;
  struct token before = *verb, t;
  for (;; before = t) {
    t = lex(x);
    if (t.type == TOKEN_END || t.type == TOKEN_BROKEN || is_symbol(&t, ';')) break;
    if (is_symbol(&t, '(')) depth++;
    if (is_symbol(&t, ')')) depth--;
    if (head && is_temporary(&t)) return refuse(e, verb, "temporary objects live in the session, which serves other runs afterwards");
    if (head && !(is(&t, "or") || is(&t, "replace") || is(&t, "global") || is(&t, "local"))) head = false;
    if (create && is_name(&t, "pg_temp"))
      return refuse(e, verb, "temporary objects live in the session, which serves other runs afterwards");
    if (depth == 0 && is(&before, "into") && (is_temporary(&t) || is(&t, "local") || is(&t, "global")))
      return refuse(e, verb, "temporary objects live in the session, which serves other runs afterwards");
    if ((is(&before, "insert") || is(&before, "merge")) && is(&t, "into")) t.len = 0; /* INSERT INTO temp is a table's name */
    if (declare && is(&before, "with") && is(&t, "hold")) return refuse(e, verb, "a held cursor lives in the session, which serves other runs afterwards");
    if (copy && (is(&t, "stdin") || is(&t, "stdout")))
      return refuse(e, verb, "COPY from or to the client is not possible in a handler");
  }
  *last = t;
  return 0;
}

/* EXPLAIN [ANALYZE] [VERBOSE] | EXPLAIN (options): what follows is what counts, since ANALYZE runs it. */
static struct token after_explain(struct lexer *x) {
  struct token t = lex(x);
  if (is_symbol(&t, '(')) {
    struct lexer ahead = *x;
    struct token u = lex(&ahead);
    if (!is(&u, "select") && !is(&u, "with") && !is(&u, "values") && !is(&u, "table") && !is_symbol(&u, '(')) {
      while (u.type != TOKEN_END && u.type != TOKEN_BROKEN && !is_symbol(&u, ')')) u = lex(&ahead);
      *x = ahead;
      return lex(x);
    }
  }
  while (is(&t, "analyze") || is(&t, "analyse") || is(&t, "verbose")) t = lex(x);
  return t;
}

int sql_guard(const char *sql, size_t len, struct err *e) {
  if (memchr(sql, 0, len)) return err_set(e, ERR_INPUT, "statement_refused", "the statement contains a NUL octet");
  struct lexer x = {sql, sql + len, NULL};
  struct token verb = lex(&x), last;
  while (is_symbol(&verb, ';')) verb = lex(&x);
  if (verb.type == TOKEN_END) return err_set(e, ERR_INPUT, "statement_refused", "the statement is empty");
  if (is(&verb, "explain")) verb = after_explain(&x);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    if (is(&verb, refused[i].word)) return refuse(e, &verb, refused[i].rule);
  if (is(&verb, "set")) {
    if (check_set(&x, &verb, e)) return -1;
  }
  if (is_symbol(&verb, ';') || verb.type == TOKEN_END) last = verb;
  else if (verb.type != TOKEN_BROKEN && check_rest(&x, &verb, &last, e)) return -1;
  else if (verb.type == TOKEN_BROKEN) last = verb;
  while (is_symbol(&last, ';')) last = lex(&x);
  if (last.type == TOKEN_BROKEN)
    return err_set(e, ERR_INPUT, "statement_refused", "the statement has a %s that is not closed", x.broken);
  if (last.type != TOKEN_END)
    return err_set(e, ERR_INPUT, "statement_refused", "more than one statement in one string: send them one by one");
  return 0;
}
