#include "core/ledger_batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "core/ledger_internal.h"

/* ---- answers ---- */

/* An answer that belongs to certain runs. */
struct answer {
  struct ledger_answers *group;
  int n;
  struct run *runs[];
};

static struct answer *answer_new(struct ledger_answers *g, struct run *const *runs, int n) {
  struct answer *a = xmalloc(sizeof *a + (size_t)n * sizeof(struct run *));

  a->group = g;
  a->n = n;
  memcpy(a->runs, runs, (size_t)n * sizeof(struct run *));
  return a;
}

/* ---- begin ---- */

/* "{17,NULL,18}" */
static void on_begun(void *arg, struct pgresult *result) {
  struct answer *a = arg;
  struct ledger_answers *g = a->group;

  if (answers_ok(g, result)) {
    const char *s = pgresult_value(result, 0, 0);
    for (int i = 0; i < a->n; i++) {
      if (*s != '{' && *s != ',') bug("umavez.begin_runs gave %s for %d runs", pgresult_value(result, 0, 0), a->n);
      s++;
      a->runs[i]->ledger_id = *s == 'N' ? 0 : strtoll(s, NULL, 10);
      a->runs[i]->attempt = *s == 'N' ? 0 : 1;
      a->runs[i]->backend_pid = atoi(pgresult_value(result, 0, 1));
      s += strcspn(s, ",}");
    }
  }
  free(a);
  answers_got(g, result);
}

/* Without time-outs a worker that is stopped right after its claims would hold the keys for good; the turns set their own.
 * client_connection_check_interval came with 14. */
#define TIMEOUTS(idle) "pg_catalog.set_config('idle_in_transaction_session_timeout', " idle ", true)"
#define CONNECTION_CHECK ", pg_catalog.set_config('client_connection_check_interval', '500ms', true)"
#define BEGIN_RUNS                                                                                                   \
  "SELECT umavez.begin_runs($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint), pg_catalog.pg_backend_pid(), "      \
  TIMEOUTS("$5")

void ledger_batch_begin(struct pgconn *c, struct ledger_answers *g, struct run *const *runs, int n, int64_t idle_ms) {
  struct params p = {.n = 0};
  struct buf arrays[3];

  params_array(&p, &arrays[0], OF_TENANTS, runs, n);
  params_array(&p, &arrays[1], OF_KEYS, runs, n);
  params_array(&p, &arrays[2], OF_FINGERPRINTS, runs, n);
  params_int(&p, runs[0]->task->lease_ms);
  params_int(&p, idle_ms);
  answers_send(g, c, "BEGIN", NULL, NULL, NULL);
  answers_send(g, c, pgconn_server_version(c) >= 140000 ? BEGIN_RUNS CONNECTION_CHECK : BEGIN_RUNS, &p, on_begun,
               answer_new(g, runs, n));
  pgconn_sync(c);
  for (int i = 0; i < 3; i++) buf_fini(&arrays[i]);
}

/* ---- turns ---- */

#define SAVEPOINT_NAME "umavez_run"
static void on_turn(void *arg, struct pgresult *result) {
  struct ledger_answers *g = arg;

  if (answers_ok(g, result) && strcmp(pgresult_value(result, 0, 0), "t") == 0) g->dirty = true;
  answers_got(g, result);
}

void ledger_batch_turn(struct pgconn *c, struct ledger_answers *g, const struct run *r, int64_t idle_ms) {
  struct params p = {.n = 0};

  params_tenant(&p, r);
  params_int(&p, idle_ms);
  answers_send(g, c, "SELECT umavez.begin_turn($1::bigint, $2::bigint)", &p, on_turn, g);
  answers_send(g, c, "SAVEPOINT " SAVEPOINT_NAME, NULL, NULL, NULL);
}

void ledger_batch_keep(struct pgconn *c, struct ledger_answers *g) {
  answers_send(g, c, "RELEASE SAVEPOINT " SAVEPOINT_NAME, NULL, NULL, NULL);
}

