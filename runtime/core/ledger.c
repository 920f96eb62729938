#include "core/ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "core/ledger_internal.h"

/* ---- collecting answers ---- */

/* PostgreSQL counted the retention from a moment after sent_ms: an answer to COMMIT can take longer than a retention. */
static void count_waiting(struct ledger_call *call) {
  int64_t waited_ms = loop_now_ms(call->run->due_loop) - call->sent_ms;

  if (call->outcome) call->remaining_ms = call->remaining_ms > waited_ms ? call->remaining_ms - waited_ms : 0;
}

void ledger_call_end(void *arg) {
  struct ledger_call *call = arg;

  count_waiting(call);
  call->run->call = NULL;
  call->done(call->run, call);
  free(call->outcome);
  free(call->failure_code);
  free(call->failure_message);
  free(call->failure);
  free(call);
}

struct ledger_call *ledger_call_new(struct run *r, ledger_done *done) {
  struct ledger_call *call = xcalloc(1, sizeof *call);

  if (r->call) bug("run %s has a ledger operation under way already", r->run_id);
  call->run = r;
  call->done = done;
  call->got.done = ledger_call_end;
  call->got.arg = call;
  call->sent_ms = loop_now_ms(r->due_loop);
  r->call = call;
  return call;
}

/* Queues a statement of the call. on_answer NULL: only its error is of interest. */
static void send(struct pgconn *conn, struct ledger_call *call, const char *sql, const struct params *p,
                 void (*on_answer)(void *, struct pgresult *)) {
  answers_send(&call->got, conn, sql, p, on_answer, call);
}

static char *column_text(struct pgresult *r, int col) {
  return pgresult_null(r, 0, col) ? NULL : xstrdup(pgresult_value(r, 0, col));
}

static int64_t column_int(struct pgresult *r, int col) {
  return pgresult_null(r, 0, col) ? 0 : strtoll(pgresult_value(r, 0, col), NULL, 10);
}

static bool column_is(struct pgresult *r, int col, const char *word) {
  return !pgresult_null(r, 0, col) && strcmp(pgresult_value(r, 0, col), word) == 0;
}

/* ---- on the run's own connection ---- */

static enum claim_verdict claim_verdict_of(struct pgresult *r) {
  if (column_is(r, 0, "claimed")) return CLAIM_CLAIMED;
  if (column_is(r, 0, "replay")) return CLAIM_REPLAY;
  if (column_is(r, 0, "busy")) return CLAIM_BUSY;
  if (column_is(r, 0, "conflict")) return CLAIM_CONFLICT;
  bug("umavez.begin_run gave the verdict %s", pgresult_null(r, 0, 0) ? "NULL" : pgresult_value(r, 0, 0));
}

static void on_claim(void *arg, struct pgresult *result) {
  struct ledger_call *call = arg;

  if (answers_ok(&call->got, result)) {
    call->claim = claim_verdict_of(result);
    call->ledger_id = column_int(result, 1);
    call->attempt = (int)column_int(result, 2);
    call->failed = column_is(result, 3, "failed_permanent");
    call->outcome = column_text(result, 4);
    call->remaining_ms = column_int(result, 5);
    call->run->backend_pid = (int)column_int(result, 6);
  }
  answers_got(&call->got, result);
}

static void on_last_failure(void *arg, struct pgresult *result) {
  struct ledger_call *call = arg;

  if (answers_ok(&call->got, result)) {
    call->failure_code = column_text(result, 0);
    call->failure_message = column_text(result, 1);
    call->failure = column_text(result, 2);
  }
  answers_got(&call->got, result);
}

#define CLAIM_COLUMNS "SELECT verdict, id, attempt, status, outcome, remaining_ms, pg_catalog.pg_backend_pid()"
#define CLAIM_FROM " FROM umavez.begin_run($1::bigint, $2::bytea, $3::bytea, $4::int, $5::int)"

void ledger_claim(struct run *r, bool hold, int64_t idle_ms, ledger_done *done) {
  bool used_up = run_used_up(r);
  struct ledger_call *call = ledger_call_new(r, done);
  struct params p = {.n = 0}, id = {.n = 0};

  params_tenant(&p, r);
  params_digest(&p, r->key_hex);
  params_digest(&p, r->fingerprint_hex);
  params_int(&p, r->task->lease_ms);
  params_int(&p, idle_ms);
  send(r->conn, call, "BEGIN", NULL, NULL);
  if (hold) params_text(&p, r->run_id);
  send(r->conn, call,
       hold ? CLAIM_COLUMNS ", CASE WHEN verdict = 'claimed' THEN umavez.hold_run($6::uuid) END" CLAIM_FROM
            : CLAIM_COLUMNS CLAIM_FROM,
       &p, on_claim);
  if (used_up) {
    params_text(&id, r->run_id);
    send(r->conn, call, "SELECT code, message, failure FROM umavez.last_failure($1::uuid)", &id, on_last_failure);
  }
  send(r->conn, call, "SAVEPOINT umavez_run", NULL, NULL);
  pgconn_sync(r->conn);
}

