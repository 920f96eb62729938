#include "host/vm.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/stats.h"

#define AWAIT_META "umavez.await"

struct vm {
  lua_State *L;
  struct loop *loop;
  char *lua_dir;
  struct vm_thread *running;
  struct list threads;
  size_t nthreads;
};

struct vm_thread {
  struct vm *vm;
  lua_State *T;
  int ref;                /* anchors T in the registry */
  struct vm_await *await; /* waits for this box; NULL: runs, or has not started */
  vm_done *done;
  void *arg;
  const struct vm_watch *watch; /* or NULL */
  struct loop_task wake; /* resumes at the safe point, when something else was running */
  int nargs;             /* what the first resume passes on */
  bool dropped;
  struct list in_vm;
};

static char vm_key;    /* its address: registry key of the vm */
static char token_key; /* its address, as light userdata: what await yields */

struct vm *vm_of(lua_State *L) {
  lua_pushlightuserdata(L, &vm_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  struct vm *vm = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return vm;
}

lua_State *vm_state(struct vm *vm) { return vm->L; }
struct loop *vm_loop(struct vm *vm) { return vm->loop; }
const char *vm_lua_dir(struct vm *vm) { return vm->lua_dir; }
size_t vm_threads(struct vm *vm) { return vm->nthreads; }
struct vm_thread *vm_running(struct vm *vm) { return vm->running; }
lua_State *vm_thread_state(struct vm_thread *t) { return t->T; }
void *vm_thread_arg(struct vm_thread *t) { return t->arg; }
void vm_thread_watch(struct vm_thread *t, const struct vm_watch *watch) { t->watch = watch; }

/* ---- threads ---- */

static void thread_free(struct vm_thread *t) {
  loop_task_cancel(&t->wake);
  if (t->await) {
    t->await->thread = NULL;
    t->await = NULL;
  }
  list_remove(&t->in_vm);
  t->vm->nthreads--;
  luaL_unref(t->vm->L, LUA_REGISTRYINDEX, t->ref);
  free(t);
}

static void thread_end(struct vm_thread *t, int status, int nresults) {
  lua_State *T = t->T;
  t->done(t->arg, t, T, status, nresults);
  thread_free(t);
}

/* The one place that resumes. */
static void thread_resume(struct vm_thread *t, int nargs) {
  struct vm *vm = t->vm;
  const struct vm_watch *watch = t->watch; /* t may be gone at the end */
  if (vm->running) bug("a coroutine resumed inside another one");
  if (watch) watch->enter(t->arg);
  vm->running = t;
  int status = lua_resume(t->T, nargs);
  vm->running = NULL;
  if (t->dropped) {
    thread_free(t);
  } else if (status != LUA_YIELD) {
    thread_end(t, status, status ? 1 : lua_gettop(t->T));
  } else if (!t->await) {
    lua_settop(t->T, 0);
    lua_pushliteral(t->T, "yielded to nobody: coroutine.yield outside of a coroutine of the script's own");
    thread_end(t, LUA_ERRRUN, 1);
  } else {
    lua_settop(t->T, 0);
  }
  stats_set(STAT_LUA_BYTES, 0, (uint64_t)lua_gc(vm->L, LUA_GCCOUNT, 0) * 1024);
  if (watch) watch->leave();
}

static void on_wake(void *arg) {
  struct vm_thread *t = arg;
  int nargs = t->nargs;
  t->nargs = 0;
  thread_resume(t, nargs);
}

struct vm_thread *vm_thread_new(struct vm *vm, vm_done *done, void *arg) {
  struct vm_thread *t = xcalloc(1, sizeof *t);
  t->vm = vm;
  t->done = done;
  t->arg = arg;
  loop_task_init(&t->wake, on_wake, t);
  t->T = lua_newthread(vm->L);
  t->ref = luaL_ref(vm->L, LUA_REGISTRYINDEX);
  list_init(&t->in_vm);
  list_push_back(&vm->threads, &t->in_vm);
  vm->nthreads++;
  return t;
}

void vm_thread_start(struct vm_thread *t, int nargs) {
  if (t->vm->running) {
    t->nargs = nargs;
    loop_defer(t->vm->loop, &t->wake);
  } else {
    thread_resume(t, nargs);
  }
}

void vm_thread_drop(struct vm_thread *t) {
  if (t->dropped) return;
  if (t->vm->running == t) {
    t->dropped = true;
    return;
  }
  struct vm_await *a = t->await;
  t->await = NULL;
  if (a) {
    a->thread = NULL;
    if (a->cancel && !a->done) {
      void (*cancel)(void *) = a->cancel;
      a->cancel = NULL;
      a->done = true;
      cancel(a->cancel_arg);
    }
  }
  thread_free(t);
}

/* ---- waiting ---- */

static int await_gc(lua_State *L) {
  struct vm_await **box = lua_touserdata(L, 1);
  struct vm_await *a = *box;
  if (!a) return 0;
  *box = NULL;
  if (!a->done && a->cancel) {
    a->cancel(a->cancel_arg);
    a->done = true;
  }
  if (!a->done) {
    a->orphan = true; /* vm_await_done frees it */
    return 0;
  }
  if (a->result && a->free_result) a->free_result(a->result);
  free(a);
  return 0;
}

static void await_refuse(lua_State *L, const char *why) {
  lua_pushfstring(L, "cannot wait here: %s", why);
  lua_error(L);
}

void vm_await_check(lua_State *L) {
  struct vm *vm = vm_of(L);
  if (!vm->running) await_refuse(L, "only code that runs in a task or a script may wait (not a key function)");
  bool blocked = !lua_isyieldable(L);
  if (!blocked && L != vm->running->T) { /* a coroutine of the script's own: was it resumed below such a function? */
    lua_getfield(L, LUA_REGISTRYINDEX, "umavez.blocked");
    lua_pushthread(L);
    lua_rawget(L, -2);
    blocked = lua_toboolean(L, -1);
    lua_pop(L, 2);
  }
  if (blocked)
    await_refuse(L, "a function of the C library is on the stack (a callback of table.sort, string.gsub, or alike); "
                    "collect what is needed first, then wait outside of the callback");
}

struct vm_await *vm_await_push(lua_State *L, void (*free_result)(void *)) {
  struct vm_await **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, AWAIT_META);
  lua_setmetatable(L, -2);
  *box = xcalloc(1, sizeof **box);
  (*box)->thread = vm_of(L)->running;
  (*box)->free_result = free_result;
  return *box;
}

