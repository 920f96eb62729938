#include "core/ledger_acks.h"

#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "core/ledger_internal.h"

#define ACKS_MAX 50 /* in a set: some milliseconds of the control connection */

struct ledger_acks {
  struct loop *loop;
  struct control *control;
  struct list waiting; /* run.member */
  int sent;            /* sets that are not answered yet */
  struct loop_task flush;
};

struct set {
  struct ledger_acks *acks;
  int n;
  struct ledger_call *calls[ACKS_MAX];
};

static void flush(void *arg);

struct ledger_acks *ledger_acks_new(struct loop *loop, struct control *control) {
  struct ledger_acks *a = xcalloc(1, sizeof *a);

  a->loop = loop;
  a->control = control;
  list_init(&a->waiting);
  loop_task_init(&a->flush, flush, a);
  return a;
}

void ledger_acks_free(struct ledger_acks *a) {
  if (!a) return;
  if (!list_empty(&a->waiting)) bug("acknowledgements wait when they are freed");
  loop_task_cancel(&a->flush);
  free(a);
}

void ledger_ack(struct ledger_acks *a, struct run *r, ledger_done *done) {
  (void)ledger_call_new(r, done);
  list_push_back(&a->waiting, &r->member);
  if (a->sent == 0) loop_defer(a->loop, &a->flush);
}

/* ---- answers ---- */

/* Columns: nr (from 1), status, outcome, remaining_ms, id, attempt; no row for what the ledger does not hold. */
static void take_row(const struct set *s, const struct pgresult *result, int row) {
  int nr = atoi(pgresult_value(result, row, 0));
  struct ledger_call *call;

  if (nr < 1 || nr > s->n) bug("umavez.ack_replays gave the number %d for %d runs", nr, s->n);
  call = s->calls[nr - 1];
  call->found = true;
  call->failed = strcmp(pgresult_value(result, row, 1), "failed_permanent") == 0;
  call->outcome = xstrdup(pgresult_value(result, row, 2));
  call->remaining_ms = strtoll(pgresult_value(result, row, 3), NULL, 10);
  call->ledger_id = strtoll(pgresult_value(result, row, 4), NULL, 10);
  call->attempt = atoi(pgresult_value(result, row, 5));
}

static void send_set(struct ledger_acks *a, struct ledger_call *const *calls, int n);

static void end_all(const struct set *s, const struct err *e, bool lost) {
  for (int i = 0; i < s->n; i++) {
    if (e) s->calls[i]->got.err = *e;
    s->calls[i]->got.lost = lost;
    ledger_call_end(s->calls[i]);
  }
}

static void on_answer(void *arg, struct pgresult *result) {
  struct set *s = arg;
  struct ledger_acks *a = s->acks;
  bool ok = pgresult_ok(result), lost = !ok && strcmp(pgresult_err(result)->code, "connection_lost") == 0;

  a->sent--;
  if (ok) {
    for (int i = 0; i < pgresult_rows(result); i++) take_row(s, result, i);
    end_all(s, NULL, false);
  } else if (lost || s->n == 1) {
    end_all(s, pgresult_err(result), lost);
  } else {
    for (int i = 0; i < s->n; i++) send_set(a, &s->calls[i], 1);
  }
  pgresult_free(result);
  free(s);
  if (a->sent == 0 && !list_empty(&a->waiting)) loop_defer(a->loop, &a->flush);
}

/* ---- sets ---- */

static void send_set(struct ledger_acks *a, struct ledger_call *const *calls, int n) {
  struct set *s = xcalloc(1, sizeof *s);
  struct run *runs[ACKS_MAX];
  struct params p = {.n = 0};
  struct buf arrays[4];

  s->acks = a;
  s->n = n;
  for (int i = 0; i < n; i++) {
    s->calls[i] = calls[i];
    runs[i] = calls[i]->run;
    calls[i]->sent_ms = loop_now_ms(a->loop);
  }
  params_array(&p, &arrays[0], OF_RUN_IDS, runs, n);
  params_array(&p, &arrays[1], OF_TENANTS, runs, n);
  params_array(&p, &arrays[2], OF_KEYS, runs, n);
  params_array(&p, &arrays[3], OF_FINGERPRINTS, runs, n);
  params_bool(&p, runs[0]->task->history);
  struct pgquery q = {.sql = "SELECT nr, status, outcome, remaining_ms, id, attempt FROM umavez.ack_replays($1::uuid[], $2::bigint[], "
                             "$3::bytea[], $4::bytea[], $5::boolean)",
                      .nparams = p.n,
                      .values = p.value,
                      .done = on_answer,
                      .arg = s};
  if (control_query(a->control, &q)) {
    a->sent++;
    FAILPOINT(ACK_SENT, runs[0]->task_name, control_fd(a->control));
  } else {
    struct err e = {0};
    err_set(&e, ERR_ENV, "connection_lost", "PostgreSQL is away");
    end_all(s, &e, true);
    free(s);
  }
  for (int i = 0; i < 4; i++) buf_fini(&arrays[i]);
}

/* The first run that waits, and what can go with it. */
static int choose(struct ledger_acks *a, struct ledger_call **calls) {
  struct run *first = list_first(&a->waiting, struct run, member), *r, *next;
  int n = 0;

  list_for_each_safe(r, next, &a->waiting, member) {
    if (r->task != first->task || r->has_tenant != first->has_tenant) continue;
    list_remove(&r->member);
    calls[n++] = r->call;
    if (n == ACKS_MAX) break;
  }
  return n;
}

static void flush(void *arg) {
  struct ledger_acks *a = arg;
  struct ledger_call *calls[ACKS_MAX];

  while (!list_empty(&a->waiting)) {
    int n = choose(a, calls);
    send_set(a, calls, n);
  }
}
