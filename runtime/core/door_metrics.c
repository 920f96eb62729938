/* GET /metrics: the whole worker's metrics as Prometheus text, to whom the settings `metrics` and `metrics_token` allow it. */
#include <string.h>

#include "base/digest.h"
#include "core/door_internal.h"

enum { WAIT_MS = 2000 }; /* for PostgreSQL's word on the queues: the rest is told without it */

bool door_metrics_is(const struct door *d, const char *path) {
  return d->metrics_access != DOOR_METRICS_OFF && strcmp(path, "/metrics") == 0;
}

static void answer(struct exchange *x) {
  static const struct http_header headers[] = {{"Content-Type", STATS_PAGE_TYPE}, {"Cache-Control", "no-store"}};
  struct buf page = BUF_INIT;

  queue_stats_cancel(&x->look);
  stats_page(&page, queue_stats_sample, x->door->queue_stats);
  struct http_answer a = {200, headers, 2, page.data, page.len};
  door_answer(x, &a);
  buf_fini(&page);
  door_maybe_end(x);
}

static void on_look(void *arg) {
  answer(arg);
}

static void begin(struct exchange *x) {
  queue_look_init(&x->look, on_look, x);
  door_later(x, WAIT_MS, answer);
  queue_stats_look(x->door->queue_stats, &x->look);
}

/* A platform's token with the scope `metrics`, or `*`: a tenant has no business with the others' figures. */
void door_metrics_identity(struct exchange *x, const struct door_identity *who) {
  if (!who->has_tenant && door_auth_allows(who->scopes, "metrics")) {
    begin(x);
    return;
  }
  door_refuse(x, PROBLEM_FORBIDDEN, "expected a token of the platform with the scope metrics", -1);
  door_maybe_end(x);
}

/* Compared as digests, so that the time that it takes tells nothing. */
static bool is_own_token(const struct exchange *x) {
  const char *header = http_header(x->q, "Authorization", 0), *own = x->door->metrics_token;
  const char *token = header ? door_auth_bearer(header) : NULL;
  uint8_t given[DIGEST_BYTES], wanted[DIGEST_BYTES];

  if (!token || !own || !own[0] || http_header(x->q, "Authorization", 1)) return false;
  digest_sha256(token, strlen(token), given);
  digest_sha256(own, strlen(own), wanted);
  return digest_equal(given, wanted, sizeof given);
}

void door_metrics_begin(struct exchange *x) {
  if (x->door->metrics_access == DOOR_METRICS_OPEN || is_own_token(x)) {
    begin(x);
    return;
  }
  x->metrics = true;
  door_authenticate_token(x);
}
