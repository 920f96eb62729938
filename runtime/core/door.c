#include "core/door.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/door_internal.h"

/* ---- exchanges ---- */

static void on_timer(void *arg) {
  struct exchange *x = arg;

  loop_defer(x->door->loop, &x->due);
}

static void on_due(void *arg) {
  struct exchange *x = arg;

  x->on_due(x);
}

static void on_deadline(void *arg) {
  struct exchange *x = arg;

  loop_defer(x->door->loop, &x->late);
}

/* The answer is later than anything that the task allows: the client hears that, the run goes on. */
static void on_late(void *arg) {
  struct exchange *x = arg;

  door_refuse(x, PROBLEM_UNKNOWN, "no answer in time; the request may still go through", 1);
  door_maybe_end(x);
}

/* One appointment at a time: a waiting duplicate whose time has come may be woken in the same tick, and must not be started
 * twice. */
void door_later(struct exchange *x, int64_t ms, void (*cb)(struct exchange *x)) {
  x->on_due = cb;
  loop_task_cancel(&x->due);
  loop_timer_start(x->door->loop, &x->timer, ms);
}

static struct exchange *exchange_new(struct door *d, struct http_request *q) {
  struct exchange *x = xcalloc(1, sizeof *x);

  x->door = d;
  x->q = q;
  list_init(&x->node);
  list_init(&x->wait_node);
  queue_look_init(&x->look, NULL, NULL);
  buf_init(&x->params);
  buf_init(&x->args);
  uuid_v4(x->run_id);
  loop_timer_init(&x->timer, on_timer, x);
  loop_task_init(&x->due, on_due, x);
  loop_timer_init(&x->deadline, on_deadline, x);
  loop_task_init(&x->late, on_late, x);
  list_push_back(&d->exchanges, &x->node);
  d->n++;
  http_set_data(q, x);
  return x;
}

static void exchange_free(void *arg) {
  struct exchange *x = arg;

  buf_fini(&x->params);
  buf_fini(&x->args);
  free(x->scopes);
  free(x->visit);
  free(x);
}

void door_maybe_end(struct exchange *x) {
  if (x->q || x->run || x->asking || list_empty(&x->node)) return;
  loop_timer_stop(&x->timer);
  loop_timer_stop(&x->deadline);
  loop_task_cancel(&x->due);
  loop_task_cancel(&x->late);
  list_remove(&x->wait_node);
  list_remove(&x->node);
  x->door->n--;
  door_auth_cancel(&x->lookup);
  queue_stats_cancel(&x->look);
  door_ui_forget(x);
  loop_free_later(x->door->loop, exchange_free, x);
}

/* ---- answering ---- */

static void count_answer(int status) {
  static const enum stats_answer places[] = {STATS_ANSWER_2XX, STATS_ANSWER_3XX, STATS_ANSWER_4XX, STATS_ANSWER_5XX};

  if (status >= 200 && status < 600) stats_add(STAT_ANSWERS, (int)places[status / 100 - 2], 1);
}

void door_answer(struct exchange *x, const struct http_answer *a) {
  struct http_request *q = x->q;

  if (!q) return;
  count_answer(a->status);
  x->q = NULL;
  http_respond(q, a);
}

static void fill_problem(struct http_answer *a, struct http_header *headers, enum door_problem p,
                         const struct buf *body, const char *retry_after, const char *extra_name, const char *extra) {
  size_t n = 0;

  headers[n++] = (struct http_header){"Content-Type", "application/problem+json"};
  headers[n++] = (struct http_header){"Cache-Control", "no-store"};
  if (retry_after) headers[n++] = (struct http_header){"Retry-After", retry_after};
  if (extra) headers[n++] = (struct http_header){extra_name, extra};
  *a = (struct http_answer){door_problem_status(p), headers, n, body->data, body->len};
}

static void refuse(struct exchange *x, enum door_problem p, const char *detail, int retry_after_s,
                   const char *extra_name, const char *extra) {
  struct http_header headers[4];
  struct http_answer a;
  struct buf body;
  char seconds[16];

  buf_init(&body);
  door_problem_body(p, detail, x->run_id, &body);
  snprintf(seconds, sizeof seconds, "%d", retry_after_s);
  fill_problem(&a, headers, p, &body, retry_after_s >= 0 ? seconds : NULL, extra_name, extra);
  door_answer(x, &a);
  buf_fini(&body);
}

void door_refuse(struct exchange *x, enum door_problem p, const char *detail, int retry_after_s) {
  refuse(x, p, detail, retry_after_s, p == PROBLEM_UNAUTHENTICATED ? "WWW-Authenticate" : NULL,
         p == PROBLEM_UNAUTHENTICATED ? "Bearer" : NULL);
}

