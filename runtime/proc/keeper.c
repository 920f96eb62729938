#include "proc/keeper.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/log.h"
#include "core/control.h"

#define ANSWER_TIMEOUT_MS 10000
#define CLOSE_MS 30000     /* nothing to tell for so long: the connection is closed */
#define AGAIN_MS 500       /* after a failure, and while rows are locked */
#define LOCKED_MS 60000    /* so long a dead child's own transactions are waited for; then the leases do the rest */
#define RENEWALS_MAX 1000

/* When a burial is told after its first answer. */
static const int64_t rounds_ms[] = {0, 300, 1000, 3000};
enum { ROUNDS = sizeof rounds_ms / sizeof *rounds_ms };

struct burial {
  struct list node;
  struct keeper *keeper;
  char worker_id[37];
  char *charged; /* array literal */
  char *failure; /* or NULL */
  int round;     /* answered so often */
  int64_t answered_ms; /* the first time; 0: never */
  int64_t due_ms;
  bool asked;
};

struct renewal {
  struct list node;
  struct keeper *keeper;
  char worker_id[37];
  int64_t lease_ms, asked_ms;
  bool asked;
};

struct keeper {
  struct loop *loop;
  const struct conf *conf;
  char *url;
  struct keeper_hooks hooks;
  struct control *control; /* NULL: closed */
  struct list burials, renewals;
  int nrenewals;
  int64_t used_ms; /* the last time that there was something to tell */
  struct loop_timer timer;
  struct loop_task step;
};

static void wake(struct keeper *k) { loop_defer(k->loop, &k->step); }

/* ---- the connection ---- */

static void on_up(void *arg) {
  wake(arg);
}

static void open_connection(struct keeper *k) {
  struct control_options options = {"keeper", k->url, k->conf->connect_timeout_ms, ANSWER_TIMEOUT_MS,
                                    k->conf->prepare, 0, false};
  struct control_hooks hooks = {.on_up = on_up, .arg = k};

  k->control = control_new(k->loop, &options, &hooks);
}

/* ---- burials ---- */

static void free_burial(struct burial *b) {
  list_remove(&b->node);
  free(b->charged);
  free(b->failure);
  free(b);
}

static void on_buried(void *arg, struct pgresult *result) {
  struct burial *b = arg;
  struct keeper *k = b->keeper;
  int64_t now = loop_now_ms(k->loop);

  b->asked = false;
  if (!pgresult_ok(result)) {
    if (pgresult_err(result)->class != ERR_ENV)
      log_err(LOG_ERROR_, "worker_not_buried", pgresult_err(result), "worker_id", b->worker_id, NULL);
    b->due_ms = now + AGAIN_MS;
  } else {
    const char *returned = pgresult_value(result, 0, 0), *charged = pgresult_value(result, 0, 1),
               *locked = pgresult_value(result, 0, 2);
    bool any = strcmp(returned, "0") != 0 || strcmp(charged, "0") != 0, wait = strcmp(locked, "0") != 0;
    if (b->answered_ms == 0) b->answered_ms = now;
    if (any || b->round == 0)
      log_kv(LOG_INFO_, "worker_buried", "worker_id", b->worker_id, "returned", returned, "charged", charged, "locked", locked,
             NULL);
    b->round++;
    if (b->round < ROUNDS)
      b->due_ms = b->answered_ms + rounds_ms[b->round];
    else if (wait && now - b->answered_ms < LOCKED_MS)
      b->due_ms = now + AGAIN_MS;
    else
      free_burial(b);
  }
  pgresult_free(result);
  wake(k);
}

static void tell_burial(struct keeper *k, struct burial *b) {
  const char *values[3] = {b->worker_id, b->charged, b->failure};
  struct pgquery q = {.sql = "SELECT returned, charged, locked FROM umavez.bury_worker($1::uuid, $2::uuid[], $3::jsonb)",
                      .nparams = 3,
                      .values = values,
                      .done = on_buried,
                      .arg = b};

  b->asked = control_query(k->control, &q);
}

void keeper_bury(struct keeper *k, const struct keeper_burial *burial) {
  struct burial *b = xcalloc(1, sizeof *b);
  struct buf ids = BUF_INIT;

  list_init(&b->node);
  b->keeper = k;
  err_copy_text(b->worker_id, sizeof b->worker_id, burial->worker_id);
  buf_putc(&ids, '{');
  for (int i = 0; i < burial->ncharged; i++)
    buf_printf(&ids, i ? ",%s" : "%s", burial->charged[i]);
  buf_putc(&ids, '}');
  b->charged = buf_take(&ids);
  b->failure = burial->failure ? xstrdup(burial->failure) : NULL;
  b->due_ms = loop_now_ms(k->loop);
  list_push_back(&k->burials, &b->node);
  wake(k);
}

