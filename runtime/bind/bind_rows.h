/* bind_rows: a result's rows as Lua tables.
 *
 *   bool                          boolean
 *   int2, int4, oid, float4/8     number
 *   int8                          number up to 2^53 in magnitude, else int64 cdata
 *   numeric                       string, exact
 *   json, jsonb                   decoded (null is umavez.null)
 *   bytea                         string of its octets
 *   arrays of these and of text   array tables; NULL elements are umavez.null
 *   everything else               string, as PostgreSQL prints it
 *   NULL                          the key is absent
 * Call inside a coroutine: these may raise. */
#ifndef UMAVEZ_BIND_BIND_ROWS_H
#define UMAVEZ_BIND_BIND_ROWS_H

#include "host/vm.h"
#include "io/pgconn.h"

/* Pushes an array of all rows. Borrows r. */
void bind_push_rows(lua_State *L, const struct pgresult *r);
/* Pushes the first row, or nil. Borrows r. */
void bind_push_row(lua_State *L, const struct pgresult *r);

#endif
