#include "bind/bind_conf.h"

#include <stdlib.h>
#include <string.h>

#include "bind/bind_value.h"

#define CONF_META "umavez.conf"

struct conf *bind_conf_check(lua_State *L, int idx) { return luaL_checkudata(L, idx, CONF_META); }

static int l_new(lua_State *L) {
  struct conf *c = lua_newuserdata(L, sizeof *c);
  conf_init(c);
  luaL_getmetatable(L, CONF_META);
  lua_setmetatable(L, -2);
  return 1;
}

static int l_gc(lua_State *L) {
  conf_fini(lua_touserdata(L, 1));
  return 0;
}

/* set(conf, name, text, source): raises unknown_option, bad_option */
static int l_set(lua_State *L) {
  struct err e = ERR_INIT;
  if (conf_set(bind_conf_check(L, 1), luaL_checkstring(L, 2), luaL_checkstring(L, 3), luaL_checkstring(L, 4), &e))
    return bind_raise(L, &e);
  return 0;
}

static int l_load_env(lua_State *L) {
  struct err e = ERR_INIT;
  if (conf_load_env(bind_conf_check(L, 1), &e)) return bind_raise(L, &e);
  return 0;
}

static const struct conf_option *check_option(lua_State *L, int idx) {
  const struct conf_option *o = conf_find(luaL_checkstring(L, idx));
  return o;
}

static void push_list(lua_State *L, const struct conf_list *list) {
  lua_createtable(L, list->n, 0);
  bind_mark_array(L, -1);
  for (int i = 0; i < list->n; i++) {
    lua_pushstring(L, list->items[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

static void push_value(lua_State *L, const struct conf *c, const struct conf_option *o) {
  const char *member = (const char *)c + o->offset;
  struct buf text = BUF_INIT;
  switch (o->type) {
  case CONF_INT:
  case CONF_DURATION: lua_pushnumber(L, (lua_Number) * (const int64_t *)member); break;
  case CONF_BOOL: lua_pushboolean(L, *(const bool *)member); break;
  case CONF_LIST: push_list(L, (const struct conf_list *)member); break;
  default:
    conf_get(c, o, &text);
    lua_pushlstring(L, buf_cstr(&text), text.len);
    buf_fini(&text);
    break;
  }
}

/* get(conf, name) → value (durations in milliseconds) | nil when there is no such option */
static int l_get(lua_State *L) {
  const struct conf *c = bind_conf_check(L, 1);
  const struct conf_option *o = check_option(L, 2);
  if (!o) return 0;
  push_value(L, c, o);
  return 1;
}

/* text(conf, name) → the value as it would be written */
static int l_text(lua_State *L) {
  const struct conf *c = bind_conf_check(L, 1);
  const struct conf_option *o = check_option(L, 2);
  if (!o) return 0;
  struct buf text = BUF_INIT;
  conf_get(c, o, &text);
  lua_pushlstring(L, buf_cstr(&text), text.len);
  buf_fini(&text);
  return 1;
}

static int l_source(lua_State *L) {
  const struct conf *c = bind_conf_check(L, 1);
  const struct conf_option *o = check_option(L, 2);
  if (!o) return 0;
  lua_pushstring(L, conf_source(c, o));
  return 1;
}

static void set_string(lua_State *L, const char *name, const char *value) {
  if (!value) return;
  lua_pushstring(L, value);
  lua_setfield(L, -2, name);
}

static int add_option(const struct conf_option *o, void *arg) {
  lua_State *L = arg;
  lua_createtable(L, 0, 8);
  set_string(L, "name", o->name);
  set_string(L, "type", conf_type_name(o->type));
  set_string(L, "default", o->def);
  set_string(L, "env", o->env);
  set_string(L, "values", o->values);
  set_string(L, "doc", o->doc);
  if (o->type == CONF_INT || o->type == CONF_DURATION) {
    lua_pushnumber(L, (lua_Number)o->min);
    lua_setfield(L, -2, "min");
    lua_pushnumber(L, (lua_Number)o->max);
    lua_setfield(L, -2, "max");
  }
  lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
  return 0;
}

static int l_options(lua_State *L) {
  lua_newtable(L);
  luaL_checkstack(L, 8, "options");
  conf_each(add_option, L);
  return 1;
}

static int l_redact(lua_State *L) {
  struct buf out = BUF_INIT;
  conf_redact_url(luaL_checkstring(L, 1), &out);
  lua_pushlstring(L, buf_cstr(&out), out.len);
  buf_fini(&out);
  return 1;
}

int bind_conf_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"new", l_new},         {"set", l_set},       {"load_env", l_load_env},
                                       {"get", l_get},         {"text", l_text},     {"source", l_source},
                                       {"options", l_options}, {"redact", l_redact}, {NULL, NULL}};
  luaL_newmetatable(L, CONF_META);
  lua_pushcfunction(L, l_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushliteral(L, CONF_META);
  lua_setfield(L, -2, "__metatable");
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