void ledger_batch_undo(struct pgconn *c, struct ledger_answers *g) {
  answers_send(g, c, "ROLLBACK TO SAVEPOINT " SAVEPOINT_NAME, NULL, NULL, NULL);
  answers_send(g, c, "RELEASE SAVEPOINT " SAVEPOINT_NAME, NULL, NULL, NULL);
}

/* ---- settlement ---- */

static void take_outcome(struct run *r, struct pgresult *result, int row) {
  free(r->outcome);
  r->outcome = xstrdup(pgresult_value(result, row, 0));
}

static void on_completed(void *arg, struct pgresult *result) {
  struct answer *a = arg;
  struct ledger_answers *g = a->group;

  if (answers_ok(g, result)) {
    if (pgresult_rows(result) != a->n)
      bug("umavez.complete_runs gave %d outcomes for %d runs", pgresult_rows(result), a->n);
    for (int i = 0; i < a->n; i++) take_outcome(a->runs[i], result, i);
  }
  free(a);
  answers_got(g, result);
}

static void on_failed(void *arg, struct pgresult *result) {
  struct answer *a = arg;
  struct ledger_answers *g = a->group;

  if (answers_ok(g, result)) take_outcome(a->runs[0], result, 0);
  free(a);
  answers_got(g, result);
}

static void send_completed(struct pgconn *c, struct ledger_answers *g, struct run *const *runs, int n) {
  struct params p = {.n = 0};
  struct buf arrays[5];

  params_array(&p, &arrays[0], OF_RUN_IDS, runs, n);
  params_array(&p, &arrays[1], OF_TENANTS, runs, n);
  params_array(&p, &arrays[2], OF_KEYS, runs, n);
  params_array(&p, &arrays[3], OF_LEDGER_IDS, runs, n);
  params_array(&p, &arrays[4], OF_OUTCOMES, runs, n);
  params_int(&p, runs[0]->task->retention_ms);
  params_bool(&p, runs[0]->task->history);
  answers_send(g, c,
               "SELECT * FROM umavez.complete_runs($1::uuid[], $2::bigint[], $3::bytea[], $4::bigint[], $5::jsonb[], "
               "$6::bigint, $7::boolean)",
               &p, on_completed, answer_new(g, runs, n));
  for (int i = 0; i < 5; i++) buf_fini(&arrays[i]);
}

static void send_forgotten(struct pgconn *c, struct ledger_answers *g, struct run *const *runs, int n) {
  struct params p = {.n = 0};
  struct buf arrays[2];

  params_array(&p, &arrays[0], OF_TENANTS, runs, n);
  params_array(&p, &arrays[1], OF_LEDGER_IDS, runs, n);
  answers_send(g, c, "SELECT umavez.forget_runs($1::bigint[], $2::bigint[])", &p, NULL, NULL);
  for (int i = 0; i < 2; i++) buf_fini(&arrays[i]);
}

void ledger_batch_settle(struct pgconn *c, struct ledger_answers *g, const struct ledger_settlement *s) {
  if (s->nforgotten) send_forgotten(c, g, s->forgotten, s->nforgotten);
  for (int i = 0; i < s->nfailed; i++) {
    struct params p = {.n = 0};
    params_fail_run(&p, s->failed[i]);
    answers_send(g, c, FAIL_RUN, &p, on_failed, answer_new(g, &s->failed[i], 1));
  }
  if (s->ncompleted) {
    send_completed(c, g, s->completed, s->ncompleted);
    FAILPOINT(COMPLETION_SENT, s->completed[0]->task_name, pgconn_fd(c));
  }
  answers_send_commit(g, c);
  if (s->ncompleted) FAILPOINT(COMMIT_SENT, s->completed[0]->task_name, pgconn_fd(c));
  if (s->nfailed) FAILPOINT(FAILURE_SENT, s->failed[0]->task_name, pgconn_fd(c));
}
