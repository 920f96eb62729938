#include "bind/bind_valkey.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "bind/bind_value.h"
#include "io/valkey.h"

#define VALKEY_META "umavez.valkey"
#define WORDS_MAX 8

struct connection {
  struct valkey *v;
  struct vm_await *opening; /* who waits for it to come up; NULL: nobody */
  struct loop_timer deadline;
};

struct answer {
  struct buf text;
  bool nil;        /* the server's nil */
  const char *why; /* unavailable, or an error reply (then the text is its words) */
};

static void free_answer(void *p) {
  struct answer *a = p;
  buf_fini(&a->text);
  free(a);
}

static void answer(struct vm_await *await, const char *why) {
  struct answer *a = xcalloc(1, sizeof *a);
  buf_init(&a->text);
  a->why = why;
  vm_await_done(await, a);
}

/* ---- coming up ---- */

static void opened(struct connection *c, const char *why) {
  struct vm_await *await = c->opening;
  c->opening = NULL;
  loop_timer_stop(&c->deadline);
  if (await) answer(await, why);
}

static void on_state(void *arg, bool up, const char *why) {
  if (up) opened(arg, NULL);
}

static void on_deadline(void *arg) { opened(arg, "no answer"); }

static void forget_opening(void *arg) {
  struct connection *c = arg;
  c->opening = NULL;
  loop_timer_stop(&c->deadline);
}

static int l_open(lua_State *L) {
  const char *url = luaL_checkstring(L, 1), *prefix = luaL_checkstring(L, 3);
  int64_t timeout_ms = (int64_t)luaL_checknumber(L, 2);
  struct err e = ERR_INIT;
  struct loop *loop = vm_loop(vm_of(L));
  vm_await_check(L);
  struct connection **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, VALKEY_META);
  lua_setmetatable(L, -2);
  log_init(LOG_ERROR_, LOG_LOGFMT, STDERR_FILENO); /* a command says itself what it found */
  struct valkey *v = valkey_new(loop, url, timeout_ms, prefix, &e);
  if (!v) return bind_raise(L, &e);
  struct connection *c = *box = xcalloc(1, sizeof *c);
  c->v = v;
  loop_timer_init(&c->deadline, on_deadline, c);
  c->opening = vm_await_push(L, free_answer);
  c->opening->cancel = forget_opening;
  c->opening->cancel_arg = c;
  valkey_on_state(v, on_state, c);
  loop_timer_start(loop, &c->deadline, timeout_ms);
  return 2;
}

static int l_close(lua_State *L) {
  struct connection **box = luaL_checkudata(L, 1, VALKEY_META), *c = *box;
  if (!c) return 0;
  *box = NULL;
  if (c->opening) c->opening->cancel = NULL;
  opened(c, "closed");
  valkey_on_state(c->v, NULL, NULL);
  valkey_free(c->v);
  free(c);
  return 0;
}

/* ---- commands ---- */

static void write_reply(struct buf *b, const struct valkey_reply *r) {
  if (r->type == V_INT)
    buf_printf(b, "%" PRId64, r->integer);
  else if (r->str)
    buf_append(b, r->str, r->len);
}

static void on_reply(void *arg, const struct valkey_reply *r) {
  struct answer *a = xcalloc(1, sizeof *a);
  buf_init(&a->text);
  if (!r) {
    a->why = "no answer";
  } else if (r->type == V_ARRAY) {
    for (size_t i = 0; i < r->elements; i++) {
      if (i > 0) buf_putc(&a->text, '\n');
      write_reply(&a->text, &r->element[i]);
    }
  } else {
    write_reply(&a->text, r);
    a->nil = r->type == V_NIL;
    if (r->type == V_ERROR) a->why = "refused";
  }
  vm_await_done(arg, a);
}

static int l_send(lua_State *L) {
  struct connection **box = luaL_checkudata(L, 1, VALKEY_META);
  const char *argv[WORDS_MAX];
  size_t lens[WORDS_MAX];
  int n = lua_gettop(L) - 1;
  vm_await_check(L);
  luaL_argcheck(L, n >= 1 && n <= WORDS_MAX, 2, "number of words");
  if (!*box) return bind_refuse(L, "closed", "the connection is closed");
  for (int i = 0; i < n; i++) argv[i] = luaL_checklstring(L, i + 2, &lens[i]);
  valkey_command((*box)->v, n, argv, lens, on_reply, vm_await_push(L, free_answer));
  return 1;
}

static int l_reply(lua_State *L) {
  struct answer *a = vm_await_result(L, 1);
  if (a->why || a->nil) {
    lua_pushnil(L);
    lua_pushstring(L, a->why && a->text.len ? buf_cstr(&a->text) : a->why);
    return 2;
  }
  lua_pushlstring(L, a->text.data ? a->text.data : "", a->text.len);
  return 1;
}

/* up(box) → true | nil, why */
static int l_up(lua_State *L) {
  const struct answer *a = vm_await_result(L, 1);
  if (!a->why) {
    lua_pushboolean(L, 1);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, a->why);
  return 2;
}

int bind_valkey_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", l_open}, {"close", l_close}, {"send", l_send},
                                       {"reply", l_reply}, {"up", l_up}, {NULL, NULL}};
  luaL_newmetatable(L, VALKEY_META);
  lua_pushcfunction(L, l_close);
  lua_setfield(L, -2, "__gc");
  lua_pushliteral(L, VALKEY_META);
  lua_setfield(L, -2, "__metatable");
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
