#include "bind/sql_guard.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "bind/sql_lexer.h"

/* a name, quoted or not */
static bool is_name(const struct sql_token *t, const char *name) {
  return sql_token_is(t, name) || (t->type == TOKEN_QUOTED && strlen(name) == t->len && strncasecmp(t->p, name, t->len) == 0);
}

static bool is_temporary(const struct sql_token *t) { return sql_token_is(t, "temp") || sql_token_is(t, "temporary"); }

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

static int refuse(struct err *e, const struct sql_token *verb, const char *rule) {
  char word[32];
  size_t n = verb->len < sizeof word - 1 ? verb->len : sizeof word - 1;
  for (size_t i = 0; i < n; i++) word[i] = (char)(verb->p[i] >= 'a' && verb->p[i] <= 'z' ? verb->p[i] - 32 : verb->p[i]);
  word[n] = 0;
  return err_set(e, ERR_INPUT, "statement_refused", "%s is refused: %s", word, rule);
}

/* `after` stands after SET. What is looked at here, check_rest looks at once more: it may end the statement. */
static int check_set(const struct sql_lexer *after, const struct sql_token *verb, struct err *e) {
  static const char *const guarded[] = {"role", "session", "session_authorization", "idle_in_transaction_session_timeout",
                                        "idle_session_timeout", "transaction_timeout", "transaction", "transaction_isolation",
                                        "transaction_read_only", "transaction_deferrable", "umavez"};
  struct sql_lexer x = *after;
  struct sql_token t = sql_lex(&x);
  if (sql_token_is(&t, "constraints")) return 0;
  if (sql_token_is(&t, "transaction")) return refuse(e, verb, TRANSACTION);
  if (!sql_token_is(&t, "local")) return refuse(e, verb, SESSION "; SET LOCAL ends with the transaction");
  t = sql_lex(&x);
  for (size_t i = 0; i < sizeof guarded / sizeof *guarded; i++)
    if (is_name(&t, guarded[i])) return refuse(e, verb, "this setting belongs to the runner");
  return 0;
}

/* What may stand after the first word. Lexes to the end of the statement; *last is the token that ended it. */
static int check_rest(struct sql_lexer *x, const struct sql_token *verb, struct sql_token *last, struct err *e) {
  bool create = sql_token_is(verb, "create"), declare = sql_token_is(verb, "declare"), copy = sql_token_is(verb, "copy");
  bool head = create; /* still among the words that may stand before TEMP */
  int depth = sql_token_is_symbol(verb, '(') ? 1 : 0;
  struct sql_token before = *verb, t;
  for (;; before = t) {
    t = sql_lex(x);
    if (t.type == TOKEN_END || t.type == TOKEN_BROKEN || sql_token_is_symbol(&t, ';')) break;
    if (sql_token_is_symbol(&t, '(')) depth++;
    if (sql_token_is_symbol(&t, ')')) depth--;
    if (head && is_temporary(&t)) return refuse(e, verb, "temporary objects live in the session, which serves other runs afterwards");
    if (head && !(sql_token_is(&t, "or") || sql_token_is(&t, "replace") || sql_token_is(&t, "global") || sql_token_is(&t, "local"))) head = false;
    if (create && is_name(&t, "pg_temp"))
      return refuse(e, verb, "temporary objects live in the session, which serves other runs afterwards");
    if (depth == 0 && sql_token_is(&before, "into") && (is_temporary(&t) || sql_token_is(&t, "local") || sql_token_is(&t, "global")))
      return refuse(e, verb, "temporary objects live in the session, which serves other runs afterwards");
    if ((sql_token_is(&before, "insert") || sql_token_is(&before, "merge")) && sql_token_is(&t, "into")) t.len = 0; /* INSERT INTO temp is a table's name */
    if (declare && sql_token_is(&before, "with") && sql_token_is(&t, "hold")) return refuse(e, verb, "a held cursor lives in the session, which serves other runs afterwards");
    if (copy && (sql_token_is(&t, "stdin") || sql_token_is(&t, "stdout")))
      return refuse(e, verb, "COPY from or to the client is not possible in a handler");
  }
  *last = t;
  return 0;
}

/* EXPLAIN [ANALYZE] [VERBOSE] | EXPLAIN (options): what follows is what counts, since ANALYZE runs it. */
static struct sql_token after_explain(struct sql_lexer *x) {
  struct sql_token t = sql_lex(x);
  if (sql_token_is_symbol(&t, '(')) {
    struct sql_lexer ahead = *x;
    struct sql_token u = sql_lex(&ahead);
    if (!sql_token_is(&u, "select") && !sql_token_is(&u, "with") && !sql_token_is(&u, "values") && !sql_token_is(&u, "table") && !sql_token_is_symbol(&u, '(')) {
      while (u.type != TOKEN_END && u.type != TOKEN_BROKEN && !sql_token_is_symbol(&u, ')') && !sql_token_is_symbol(&u, ';'))
        u = sql_lex(&ahead);
      *x = ahead;
      return sql_token_is_symbol(&u, ')') ? sql_lex(x) : u;
    }
  }
  while (sql_token_is(&t, "analyze") || sql_token_is(&t, "analyse") || sql_token_is(&t, "verbose")) t = sql_lex(x);
  return t;
}

int sql_guard(const char *sql, size_t len, struct err *e) {
  if (memchr(sql, 0, len)) return err_set(e, ERR_INPUT, "statement_refused", "the statement contains a NUL octet");
  struct sql_lexer x = {sql, sql + len, NULL};
  struct sql_token verb = sql_lex(&x), last;
  while (sql_token_is_symbol(&verb, ';')) verb = sql_lex(&x);
  if (verb.type == TOKEN_END) return err_set(e, ERR_INPUT, "statement_refused", "the statement is empty");
  if (sql_token_is(&verb, "explain")) verb = after_explain(&x);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    if (sql_token_is(&verb, refused[i].word)) return refuse(e, &verb, refused[i].rule);
  if (sql_token_is(&verb, "set")) {
    if (check_set(&x, &verb, e)) return -1;
  }
  if (sql_token_is_symbol(&verb, ';') || verb.type == TOKEN_END) last = verb;
  else if (verb.type != TOKEN_BROKEN && check_rest(&x, &verb, &last, e)) return -1;
  else if (verb.type == TOKEN_BROKEN) last = verb;
  while (sql_token_is_symbol(&last, ';')) last = sql_lex(&x);
  if (last.type == TOKEN_BROKEN)
    return err_set(e, ERR_INPUT, "statement_refused", "the statement has a %s that is not closed", x.broken);
  if (last.type != TOKEN_END)
    return err_set(e, ERR_INPUT, "statement_refused", "more than one statement in one string: send them one by one");
  return 0;
}

bool sql_sets_constraints(const char *sql, size_t len) {
  struct sql_lexer x = {sql, sql + len, NULL};
  struct sql_token t = sql_lex(&x);
  while (sql_token_is_symbol(&t, ';')) t = sql_lex(&x);
  if (!sql_token_is(&t, "set")) return false;
  t = sql_lex(&x);
  return sql_token_is(&t, "constraints");
}