void vm_await_done(struct vm_await *a, void *result) {
  if (a->done) bug("a box answered twice");
  a->done = true;
  if (a->orphan) {
    if (result && a->free_result) a->free_result(result);
    free(a);
    return;
  }
  a->result = result;
  struct vm_thread *t = a->thread;
  if (!t || t->await != a) return;
  t->await = NULL;
  if (t->vm->running) {
    loop_defer(t->vm->loop, &t->wake);
  } else {
    thread_resume(t, 0);
  }
}

void *vm_await_result(lua_State *L, int idx) {
  struct vm_await **box = luaL_checkudata(L, idx, AWAIT_META);
  if (!*box || !(*box)->done) luaL_error(L, "no answer yet");
  return (*box)->result;
}

/* wait(box): true when the answer is there already; false: yield now */
static int l_wait(lua_State *L) {
  struct vm_await **box = luaL_checkudata(L, 1, AWAIT_META);
  if ((*box)->done) {
    lua_pushboolean(L, 1);
    return 1;
  }
  struct vm *vm = vm_of(L);
  if (!vm->running || vm->running != (*box)->thread) return luaL_error(L, "cannot wait for another run's answer");
  if (vm->running->await) bug("a coroutine waits for two boxes");
  vm->running->await = *box;
  lua_pushboolean(L, 0);
  return 1;
}

static int l_check(lua_State *L) {
  vm_await_check(L);
  return 0;
}

/* on_top(): does this run in the coroutine that C started (and not in one of the script's own)? */
static int l_on_top(lua_State *L) {
  struct vm *vm = vm_of(L);
  lua_pushboolean(L, vm->running && vm->running->T == L);
  return 1;
}

/* ---- errors ---- */

static int l_error_text(lua_State *L) {
  if (lua_isstring(L, 1)) {
    lua_pushvalue(L, 1);
    lua_tostring(L, -1);
    return 1;
  }
  if (luaL_callmeta(L, 1, "__tostring")) {
    if (lua_isstring(L, -1)) return 1;
  }
  if (lua_istable(L, 1)) {
    lua_pushliteral(L, "message");
    lua_rawget(L, 1);
    if (lua_isstring(L, -1)) return 1;
  }
  lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  return 1;
}

