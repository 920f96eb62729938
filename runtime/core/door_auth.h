/* door_auth: who sends a request. Bearer tokens (RFC 6750) are looked up by their SHA-256 on a control connection; webhooks are
 * told by an HMAC over their body.
 *
 * Only digests of tokens are stored, here too. An answer is believed for DOOR_AUTH_CACHE_MS, so a revoked token is refused that
 * much later at most. The cache is bounded; unknown tokens are cached as well, so that a guesser costs one query each. */
#ifndef UMAVEZ_CORE_DOOR_AUTH_H
#define UMAVEZ_CORE_DOOR_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/control.h"
#include "core/task.h"
#include "io/loop.h"

enum { DOOR_AUTH_CACHE_MS = 2000, DOOR_AUTH_CACHE_ENTRIES = 4096 };

struct door_auth;

struct door_identity {
  bool known;      /* false: no such token, or it was revoked or has expired */
  bool has_tenant; /* false: the platform's token */
  int64_t tenant_id;
  const char *scopes; /* JSON array of strings; "*" allows all */
};

enum door_auth_result { DOOR_AUTH_ANSWERED, DOOR_AUTH_UNAVAILABLE };

/* Keeps control. */
struct door_auth *door_auth_new(struct loop *loop, struct control *control);
void door_auth_free(struct door_auth *a); /* no answer comes afterwards */

/* One look-up. The caller keeps it alive until done was called, or door_auth_cancel. */
struct door_lookup {
  void (*done)(void *arg, enum door_auth_result result, const struct door_identity *who); /* borrows who */
  void *arg;
  struct door_auth *auth; /* private from here on */
  void *query;
};

/* token: the credentials behind "Bearer ". done may be called before this returns. */
void door_auth_look_up(struct door_auth *a, const char *token, struct door_lookup *l);
void door_auth_cancel(struct door_lookup *l); /* idempotent */

/* The credentials of an Authorization header's value, or NULL when it is no Bearer of one token68. */
const char *door_auth_bearer(const char *authorization);
/* Does the JSON array hold scope, or "*"? */
bool door_auth_allows(const char *scopes, const char *scope);

/* True when the header's value is h's prefix and the hex HMAC-SHA-256 of the body by the secret of the environment; compared in
 * constant time. False without a secret. */
bool door_auth_signed(const struct task_http *h, const char *value, const char *body, size_t len);

#endif
