#include "bind/bind_value.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "bind/bind_json.h"

#define TYPE_CDATA 10 /* LuaJIT's own; lua.h does not name it */

static char null_key, array_key, error_key, cdata_kind_key, new_int64_key; /* registry keys */

struct text {
  size_t len;
  char data[];
};

static const struct {
  enum bind_kind kind;
  const char *meta;
} texts[] = {{KIND_DECIMAL, "umavez.decimal"}, {KIND_JSON, "umavez.json"}, {KIND_BYTEA, "umavez.bytea"}};

static void registry_get(lua_State *L, void *key) {
  lua_pushlightuserdata(L, key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

/* pops the value */
static void registry_set(lua_State *L, void *key) {
  lua_pushlightuserdata(L, key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

static enum bind_kind userdata_kind(lua_State *L, int idx) {
  enum bind_kind kind = KIND_OTHER;
  registry_get(L, &null_key);
  bool null = lua_touserdata(L, -1) == lua_touserdata(L, idx);
  lua_pop(L, 1);
  if (null) return KIND_NULL;
  if (!lua_getmetatable(L, idx)) return KIND_OTHER;
  for (size_t i = 0; i < sizeof texts / sizeof *texts && kind == KIND_OTHER; i++) {
    luaL_getmetatable(L, texts[i].meta);
    if (lua_rawequal(L, -1, -2)) kind = texts[i].kind;
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return kind;
}

static enum bind_kind cdata_kind(lua_State *L, int idx) {
  registry_get(L, &cdata_kind_key);
  lua_pushvalue(L, idx);
  int kind = lua_pcall(L, 1, 1, 0) == 0 ? (int)lua_tointeger(L, -1) : 0;
  lua_pop(L, 1);
  return kind == 1 ? KIND_INT64 : kind == 2 ? KIND_UINT64 : KIND_OTHER;
}

enum bind_kind bind_kind(lua_State *L, int idx) {
  if (idx < 0) idx = lua_gettop(L) + idx + 1;
  switch (lua_type(L, idx)) {
  case LUA_TNONE:
  case LUA_TNIL: return KIND_NIL;
  case LUA_TBOOLEAN: return KIND_BOOLEAN;
  case LUA_TNUMBER: return KIND_NUMBER;
  case LUA_TSTRING: return KIND_STRING;
  case LUA_TUSERDATA: return lua_checkstack(L, 4) ? userdata_kind(L, idx) : KIND_OTHER;
  case LUA_TTABLE: {
    if (!lua_checkstack(L, 4) || !lua_getmetatable(L, idx)) return KIND_TABLE;
    registry_get(L, &array_key);
    bool array = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return array ? KIND_ARRAY : KIND_TABLE;
  }
  case TYPE_CDATA: return lua_checkstack(L, 4) ? cdata_kind(L, idx) : KIND_OTHER;
  default: return KIND_OTHER;
  }
}

const char *bind_kind_name(lua_State *L, int idx) {
  switch (bind_kind(L, idx)) {
  case KIND_NIL: return "nil";
  case KIND_NULL: return "umavez.null";
  case KIND_BOOLEAN: return "a boolean";
  case KIND_NUMBER: return "a number";
  case KIND_STRING: return "a string";
  case KIND_INT64:
  case KIND_UINT64: return "a 64-bit integer";
  case KIND_DECIMAL: return "umavez.decimal";
  case KIND_JSON: return "umavez.json";
  case KIND_BYTEA: return "umavez.bytea";
  case KIND_ARRAY: return "an array";
  case KIND_TABLE: return "a table";
  default: break;
  }
  switch (lua_type(L, idx)) {
  case LUA_TFUNCTION: return "a function";
  case LUA_TTHREAD: return "a coroutine";
  case TYPE_CDATA: return "cdata";
  default: return "userdata";
  }
}

const char *bind_text(lua_State *L, int idx, size_t *len) {
  const struct text *t = lua_touserdata(L, idx);
  if (len) *len = t->len;
  return t->data;
}

int64_t bind_int64(lua_State *L, int idx) {
  int64_t i;
  memcpy(&i, lua_topointer(L, idx), sizeof i);
  return i;
}

void bind_push_null(lua_State *L) { registry_get(L, &null_key); }

void bind_push_int64(lua_State *L, int64_t i) {
  if (i >= -(INT64_C(1) << 53) && i <= INT64_C(1) << 53) {
    lua_pushnumber(L, (lua_Number)i);
    return;
  }
  registry_get(L, &new_int64_key);
  lua_call(L, 0, 1);
  memcpy((void *)(uintptr_t)lua_topointer(L, -1), &i, sizeof i);
}

void bind_push_text(lua_State *L, enum bind_kind kind, const char *p, size_t len) {
  struct text *t = lua_newuserdata(L, sizeof *t + len + 1);
  t->len = len;
  memcpy(t->data, p, len);
  t->data[len] = 0;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].kind == kind) luaL_getmetatable(L, texts[i].meta);
  lua_setmetatable(L, -2);
}

void bind_mark_array(lua_State *L, int idx) {
  if (idx < 0) idx = lua_gettop(L) + idx + 1;
  registry_get(L, &array_key);
  lua_setmetatable(L, idx);
}

/* ---- errors ---- */

static bool is_retryable(const struct err *e) {
  static const char *const states[] = {"08", "40", "53", "55P03", "57P", "58"};
  if (e->class == ERR_ENV || e->class == ERR_TIMEOUT) return true;
  for (size_t i = 0; i < sizeof states / sizeof *states; i++)
    if (strncmp(e->sqlstate, states[i], strlen(states[i])) == 0) return true;
  return false;
}

static void set_field(lua_State *L, const char *name, const char *value) {
  if (!*value) return;
  lua_pushstring(L, value);
  lua_setfield(L, -2, name);
}

void bind_push_error(lua_State *L, const struct err *e) {
  lua_createtable(L, 0, 6);
  set_field(L, "code", e->code);
  set_field(L, "message", e->message);
  set_field(L, "sqlstate", e->sqlstate);
  set_field(L, "constraint", e->constraint);
  set_field(L, "detail", e->detail);
  lua_pushboolean(L, is_retryable(e));
  lua_setfield(L, -2, "retryable");
  registry_get(L, &error_key);
  lua_setmetatable(L, -2);
}

int bind_raise(lua_State *L, const struct err *e) {
  bind_push_error(L, e);
  return lua_error(L);
}

int bind_refuse(lua_State *L, const char *code, const char *message) {
  struct err e = ERR_INIT;
  err_set(&e, ERR_INPUT, code, "%s", message);
  return bind_raise(L, &e);
}

static bool raw_string(lua_State *L, int idx, const char *name, char *out, size_t size) {
  lua_pushstring(L, name);
  lua_rawget(L, idx);
  bool found = lua_type(L, -1) == LUA_TSTRING;
  if (found) err_copy_text(out, size, lua_tostring(L, -1));
  lua_pop(L, 1);
  return found;
}

void bind_error_value(lua_State *L, int idx, struct err *e) {
  if (idx < 0) idx = lua_gettop(L) + idx + 1;
  struct err found = ERR_INIT;
  bool object = false;
  found.class = ERR_INPUT;
  if (lua_istable(L, idx) && lua_checkstack(L, 8) && lua_getmetatable(L, idx)) {
    registry_get(L, &error_key);
    object = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
  }
  if (object) {
    raw_string(L, idx, "code", found.code, sizeof found.code);
    raw_string(L, idx, "constraint", found.constraint, sizeof found.constraint);
    raw_string(L, idx, "detail", found.detail, sizeof found.detail);
    raw_string(L, idx, "message", found.message, sizeof found.message);
    if (raw_string(L, idx, "sqlstate", found.sqlstate, sizeof found.sqlstate)) found.class = ERR_SQL;
  } else {
    struct buf text = BUF_INIT;
    vm_error_text(L, idx, 65536, &text);
    for (size_t i = 0; i < text.len; i++) /* a C string would end at the first */
      if (text.data[i] == '\0') text.data[i] = ' ';
    err_copy_text(found.message, sizeof found.message, buf_cstr(&text));
    strcpy(found.code, "error");
    buf_fini(&text);
  }
  *e = found;
}

/* tostring(error object) */
static int l_error_tostring(lua_State *L) {
  lua_settop(L, 1);
  luaL_checktype(L, 1, LUA_TTABLE);
  struct buf b = BUF_INIT;
  char text[1024];
  if (raw_string(L, 1, "message", text, sizeof text)) buf_puts(&b, text);
  if (raw_string(L, 1, "sqlstate", text, sizeof text)) buf_printf(&b, " (SQLSTATE %s)", text);
  lua_pushlstring(L, buf_cstr(&b), b.len);
  buf_fini(&b);
  return 1;
}

/* error_object{code=, message=, …}: for Lua code of ours that raises typed errors */
static int l_error_object(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  registry_get(L, &error_key);
  lua_setmetatable(L, 1);
  return 1;
}

/* ---- Lua functions ---- */

static int l_null_tostring(lua_State *L) {
  lua_pushliteral(L, "null");
  return 1;
}

static int l_text_tostring(lua_State *L) {
  size_t len;
  const char *p = bind_text(L, 1, &len);
  lua_pushlstring(L, p, len);
  return 1;
}

static int l_text_eq(lua_State *L) {
  size_t a, b;
  enum bind_kind kind = bind_kind(L, 1);
  if (kind != bind_kind(L, 2) || kind < KIND_DECIMAL || kind > KIND_BYTEA) return 0;
  const char *p = bind_text(L, 1, &a), *q = bind_text(L, 2, &b);
  lua_pushboolean(L, a == b && memcmp(p, q, a) == 0);
  return 1;
}

static int l_text_concat(lua_State *L) {
  for (int i = 1; i <= 2; i++) {
    if (lua_type(L, i) == LUA_TUSERDATA && bind_kind(L, i) == KIND_DECIMAL) {
      size_t len;
      const char *p = bind_text(L, i, &len);
      lua_pushlstring(L, p, len);
      lua_replace(L, i);
    }
    luaL_checkstring(L, i);
  }
  lua_concat(L, 2);
  return 1;
}

/* decimal:number(): the nearest double */
static int l_decimal_number(lua_State *L) {
  luaL_checkudata(L, 1, "umavez.decimal");
  lua_pushnumber(L, strtod(bind_text(L, 1, NULL), NULL));
  return 1;
}

static int l_decimal(lua_State *L) {
  struct buf b = BUF_INIT;
  luaL_checkany(L, 1);
  switch (bind_kind(L, 1)) {
  case KIND_DECIMAL: lua_settop(L, 1); return 1;
  case KIND_STRING: {
    size_t len;
    const char *s = lua_tolstring(L, 1, &len);
    if (!json_number_valid(s, len)) return luaL_error(L, "not a decimal number: %s", s);
    bind_push_text(L, KIND_DECIMAL, s, len);
    return 1;
  }
  case KIND_NUMBER:
    if (json_write_double(&b, lua_tonumber(L, 1)) != 0) return luaL_error(L, "not a decimal number: NaN or infinite");
    break;
  case KIND_INT64: buf_printf(&b, "%lld", (long long)bind_int64(L, 1)); break;
  case KIND_UINT64: buf_printf(&b, "%llu", (unsigned long long)bind_int64(L, 1)); break;
  default: return luaL_error(L, "a decimal is made of a string or a number, not of %s", bind_kind_name(L, 1));
  }
  bind_push_text(L, KIND_DECIMAL, b.data, b.len);
  buf_fini(&b);
  return 1;
}

static int l_bytea(lua_State *L) {
  size_t len;
  if (lua_type(L, 1) != LUA_TSTRING) return luaL_error(L, "umavez.bytea takes a string, not %s", bind_kind_name(L, 1));
  const char *s = lua_tolstring(L, 1, &len);
  bind_push_text(L, KIND_BYTEA, s, len);
  return 1;
}

static int l_json(lua_State *L) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  luaL_checkany(L, 1);
  if (bind_json_encode(L, 1, BIND_JSON_MAX, &b, &e)) {
    buf_fini(&b);
    return bind_raise(L, &e);
  }
  bind_push_text(L, KIND_JSON, b.data, b.len);
  buf_fini(&b);
  return 1;
}

static int l_array(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  bind_mark_array(L, 1);
  return 1;
}

static int l_is_array(lua_State *L) {
  lua_pushboolean(L, bind_kind(L, 1) == KIND_ARRAY);
  return 1;
}

static int l_encode(lua_State *L) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  luaL_checkany(L, 1);
  if (bind_json_encode(L, 1, BIND_JSON_MAX, &b, &e)) {
    buf_fini(&b);
    return bind_raise(L, &e);
  }
  lua_pushlstring(L, b.data, b.len);
  buf_fini(&b);
  return 1;
}

static int l_decode(lua_State *L) {
  size_t len;
  struct err e = ERR_INIT;
  const char *s = luaL_checklstring(L, 1, &len);
  if (bind_json_decode(L, s, len, &e)) return bind_raise(L, &e);
  return 1;
}

static void text_metatable(lua_State *L, const char *name) {
  static const luaL_Reg methods[] = {
      {"__tostring", l_text_tostring}, {"__eq", l_text_eq}, {"__concat", l_text_concat}, {NULL, NULL}};
  luaL_newmetatable(L, name);
  luaL_register(L, NULL, methods);
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__metatable");
}

static const char cdata_chunk[] =
    "local ffi = require('ffi')\n"
    "local i64, u64, istype = ffi.typeof('int64_t'), ffi.typeof('uint64_t'), ffi.istype\n"
    "return function(v) return istype(i64, v) and 1 or istype(u64, v) and 2 or 0 end, function() return i64() end\n";

int bind_value_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"array", l_array},   {"is_array", l_is_array},         {"bytea", l_bytea},
                                       {"json", l_json},     {"decimal", l_decimal},           {"encode", l_encode},
                                       {"decode", l_decode}, {"error_object", l_error_object}, {NULL, NULL}};
  if (luaL_loadbuffer(L, cdata_chunk, sizeof cdata_chunk - 1, "=cdata")) return lua_error(L);
  lua_call(L, 0, 2);
  registry_set(L, &new_int64_key);
  registry_set(L, &cdata_kind_key);

  lua_newtable(L);
  lua_pushliteral(L, "umavez.array");
  lua_setfield(L, -2, "__metatable");
  registry_set(L, &array_key);

  lua_newtable(L);
  lua_pushcfunction(L, l_error_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushliteral(L, "umavez.error");
  lua_setfield(L, -2, "__metatable");
  registry_set(L, &error_key);

  text_metatable(L, "umavez.json");
  text_metatable(L, "umavez.bytea");
  text_metatable(L, "umavez.decimal");
  lua_newtable(L);
  lua_pushcfunction(L, l_decimal_number);
  lua_setfield(L, -2, "number");
  lua_setfield(L, -2, "__index");
  lua_pop(L, 3);

  lua_newtable(L);
  luaL_register(L, NULL, functions);
  lua_newuserdata(L, 1);
  lua_newtable(L);
  lua_pushcfunction(L, l_null_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushliteral(L, "umavez.null");
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  registry_set(L, &null_key);
  lua_setfield(L, -2, "null");
  return 1;
}
