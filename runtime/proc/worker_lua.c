#include "proc/worker_lua.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "bind/bind_conf.h"
#include "bind/bind_run.h"
#include "bind/bind_value.h"
#include "proc/worker.h"

struct ended {
  int code;
  char *message; /* or NULL */
};

static struct {
  struct worker *worker;
  struct vm_await *await;
} the_worker; /* one in a process */

static void free_ended(void *p) {
  struct ended *e = p;
  free(e->message);
  free(e);
}

static void free_worker(void *worker) { worker_free(worker); }

static void on_ended(void *arg, int exit_code, const char *message) {
  struct vm_await *await = the_worker.await;
  struct ended *e = xcalloc(1, sizeof *e);
  e->code = exit_code;
  e->message = message ? xstrdup(message) : NULL;
  loop_free_later(arg, free_worker, the_worker.worker);
  the_worker.worker = NULL;
  the_worker.await = NULL;
  vm_await_done(await, e);
}

/* start(settings, openapi or nil) → box. The settings' userdata is anchored for good: the worker borrows what is in it. */
static int l_start(lua_State *L) {
  struct conf *conf = bind_conf_check(L, 1);
  struct vm *vm = vm_of(L);
  struct err e = ERR_INIT;
  vm_await_check(L);
  if (the_worker.worker) return luaL_error(L, "a worker runs already");
  lua_pushvalue(L, 1);
  luaL_ref(L, LUA_REGISTRYINDEX);
  log_init((enum log_level)conf->log_level, (enum log_format)conf->log_format, STDERR_FILENO);
  struct worker_hooks hooks = {.ended = on_ended, .arg = vm_loop(vm)};
  struct vm_await *await = vm_await_push(L, free_ended);
  the_worker.worker = worker_new(vm_loop(vm), conf, bind_run_ops(vm), luaL_optstring(L, 2, NULL), &hooks, &e);
  if (!the_worker.worker) {
    vm_await_done(await, NULL);
    return bind_raise(L, &e);
  }
  the_worker.await = await;
  return 1;
}

/* result(box) → exit code, message or nil */
static int l_result(lua_State *L) {
  const struct ended *e = vm_await_result(L, 1);
  lua_pushinteger(L, e->code);
  lua_pushstring(L, e->message);
  return 2;
}

int worker_lua_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"start", l_start}, {"result", l_result}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
