#include "bind/bind_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "bind/bind_json.h"
#include "bind/bind_value.h"

enum { ARRAY_DEPTH_MAX = 6 };

/* X(oid of the type, oid of its array type, conversion) */
#define TYPES(X) \
  X(16, 1000, BOOLEAN) \
  X(21, 1005, NUMBER)   /* int2 */ \
  X(23, 1007, NUMBER)   /* int4 */ \
  X(26, 1028, NUMBER)   /* oid */ \
  X(700, 1021, NUMBER)  /* float4 */ \
  X(701, 1022, NUMBER)  /* float8 */ \
  X(20, 1016, INT8) \
  X(114, 199, JSON) \
  X(3802, 3807, JSON) \
  X(17, 1001, BYTEA) \
  X(1700, 1231, TEXT)   /* numeric */ \
  X(25, 1009, TEXT) \
  X(1043, 1015, TEXT)   /* varchar */ \
  X(1042, 1014, TEXT)   /* bpchar */ \
  X(18, 1002, TEXT)     /* "char" */ \
  X(19, 1003, TEXT)     /* name */ \
  X(2950, 2951, TEXT)   /* uuid */ \
  X(1082, 1182, TEXT)   /* date */ \
  X(1083, 1183, TEXT)   /* time */ \
  X(1266, 1270, TEXT)   /* timetz */ \
  X(1114, 1115, TEXT)   /* timestamp */ \
  X(1184, 1185, TEXT)   /* timestamptz */ \
  X(1186, 1187, TEXT)   /* interval */ \
  X(869, 1041, TEXT)    /* inet */ \
  X(650, 651, TEXT)     /* cidr */ \
  X(829, 1040, TEXT)    /* macaddr */

enum conversion { TEXT, BOOLEAN, NUMBER, INT8, JSON, BYTEA };

struct column {
  enum conversion conversion;
  bool array;
};