static void on_settled(void *arg, struct pgresult *result) {
  struct ledger_call *call = arg;

  if (answers_ok(&call->got, result)) {
    call->outcome = column_text(result, 0);
    call->remaining_ms = column_int(result, 1);
  }
  answers_got(&call->got, result);
}

static int64_t age_ms(const struct run *r) {
  return loop_now_ms(r->due_loop) - r->started_ms;
}

/* The first six parameters of what settles a request. */
static void add_request(struct params *p, const struct run *r) {
  params_text(p, r->run_id);
  params_text(p, r->task_name);
  params_tenant(p, r);
  params_digest(p, r->key_hex);
  params_int(p, r->ledger_id);
  params_int(p, r->attempt);
}

static void send_complete_request(struct run *r, struct ledger_call *call) {
  struct params p = {.n = 0};

  add_request(&p, r);
  params_text(&p, r->outcome);
  params_int(&p, r->task->retention_ms);
  params_bool(&p, r->task->history && !r->no_history);
  params_int(&p, age_ms(r));
  params_text(&p, r->traceparent);
  send(r->conn, call,
       "SELECT outcome, remaining_ms FROM umavez.complete_request($1::uuid, $2, $3::bigint, $4::bytea, $5::bigint, "
       "$6::int, $7::jsonb, $8::bigint, $9::boolean, $10::bigint, $11)",
       &p, on_settled);
}

static void send_fail_request(struct run *r, struct ledger_call *call) {
  struct params p = {.n = 0};

  add_request(&p, r);
  params_bool(&p, r->permanent);
  params_text(&p, r->outcome);
  params_text(&p, r->failure);
  params_text(&p, r->args);
  params_int(&p, r->task->retention_ms);
  params_int(&p, age_ms(r));
  params_text(&p, r->traceparent);
  send(
      r->conn, call,
      "SELECT outcome, remaining_ms FROM umavez.fail_request($1::uuid, $2, $3::bigint, $4::bytea, $5::bigint, $6::int, "
      "$7::boolean, $8::jsonb, $9::jsonb, $10::jsonb, $11::bigint, $12::bigint, $13)",
      &p, on_settled);
}

static void send_complete_run(struct run *r, struct ledger_call *call) {
  struct params p = {.n = 0};

  params_text(&p, r->run_id);
  params_tenant(&p, r);
  params_digest(&p, r->key_hex);
  params_int(&p, r->ledger_id);
  params_int(&p, r->attempt);
  params_text(&p, r->outcome);
  params_int(&p, r->task->retention_ms);
  params_bool(&p, r->task->history);
  send(r->conn, call,
       "SELECT outcome, remaining_ms FROM umavez.complete_run($1::uuid, $2::bigint, $3::bytea, $4::bigint, $5::int, "
       "$6::jsonb, "
       "$7::bigint, $8::boolean)",
       &p, on_settled);
}

void ledger_complete(struct run *r, ledger_done *done) {
  struct ledger_call *call = ledger_call_new(r, done);

  if (r->request)
    send_complete_request(r, call);
  else
    send_complete_run(r, call);
  FAILPOINT(COMPLETION_SENT, r->task_name, pgconn_fd(r->conn));
  answers_send_commit(&call->got, r->conn);
  FAILPOINT(COMMIT_SENT, r->task_name, pgconn_fd(r->conn));
}

static void send_fail_run(struct run *r, struct ledger_call *call) {
  struct params p = {.n = 0};

  params_fail_run(&p, r);
  send(r->conn, call, FAIL_RUN, &p, on_settled);
}

void ledger_fail(struct run *r, ledger_done *done) {
  struct ledger_call *call = ledger_call_new(r, done);

  send(r->conn, call, "ROLLBACK TO SAVEPOINT umavez_run", NULL, NULL);
  if (r->request)
    send_fail_request(r, call);
  else
    send_fail_run(r, call);
  answers_send_commit(&call->got, r->conn);
  FAILPOINT(FAILURE_SENT, r->task_name, pgconn_fd(r->conn));
}

struct giveback {
  struct pgpool *pool;
  struct pgconn *conn;
  struct ledger_answers got;
};

static void on_given_back(void *arg) {
  struct giveback *g = arg;

  if (err_is_set(&g->got.err) || g->got.dirty)
    pgpool_discard(g->pool, g->conn);
  else
    pgpool_release(g->pool, g->conn);
  free(g);
}

void ledger_rollback_later(struct pgpool *pool, struct pgconn *conn) {
  struct giveback *g = xcalloc(1, sizeof *g);

  g->pool = pool;
  g->conn = conn;
  g->got.done = on_given_back;
  g->got.arg = g;
  answers_send(&g->got, conn, "ROLLBACK", NULL, NULL, NULL);
  answers_send_reset(&g->got, conn);
  pgconn_sync(conn);
}

