#include "bind/bind_task.h"

#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "bind/bind_value.h"
#include "core/task.h"

static const char *get_string(lua_State *L, const char *name) {
  lua_getfield(L, 1, name);
  return luaL_checkstring(L, -1); /* the table keeps it */
}

static int64_t get_integer(lua_State *L, const char *name) {
  lua_getfield(L, 1, name);
  int64_t i = (int64_t)luaL_checknumber(L, -1);
  lua_pop(L, 1);
  return i;
}

static bool get_boolean(lua_State *L, const char *name) {
  lua_getfield(L, 1, name);
  bool b = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return b;
}

/* The strings of the array on top of the stack. They are checked before anything is allocated. */
static char **take_paths(lua_State *L, int *n) {
  *n = (int)lua_objlen(L, -1);
  if (*n == 0) return NULL;
  char **paths = xcalloc((size_t)*n, sizeof *paths);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, -1, i + 1);
    const char *path = lua_tostring(L, -1);
    paths[i] = xstrdup(path ? path : "");
    lua_pop(L, 1);
  }
  return paths;
}

static void set_key(lua_State *L, struct task *t) {
  lua_getfield(L, 1, "key");
  if (lua_istable(L, -1)) {
    t->key = TASK_KEY_PATHS;
    t->key_paths = take_paths(L, &t->nkey_paths);
  } else {
    const char *key = lua_tostring(L, -1);
    t->key = key && strcmp(key, "function") == 0 ? TASK_KEY_FUNCTION : TASK_KEY_RUN_ID;
  }
  lua_getfield(L, 1, "fingerprint");
  if (lua_istable(L, -1)) t->fingerprint_paths = take_paths(L, &t->nfingerprint_paths);
  lua_pop(L, 2);
}

/* A copy of the text field of the table on top of the stack; NULL when it is none. */
static char *take_text(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  const char *text = lua_tostring(L, -1);
  char *copy = text ? xstrdup(text) : NULL;
  lua_pop(L, 1);
  return copy;
}

static bool text_is(lua_State *L, const char *name, const char *word) {
  lua_getfield(L, -1, name);
  const char *text = lua_tostring(L, -1);
  bool is = text && strcmp(text, word) == 0;
  lua_pop(L, 1);
  return is;
}

static int64_t take_number(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  int64_t n = (int64_t)lua_tonumber(L, -1);
  lua_pop(L, 1);
  return n;
}

/* The manifest's http, which lua/umavez/manifest.lua has checked and laid flat. */
static struct task_http *take_http(lua_State *L) {
  struct task_http *h = NULL;
  lua_getfield(L, 1, "http");
  if (lua_istable(L, -1)) {
    h = xcalloc(1, sizeof *h);
    h->method = take_text(L, "method");
    h->path = take_text(L, "path");
    h->mode = text_is(L, "mode", "enqueue") ? TASK_HTTP_ENQUEUE : TASK_HTTP_RUN;
    h->key = text_is(L, "key", "header")     ? TASK_HTTP_KEY_HEADER
             : text_is(L, "key", "optional") ? TASK_HTTP_KEY_OPTIONAL
                                             : TASK_HTTP_KEY_REQUIRED;
    h->key_header = take_text(L, "key_header");
    lua_getfield(L, -1, "key_uuid");
    h->key_uuid = lua_toboolean(L, -1);
    lua_pop(L, 1);
    h->wait_ms = take_number(L, "wait_ms");
    h->auth = text_is(L, "auth", "signature") ? TASK_HTTP_AUTH_SIGNATURE
              : text_is(L, "auth", "none")    ? TASK_HTTP_AUTH_NONE
                                              : TASK_HTTP_AUTH_TOKEN;
    h->scope = take_text(L, "scope");
    h->signature_header = take_text(L, "signature_header");
    h->signature_prefix = take_text(L, "signature_prefix");
    h->signature_env = take_text(L, "signature_env");
    h->max_body_bytes = take_number(L, "max_body");
  }
  lua_pop(L, 1);
  return h;
}

int bind_task_add(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  struct task given = {0};
  struct err e = ERR_INIT;
  const char *name = get_string(L, "name"), *queue = get_string(L, "queue"), *owner = get_string(L, "owner");
  given.lease_ms = get_integer(L, "lease_ms");
  given.timeout_ms = get_integer(L, "timeout_ms");
  given.retention_ms = get_integer(L, "retention_ms");
  given.max_attempts = (int)get_integer(L, "max_attempts");
  given.max_crashes = (int)get_integer(L, "max_crashes");
  given.retry_base_ms = get_integer(L, "retry_base_ms");
  given.retry_cap_ms = get_integer(L, "retry_cap_ms");
  given.concurrency = (int)get_integer(L, "concurrency");
  given.history = get_boolean(L, "history");
  given.batch = (int)get_integer(L, "batch");
  given.has_prepare = get_boolean(L, "has_prepare");

  struct task *t = task_new(name);
  free(t->queue);
  t->queue = xstrdup(queue);
  t->owner = strcmp(owner, "platform") == 0 ? TASK_OWNER_PLATFORM : TASK_OWNER_TENANT;
  t->lease_ms = given.lease_ms;
  t->timeout_ms = given.timeout_ms;
  t->retention_ms = given.retention_ms;
  t->max_attempts = given.max_attempts;
  t->max_crashes = given.max_crashes;
  t->retry_base_ms = given.retry_base_ms;
  t->retry_cap_ms = given.retry_cap_ms;
  t->concurrency = given.concurrency;
  t->history = given.history;
  t->batch = given.batch;
  t->has_prepare = given.has_prepare;
  set_key(L, t);
  t->http = take_http(L);
  lua_pushvalue(L, 1);
  t->schedule = take_text(L, "schedule");
  lua_pop(L, 1);
  if (task_register(t, &e)) return bind_raise(L, &e);
  return 0;
}

int bind_task_declare(lua_State *L) {
  task_declare(luaL_checkstring(L, 1));
  return 0;
}

int bind_task_duration(lua_State *L) {
  struct err e = ERR_INIT;
  int64_t ms;
  if (duration_parse(luaL_checkstring(L, 1), &ms, &e)) {
    lua_pushnil(L);
    lua_pushstring(L, e.message);
    return 2;
  }
  lua_pushnumber(L, (lua_Number)ms);
  return 1;
}
