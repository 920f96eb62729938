#include "bind/bind_pg.h"

#include <stdlib.h>
#include <string.h>

#include "bind/bind_params.h"
#include "bind/bind_rows.h"
#include "bind/bind_value.h"
#include "bind/sql_lexer.h"

#define PG_META "umavez.pg"

struct pg {
  struct pgconn *c;       /* NULL: closed by the script */
  struct vm_await *ready; /* connect() waits; NULL: answered */
};

void bind_pg_free_result(void *r) { pgresult_free(r); }

void bind_pg_answer(void *await, struct pgresult *r) { vm_await_done(await, r); }

/* ---- results ---- */

static const struct pgresult *checked_result(lua_State *L, int idx) {
  const struct pgresult *r = vm_await_result(L, idx);
  if (!r) luaL_error(L, "no result");
  if (!pgresult_ok(r)) bind_raise(L, pgresult_err(r));
  return r;
}

int bind_pg_rows(lua_State *L) {
  bind_push_rows(L, checked_result(L, 1));
  return 1;
}

int bind_pg_row(lua_State *L) {
  bind_push_row(L, checked_result(L, 1));
  return 1;
}

int bind_pg_affected(lua_State *L) {
  lua_pushnumber(L, (lua_Number)pgresult_affected(checked_result(L, 1)));
  return 1;
}

/* tag(box): "COMMIT", "ROLLBACK", … */
static int l_tag(lua_State *L) {
  lua_pushstring(L, pgresult_tag(checked_result(L, 1)));
  return 1;
}

/* ---- the connection ---- */

static void on_ready(void *arg) {
  struct pg *pg = arg;
  struct vm_await *ready = pg->ready;
  pg->ready = NULL;
  if (ready) vm_await_done(ready, NULL);
}

static void on_closed(void *arg, const struct err *why) { on_ready(arg); }

static struct pg *check_pg(lua_State *L) {
  struct pg **box = luaL_checkudata(L, 1, PG_META);
  if (!(*box)->c) bind_refuse(L, "closed", "the connection is closed");
  return *box;
}

static void forget_ready(void *arg) { ((struct pg *)arg)->ready = NULL; }

/* connect(url, timeout_ms) → connection, box */
static int l_connect(lua_State *L) {
  static const struct pgconn_hooks hooks = {.on_ready = on_ready, .on_closed = on_closed};
  const char *url = luaL_checkstring(L, 1);
  int64_t timeout_ms = (int64_t)luaL_optnumber(L, 2, 5000);
  vm_await_check(L);
  struct pg **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, PG_META);
  lua_setmetatable(L, -2);
  struct pg *pg = *box = xcalloc(1, sizeof *pg);
  pg->ready = vm_await_push(L, NULL);
  pg->ready->cancel = forget_ready;
  pg->ready->cancel_arg = pg;
  pg->c = pgconn_new(vm_loop(vm_of(L)), url, &hooks, pg, timeout_ms);
  return 2;
}

/* connected(connection): raises why it is not */
static int l_connected(lua_State *L) {
  struct pg *pg = check_pg(L);
  if (pgconn_state(pg->c) == PGCONN_READY) return 0;
  struct err e = *pgconn_error(pg->c);
  if (!err_is_set(&e)) err_set(&e, ERR_ENV, "connect_failed", "not connected");
  return bind_raise(L, &e);
}

static void pg_close(struct pg *pg) {
  struct pgconn *c = pg->c;
  pg->c = NULL;
  if (pg->ready) {
    pg->ready->cancel = NULL;
    on_ready(pg);
  }
  if (c) pgconn_close_later(c);
}

static int l_close(lua_State *L) {
  struct pg **box = luaL_checkudata(L, 1, PG_META);
  if (*box) pg_close(*box);
  return 0;
}

static int l_gc(lua_State *L) {
  struct pg **box = lua_touserdata(L, 1);
  if (!*box) return 0;
  pg_close(*box);
  free(*box);
  *box = NULL;
  return 0;
}

/* send(connection, sql, n, …) → box */
static int l_send(lua_State *L) {
  struct pg *pg = check_pg(L);
  size_t len;
  const char *sql = luaL_checklstring(L, 2, &len);
  int n = (int)luaL_checkinteger(L, 3);
  struct err e = ERR_INIT;
  struct bind_params params;
  vm_await_check(L);
  if (strlen(sql) != len) {
    err_set(&e, ERR_INPUT, "statement_refused", "the statement contains a NUL octet");
    return bind_raise(L, &e);
  }
  luaL_argcheck(L, n >= 0 && n <= lua_gettop(L) - 3, 3, "number of parameters");
  struct vm_await *await = vm_await_push(L, bind_pg_free_result);
  if (bind_params_init(&params, L, 4, n, &e)) {
    vm_await_done(await, NULL);
    return bind_raise(L, &e);
  }
  pgconn_query(pg->c, &(struct pgquery){.sql = sql,
                                        .nparams = n,
                                        .values = params.values,
                                        .once = true,
                                        .done = bind_pg_answer,
                                        .arg = await});
  pgconn_sync(pg->c);
  bind_params_fini(&params);
  return 1;
}

/* statements(text) → array of {sql, line} */
static int l_statements(lua_State *L) {
  size_t len, n;
  const char *text = luaL_checklstring(L, 1, &len), *s, *counted = text;
  struct sql_lexer x = {text, text + len, NULL};
  int line = 1;
  lua_newtable(L);
  for (int i = 1; sql_next_statement(&x, &s, &n); i++) {
    for (; counted < s; counted++) line += *counted == '\n';
    lua_createtable(L, 2, 0);
    lua_pushlstring(L, s, n);
    lua_rawseti(L, -2, 1);
    lua_pushinteger(L, line);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i);
  }
  return 1;
}

static int l_backend_pid(lua_State *L) {
  lua_pushinteger(L, pgconn_backend_pid(check_pg(L)->c));
  return 1;
}

static int l_server_version(lua_State *L) {
  lua_pushinteger(L, pgconn_server_version(check_pg(L)->c));
  return 1;
}

int bind_pg_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"connect", l_connect},
                                       {"connected", l_connected},
                                       {"close", l_close},
                                       {"send", l_send},
                                       {"statements", l_statements},
                                       {"backend_pid", l_backend_pid},
                                       {"server_version", l_server_version},
                                       {"rows", bind_pg_rows},
                                       {"row", bind_pg_row},
                                       {"affected", bind_pg_affected},
                                       {"tag", l_tag},
                                       {NULL, NULL}};
  luaL_newmetatable(L, PG_META);
  lua_pushcfunction(L, l_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushliteral(L, PG_META);
  lua_setfield(L, -2, "__metatable");
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
