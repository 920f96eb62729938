#include "bind/bind_json.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "bind/bind_value.h"

/* ---- encode ---- */

struct encoder {
  lua_State *L;
  struct buf *out;
  size_t max;
  struct err *e;
  char path[80]; /* of the fault, built from the inside out */
};

static int encode(struct encoder *c, int idx, int depth);

static int fault(struct encoder *c, const char *what) { return err_set(c->e, ERR_INPUT, "json_value", "%s", what); }

static int too_large(struct encoder *c) {
  return err_set(c->e, ERR_INPUT, "json_too_large", "the value is above %zu octets as JSON", c->max);
}

static void add_path(struct encoder *c, const char *step) {
  char longer[sizeof c->path];
  if (strlen(step) + strlen(c->path) >= sizeof longer) return;
  strcpy(longer, step);
  strcat(longer, c->path);
  strcpy(c->path, longer);
}

/* An array has the keys 1..n and no other. */
static int encode_array(struct encoder *c, int idx, int depth) {
  lua_State *L = c->L;
  size_t n = lua_objlen(L, idx), seen = 0;
  for (lua_pushnil(L); lua_next(L, idx); seen++) {
    lua_pop(L, 1);
    lua_Number k = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
    if (k < 1 || k > (lua_Number)n || k != floor(k)) {
      bool number = lua_type(L, -1) == LUA_TNUMBER;
      lua_pop(L, 1);
      return fault(c, number ? "an array with holes (use umavez.null for a missing element)"
                             : "a table with both positions and names");
    }
  }
  if (seen != n) return fault(c, "an array with holes (use umavez.null for a missing element)");
  buf_putc(c->out, '[');
  for (size_t i = 1; i <= n; i++) {
    if (i > 1) buf_putc(c->out, ',');
    lua_rawgeti(L, idx, (int)i);
    int rc = encode(c, lua_gettop(L), depth + 1);
    lua_pop(L, 1);
    if (rc) {
      char step[32];
      snprintf(step, sizeof step, "[%zu]", i);
      add_path(c, step);
      return -1;
    }
  }
  buf_putc(c->out, ']');
  return 0;
}

static int encode_object(struct encoder *c, int idx, int depth) {
  lua_State *L = c->L;
  bool first = true;
  buf_putc(c->out, '{');
  for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) {
      bool number = lua_type(L, -2) == LUA_TNUMBER;
      lua_pop(L, 2);
      return fault(c, number ? "a table with both positions and names" : "a table with a key that is neither string nor number");
    }
    if (!first) buf_putc(c->out, ',');
    first = false;
    size_t len;
    const char *key = lua_tolstring(L, -2, &len);
    int rc = json_write_string(c->out, key, len, c->e);
    if (rc == 0) {
      buf_putc(c->out, ':');
      rc = encode(c, lua_gettop(L), depth + 1);
    }
    if (rc) {
      char step[48] = ".";
      size_t valid = json_utf8_span(key, len);
      snprintf(step + 1, sizeof step - 1, "%.*s", (int)(valid < 40 ? valid : 40), key);
      add_path(c, step);
      lua_pop(L, 2);
      return -1;
    }
  }
  buf_putc(c->out, '}');
  return 0;
}

static int encode_table(struct encoder *c, int idx, bool array, int depth) {
  lua_State *L = c->L;
  if (depth > JSON_DEPTH_MAX) return fault(c, "nested deeper than 128 levels, or a table that contains itself");
  if (!lua_checkstack(L, 8)) return fault(c, "nested too deep");
  if (!array) {
    lua_pushnil(L);
    if (lua_next(L, idx)) {
      array = lua_type(L, -2) == LUA_TNUMBER;
      lua_pop(L, 2);
    }
  }
  return array ? encode_array(c, idx, depth) : encode_object(c, idx, depth);
}

