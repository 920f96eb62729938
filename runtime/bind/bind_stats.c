#include "bind/bind_stats.h"

#include <lauxlib.h>

#include "base/stats.h"

static void add_values(lua_State *L, const struct stats_metric *m) {
  lua_newtable(L);
  for (int i = 0; m->values && i < m->size; i++) {
    lua_pushstring(L, m->values[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "values");
}

static void add_bounds(lua_State *L, const struct stats_metric *m) {
  lua_newtable(L);
  for (int i = 0; i < m->nbounds; i++) {
    lua_pushnumber(L, (lua_Number)m->bounds[i] / (m->in_seconds ? 1e6 : 1));
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "bounds");
}

/* metrics() → array of { name, type, help, by_task, label, values, bounds } */
static int l_metrics(lua_State *L) {
  static const char *const types[] = {"counter", "gauge", "histogram"};

  lua_createtable(L, stats_metrics(), 0);
  for (int i = 0; i < stats_metrics(); i++) {
    const struct stats_metric *m = stats_metric_at(i);
    lua_createtable(L, 0, 7);
    lua_pushstring(L, m->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, types[m->type]);
    lua_setfield(L, -2, "type");
    lua_pushstring(L, m->help);
    lua_setfield(L, -2, "help");
    lua_pushboolean(L, m->by_task);
    lua_setfield(L, -2, "by_task");
    lua_pushstring(L, m->label);
    lua_setfield(L, -2, "label");
    add_values(L, m);
    add_bounds(L, m);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

int bind_stats_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"metrics", l_metrics}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
