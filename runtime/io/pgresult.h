/* pgresult: how pgconn makes results; private to io/pgconn.c and io/pgresult.c. What others may call is in io/pgconn.h. */
#ifndef UMAVEZ_IO_PGRESULT_H
#define UMAVEZ_IO_PGRESULT_H

#include <libpq-fe.h>

#include "io/pgconn.h"

struct pgresult {
  PGresult *res;   /* NULL for answers that the server did not give */
  struct err *err; /* NULL: ok */
};

struct pgresult *pgresult_take(PGresult *res);                /* takes; gives. Maps errors, FATAL ones as connection_lost */
struct pgresult *pgresult_failed(const struct err *e);        /* copies e; gives */
bool pgresult_is_state(const struct pgresult *r, const char *sqlstate); /* failed with exactly that sqlstate */
bool pgresult_from_function(const struct pgresult *r, const char *function); /* raised by that C function of the server */
void pgresult_reclass(struct pgresult *r, enum err_class c, const char *code); /* another class and code, the rest stays */

/* Whether the server has said that it ends the session. What libpq says by itself has no severity of that kind. */
bool pgresult_fatal(const PGresult *res);

/* Fills *e from an error or notice of the server, or libpq. */
void pgresult_error(const PGresult *res, struct err *e);

/* Copies libpq's text in one line, trimmed. */
void pgresult_one_line(char *dst, size_t size, const char *text);

#endif
