/* sql_guard: which statements a handler may send.
 *
 * The handler's transaction belongs to the runner, and the connection goes on to other runs. So a statement text is
 * lexed (comments, all kinds of strings, quoted names) and refused before it is sent when it
 *   - begins, ends or divides a transaction,
 *   - leaves something behind in the session (settings, prepared statements, listeners, temporary tables, held cursors),
 *   - speaks the COPY protocol, or
 *   - is more than one statement.
 * What a function does is not seen here; the runner resets that after the COMMIT. */
#ifndef UMAVEZ_BIND_SQL_GUARD_H
#define UMAVEZ_BIND_SQL_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* 0: may be sent. -1: e has class ERR_INPUT, code "statement_refused" and the rule. Borrows sql. */
int sql_guard(const char *sql, size_t len, struct err *e) MUST_CHECK;

/* Whether a statement that may be sent is SET CONSTRAINTS, which holds until the transaction ends. Borrows sql. */
bool sql_sets_constraints(const char *sql, size_t len);

#endif