static struct column column_of(unsigned type) {
  switch (type) {
#define X(oid, array_oid, conv) \
  case oid: return (struct column){conv, false}; \
  case array_oid: return (struct column){conv, true};
    TYPES(X)
#undef X
  default: return (struct column){TEXT, false};
  }
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* bytea_output hex (\x…) or escape (\nnn, \\) */
static void push_bytea(lua_State *L, const char *s, size_t len) {
  char *out = lua_newuserdata(L, len + 1), *p = out; /* collected if lua_pushlstring raises */
  if (len >= 2 && s[0] == '\\' && s[1] == 'x') {
    for (size_t i = 2; i + 1 < len; i += 2) *p++ = (char)(hex_digit(s[i]) << 4 | hex_digit(s[i + 1]));
  } else {
    for (size_t i = 0; i < len; i++) {
      if (s[i] == '\\' && i + 1 < len && s[i + 1] == '\\') {
        *p++ = '\\';
        i++;
      } else if (s[i] == '\\' && i + 3 < len) {
        *p++ = (char)((s[i + 1] - '0') << 6 | (s[i + 2] - '0') << 3 | (s[i + 3] - '0'));
        i += 3;
      } else {
        *p++ = s[i];
      }
    }
  }
  lua_pushlstring(L, out, (size_t)(p - out));
  lua_remove(L, -2);
}

static void push_scalar(lua_State *L, enum conversion conversion, const char *s, size_t len) {
  struct err e = ERR_INIT;
  switch (conversion) {
  case BOOLEAN: lua_pushboolean(L, *s == 't'); return;
  case NUMBER: lua_pushnumber(L, strtod(s, NULL)); return;
  case INT8: bind_push_int64(L, strtoll(s, NULL, 10)); return;
  case BYTEA: push_bytea(L, s, len); return;
  case JSON:
    if (bind_json_decode(L, s, len, &e)) bind_raise(L, &e);
    return;
  default: lua_pushlstring(L, s, len); return;
  }
}

/* ---- array literals: [l:u]={a,"b",NULL,{…}} ---- */

struct parser {
  lua_State *L;
  const char *p, *end;
  enum conversion conversion;
};

static void broken(struct parser *x) { luaL_error(x->L, "cannot read an array value that PostgreSQL sent"); }

static void push_element(struct parser *x) {
  bool quoted = *x->p == '"';
  const char *start = quoted ? ++x->p : x->p;
  char *out = lua_newuserdata(x->L, (size_t)(x->end - start) + 1), *q = out;
  for (; x->p < x->end; x->p++) {
    if (quoted ? *x->p == '"' : *x->p == ',' || *x->p == '}') break;
    if (*x->p == '\\' && x->p + 1 < x->end) x->p++;
    *q++ = *x->p;
  }
  if (x->p >= x->end) broken(x);
  if (quoted) x->p++;
  *q = 0;
  if (!quoted && strcasecmp(out, "NULL") == 0) {
    bind_push_null(x->L);
  } else {
    push_scalar(x->L, x->conversion, out, (size_t)(q - out));
  }
  lua_remove(x->L, -2);
}

static void push_array(struct parser *x, int depth) {
  if (depth > ARRAY_DEPTH_MAX || x->p >= x->end || *x->p != '{') broken(x);
  luaL_checkstack(x->L, 8, "array");
  lua_newtable(x->L);
  bind_mark_array(x->L, -1);
  x->p++;
  for (int n = 1; x->p < x->end && *x->p != '}'; n++) {
    if (*x->p == '{') {
      push_array(x, depth + 1);
    } else {
      push_element(x);
    }
    lua_rawseti(x->L, -2, n);
    if (x->p < x->end && *x->p == ',') x->p++;
  }
  if (x->p >= x->end) broken(x);
  x->p++;
}

static void push_value(lua_State *L, struct column column, const char *s, size_t len) {
  if (!column.array) {
    push_scalar(L, column.conversion, s, len);
    return;
  }
  struct parser x = {L, s, s + len, column.conversion};
  if (*s == '[') { /* bounds that do not begin at 1 */
    const char *eq = strchr(s, '=');
    if (!eq) broken(&x);
    x.p = eq + 1;
  }
  push_array(&x, 1);
}

/* ---- rows ---- */

/* names: stack index of the first of ncol column names */
static void push_one(lua_State *L, const struct pgresult *r, int row, int ncol, int names, const struct column *columns) {
  lua_createtable(L, 0, ncol);
  for (int c = 0; c < ncol; c++) {
    if (pgresult_null(r, row, c)) continue;
    lua_pushvalue(L, names + c);
    push_value(L, columns[c], pgresult_value(r, row, c), (size_t)pgresult_length(r, row, c));
    lua_rawset(L, -3);
  }
}

/* Pushes one userdata (the columns' conversions) and the names, so that each name is interned once. */
static const struct column *push_names(lua_State *L, const struct pgresult *r, int ncol) {
  luaL_checkstack(L, ncol + 16, "too many columns");
  struct column *columns = lua_newuserdata(L, (size_t)(ncol + 1) * sizeof *columns);
  for (int c = 0; c < ncol; c++) {
    columns[c] = column_of(pgresult_type(r, c));
    lua_pushstring(L, pgresult_column(r, c));
  }
  return columns;
}

void bind_push_rows(lua_State *L, const struct pgresult *r) {
  int top = lua_gettop(L), ncol = pgresult_columns(r), nrow = pgresult_rows(r);
  lua_createtable(L, nrow, 0);
  bind_mark_array(L, -1);
  const struct column *columns = push_names(L, r, ncol);
  for (int i = 0; i < nrow; i++) {
    push_one(L, r, i, ncol, top + 3, columns);
    lua_rawseti(L, top + 1, i + 1);
  }
  lua_settop(L, top + 1);
}

void bind_push_row(lua_State *L, const struct pgresult *r) {
  int top = lua_gettop(L), ncol = pgresult_columns(r);
  if (pgresult_rows(r) == 0) {
    lua_pushnil(L);
    return;
  }
  const struct column *columns = push_names(L, r, ncol);
  push_one(L, r, 0, ncol, top + 2, columns);
  lua_replace(L, top + 1);
  lua_settop(L, top + 1);
}
