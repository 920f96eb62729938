#include "bind/bind_outcome.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "bind/bind_json.h"
#include "bind/bind_value.h"

enum { MESSAGE_MAX = 2048 /* of a failure's message, with its escapes */ };

char *bind_outcome(lua_State *L, int idx, struct err *e) {
  struct err why = ERR_INIT;
  struct buf text = BUF_INIT;
  size_t octets;
  enum bind_kind kind = bind_kind(L, idx);
  if (kind == KIND_NIL) return xstrdup("{}");
  if (kind != KIND_TABLE) {
    err_set(e, ERR_INPUT, "outcome_invalid", "the outcome must be a table with names, not %s", bind_kind_name(L, idx));
    return NULL;
  }
  if (bind_json_encode(L, idx, 64 * 1024, &text, &why)) {
    bool large = strcmp(why.code, "json_too_large") == 0;
    err_set(e, ERR_INPUT, large ? "outcome_too_large" : "outcome_invalid", "the outcome cannot be stored: %s", why.message);
  } else if (buf_cstr(&text)[0] != '{') {
    err_set(e, ERR_INPUT, "outcome_invalid", "the outcome must be a table with names, not an array");
  } else if (json_jsonb_size(text.data, text.len, &octets, &why)) {
    err_set(e, ERR_INPUT, "outcome_invalid", "the outcome cannot be stored: %s", why.message);
  } else if (octets > OUTCOME_MAX) {
    err_set(e, ERR_INPUT, "outcome_too_large", "the outcome has %zu octets as jsonb text, at most %d are stored", octets,
            OUTCOME_MAX);
  } else {
    return buf_take(&text);
  }
  buf_fini(&text);
  return NULL;
}

static void add_member(struct buf *b, const char *name, const char *value, size_t len, size_t max) {
  if (b->len > 1) buf_putc(b, ',');
  buf_printf(b, "\"%s\":", name);
  json_write_string_lossy(b, value, len, max);
}

static void add_common(struct buf *b, const struct err *e, const char *message, size_t len) {
  buf_putc(b, '{');
  add_member(b, "code", e->code, strlen(e->code), 128);
  add_member(b, "message", message, len, MESSAGE_MAX);
  if (*e->sqlstate) add_member(b, "sqlstate", e->sqlstate, strlen(e->sqlstate), 64);
  if (*e->constraint) add_member(b, "constraint", e->constraint, strlen(e->constraint), 256);
}

char *bind_failure_detail(const struct err *e) {
  struct buf b = BUF_INIT;
  add_common(&b, e, e->message, strlen(e->message));
  buf_putc(&b, '}');
  return buf_take(&b);
}

char *bind_failure_record(const struct err *e, const char *text, size_t text_len, const char *trace, size_t trace_len) {
  struct buf b = BUF_INIT;
  add_common(&b, e, e->message, strlen(e->message));
  if (text_len && (text_len != strlen(e->message) || memcmp(text, e->message, text_len) != 0))
    add_member(&b, "error", text, text_len, 4096);
  if (trace_len) add_member(&b, "traceback", trace, trace_len, 8000);
  buf_putc(&b, '}');
  return buf_take(&b);
}

/* code and message of the table at idx into e; other types are left to the defaults */
static void read_text(lua_State *L, int idx, const char *name, char *out, size_t size) {
  lua_pushstring(L, name);
  lua_rawget(L, idx);
  size_t len;
  const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &len) : NULL;
  if (s) err_copy_text(out, size, s);
  lua_pop(L, 1);
}

char *bind_fail_detail(lua_State *L, int idx) {
  struct err given = ERR_INIT, ignored = ERR_INIT;
  struct buf text = BUF_INIT;
  size_t octets;
  strcpy(given.code, "failed");
  if (!lua_istable(L, idx)) {
    if (lua_type(L, idx) == LUA_TSTRING) err_copy_text(given.message, sizeof given.message, lua_tostring(L, idx));
    return bind_failure_detail(&given);
  }
  lua_pushliteral(L, "code");
  lua_rawget(L, idx);
  bool coded = lua_type(L, -1) == LUA_TSTRING && lua_objlen(L, -1) > 0;
  lua_pop(L, 1);
  if (coded && bind_json_encode(L, idx, 64 * 1024, &text, &ignored) == 0 && text.data[0] == '{' &&
      json_jsonb_size(text.data, text.len, &octets, &ignored) == 0 && octets <= OUTCOME_MAX)
    return buf_take(&text);
  buf_fini(&text);
  read_text(L, idx, "code", given.code, sizeof given.code);
  read_text(L, idx, "message", given.message, sizeof given.message);
  char *detail = bind_failure_detail(&given);
  lua_pushliteral(L, "status");
  lua_rawget(L, idx);
  lua_Number status = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
  lua_pop(L, 1);
  if (status >= 100 && status <= 999) { /* the door's answer depends on it */
    buf_append(&text, detail, strlen(detail) - 1);
    buf_printf(&text, ",\"status\":%d}", (int)status);
    free(detail);
    detail = buf_take(&text);
  }
  return detail;
}