void vm_error_text(lua_State *L, int idx, size_t max, struct buf *out) {
  struct vm *vm = vm_of(L);
  lua_State *M = vm->L; /* L may have no stack left */
  if (!lua_checkstack(M, 8)) return;
  lua_pushvalue(L, idx);
  lua_xmove(L, M, 1);
  lua_pushcfunction(M, l_error_text);
  lua_insert(M, -2);
  bool ok = lua_pcall(M, 1, 1, 0) == 0;
  size_t len = 0;
  const char *s = ok ? lua_tolstring(M, -1, &len) : NULL;
  if (s) {
    buf_append(out, s, len < max ? len : max);
  } else {
    buf_puts(out, "(error while describing an error)");
  }
  lua_pop(M, 1);
}

static int l_traceback(lua_State *L) {
  luaL_traceback(L, lua_touserdata(L, 1), NULL, 0);
  return 1;
}

void vm_traceback(struct vm *vm, lua_State *T, size_t max, struct buf *out) {
  lua_State *M = vm->L;
  lua_pushcfunction(M, l_traceback);
  lua_pushlightuserdata(M, T);
  size_t len = 0;
  const char *s = lua_pcall(M, 1, 1, 0) == 0 ? lua_tolstring(M, -1, &len) : NULL;
  if (s) buf_append(out, s, len < max ? len : max);
  lua_pop(M, 1);
}

/* ---- the state ---- */

void vm_preload(struct vm *vm, const char *name, lua_CFunction open) {
  lua_State *L = vm->L;
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, open);
  lua_setfield(L, -2, name);
  lua_pop(L, 2);
}

static int open_vm(lua_State *L) {
  static const luaL_Reg functions[] = {{"wait", l_wait}, {"check", l_check}, {"on_top", l_on_top}, {NULL, NULL}};
  luaL_newmetatable(L, AWAIT_META);
  lua_pushcfunction(L, await_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushliteral(L, "umavez.await");
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  lua_pushlightuserdata(L, &token_key);
  lua_setfield(L, -2, "token");
  lua_getfield(L, LUA_REGISTRYINDEX, "umavez.blocked");
  lua_setfield(L, -2, "blocked");
  return 1;
}

static void set_path(lua_State *L, const char *field, const char *prefix) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, field);
  const char *old = lua_tostring(L, -1);
  const char *rest = old && strncmp(old, "./", 2) == 0 ? strchr(old, ';') : NULL; /* never the current folder */
  lua_pushfstring(L, "%s%s", prefix, rest ? rest + 1 : old ? old : "");
  lua_setfield(L, -3, field);
  lua_pop(L, 2);
}

static int open_state(lua_State *L) {
  struct vm *vm = lua_touserdata(L, 1);
  luaL_openlibs(L);
  lua_pushlightuserdata(L, &vm_key);
  lua_pushlightuserdata(L, vm);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_newtable(L); /* coroutines that were resumed where a yield can't pass; keys weak */
  lua_newtable(L);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_setfield(L, LUA_REGISTRYINDEX, "umavez.blocked");
  const char *dir = lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", vm->lua_dir, vm->lua_dir);
  set_path(L, "path", dir);
  set_path(L, "cpath", "");
  vm_preload(vm, "umavez.c.vm", open_vm);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "umavez.vm");
  lua_call(L, 1, 0);
  return 0;
}

struct vm *vm_new(struct loop *loop, const char *lua_dir, struct err *err) {
  lua_State *L = luaL_newstate();
  if (!L) die("cannot make a Lua state");
  struct vm *vm = xcalloc(1, sizeof *vm);
  vm->L = L;
  vm->loop = loop;
  vm->lua_dir = xstrdup(lua_dir);
  list_init(&vm->threads);
  lua_pushcfunction(L, open_state);
  lua_pushlightuserdata(L, vm);
  if (lua_pcall(L, 1, 0, 0) != 0) {
    err_set(err, ERR_ENV, "lua_library", "cannot load the Lua library from %s: %s", lua_dir, lua_tostring(L, -1));
    vm_free(vm);
    return NULL;
  }
  return vm;
}

void vm_free(struct vm *vm) {
  if (!vm) return;
  if (vm->running) bug("the VM freed from inside Lua");
  while (!list_empty(&vm->threads)) vm_thread_drop(container_of(vm->threads.next, struct vm_thread, in_vm));
  lua_close(vm->L);
  free(vm->lua_dir);
  free(vm);
}