/* What the server refuses before there is a request of ours. */
static void on_refuse(void *arg, int status, const char *why, struct http_answer *a) {
  static struct http_header headers[4];
  struct door *d = arg;
  enum door_problem p = door_problem_of_status(status);

  count_answer(status);
  buf_clear(&d->refusal);
  door_problem_body(p, why, NULL, &d->refusal);
  fill_problem(a, headers, p, &d->refusal, NULL, NULL, NULL);
}

/* ---- who ---- */

static void on_identity(void *arg, enum door_auth_result result, const struct door_identity *who) {
  struct exchange *x = arg;

  if (result == DOOR_AUTH_UNAVAILABLE) {
    door_refuse(x, PROBLEM_UNAVAILABLE, "the token cannot be checked now", 1);
  } else if (!who->known) {
    door_refuse(x, PROBLEM_UNAUTHENTICATED, "the token is unknown, revoked or expired", -1);
  } else if (x->metrics) {
    door_metrics_identity(x, who);
    return;
  } else if (x->task && !door_auth_allows(who->scopes, x->task->http->scope ? x->task->http->scope : x->task->name)) {
    door_refuse(x, PROBLEM_FORBIDDEN, "the token's scopes do not name this route's task", -1);
  } else if (x->task && (x->task->owner == TASK_OWNER_TENANT) != who->has_tenant) {
    door_refuse(x, PROBLEM_FORBIDDEN,
                who->has_tenant ? "the task is the platform's, the token a tenant's"
                                : "the task is a tenant's, the token the platform's",
                -1);
  } else {
    x->has_tenant = who->has_tenant;
    x->tenant_id = who->tenant_id;
    x->scopes = xstrdup(who->scopes);
    if (x->task)
      door_request_begin(x);
    else
      door_runs_begin(x);
    return;
  }
  door_maybe_end(x);
}

void door_authenticate_token(struct exchange *x) {
  const char *header = http_header(x->q, "Authorization", 0);
  const char *token = header ? door_auth_bearer(header) : NULL;

  if (!token || http_header(x->q, "Authorization", 1)) {
    door_refuse(x, PROBLEM_UNAUTHENTICATED, "expected one header: Authorization: Bearer TOKEN", -1);
    door_maybe_end(x);
    return;
  }
  x->lookup.done = on_identity;
  x->lookup.arg = x;
  door_auth_look_up(x->door->auth, token, &x->lookup);
}

static void authenticate(struct exchange *x) {
  const struct task_http *h = x->task ? x->task->http : NULL;
  const char *body;
  size_t len;

  if (!h || h->auth == TASK_HTTP_AUTH_TOKEN) {
    door_authenticate_token(x);
    return;
  }
  body = http_body(x->q, &len);
  if (h->auth == TASK_HTTP_AUTH_SIGNATURE &&
      !door_auth_signed(h, http_header(x->q, h->signature_header, 0), body, len)) {
    door_refuse(x, PROBLEM_SIGNATURE_INVALID, NULL, -1);
    door_maybe_end(x);
    return;
  }
  door_request_begin(x);
}

/* ---- what ---- */

static void answer_plain(struct exchange *x, int status, const char *type, const char *body) {
  struct http_header headers[2] = {{"Content-Type", type}, {"Cache-Control", "no-store"}};
  struct http_answer a = {status, headers, 2, body, strlen(body)};

  door_answer(x, &a);
  door_maybe_end(x);
}

/* True when the path is one of the built-in pages. */
static bool built_in(struct exchange *x, const char *method, const char *path) {
  struct door *d = x->door;
  bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
  bool health = strcmp(path, "/healthz") == 0, ready = strcmp(path, "/readyz") == 0;
  bool openapi = d->openapi && strcmp(path, "/openapi.json") == 0, metrics = door_metrics_is(d, path);

  if (!health && !ready && !openapi && !metrics) return false;
  if (!get) {
    refuse(x, PROBLEM_METHOD_NOT_ALLOWED, NULL, -1, "Allow", "GET, HEAD");
    door_maybe_end(x);
  } else if (metrics) {
    door_metrics_begin(x);
  } else if (health) {
    answer_plain(x, 200, "text/plain; charset=utf-8", "alive\n");
  } else if (openapi) {
    answer_plain(x, 200, "application/json", d->openapi);
  } else if (d->draining) {
    answer_plain(x, 503, "application/json", "{\"ready\":false,\"reason\":\"draining\"}\n");
  } else {
    bool up = sched_taking(d->sched);
    answer_plain(x, up ? 200 : 503, up ? "text/plain; charset=utf-8" : "application/json",
                 up ? "ready\n" : "{\"ready\":false,\"reason\":\"postgresql_away\"}\n");
  }
  return true;
}

