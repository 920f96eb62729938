/* bind_pg: a PostgreSQL connection of a script's own (module umavez.c.pg; lua/umavez/pg.lua wraps it). For the command
 * line and tests; handlers use ctx.sql. The userdata owns the connection and closes it when collected. */
#ifndef UMAVEZ_BIND_BIND_PG_H
#define UMAVEZ_BIND_BIND_PG_H

#include "host/vm.h"
#include "io/pgconn.h"

/* done callback of a pgquery whose arg is a struct vm_await *. */
void bind_pg_answer(void *await, struct pgresult *r);
void bind_pg_free_result(void *r);

/* Lua functions of a box with a result, for the modules that share it: rows(box), row(box), affected(box). They raise the
 * statement's error. */
int bind_pg_rows(lua_State *L);
int bind_pg_row(lua_State *L);
int bind_pg_affected(lua_State *L);

int bind_pg_open(lua_State *L);

#endif
