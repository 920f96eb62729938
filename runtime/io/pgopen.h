/* pgopen: starting a libpq connection and explaining why it could not be made; private to pgconn. */
#ifndef UMAVEZ_IO_PGOPEN_H
#define UMAVEZ_IO_PGOPEN_H

#include <libpq-fe.h>

#include "base/err.h"

/* PQconnectStart with our defaults and demands (pgconn.h). Gives: PQfinish. Its status may be CONNECTION_BAD already. */
PGconn *pgopen_start(const char *url);

/* Explains a connection that could not be made; codes as in pgconn.h. Parts of a URL are masked. */
void pgopen_error(const char *url, const PGconn *pg, struct err *e);

/* Replaces the connection's password wherever it stands in the message. */
void pgopen_redact(const PGconn *pg, struct err *e);

#endif
