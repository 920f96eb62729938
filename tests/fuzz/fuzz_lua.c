/* fuzz_lua: what is written in Lua, with the program's own modules. One subject a file of tests/fuzz/lua; it gives a function that
 * takes an input's octets and raises when an invariant is broken. The environment names it: UMAVEZ_FUZZ_LUA=tests/fuzz/lua/cron.lua.
 *
 * A hook tells clang's fuzzer which lines of lua/umavez were executed, and how often: each line is a counter. It also bounds what an
 * input may do: whoever goes on after so many instructions hangs. debug.sethook is replaced, so that the modules' own bound
 * (context.lua) works beside it, a hundred times tighter.
 */
// fuzz-sources: runtime/base/*.c runtime/io/*.c runtime/host/*.c runtime/core/*.c runtime/bind/*.c
// fuzz-pkgs: luajit libpq libcrypto libmicrohttpd
// fuzz-libs: -lhiredis -lev -lm -ldl
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "bind/bind.h"
#include "core/task.h"
#include "host/vm.h"
#include "io/loop.h"
#include "luajit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { COUNTERS = 1 << 14, EVERY = 1000, MOST = 60000000, TIGHTER = 100, CACHE = 1 << 8, COLLECT = 200 };

/* clang's fuzzer looks at this section after each input. */
__attribute__((section("__libfuzzer_extra_counters"), used)) static uint8_t counters[COUNTERS];

static struct loop *loop;
static struct vm *vm;
static int subject; /* registry: the function */
static int64_t instructions, bound, bound_from; /* bound 0: none */
static int bound_fn = LUA_NOREF;

/* ---- the hook ---- */

/* 0: not a file of ours. */
static uint32_t file_hash(const char *source) {
  static struct { const char *source; uint32_t hash; } cache[CACHE]; /* sources are interned, but may be collected: manifests' are not kept here */
  unsigned at = (unsigned)((uintptr_t)source >> 3) % CACHE;
  uint32_t hash = 2166136261u;

  if (cache[at].source == source) return cache[at].hash;
  if (!strstr(source, "/lua/umavez/") && strncmp(source, "@lua/umavez/", 12) != 0) return 0;
  for (const char *p = source; *p; p++) hash = (hash ^ (uint8_t)*p) * 16777619u;
  cache[at].source = source;
  return cache[at].hash = hash ? hash : 1;
}

static void on_hook(lua_State *L, lua_Debug *ar) {
  uint32_t hash;

  if (ar->event == LUA_HOOKLINE) {
    lua_getinfo(L, "S", ar);
    hash = file_hash(ar->source);
    if (hash) counters[(hash + (uint32_t)ar->currentline * 2654435761u) >> 8 & (COUNTERS - 1)]++;
    return;
  }
  instructions += EVERY;
  if (instructions > MOST) {
    luaL_traceback(L, L, NULL, 0);
    bug("broken: it goes on after %d instructions: %s", MOST, lua_tostring(L, -1));
  }
  if (bound && instructions - bound_from > bound) {
    bound = 0;
    lua_rawgeti(L, LUA_REGISTRYINDEX, bound_fn);
    lua_call(L, 0, 0); /* raises */
  }
}

/* debug.sethook(fn, "", count), and debug.sethook() */
static int set_hook(lua_State *L) {
  luaL_unref(L, LUA_REGISTRYINDEX, bound_fn);
  bound_fn = LUA_NOREF;
  bound = 0;
  if (lua_gettop(L) == 0) return 0;
  bound = luaL_checkinteger(L, 3) / TIGHTER;
  bound_from = instructions;
  lua_settop(L, 1);
  bound_fn = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

static int forget_tasks(lua_State *L) {
  task_forget_all();
  return 0;
}

/* ---- the subject ---- */

static int with_traceback(lua_State *L) {
  if (lua_istable(L, 1)) lua_getfield(L, 1, "message"); /* an error object */
  luaL_traceback(L, L, lua_tostring(L, -1), 1);
  return 1;
}

static int open_subject(lua_State *L) {
  const char *path = getenv("UMAVEZ_FUZZ_LUA");

  if (!path) die("UMAVEZ_FUZZ_LUA names no file of tests/fuzz/lua");
  lua_getglobal(L, "debug");
  lua_pushcfunction(L, set_hook);
  lua_setfield(L, -2, "sethook");
  lua_pushcfunction(L, forget_tasks);
  lua_setglobal(L, "forget_tasks");
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  lua_pushliteral(L, ";tests/fuzz/?.lua");
  lua_concat(L, 2);
  lua_setfield(L, -2, "path");
  if (luaL_loadfile(L, path) != 0) lua_error(L);
  lua_call(L, 0, 1);
  luaL_checktype(L, -1, LUA_TFUNCTION);
  subject = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

static void start(void) {
  struct err e = ERR_INIT;
  lua_State *L;

  loop = loop_new();
  vm = vm_new(loop, "lua", &e);
  if (!vm) die("no Lua: %s", e.message);
  bind_open(vm);
  L = vm_state(vm);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF); /* hooks do not fire in compiled code */
  lua_pushcfunction(L, open_subject);
  if (lua_pcall(L, 0, 0, 0) != 0) die("cannot load the subject: %s", lua_tostring(L, -1));
  lua_sethook(L, on_hook, LUA_MASKLINE | LUA_MASKCOUNT, EVERY);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int inputs;
  lua_State *L;

  if (!vm) start();
  L = vm_state(vm);
  instructions = 0;
  bound = 0;
  lua_pushcfunction(L, with_traceback);
  lua_rawgeti(L, LUA_REGISTRYINDEX, subject);
  lua_pushlstring(L, (const char *)data, size);
  if (lua_pcall(L, 1, 0, -3) != 0) bug("broken: %s", lua_tostring(L, -1));
  lua_settop(L, 0);
  if (++inputs % COLLECT == 0) lua_gc(L, LUA_GCCOLLECT, 0);
  return 0;
}
