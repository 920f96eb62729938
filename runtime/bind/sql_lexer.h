/* sql_lexer: PostgreSQL's lexical rules, as far as finding words and statement ends needs them: nested comments, standard
 * and escape strings, dollar quotes, quoted names. Reads with standard_conforming_strings on. */
#ifndef UMAVEZ_BIND_SQL_LEXER_H
#define UMAVEZ_BIND_SQL_LEXER_H

#include <stdbool.h>
#include <stddef.h>

enum sql_token_type { TOKEN_END, TOKEN_WORD, TOKEN_QUOTED, TOKEN_STRING, TOKEN_NUMBER, TOKEN_SYMBOL, TOKEN_BROKEN };

struct sql_token {
  enum sql_token_type type;
  const char *start; /* where it begins in the text, with its quotes and prefix */
  const char *p; /* of a word or quoted name: its first character (inside the quotes) */
  size_t len;
};

struct sql_lexer {
  const char *p, *end;
  const char *broken; /* after TOKEN_BROKEN, which comes again then: what is not closed */
};

struct sql_token sql_lex(struct sql_lexer *x); /* borrows the text; a token points into it */
bool sql_token_is(const struct sql_token *t, const char *word); /* an unquoted word, whatever its case */
bool sql_token_is_symbol(const struct sql_token *t, char c);

/* The next statement of a script, without its semicolon; empty ones are passed over. false: no more. A text that is not
 * closed is given as it is: the server will say what is wrong. */
bool sql_next_statement(struct sql_lexer *x, const char **statement, size_t *len);

#endif