static int encode(struct encoder *c, int idx, int depth) {
  lua_State *L = c->L;
  size_t len;
  const char *s;
  if (c->out->len > c->max) return too_large(c);
  enum bind_kind kind = bind_kind(L, idx);
  switch (kind) {
  case KIND_NIL:
  case KIND_NULL: buf_puts(c->out, "null"); return 0;
  case KIND_BOOLEAN: buf_puts(c->out, lua_toboolean(L, idx) ? "true" : "false"); return 0;
  case KIND_NUMBER: return json_write_double(c->out, lua_tonumber(L, idx)) == 0 ? 0 : fault(c, "NaN or an infinite number");
  case KIND_INT64: buf_printf(c->out, "%lld", (long long)bind_int64(L, idx)); return 0;
  case KIND_UINT64: buf_printf(c->out, "%llu", (unsigned long long)bind_int64(L, idx)); return 0;
  case KIND_STRING:
    s = lua_tolstring(L, idx, &len);
    return len > c->max ? too_large(c) : json_write_string(c->out, s, len, c->e);
  case KIND_DECIMAL:
  case KIND_JSON:
    s = bind_text(L, idx, &len);
    buf_append(c->out, s, len);
    return 0;
  case KIND_ARRAY:
  case KIND_TABLE: return encode_table(c, idx, kind == KIND_ARRAY, depth);
  default: {
    char what[64];
    snprintf(what, sizeof what, "%s", bind_kind_name(L, idx));
    return fault(c, what);
  }
  }
}

int bind_json_encode(lua_State *L, int idx, size_t max, struct buf *out, struct err *e) {
  struct err why = ERR_INIT;
  struct encoder c = {.L = L, .out = out, .max = max, .e = &why};
  if (idx < 0) idx = lua_gettop(L) + idx + 1;
  int top = lua_gettop(L);
  int rc = encode(&c, idx, 1);
  lua_settop(L, top);
  if (rc == 0 && out->len <= max) return 0;
  if (rc == 0) too_large(&c);
  if (strcmp(why.code, "json_too_large") == 0) {
    if (e) *e = why;
    return -1;
  }
  return err_set(e, ERR_INPUT, "json_value", "JSON cannot hold this value: %s%s%s", why.message, *c.path ? " at " : "", c.path);
}

/* ---- decode ---- */

/* On the Lua stack: for each open container the table, and for an object's member its key. */
struct decoder {
  lua_State *L;
  int depth;
  bool array[JSON_DEPTH_MAX + 2];
  int n[JSON_DEPTH_MAX + 2];
};

/* the value is on top */
static int store(struct decoder *d) {
  if (d->depth == 0) return 0;
  if (d->array[d->depth]) {
    lua_rawseti(d->L, -2, ++d->n[d->depth]);
  } else {
    lua_rawset(d->L, -3);
  }
  return 0;
}

static int on_null(void *arg) {
  struct decoder *d = arg;
  bind_push_null(d->L);
  return store(d);
}

static int on_boolean(void *arg, bool value) {
  struct decoder *d = arg;
  lua_pushboolean(d->L, value);
  return store(d);
}

static int on_number(void *arg, const char *lexeme, size_t n) {
  struct decoder *d = arg;
  double number;
  int64_t integer;
  switch (json_number_classify(lexeme, n, &number, &integer)) {
  case JSON_DOUBLE: lua_pushnumber(d->L, number); break;
  case JSON_INT64: bind_push_int64(d->L, integer); break;
  default: bind_push_text(d->L, KIND_DECIMAL, lexeme, n); break;
  }
  return store(d);
}

static int on_string(void *arg, const char *utf8, size_t n) {
  struct decoder *d = arg;
  lua_pushlstring(d->L, utf8, n);
  return store(d);
}

static int on_key(void *arg, const char *utf8, size_t n) {
  struct decoder *d = arg;
  lua_pushlstring(d->L, utf8, n);
  return 0;
}

static int begin(struct decoder *d, bool array) {
  lua_newtable(d->L);
  if (array) bind_mark_array(d->L, -1);
  d->depth++;
  d->array[d->depth] = array;
  d->n[d->depth] = 0;
  return 0;
}

static int on_end(void *arg) {
  struct decoder *d = arg;
  d->depth--;
  return store(d);
}

static int on_begin_object(void *arg) { return begin(arg, false); }
static int on_begin_array(void *arg) { return begin(arg, true); }

int bind_json_decode(lua_State *L, const char *text, size_t len, struct err *e) {
  static const struct json_events events = {.null = on_null,
                                            .boolean = on_boolean,
                                            .number = on_number,
                                            .string = on_string,
                                            .key = on_key,
                                            .begin_object = on_begin_object,
                                            .end_object = on_end,
                                            .begin_array = on_begin_array,
                                            .end_array = on_end,
                                            .allow_nul = true};
  struct decoder d = {.L = L};
  int top = lua_gettop(L);
  if (!lua_checkstack(L, 2 * JSON_DEPTH_MAX + 16)) return err_set(e, ERR_INPUT, "json_depth", "no stack left to decode JSON");
  if (json_read(text, len, &events, &d, e)) {
    lua_settop(L, top);
    return -1;
  }
  return 0;
}
