/* Finding values by path; works on slices of the source, so it allocates only for escaped keys. */
#include "base/json_reader.h"

#include <string.h>

const char *json_type_name(enum json_type type) {
  static const char *const names[] = {"absent", "null", "boolean", "boolean", "number", "string", "object", "array"};
  if ((unsigned)type > JSON_ARRAY) bug("json_type_name: %d", (int)type);
  return names[type];
}

static enum json_type type_of(int token) {
  switch (token) {
    case JSON_TOKEN_NULL: return JSON_NULL;
    case JSON_TOKEN_TRUE: return JSON_TRUE;
    case JSON_TOKEN_FALSE: return JSON_FALSE;
    case JSON_TOKEN_NUMBER: return JSON_NUMBER;
    case JSON_TOKEN_STRING: return JSON_STRING;
    case JSON_TOKEN_BEGIN_OBJECT: return JSON_OBJECT;
    case JSON_TOKEN_BEGIN_ARRAY: return JSON_ARRAY;
    default: bug("json_find: token %d begins no value", token);
  }
}

/* Reads the value that begins with `token` to its end. */
static int take_value(struct json_reader *r, int token, struct json_value *v) {
  size_t start = r->start;
  int outer = r->depth - (token == JSON_TOKEN_BEGIN_OBJECT || token == JSON_TOKEN_BEGIN_ARRAY ? 1 : 0);
  v->type = type_of(token);
  while (r->depth > outer) {
    if (json_reader_next(r, NULL) < 0) return -1;
  }
  v->text = r->text + start;
  v->len = r->end - start;
  return 0;
}

/* The member `name` of the object, or the whole document when name is NULL. */
static int find_member(const char *text, size_t len, const char *name, size_t name_len, struct json_value *out) {
  struct json_reader r;
  struct json_value v;
  *out = (struct json_value){.type = JSON_ABSENT};
  json_reader_init(&r, text, len, true);
  int token = json_reader_next(&r, NULL);
  int result = token < 0 ? -1 : 0;
  if (result == 0 && (name == NULL || token != JSON_TOKEN_BEGIN_OBJECT)) {
    result = take_value(&r, token, &v);
    if (name == NULL) *out = v;
  } else if (result == 0) {
    while ((token = json_reader_next(&r, NULL)) == JSON_TOKEN_KEY) {
      bool wanted = r.data_len == name_len && memcmp(r.data, name, name_len) == 0;
      token = json_reader_next(&r, NULL);
      if (token < 0 || take_value(&r, token, &v) != 0) {
        token = -1;
        break;
      }
      if (wanted) *out = v;
    }
    if (token < 0) result = -1;
  }
  if (result == 0 && json_reader_next(&r, NULL) != JSON_TOKEN_END) result = -1;
  json_reader_fini(&r);
  if (result != 0) *out = (struct json_value){.type = JSON_ABSENT};
  return result;
}

int json_find(const char *text, size_t len, const char *path, struct json_value *out) {
  if (path[0] == '\0') return find_member(text, len, NULL, 0, out);
  for (;;) {
    size_t n = strcspn(path, ".");
    if (find_member(text, len, path, n, out) != 0) return -1;
    if (path[n] == '\0' || out->type == JSON_ABSENT) return 0;
    text = out->text;
    len = out->len;
    path += n + 1;
  }
}

int json_each_member(const char *text, size_t len,
                     int (*each)(void *arg, const char *key, size_t key_len, const struct json_value *v), void *arg,
                     struct err *e) {
  struct json_reader r;
  struct json_value v;
  struct buf key = BUF_INIT;
  int result = 0;
  json_reader_init(&r, text, len, true);
  int token = json_reader_next(&r, e);
  if (token >= 0 && token != JSON_TOKEN_BEGIN_OBJECT)
    token = err_set(e, ERR_INPUT, "json_type", "expected an object, found %s", json_type_name(type_of(token)));
  while (token >= 0 && result == 0 && (token = json_reader_next(&r, e)) == JSON_TOKEN_KEY) {
    buf_clear(&key);
    buf_append(&key, r.data, r.data_len);
    token = json_reader_next(&r, e);
    if (token >= 0 && take_value(&r, token, &v) != 0)
      token = err_set(e, ERR_INPUT, "json_syntax", "a member's value does not end");
    if (token >= 0) result = each(arg, buf_cstr(&key), key.len, &v);
  }
  if (token >= 0 && result == 0 && (token = json_reader_next(&r, e)) > JSON_TOKEN_END)
    token = err_set(e, ERR_INPUT, "json_syntax", "something follows the object");
  buf_fini(&key);
  json_reader_fini(&r);
  return token < 0 ? -1 : result;
}

int json_value_string(const struct json_value *v, struct buf *out, struct err *e) {
  if (v->type != JSON_STRING) {
    return err_set(e, ERR_INPUT, "json_type", "expected a string, found %s", json_type_name(v->type));
  }
  struct json_reader r;
  json_reader_init(&r, v->text, v->len, false);
  int token = json_reader_next(&r, e);
  if (token == JSON_TOKEN_STRING) buf_append(out, r.data, r.data_len);
  json_reader_fini(&r);
  return token == JSON_TOKEN_STRING ? 0 : -1;
}
