/* GET /runs/{run_id}[?wait=SECONDS]: what has become of a run, told to its own owner only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "core/door_internal.h"
#include "core/door_text.h"

enum { LOOK_MS = 200 };

static const char prefix[] = "/runs/";

bool door_runs_is(const char *path) {
  return strncmp(path, prefix, sizeof prefix - 1) == 0 && uuid_valid(path + sizeof prefix - 1);
}

static void look(struct exchange *x);

/* Columns: live (true while it has not ended), and the answer as JSON text. */
static void on_state(void *arg, struct pgresult *result) {
  struct exchange *x = arg;
  static const struct http_header headers[] = {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}};

  x->asking = false;
  if (!pgresult_ok(result)) {
    if (pgresult_err(result)->class != ERR_ENV) log_err(LOG_ERROR_, "run_lookup_failed", pgresult_err(result), NULL);
    door_refuse(x, PROBLEM_UNAVAILABLE, NULL, 1);
  } else if (pgresult_rows(result) == 0) {
    door_refuse(x, PROBLEM_NOT_FOUND, "no such run of this token's tenant", -1);
  } else if (pgresult_value(result, 0, 0)[0] == 't' && loop_now_ms(x->door->loop) < x->wait_until_ms && x->q &&
             !x->gone && !x->door->draining) {
    door_later(x, LOOK_MS, look);
  } else {
    struct http_answer a = {200, headers, 2, pgresult_value(result, 0, 1), (size_t)pgresult_length(result, 0, 1)};
    door_answer(x, &a);
  }
  pgresult_free(result);
  door_maybe_end(x);
}

static void look(struct exchange *x) {
  char tenant[24];
  const char *values[2] = {x->run_id, x->has_tenant ? tenant : NULL};
  struct pgquery q = {.sql = "SELECT live, answer FROM umavez.run_state($1::uuid, $2::bigint)",
                      .nparams = 2,
                      .once = true, /* rare, and a pooler may lead to another session each time */
                      .values = values,
                      .done = on_state,
                      .arg = x};

  snprintf(tenant, sizeof tenant, "%lld", (long long)x->tenant_id);
  x->asking = control_query(x->door->control, &q);
  if (x->asking) return;
  door_refuse(x, PROBLEM_UNAVAILABLE, NULL, 1);
  door_maybe_end(x);
}

void door_runs_begin(struct exchange *x) {
  int seconds = door_text_wait_s(http_query(x->q));

  if (seconds < 0) {
    door_refuse(x, PROBLEM_BAD_REQUEST, "expected no query, or ?wait=SECONDS with 0 to 60", -1);
    door_maybe_end(x);
    return;
  }
  snprintf(x->run_id, sizeof x->run_id, "%s", http_path(x->q) + sizeof prefix - 1);
  x->wait_until_ms = loop_now_ms(x->door->loop) + seconds * 1000;
  look(x);
}
