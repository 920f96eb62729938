/* ui_session: who is logged in to the dashboard: the cookie, the token against forged requests, the bound on guessing.
 *
 * A session has no row anywhere. Its cookie is
 *
 *     TOKEN-ID . END . NONCE . HMAC-SHA-256(signing, "umavez.ui.session.v1" NUL TOKEN-ID . END . NONCE)
 *
 * with END in seconds of the database's time. signing comes from umavez.ui_token for a token that is valid (sql/functions/70_ui.sql), so a
 * session ends with its time and with its token, on every worker of the database, and whoever reads the cookie learns no token.
 * Requests that change something bring HMAC(signing, "umavez.ui.csrf.v1" NUL COOKIE) in a header: only who can read the dashboard's answers
 * knows it.
 *
 * Pure functions, but for ui_throttle: failed log-ins by sender, each a bucket of UI_TRIES that fills up again by one in UI_TRY_MS. Senders
 * share a bucket where their addresses fall together; nobody's request costs more than a look. */
#ifndef UMAVEZ_CORE_UI_SESSION_H
#define UMAVEZ_CORE_UI_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"

#define UI_COOKIE "umavez_ui"

enum { UI_COOKIE_MAX = 160, UI_NONCE_BYTES = 16, UI_TRIES = 10, UI_TRY_MS = 6000, UI_THROTTLE_SLOTS = 1024 };

/* The cookie's value, as it came; false when it has not even the form. */
struct ui_cookie {
  char text[UI_COOKIE_MAX];
  int64_t token_id, end_s;
  uint8_t mac[DIGEST_BYTES];
  size_t signed_len; /* of text: what the mac is over */
};
bool ui_cookie_parse(const char *value, struct ui_cookie *c) MUST_CHECK;
/* Finds it among the pairs of a Cookie header; false: it is not there, or there twice. */
bool ui_cookie_find(const char *header, struct ui_cookie *c) MUST_CHECK;

void ui_cookie_make(const uint8_t signing[DIGEST_BYTES], int64_t token_id, int64_t end_s, struct ui_cookie *c);
bool ui_cookie_valid(const struct ui_cookie *c, const uint8_t signing[DIGEST_BYTES], int64_t now_s);
void ui_csrf(const struct ui_cookie *c, const uint8_t signing[DIGEST_BYTES], char hex[DIGEST_HEX_SIZE]);

struct ui_throttle {
  struct {
    int16_t failures;
    int64_t since_ms;
  } slot[UI_THROTTLE_SLOTS];
};
/* How long the sender has to wait before it may try again; 0: now. */
int64_t ui_throttle_wait_ms(struct ui_throttle *t, const char *sender, int64_t now_ms);
void ui_throttle_failed(struct ui_throttle *t, const char *sender, int64_t now_ms);

#endif