static void route(struct exchange *x) {
  struct door *d = x->door;
  const char *method = http_method(x->q), *path = http_path(x->q);
  struct buf allow;

  if (door_runs_is(path)) {
    if (strcmp(method, "GET") == 0) {
      authenticate(x);
    } else {
      refuse(x, PROBLEM_METHOD_NOT_ALLOWED, NULL, -1, "Allow", "GET");
      door_maybe_end(x);
    }
    return;
  }
  buf_init(&allow);
  switch (door_routes_match(d->routes, method, path, &x->task, &x->params, &allow)) {
    case DOOR_MATCH:
      authenticate(x);
      buf_fini(&allow);
      return;
    case DOOR_NO_METHOD:
      refuse(x, PROBLEM_METHOD_NOT_ALLOWED, NULL, -1, "Allow", buf_cstr(&allow));
      break;
    case DOOR_NO_PATH:
      door_refuse(x, PROBLEM_NOT_FOUND, NULL, -1);
      break;
    case DOOR_BAD_PATH:
      door_refuse(x, PROBLEM_BAD_REQUEST, "the path has a broken percent escape, a NUL, or is not UTF-8", -1);
      break;
  }
  buf_fini(&allow);
  door_maybe_end(x);
}

static void on_request(void *arg, struct http_request *q) {
  struct door *d = arg;
  struct exchange *x = exchange_new(d, q);

  if (door_ui_is(d, http_path(q))) {
    door_ui_begin(x);
    return;
  }
  if (built_in(x, http_method(q), http_path(q))) return;
  if (d->draining)
    door_refuse(x, PROBLEM_DRAINING, NULL, 1);
  else if (d->n > d->max)
    door_refuse(x, PROBLEM_OVERLOADED, NULL, 1);
  else {
    loop_timer_start(d->loop, &x->deadline, 120000); /* a limit for what has no task; door_request_begin knows better */
    route(x);
    return;
  }
  door_maybe_end(x);
}

static void on_gone(void *arg, struct http_request *q) {
  struct exchange *x = http_data(q);

  if (!x || x->q != q) return;
  x->gone = true;
  if (x->visit) door_ui_gone(x);
  else if (x->on_due && !x->run && !x->asking) door_later(x, 0, x->on_due); /* no more waiting: it looks a last time */
}

/* ---- life ---- */

struct door *door_new(struct loop *loop, struct sched *sched, struct control *control,
                      const struct door_options *options, struct err *e) {
  struct door *d = xcalloc(1, sizeof *d);
  struct httpd_options http = options->http;

  d->loop = loop;
  d->sched = sched;
  d->control = control;
  d->max = options->max_exchanges;
  list_init(&d->exchanges);
  for (int i = 0; i < DOOR_BUCKETS; i++)
    list_init(&d->waiting[i]);
  buf_init(&d->refusal);
  d->clock = options->clock;
  d->openapi = options->openapi ? xstrdup(options->openapi) : NULL;
  d->metrics_access = options->metrics_access;
  d->metrics_token = xstrdup(options->metrics_token);
  d->queue_stats = options->queue_stats;
  d->auth = door_auth_new(loop, control);
  d->routes = door_routes_new(e);
  http.on_request = on_request;
  http.on_gone = on_gone;
  http.refuse = on_refuse;
  http.arg = d;
  if (d->routes && door_ui_new(d, &options->ui, e) == 0) d->http = httpd_new(loop, &http, e);
  if (!d->http) {
    door_free(d);
    return NULL;
  }
  log_kv(LOG_INFO_, "door_open", "address", http.address, "port", log_i64(httpd_port(d->http)), NULL);
  return d;
}

int door_port(const struct door *d) {
  return httpd_port(d->http);
}

int door_exchanges(const struct door *d) {
  return d->n;
}

void door_resume(struct door *d) {
  httpd_resume(d->http);
}

void door_stop_accepting(struct door *d) {
  door_ui_stop(d);
  httpd_stop_accepting(d->http);
}

int door_connections(const struct door *d) {
  return httpd_connections(d->http);
}

void door_drain(struct door *d) {
  if (d->draining) return;
  d->draining = true;
  door_ui_stop(d);
  httpd_stop_accepting(d->http);
  door_request_drain(d);
}

void door_free(struct door *d) {
  struct list *n, *next;

  if (!d) return;
  door_ui_stop(d);
  for (n = d->exchanges.next; n != &d->exchanges; n = next) {
    struct exchange *x = container_of(n, struct exchange, node);
    next = n->next;
    door_refuse(x, PROBLEM_DRAINING, NULL, 1);
    if (x->run) x->run->ended = NULL;
    x->run = NULL;
    x->asking = false;
    door_maybe_end(x);
  }
  httpd_free(d->http);
  door_ui_free(d);
  door_routes_free(d->routes);
  door_auth_free(d->auth);
  buf_fini(&d->refusal);
  free(d->openapi);
  free(d->metrics_token);
  free(d);
}
