#include "core/door_key.h"

#include <string.h>

static int invalid(struct err *e, const char *why) {
  return err_set(e, ERR_INPUT, "key_invalid", "Idempotency-Key %s", why);
}

/* sf-string: DQUOTE *( unescaped / "\" ( DQUOTE / "\" ) ) DQUOTE, and nothing behind it. */
static int parse_quoted(const char *value, struct buf *key, struct err *e) {
  const char *p = value + 1;

  for (; *p && *p != '"'; p++) {
    if (*p == '\\' && *++p != '"' && *p != '\\')
      return invalid(e, "has a backslash that escapes neither a quote nor a backslash");
    if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
      return invalid(e, "has a character that is not printable ASCII");
    buf_putc(key, *p);
  }
  if (*p != '"') return invalid(e, "begins with a quote and does not end with one");
  if (p[1]) return invalid(e, "has something behind the closing quote; one string is expected");
  return 0;
}

static int parse_bare(const char *value, struct buf *key, struct err *e) {
  for (const char *p = value; *p; p++) {
    if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
      return invalid(e, "has a character that is not printable ASCII");
    if (strchr(" ,\"\\", *p)) return invalid(e, "has a blank, comma, quote or backslash; put such a key into quotes");
    buf_putc(key, *p);
  }
  return 0;
}

int door_key_parse(const char *value, bool uuid_only, struct buf *key, struct err *e) {
  size_t before = key->len;

  if ((value[0] == '"' ? parse_quoted(value, key, e) : parse_bare(value, key, e)) < 0) return -1;
  if (key->len == before) return invalid(e, "is empty");
  if (key->len - before > DOOR_KEY_MAX) return invalid(e, "has more than 255 characters");
  if (uuid_only && !uuid_valid(buf_cstr(key) + before)) return invalid(e, "is no UUID, which this route expects");
  return 0;
}

static void add_u32(struct buf *b, size_t n) {
  for (int shift = 24; shift >= 0; shift -= 8)
    buf_putc(b, (char)(n >> shift));
}

static void add_part(struct buf *b, const char *p, size_t n) {
  add_u32(b, n);
  buf_append(b, p, n);
}

void door_key_digest(const char *owner, const char *task, const char *key, size_t len, uint8_t out[DIGEST_BYTES]) {
  static const char domain[] = "umavez.door.key.v1";
  struct buf b;

  buf_init(&b);
  buf_append(&b, domain, sizeof domain);
  add_part(&b, owner, strlen(owner));
  add_part(&b, task, strlen(task));
  add_part(&b, key, len);
  digest_sha256(b.data, b.len, out);
  buf_fini(&b);
}

void door_request_fingerprint(const char *method, const char *path, const char *query, const char *body, size_t len,
                              uint8_t out[DIGEST_BYTES]) {
  static const char domain[] = "umavez.door.request.v1";
  struct buf b, target;

  buf_init(&b);
  buf_init(&target);
  buf_puts(&target, path);
  if (query) buf_printf(&target, "?%s", query);
  buf_append(&b, domain, sizeof domain);
  add_part(&b, method, strlen(method));
  add_part(&b, target.data, target.len);
  add_u32(&b, len >> 32);
  add_part(&b, body, len & 0xffffffff);
  digest_sha256(b.data, b.len, out);
  buf_fini(&target);
  buf_fini(&b);
}
