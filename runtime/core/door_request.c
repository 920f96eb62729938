/* A request whose sender is known: its key and body become a run; a duplicate waits for the first one's answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "core/door_answer.h"
#include "core/door_internal.h"
#include "core/door_text.h"

enum {
  WAIT_FIRST_MS = 25, /* between two looks at a key that somebody else holds */
  WAIT_MOST_MS = 250,
  SPARE_MS = 15000, /* beyond a task's timeout: until the whole exchange is given up */
  ARGS_SPARE_BYTES = 1 << 20, /* how much longer args may be as jsonb text than the body: 1e131071 has 131,072 digits */
};

static void start(struct exchange *x);
static void wait_for_slot(struct exchange *x);

/* ---- key ---- */

static bool is_safe(const char *method) {
  return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

static void owner_text(const struct exchange *x, char out[24]) {
  if (x->has_tenant)
    snprintf(out, 24, "t%lld", (long long)x->tenant_id);
  else
    strcpy(out, "p");
}

static void set_key(struct exchange *x, const char *key, size_t key_len) {
  char owner[24];
  size_t body_len;
  const char *body = http_body(x->q, &body_len);

  owner_text(x, owner);
  door_key_digest(owner, x->task->name, key, key_len, x->key);
  door_request_fingerprint(http_method(x->q), http_path(x->q), http_query(x->q), body, body_len, x->fingerprint);
}

/* False: x is refused. */
static bool read_key(struct exchange *x) {
  const struct task_http *h = x->task->http;
  const char *name = h->key == TASK_HTTP_KEY_HEADER ? h->key_header : "Idempotency-Key";
  const char *value = is_safe(http_method(x->q)) ? NULL : http_header(x->q, name, 0);
  struct err e = {0};
  struct buf key;
  char detail[160];

  if (!value) {
    if (h->key != TASK_HTTP_KEY_OPTIONAL && !is_safe(http_method(x->q))) {
      snprintf(detail, sizeof detail, "expected one header %.100s", name);
      door_refuse(x, PROBLEM_KEY_MISSING, detail, -1);
      return false;
    }
    set_key(x, x->run_id, strlen(x->run_id)); /* nobody can repeat it */
    return true;
  }
  if (http_header(x->q, name, 1)) {
    door_refuse(x, PROBLEM_KEY_INVALID, "the header was sent more than once", -1);
    return false;
  }
  buf_init(&key);
  if (door_key_parse(value, h->key_uuid, &key, &e) < 0) {
    door_refuse(x, PROBLEM_KEY_INVALID, e.message, -1);
    buf_fini(&key);
    return false;
  }
  x->keyed = true;
  set_key(x, key.data, key.len);
  buf_fini(&key);
  return true;
}

/* ---- body ---- */

struct merge {
  struct buf *out;
  const struct buf *params; /* "{…}" */
};

/* A path parameter goes before a member of the same name. */
static int merge_member(void *arg, const char *key, size_t key_len, const struct json_value *v) {
  struct merge *m = arg;
  struct json_value taken = {.type = JSON_ABSENT};

  if (!memchr(key, '.', key_len) && !memchr(key, 0, key_len) && key_len > 0 &&
      json_find(m->params->data, m->params->len, key, &taken) < 0)
    bug("path parameters are no JSON: %s", m->params->data);
  if (taken.type != JSON_ABSENT) return 0;
  buf_putc(m->out, ',');
  if (json_write_string(m->out, key, key_len, NULL) < 0) return -1;
  buf_putc(m->out, ':');
  buf_append(m->out, v->text, v->len);
  return 0;
}

/* jsonb must take the args, and must not blow them up: the queue, and a failure's record, hold them as jsonb. */
static int check_size(const struct buf *args, size_t body_len, struct err *e) {
  size_t octets;

  if (json_jsonb_size(args->data, args->len, &octets, e) < 0) return -1;
  if (octets > 4 * body_len + ARGS_SPARE_BYTES)
    return err_set(e, ERR_INPUT, "json_number", "numbers with so many digits are not taken");
  return 0;
}

/* args: the body's members and the path parameters, in canonical form (numbers stay exact). */
static int make_args(struct exchange *x, const char *body, size_t len, struct err *e) {
  struct buf merged = BUF_INIT, params = BUF_INIT;
  struct merge m = {&merged, &params};
  int rc = 0;

  buf_printf(&params, "{%s}", buf_cstr(&x->params));
  buf_append(&merged, params.data, params.len - 1);
  if (len > 0) rc = json_canonical(body, len, &x->args, e); /* refuses duplicate members and NUL */
  if (rc == 0 && len > 0) {
    struct buf canonical = x->args;
    buf_init(&x->args);
    rc = json_each_member(canonical.data, canonical.len, merge_member, &m, e);
    buf_fini(&canonical);
  }
  if (rc == 0) {
    buf_putc(&merged, '}');
    if (merged.len > 1 && merged.data[1] == ',') { /* no parameters: the first comma goes */
      memmove(merged.data + 1, merged.data + 2, merged.len - 2);
      merged.len--;
    }
    rc = json_canonical(merged.data, merged.len, &x->args, e);
  }
  if (rc == 0) rc = check_size(&x->args, len, e);
  buf_fini(&merged);
  buf_fini(&params);
  return rc;
}

/* False: x is refused. */
static bool read_body(struct exchange *x) {
  size_t len;
  const char *body = http_body(x->q, &len);
  struct err e = {0};

  if (x->task->http->max_body_bytes > 0 && len > (size_t)x->task->http->max_body_bytes) {
    door_refuse(x, PROBLEM_BODY_TOO_LARGE, NULL, -1);
    return false;
  }
  if (len > 0 && !door_text_is_json(http_header(x->q, "Content-Type", 0))) {
    door_refuse(x, PROBLEM_MEDIA_TYPE, NULL, -1);
    return false;
  }
  if (len == 0 && !is_safe(http_method(x->q)) && strcmp(http_method(x->q), "DELETE") != 0) {
    door_refuse(x, PROBLEM_BODY_INVALID, "the body is empty; expected a JSON object", -1);
    return false;
  }
  if (make_args(x, body, len, &e) != 0) {
    door_refuse(x, PROBLEM_BODY_INVALID, e.message[0] ? e.message : "expected a JSON object", -1);
    return false;
  }
  return true;
}

void door_request_begin(struct exchange *x) {
  if (!read_body(x) || !read_key(x)) {
    door_maybe_end(x);
    return;
  }
  if (!sched_taking(x->door->sched)) {
    door_refuse(x, x->door->draining ? PROBLEM_DRAINING : PROBLEM_UNAVAILABLE, NULL, 1);
    door_maybe_end(x);
    return;
  }
  x->wait_until_ms = loop_now_ms(x->door->loop) + x->task->http->wait_ms;
  loop_timer_start(x->door->loop, &x->deadline, x->task->http->wait_ms + x->task->timeout_ms + SPARE_MS);
  start(x);
}

/* ---- enqueueing instead of running ---- */

static void enqueue_done(struct run *r, struct pgresult *result) {
  struct verdict v = {.retry_after_ms = -1};
  struct buf b;

  buf_init(&b);
  if (pgresult_ok(result)) {
    const char *id = pgresult_value(result, 0, 0);
    v.kind = VERDICT_RETURNED;
    buf_printf(&b, "{\"status\":202,\"headers\":{\"Location\":\"/runs/%s\"},\"body\":{\"run_id\":\"%s\"}}", id, id);
  } else {
    v.kind = VERDICT_ERROR;
    v.err = *pgresult_err(result);
    buf_puts(&b, "{\"code\":\"sql\",\"message\":");
    json_write_string_lossy(&b, v.err.message, strlen(v.err.message), 1024);
    buf_printf(&b, ",\"sqlstate\":\"%s\"}", v.err.sqlstate);
  }
  v.outcome = buf_take(&b);
  pgresult_free(result);
  runner_handler_done(r, &v);
}

static void on_enqueued(void *arg, struct pgresult *result) {
  enqueue_done(arg, result);
}

static void enqueue_effect(struct run *r) {
  struct verdict fault = {.kind = VERDICT_FAIL, .retry_after_ms = -1, .outcome = runner_args_fault(r)};
  char tenant[24];
  struct err e = {0};

  if (fault.outcome) {
    runner_handler_done(r, &fault);
    return;
  }

  snprintf(tenant, sizeof tenant, "%lld", (long long)r->tenant_id);
  const char *values[3] = {r->task_name, r->args, r->has_tenant ? tenant : NULL};
  struct pgquery q = {.sql = "SELECT umavez.enqueue(task => $1, args => $2::jsonb, tenant_id => $3::bigint)",
                      .nparams = 3,
                      .values = values,
                      .done = on_enqueued,
                      .arg = r};
  if (runner_query(r, &q, &e) < 0) bug("an effect cannot send: %s", e.message);
}

static void enqueue_drop(struct run *r) {
}

static const struct handler_ops enqueue_ops = {.effect = enqueue_effect, .drop = enqueue_drop, .forget = enqueue_drop};

/* ---- answering ---- */

/* By the database's clock, as soon as it is known. */
static void http_date(const struct dbclock *clock, int64_t in_ms, char out[40]) {
  time_t t = (clock->known ? (time_t)(dbclock_earliest_ms(clock) / 1000) : time(NULL)) + (time_t)(in_ms / 1000);
  struct tm tm;

  gmtime_r(&t, &tm);
  strftime(out, 40, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

static void answer_outcome(struct exchange *x, const struct run *r) {
  struct http_header headers[DOOR_ANSWER_HEADERS + 4];
  struct door_answer a;
  struct err e = {0};
  char expires[40];
  size_t n = 0;

  if (door_answer_init(&a, r->answer, strlen(r->answer), r->end == END_FAILED, &e) < 0)
    bug("the ledger holds an outcome that is no object: %s", e.message);
  for (int i = 0; i < a.nheaders; i++)
    headers[n++] = (struct http_header){a.header[i].name, buf_cstr(&a.header[i].value)};
  headers[n++] = (struct http_header){"Cache-Control", "no-store"};
  if (x->keyed && r->replay) {
    headers[n++] = (struct http_header){"X-Idempotent-Replay", "true"};
    headers[n++] = (struct http_header){"Idempotent-Replayed", "true"};
  }
  if (x->keyed && r->answer_ms > 0) {
    http_date(x->door->clock, r->answer_ms, expires);
    headers[n++] = (struct http_header){"Idempotency-Key-Expires", expires};
  }
  struct http_answer out = {a.status, headers, n, a.body.data, a.body.len};
  FAILPOINT(ANSWER_BEFORE, r->task_name, -1);
  door_answer(x, &out);
  door_answer_fini(&a);
}

static int retry_after_s(int64_t ms) {
  return ms > 1000 ? (int)((ms + 999) / 1000) : 1;
}

/* ---- waiting ---- */

static void look_again(struct exchange *x) {
  list_remove(&x->wait_node);
  start(x);
}

/* r: the try that met the holder. "In progress" is never said on the gate's word alone: the entry may be a dead holder's, or one
 * whose copy was lost, of a key that is settled. */
static void wait_for_other(struct exchange *x, const struct run *r) {
  int64_t left = x->gone ? 0 : x->wait_until_ms - loop_now_ms(x->door->loop), ms = WAIT_FIRST_MS;

  x->looked = false;
  if (!x->q || (left <= 0 && r->past_gate)) {
    door_refuse(x, PROBLEM_IN_PROGRESS, NULL, retry_after_s(r->answer_ms > 0 ? r->answer_ms : 1000));
    return;
  }
  x->past_gate = left <= 0;
  for (int i = 1; i < x->tries && ms < WAIT_MOST_MS; i++)
    ms *= 2;
  if (ms > WAIT_MOST_MS) ms = WAIT_MOST_MS;
  if (ms > left) ms = left;
  list_push_back(&x->door->waiting[x->key[0]], &x->wait_node);
  door_later(x, ms, look_again);
}

void door_request_wake(struct door *d, const uint8_t key[DIGEST_BYTES]) {
  struct list *head = &d->waiting[key[0]];

  for (struct list *n = head->next; n != head; n = n->next) {
    struct exchange *x = container_of(n, struct exchange, wait_node);
    if (memcmp(x->key, key, DIGEST_BYTES) != 0) continue;
    x->looked = false;
    door_later(x, 0, look_again);
  }
}

void door_request_drain(struct door *d) {
  struct list *n, *next;

  for (n = d->exchanges.next; n != &d->exchanges; n = next) {
    struct exchange *x = container_of(n, struct exchange, node);
    next = n->next;
    if (x->run || list_empty(&x->wait_node)) continue;
    door_refuse(x, PROBLEM_DRAINING, NULL, 1);
    door_maybe_end(x);
  }
}

/* ---- the run ---- */

static void on_ended(struct run *r) {
  struct exchange *x = r->maker;
  struct door *d = x->door;

  x->run = NULL;
  switch (r->end) {
    case END_COMPLETED:
    case END_FAILED:
      if (r->answer)
        answer_outcome(x, r);
      else /* resolved as committed, but purged since */
        door_refuse(x, PROBLEM_UNKNOWN, NULL, 1);
      if (!r->replay) door_request_wake(d, x->key);
      break;
    case END_CONFLICT:
      door_refuse(x, PROBLEM_KEY_REUSED, "same key, but another method, path, query or body", -1);
      break;
    case END_BUSY:
      if (d->draining)
        door_refuse(x, PROBLEM_DRAINING, NULL, 1);
      else
        wait_for_other(x, r);
      break;
    case END_UNSTARTED:
      x->looked = true;
      wait_for_slot(x);
      break;
    case END_RETRY:
      door_refuse(x, PROBLEM_INTERNAL, NULL, -1);
      door_request_wake(d, x->key);
      break;
    case END_GIVEN_BACK:
      door_refuse(x, d->draining ? PROBLEM_DRAINING : PROBLEM_UNAVAILABLE, NULL, 1);
      door_request_wake(d, x->key);
      break;
    case END_UNKNOWN:
      door_refuse(x, PROBLEM_UNKNOWN, NULL, 1);
      break;
    case END_NONE:
      bug("request %s ended without an end", r->run_id);
  }
  door_maybe_end(x);
}

/* The slots are for handlers: a replay needs none. Whoever may be one looks once before it waits for a slot, and again when
 * something has happened to its key. */
static bool is_full(const struct exchange *x) {
  return x->task->concurrency > 0 && x->task->running >= x->task->concurrency;
}

/* The task has as many runs in this worker as its manifest allows: waits for one to end, as a duplicate does. */
static void wait_for_slot(struct exchange *x) {
  int64_t left = x->wait_until_ms - loop_now_ms(x->door->loop);

  if (left <= 0 || x->gone || !x->q) {
    door_refuse(x, PROBLEM_OVERLOADED, "as many requests of this kind are at work as may be", 1);
    return;
  }
  list_push_back(&x->door->waiting[x->key[0]], &x->wait_node);
  door_later(x, !is_full(x) ? 0 : left < WAIT_FIRST_MS ? left : WAIT_FIRST_MS, look_again);
}

/* One try: the run's id stays, so that a repeated look at our own gate entry is not taken for somebody else's. */
static void start(struct exchange *x) {
  struct run *r;

  if (sched_draining(x->door->sched)) {
    door_refuse(x, PROBLEM_DRAINING, NULL, 1);
    door_maybe_end(x);
    return;
  }
  if (is_full(x) && (x->looked || !x->keyed)) {
    wait_for_slot(x);
    door_maybe_end(x);
    return;
  }
  r = run_new(x->run_id, x->task->name, buf_cstr(&x->args), x->args.len);
  r->has_tenant = x->has_tenant;
  r->tenant_id = x->tenant_id;
  r->deliveries = 1;
  r->request = true;
  r->look_only = is_full(x);
  r->past_gate = x->past_gate || (x->tries > 0 && x->tries % 2 == 0);
  r->ended = on_ended;
  r->maker = x;
  memcpy(r->key, x->key, DIGEST_BYTES);
  memcpy(r->fingerprint, x->fingerprint, DIGEST_BYTES);
  if (x->run) bug("request %s is at work twice", x->run_id);
  if (x->task->http->mode == TASK_HTTP_ENQUEUE) {
    r->ops = &enqueue_ops;
    r->no_history = true; /* the queued run has its own */
  }
  const char *traceparent = x->q ? http_header(x->q, "traceparent", 0) : NULL;
  if (traceparent && door_text_is_traceparent(traceparent)) r->traceparent = xstrdup(traceparent);
  x->tries++;
  x->run = r;
  sched_adopt(x->door->sched, r);
}