static void on_ignored(void *arg, struct pgresult *result) {
  pgresult_free(result);
}

void ledger_keep_alive(struct pgconn *conn) {
  struct pgquery q = {.sql = "SELECT 1", .done = on_ignored};

  pgconn_query(conn, &q);
  pgconn_sync(conn);
}

/* ---- on a control connection ---- */

static void on_plain(void *arg, struct pgresult *result) {
  struct ledger_call *call = arg;

  (void)answers_ok(&call->got, result);
  answers_got(&call->got, result);
}

static bool send_control(struct control *c, struct run *r, const char *sql, struct params *p,
                         void (*on_answer)(void *, struct pgresult *), ledger_done *done) {
  struct ledger_call *call;
  struct pgquery q = {.sql = sql, .nparams = p->n, .values = p->value, .done = on_answer};

  if (!control_up(c)) return false;
  call = ledger_call_new(r, done);
  call->got.left = 1;
  q.arg = call;
  if (control_query(c, &q)) return true;
  r->call = NULL;
  free(call);
  return false;
}

static void on_fail_lost(void *arg, struct pgresult *result) {
  struct ledger_call *call = arg;

  if (answers_ok(&call->got, result))
    call->found = pgresult_rows(result) > 0 && column_is(result, 0, "recorded");
  answers_got(&call->got, result);
}

bool ledger_fail_lost(struct control *c, struct run *r, const char *worker_id, ledger_done *done) {
  struct params p = {.n = 0};

  params_text(&p, worker_id);
  params_text(&p, r->run_id);
  params_tenant(&p, r);
  params_digest(&p, r->key_hex);
  params_digest(&p, r->fingerprint_hex);
  params_failure(&p, r);
  bool sent = send_control(
      c, r,
      "SELECT umavez.fail_lost_run($1::uuid, $2::uuid, $3::bigint, $4::bytea, $5::bytea, $6::boolean, $7::jsonb, "
      "$8::jsonb, $9::bigint, $10::bigint, $11::boolean)",
      &p, on_fail_lost, done);
  FAILPOINT(LOST_SENT, r->task_name, control_fd(c));
  return sent;
}

static void on_resolve(void *arg, struct pgresult *result) {
  struct ledger_call *call = arg;

  if (answers_ok(&call->got, result)) {
    call->commit = column_is(result, 0, "committed")     ? COMMIT_DONE
                   : column_is(result, 0, "rolled_back") ? COMMIT_ROLLED_BACK
                                                         : COMMIT_IN_PROGRESS;
    call->failed = column_is(result, 1, "failed_permanent");
    call->retryable = column_is(result, 1, "failed_retryable");
    call->outcome = column_text(result, 2);
    call->remaining_ms = column_int(result, 3);
  }
  answers_got(&call->got, result);
}

bool ledger_resolve(struct control *c, struct run *r, ledger_done *done) {
  struct params p = {.n = 0};

  params_text(&p, r->request ? NULL : r->run_id);
  params_tenant(&p, r);
  params_digest(&p, r->key_hex);
  params_int(&p, r->ledger_id);
  params_int(&p, r->attempt);
  return send_control(
      c, r,
      "SELECT verdict, status, outcome, remaining_ms FROM umavez.resolve_commit($1::uuid, $2::bigint, $3::bytea, "
      "$4::bigint, $5::int)",
      &p, on_resolve, done);
}

bool ledger_end(struct control *c, struct run *r, ledger_done *done) {
  struct params p = {.n = 0};

  params_text(&p, r->run_id);
  params_text(&p, r->outcome);
  params_text(&p, r->failure);
  if (r->key_hex[0])
    params_digest(&p, r->key_hex);
  else
    params_text(&p, NULL);
  return send_control(c, r,
                      "SELECT umavez.end_run($1::uuid, 'failed_permanent', $2::jsonb, $3::jsonb, $4::bytea, NULL)", &p,
                      on_plain, done);
}

static void on_put_off(void *arg, struct pgresult *result) {
  struct ledger_call *call = arg;

  if (answers_ok(&call->got, result)) {
    call->found = !pgresult_null(result, 0, 0);
    call->remaining_ms = column_int(result, 0);
  }
  answers_got(&call->got, result);
}

bool ledger_put_off(struct control *c, struct run *r, int max, ledger_done *done) {
  struct params p = {.n = 0};

  params_text(&p, r->run_id);
  params_text(&p, r->failure);
  params_int(&p, max);
  return send_control(c, r, "SELECT umavez.put_off_run($1::uuid, $2::jsonb, $3::int)", &p, on_put_off, done);
}

bool ledger_cancel(struct control *c, struct run *r, int pid, ledger_done *done) {
  struct params p = {.n = 0};

  params_int(&p, pid);
  return send_control(c, r, "SELECT pg_catalog.pg_cancel_backend($1::int)", &p, on_plain, done);
}
