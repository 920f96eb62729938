#include "core/door_auth.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"

enum { BUCKETS = 256 };

struct entry {
  struct list node;
  uint8_t digest[DIGEST_BYTES];
  int64_t until_ms;
  struct door_identity who;
  char *scopes;
};

struct door_auth {
  struct loop *loop;
  struct control *control;
  struct list bucket[BUCKETS];
  int n;
};

/* A query under way; the look-up may be cancelled meanwhile. */
struct query {
  struct door_auth *auth;
  struct door_lookup *lookup; /* NULL: nobody waits */
  uint8_t digest[DIGEST_BYTES];
};

struct door_auth *door_auth_new(struct loop *loop, struct control *control) {
  struct door_auth *a = xcalloc(1, sizeof *a);

  a->loop = loop;
  a->control = control;
  for (int i = 0; i < BUCKETS; i++)
    list_init(&a->bucket[i]);
  return a;
}

static void entry_free(struct door_auth *a, struct entry *en) {
  list_remove(&en->node);
  a->n--;
  free(en->scopes);
  free(en);
}

static void clear(struct door_auth *a) {
  for (int i = 0; i < BUCKETS; i++)
    while (!list_empty(&a->bucket[i]))
      entry_free(a, container_of(a->bucket[i].next, struct entry, node));
}

void door_auth_free(struct door_auth *a) {
  if (!a) return;
  clear(a);
  free(a);
}

/* ---- cache ---- */

static struct entry *find(struct door_auth *a, const uint8_t *digest) {
  struct list *head = &a->bucket[digest[0]];

  for (struct list *n = head->next; n != head; n = n->next) {
    struct entry *en = container_of(n, struct entry, node);
    if (!digest_equal(en->digest, digest, DIGEST_BYTES)) continue;
    if (en->until_ms > loop_now_ms(a->loop)) return en;
    entry_free(a, en);
    return NULL;
  }
  return NULL;
}

static struct entry *store(struct door_auth *a, const uint8_t *digest, struct pgresult *r) {
  struct entry *en = find(a, digest);

  if (en) entry_free(a, en);
  if (a->n >= DOOR_AUTH_CACHE_ENTRIES) clear(a);
  en = xcalloc(1, sizeof *en);
  list_init(&en->node);
  memcpy(en->digest, digest, DIGEST_BYTES);
  en->until_ms = loop_now_ms(a->loop) + DOOR_AUTH_CACHE_MS;
  en->who.known = pgresult_rows(r) > 0;
  if (en->who.known) {
    en->who.has_tenant = !pgresult_null(r, 0, 0);
    if (en->who.has_tenant) en->who.tenant_id = strtoll(pgresult_value(r, 0, 0), NULL, 10);
    en->scopes = xstrdup(pgresult_value(r, 0, 1));
  }
  en->who.scopes = en->scopes ? en->scopes : "[]";
  list_push_back(&a->bucket[digest[0]], &en->node);
  a->n++;
  return en;
}

/* ---- look-up ---- */

static void finish(struct door_lookup *l, enum door_auth_result result, const struct door_identity *who) {
  l->query = NULL;
  l->done(l->arg, result, who);
}

static void on_token(void *arg, struct pgresult *result) {
  struct query *q = arg;
  struct door_lookup *l = q->lookup;

  if (pgresult_ok(result)) {
    struct entry *en = store(q->auth, q->digest, result);
    if (l) finish(l, DOOR_AUTH_ANSWERED, &en->who);
  } else {
    if (pgresult_err(result)->class != ERR_ENV) log_err(LOG_ERROR_, "token_lookup_failed", pgresult_err(result), NULL);
    if (l) finish(l, DOOR_AUTH_UNAVAILABLE, NULL);
  }
  pgresult_free(result);
  free(q);
}

void door_auth_look_up(struct door_auth *a, const char *token, struct door_lookup *l) {
  uint8_t digest[DIGEST_BYTES];
  char hex[DIGEST_HEX_SIZE], text[DIGEST_HEX_SIZE + 2];
  struct entry *en;

  digest_sha256(token, strlen(token), digest);
  l->auth = a;
  l->query = NULL;
  en = find(a, digest);
  if (en) {
    finish(l, DOOR_AUTH_ANSWERED, &en->who);
    return;
  }
  struct query *q = xcalloc(1, sizeof *q);
  *q = (struct query){.auth = a, .lookup = l};
  memcpy(q->digest, digest, sizeof digest);
  hex_encode(digest, sizeof digest, hex);
  snprintf(text, sizeof text, "\\x%s", hex);
  const char *values[1] = {text};
  struct pgquery query = {.sql = "SELECT tenant_id, scopes FROM umavez.token_lookup($1::bytea)",
                          .nparams = 1,
                          .once = true, /* rare, and a pooler may lead to another session each time */
                          .values = values,
                          .done = on_token,
                          .arg = q};
  l->query = q;
  if (control_query(a->control, &query)) return;
  free(q);
  finish(l, DOOR_AUTH_UNAVAILABLE, NULL);
}

void door_auth_cancel(struct door_lookup *l) {
  struct query *q = l->query;

  if (q) q->lookup = NULL;
  l->query = NULL;
}

/* ---- headers ---- */

const char *door_auth_bearer(const char *authorization) {
  const char *p = authorization;
  size_t n;

  if (strncasecmp(p, "Bearer ", 7) != 0) return NULL;
  for (p += 7; *p == ' '; p++)
    continue;
  for (n = 0; p[n] && (isalnum((unsigned char)p[n]) || strchr("-._~+/", p[n])); n++)
    continue;
  while (p[n] == '=')
    n++;
  return n > 0 && n <= 512 && p[n] == 0 ? p : NULL;
}

struct scope_search {
  const char *wanted;
  bool found;
};

static int on_scope(void *arg, const char *text, size_t n) {
  struct scope_search *s = arg;

  if ((n == 1 && text[0] == '*') || (n == strlen(s->wanted) && memcmp(text, s->wanted, n) == 0)) s->found = true;
  return 0;
}

bool door_auth_allows(const char *scopes, const char *scope) {
  static const struct json_events events = {.string = on_scope};
  struct scope_search s = {scope, false};

  if (json_read(scopes, strlen(scopes), &events, &s, NULL) != 0) return false;
  return s.found;
}

bool door_auth_signed(const struct task_http *h, const char *value, const char *body, size_t len) {
  const char *secret = getenv(h->signature_env);
  size_t prefix = strlen(h->signature_prefix);
  uint8_t expected[DIGEST_BYTES], given[DIGEST_BYTES];

  if (!secret || !secret[0] || !value || strncmp(value, h->signature_prefix, prefix) != 0) return false;
  if (!hex_decode(value + prefix, strlen(value + prefix), given, sizeof given)) return false;
  digest_hmac(secret, strlen(secret), body, len, expected);
  return digest_equal(expected, given, sizeof given);
}
