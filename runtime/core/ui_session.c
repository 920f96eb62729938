#include "core/ui_session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char session_domain[] = "umavez.ui.session.v1", csrf_domain[] = "umavez.ui.csrf.v1";

/* The domain's NUL parts it from what is signed. */
static void sign(const uint8_t signing[DIGEST_BYTES], const char *domain, const char *text, size_t len,
                 uint8_t out[DIGEST_BYTES]) {
  struct buf framed = BUF_INIT;

  buf_append(&framed, domain, strlen(domain) + 1);
  buf_append(&framed, text, len);
  digest_hmac(signing, DIGEST_BYTES, framed.data, framed.len, out);
  buf_fini(&framed);
}

/* Up to 15 digits and a dot; moves *at behind it. */
static bool take_number(const char **at, int64_t *out) {
  size_t n = strspn(*at, "0123456789");

  if (n == 0 || n > 15 || (*at)[n] != '.') return false;
  *out = strtoll(*at, NULL, 10);
  *at += n + 1;
  return true;
}

bool ui_cookie_parse(const char *value, struct ui_cookie *c) {
  const char *at = value;
  size_t len = strlen(value);

  if (len >= sizeof c->text || !take_number(&at, &c->token_id) || !take_number(&at, &c->end_s)) return false;
  if (strspn(at, "0123456789abcdef") != 2 * UI_NONCE_BYTES || at[2 * UI_NONCE_BYTES] != '.') return false;
  at += 2 * UI_NONCE_BYTES;
  memcpy(c->text, value, len + 1);
  c->signed_len = (size_t)(at - value);
  return !strpbrk(at + 1, "ABCDEF") && hex_decode(at + 1, strlen(at + 1), c->mac, DIGEST_BYTES); /* one spelling */
}

bool ui_cookie_find(const char *header, struct ui_cookie *c) {
  char value[UI_COOKIE_MAX];
  int found = 0;

  for (const char *p = header; *p;) {
    size_t n;
    p += strspn(p, " ;");
    n = strcspn(p, ";");
    if (strncmp(p, UI_COOKIE "=", sizeof UI_COOKIE) == 0) {
      size_t len = n - sizeof UI_COOKIE;
      if (++found > 1 || len >= sizeof value) return false;
      memcpy(value, p + sizeof UI_COOKIE, len);
      value[len] = 0;
    }
    p += n;
  }
  return found == 1 && ui_cookie_parse(value, c);
}

void ui_cookie_make(const uint8_t signing[DIGEST_BYTES], int64_t token_id, int64_t end_s, struct ui_cookie *c) {
  uint8_t nonce[UI_NONCE_BYTES];
  char nonce_hex[2 * UI_NONCE_BYTES + 1], mac_hex[DIGEST_HEX_SIZE];

  random_bytes(nonce, sizeof nonce);
  hex_encode(nonce, sizeof nonce, nonce_hex);
  c->token_id = token_id;
  c->end_s = end_s;
  c->signed_len = (size_t)snprintf(c->text, sizeof c->text, "%" PRId64 ".%" PRId64 ".%s", token_id, end_s, nonce_hex);
  sign(signing, session_domain, c->text, c->signed_len, c->mac);
  hex_encode(c->mac, sizeof c->mac, mac_hex);
  snprintf(c->text + c->signed_len, sizeof c->text - c->signed_len, ".%s", mac_hex);
}

bool ui_cookie_valid(const struct ui_cookie *c, const uint8_t signing[DIGEST_BYTES], int64_t now_s) {
  uint8_t expected[DIGEST_BYTES];

  sign(signing, session_domain, c->text, c->signed_len, expected);
  return digest_equal(expected, c->mac, sizeof expected) && now_s < c->end_s;
}

void ui_csrf(const struct ui_cookie *c, const uint8_t signing[DIGEST_BYTES], char hex[DIGEST_HEX_SIZE]) {
  uint8_t mac[DIGEST_BYTES];

  sign(signing, csrf_domain, c->text, strlen(c->text), mac);
  hex_encode(mac, sizeof mac, hex);
}

/* ---- guessing ---- */

static size_t slot_of(const char *sender) {
  uint8_t digest[DIGEST_BYTES];

  digest_sha256(sender, strlen(sender), digest);
  return ((size_t)digest[0] << 8 | digest[1]) % UI_THROTTLE_SLOTS;
}

/* What has been forgiven by now. */
static void forgive(struct ui_throttle *t, size_t i, int64_t now_ms) {
  int64_t n = (now_ms - t->slot[i].since_ms) / UI_TRY_MS;

  if (n >= t->slot[i].failures) {
    t->slot[i].failures = 0;
    t->slot[i].since_ms = now_ms;
  } else {
    t->slot[i].failures = (int16_t)(t->slot[i].failures - n);
    t->slot[i].since_ms += n * UI_TRY_MS;
  }
}

int64_t ui_throttle_wait_ms(struct ui_throttle *t, const char *sender, int64_t now_ms) {
  size_t i = slot_of(sender);

  forgive(t, i, now_ms);
  return t->slot[i].failures < UI_TRIES ? 0 : t->slot[i].since_ms + UI_TRY_MS - now_ms;
}

void ui_throttle_failed(struct ui_throttle *t, const char *sender, int64_t now_ms) {
  size_t i = slot_of(sender);

  forgive(t, i, now_ms);
  if (t->slot[i].failures < UI_TRIES) t->slot[i].failures++;
}