bool keeper_pending(const struct keeper *k) {
  const struct burial *b;

  list_for_each(b, &k->burials, node) if (b->answered_ms == 0) return true;
  return false;
}

/* ---- renewals ---- */

static void free_renewal(struct renewal *r) {
  r->keeper->nrenewals--;
  list_remove(&r->node);
  free(r);
}

static void on_renewed(void *arg, struct pgresult *result) {
  struct renewal *r = arg;
  struct keeper *k = r->keeper;

  if (pgresult_ok(result))
    k->hooks.renewed(k->hooks.arg, r->worker_id, r->asked_ms);
  else if (pgresult_err(result)->class != ERR_ENV)
    log_err(LOG_ERROR_, "leases_not_renewed", pgresult_err(result), "worker_id", r->worker_id, NULL);
  pgresult_free(result);
  free_renewal(r);
}

static void tell_renewal(struct keeper *k, struct renewal *r) {
  char lease[24];
  const char *values[2] = {r->worker_id, lease};
  struct pgquery q = {.sql = "SELECT umavez.renew_worker($1::uuid, $2::bigint)",
                      .nparams = 2,
                      .values = values,
                      .done = on_renewed,
                      .arg = r};

  snprintf(lease, sizeof lease, "%" PRId64, r->lease_ms);
  r->asked_ms = loop_now_ms(k->loop);
  r->asked = control_query(k->control, &q);
}

void keeper_renew(struct keeper *k, const char *worker_id, int64_t lease_ms) {
  struct renewal *r, *before;

  if (k->nrenewals >= RENEWALS_MAX) return; /* PostgreSQL is away: the watchdog sees that no answer comes */
  list_for_each(before, &k->renewals, node) if (!before->asked && strcmp(before->worker_id, worker_id) == 0) return;
  r = xcalloc(1, sizeof *r);
  list_init(&r->node);
  r->keeper = k;
  err_copy_text(r->worker_id, sizeof r->worker_id, worker_id);
  r->lease_ms = lease_ms;
  r->asked_ms = loop_now_ms(k->loop);
  k->nrenewals++;
  list_push_back(&k->renewals, &r->node);
  wake(k);
}

/* ---- all there is to do ---- */

/* What was not sent while PostgreSQL was away is of no use when it is back: the watchdog asks anew. */
static void drop_old_renewals(struct keeper *k, int64_t now) {
  struct list *n, *next;

  for (n = k->renewals.next; n != &k->renewals; n = next) {
    struct renewal *r = container_of(n, struct renewal, node);
    next = n->next;
    if (!r->asked && now - r->asked_ms > r->lease_ms) free_renewal(r);
  }
}

static void step(void *arg) {
  struct keeper *k = arg;
  int64_t now = loop_now_ms(k->loop), next_ms = CLOSE_MS;
  struct burial *b;
  struct renewal *r;

  drop_old_renewals(k, now);
  if (!list_empty(&k->burials) || !list_empty(&k->renewals)) {
    k->used_ms = now;
    if (!k->control) open_connection(k);
  }
  if (k->control && now - k->used_ms >= CLOSE_MS) {
    control_free(k->control);
    k->control = NULL;
  }
  if (!k->control) return;
  if (control_up(k->control)) {
    list_for_each(r, &k->renewals, node) if (!r->asked) tell_renewal(k, r);
    list_for_each(b, &k->burials, node) {
      if (!b->asked && b->due_ms <= now) tell_burial(k, b);
      if (!b->asked && b->due_ms - now < next_ms) next_ms = b->due_ms > now ? b->due_ms - now : AGAIN_MS;
    }
  }
  loop_timer_start(k->loop, &k->timer, next_ms);
}

static void on_timer(void *arg) { wake(arg); }

struct keeper *keeper_new(struct loop *loop, const struct conf *conf, const char *url, const struct keeper_hooks *hooks) {
  struct keeper *k = xcalloc(1, sizeof *k);

  k->loop = loop;
  k->conf = conf;
  k->url = xstrdup(url);
  k->hooks = *hooks;
  list_init(&k->burials);
  list_init(&k->renewals);
  loop_timer_init(&k->timer, on_timer, k);
  loop_task_init(&k->step, step, k);
  return k;
}

void keeper_free(struct keeper *k) {
  if (!k) return;
  loop_timer_stop(&k->timer);
  loop_task_cancel(&k->step);
  control_free(k->control);
  while (!list_empty(&k->burials)) free_burial(container_of(k->burials.next, struct burial, node));
  while (!list_empty(&k->renewals)) free_renewal(container_of(k->renewals.next, struct renewal, node));
  free(k->url);
  free(k);
}

bool keeper_idle(const struct keeper *k) { return list_empty(&k->burials) && list_empty(&k->renewals) && !k->control; }
