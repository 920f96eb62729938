#include "bind/bind.h"

#include "bind/bind_conf.h"
#include "bind/bind_pg.h"
#include "bind/bind_run.h"
#include "bind/bind_stats.h"
#include "bind/bind_sys.h"
#include "bind/bind_value.h"
#include "bind/bind_valkey.h"

static int open_modules(lua_State *L) {
  struct vm *vm = vm_of(L);
  vm_preload(vm, "umavez.c.value", bind_value_open);
  vm_preload(vm, "umavez.c.pg", bind_pg_open);
  vm_preload(vm, "umavez.c.sys", bind_sys_open);
  vm_preload(vm, "umavez.c.valkey", bind_valkey_open);
  vm_preload(vm, "umavez.c.conf", bind_conf_open);
  vm_preload(vm, "umavez.c.run", bind_run_open);
  vm_preload(vm, "umavez.c.stats", bind_stats_open);
  lua_getglobal(L, "require"); /* its marks and metatables are everybody's */
  lua_pushliteral(L, "umavez.c.value");
  lua_call(L, 1, 0);
  return 0;
}

void bind_open(struct vm *vm) {
  lua_State *L = vm_state(vm);
  lua_pushcfunction(L, open_modules);
  if (lua_pcall(L, 0, 0, 0) != 0) die("cannot open the Lua modules: %s", lua_tostring(L, -1));
}
