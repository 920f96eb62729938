#include "bind/bind_params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "bind/bind_value.h"

enum { ARRAY_DEPTH_MAX = 6 }; /* PostgreSQL's MAXDIM */

static int refuse(struct err *e, const char *what) { return err_set(e, ERR_INPUT, "parameter", "%s", what); }

static void append_number(struct buf *b, double d) {
  if (isnan(d)) {
    buf_puts(b, "NaN");
  } else if (isinf(d)) {
    buf_puts(b, d > 0 ? "Infinity" : "-Infinity");
  } else if (d == 0 && signbit(d)) {
    buf_puts(b, "-0");
  } else {
    (void)json_write_double(b, d);
  }
}

static void append_hex(struct buf *b, const char *s, size_t len) {
  static const char digits[] = "0123456789abcdef";
  char *p = buf_extend(b, 2 * len);
  for (size_t i = 0; i < len; i++) {
    *p++ = digits[(unsigned char)s[i] >> 4];
    *p++ = digits[(unsigned char)s[i] & 15];
  }
}

static int append_array(lua_State *L, int idx, int depth, struct buf *b, struct err *e);

static int append_string(struct buf *b, const char *s, size_t len, bool quoted, struct err *e) {
  if (memchr(s, 0, len))
    return refuse(e, "a NUL octet in text, which PostgreSQL cannot store; for octets use umavez.bytea(s)");
  if (json_utf8_span(s, len) != len)
    return refuse(e, "text that is no valid UTF-8; for octets use umavez.bytea(s)");
  if (!quoted) {
    buf_append(b, s, len);
    return 0;
  }
  buf_putc(b, '"');
  for (size_t i = 0; i < len; i++) {
    if (s[i] == '"' || s[i] == '\\') buf_putc(b, '\\');
    buf_putc(b, s[i]);
  }
  buf_putc(b, '"');
  return 0;
}

/* One value; nil and null are the caller's. element: inside an array literal. */
static int append_value(lua_State *L, int idx, bool element, int depth, struct buf *b, struct err *e) {
  size_t len;
  const char *s;
  char what[160];
  switch (bind_kind(L, idx)) {
  case KIND_BOOLEAN: buf_puts(b, lua_toboolean(L, idx) ? "true" : "false"); return 0;
  case KIND_NUMBER: append_number(b, lua_tonumber(L, idx)); return 0;
  case KIND_INT64: buf_printf(b, "%lld", (long long)bind_int64(L, idx)); return 0;
  case KIND_UINT64: buf_printf(b, "%llu", (unsigned long long)bind_int64(L, idx)); return 0;
  case KIND_STRING:
    s = lua_tolstring(L, idx, &len);
    return append_string(b, s, len, element, e);
  case KIND_DECIMAL:
    s = bind_text(L, idx, &len);
    buf_append(b, s, len);
    return 0;
  case KIND_JSON:
    s = bind_text(L, idx, &len);
    return append_string(b, s, len, element, e);
  case KIND_BYTEA:
    s = bind_text(L, idx, &len);
    buf_puts(b, element ? "\"\\\\x" : "\\x");
    append_hex(b, s, len);
    if (element) buf_putc(b, '"');
    return 0;
  case KIND_ARRAY: return append_array(L, idx, depth, b, e);
  case KIND_TABLE:
    if (element) return append_array(L, idx, depth, b, e);
    return refuse(e, "a table cannot be a parameter: wrap it as umavez.json(v) for json or jsonb, as umavez.array{…} for an array");
  default:
    snprintf(what, sizeof what, "%s cannot be a parameter", bind_kind_name(L, idx));
    return refuse(e, what);
  }
}

static int append_array(lua_State *L, int idx, int depth, struct buf *b, struct err *e) {
  if (depth > ARRAY_DEPTH_MAX) return refuse(e, "an array of more than 6 dimensions");
  if (!lua_checkstack(L, 8)) return refuse(e, "nested too deep");
  size_t n = lua_objlen(L, idx), seen = 0;
  for (lua_pushnil(L); lua_next(L, idx); lua_pop(L, 1), seen++) {
    if (lua_type(L, -2) == LUA_TNUMBER) continue;
    lua_pop(L, 2);
    return refuse(e, "an array with a key that is no position; for json or jsonb use umavez.json(v)");
  }
  if (seen != n) return refuse(e, "an array with holes (use umavez.null for NULL)");
  buf_putc(b, '{');
  for (size_t i = 1; i <= n; i++) {
    if (i > 1) buf_putc(b, ',');
    lua_rawgeti(L, idx, (int)i);
    int rc = 0, at = lua_gettop(L);
    if (bind_kind(L, at) == KIND_NULL) {
      buf_puts(b, "NULL");
    } else {
      rc = append_value(L, at, true, depth + 1, b, e);
    }
    lua_pop(L, 1);
    if (rc) return -1;
  }
  buf_putc(b, '}');
  return 0;
}

int bind_params_init(struct bind_params *p, lua_State *L, int first, int n, struct err *e) {
  *p = (struct bind_params){.n = n};
  if (n > BIND_PARAMS_MAX) return err_set(e, ERR_INPUT, "parameter", "more than %d parameters", BIND_PARAMS_MAX);
  size_t *offsets = xcalloc((size_t)n + 1, sizeof *offsets); /* 0: NULL, else offset + 1 */
  for (int i = 0; i < n; i++) {
    enum bind_kind kind = bind_kind(L, first + i);
    if (kind == KIND_NIL || kind == KIND_NULL) continue;
    offsets[i] = p->text.len + 1;
    struct err why = ERR_INIT;
    if (append_value(L, first + i, false, 1, &p->text, &why)) {
      err_set(e, ERR_INPUT, "parameter", "parameter $%d: %s", i + 1, why.message);
      free(offsets);
      buf_fini(&p->text);
      p->n = 0;
      return -1;
    }
    buf_putc(&p->text, 0);
  }
  p->values = xcalloc((size_t)n + 1, sizeof *p->values);
  for (int i = 0; i < n; i++) p->values[i] = offsets[i] ? p->text.data + offsets[i] - 1 : NULL;
  free(offsets);
  return 0;
}

void bind_params_fini(struct bind_params *p) {
  free(p->values);
  buf_fini(&p->text);
  p->values = NULL;
  p->n = 0;
}
