/* From verdict to end: completing, failing, acking a replay, and finding out what became of a COMMIT. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "core/ledger_acks.h"
#include "core/run_stats.h"
#include "core/runner_internal.h"
#include "core/trouble.h"

/* ---- the end ---- */

static void log_end(const struct run *r, enum log_level level, const char *what) {
  log_kv(level, what, "run_id", r->run_id, "task", r->task_name, "tenant", r->has_tenant ? log_i64(r->tenant_id) : NULL,
         "attempt", log_i64(r->attempt), "deliveries", log_i64(r->deliveries), "ms",
         log_i64(loop_now_ms(r->runner->loop) - r->started_ms), NULL);
}

static void find_text(const struct run *r, const char *path, struct buf *out) {
  struct json_value v;

  buf_init(out);
  if (json_find(r->outcome, strlen(r->outcome), path, &v) == 0 && v.type == JSON_STRING &&
      json_value_string(&v, out, NULL) < 0)
    bug("a JSON string that was just found cannot be decoded");
}

/* Code and message only: whatever else the detail holds is the application's, and may be secret. PostgreSQL's messages
 * quote values, so of those only the sqlstate is told (`umavez show` has the rest), except of class 42: what they name
 * stands in the statement or the schema. */
static void log_failure(const struct run *r, const char *what) {
  struct buf code, message, sqlstate;
  bool told;

  find_text(r, "code", &code);
  find_text(r, "message", &message);
  find_text(r, "sqlstate", &sqlstate);
  told = sqlstate.len == 0 || strncmp(buf_cstr(&sqlstate), "42", 2) == 0;
  log_kv(LOG_WARN_, what, "run_id", r->run_id, "task", r->task_name, "tenant",
         r->has_tenant ? log_i64(r->tenant_id) : NULL, "attempt", log_i64(r->attempt), "deliveries",
         log_i64(r->deliveries), "code", buf_cstr(&code), "sqlstate", sqlstate.len ? buf_cstr(&sqlstate) : NULL,
         "message", told ? buf_cstr(&message) : NULL, "next_ms", r->permanent ? NULL : log_i64(r->delay_ms),
         NULL);
  buf_fini(&code);
  buf_fini(&message);
  buf_fini(&sqlstate);
}

void runner_answer(struct run *r, const char *outcome, size_t len, int64_t remaining_ms) {
  free(r->answer);
  r->answer = xmalloc(len + 1);
  memcpy(r->answer, outcome, len);
  r->answer[len] = 0;
  r->answer_ms = remaining_ms;
}

void runner_finish(struct run *r, enum run_end end, const char *what) {
  struct runner *rn = r->runner;

  if (r->conn) bug("run %s ends while it holds a connection", r->run_id);
  log_end(r, LOG_DEBUG_, what);
  run_timer_stop(r);
  r->end = end;
  run_stats_ended(r);
  run_set_state(r, RUN_DONE);
  runner_ops(r)->forget(r);
  rn->hooks.ended(rn->hooks.arg, r);
}

static void give_connection_back(struct run *r, bool usable) {
  struct pgconn *conn = r->conn;

  r->conn = NULL;
  if (!conn) return;
  if (usable)
    pgpool_release(r->runner->pool, conn);
  else
    pgpool_discard(r->runner->pool, conn);
}

void runner_back(struct run *r, enum give_back how, int64_t delay_ms) {
  struct runner *rn = r->runner;
  struct pgconn *conn = r->conn;

  r->conn = NULL;
  if (conn) ledger_rollback_later(rn->pool, conn);
  gate_release(rn->gate, r);
  if (!r->request) source_give_back(rn->source, r->run_id, how, delay_ms);
  r->answer_ms = delay_ms;
  runner_finish(r, how == GIVE_BACK_BUSY ? END_BUSY : END_GIVEN_BACK,
                how == GIVE_BACK_BUSY ? "run_busy" : "run_given_back");
}

void runner_trouble(struct run *r, const char *event, const struct err *e) {
  trouble_tell(r->runner->loop, event, e);
  runner_back(r, GIVE_BACK_UNTOUCHED, TROUBLE_RETRY_MS);
}

/* Somebody else has settled this claim, or the run is gone: what this transaction did is rolled back, and nothing is
 * recorded. */
static void finish_stale(struct run *r, const struct err *e) {
  log_kv(LOG_WARN_, "run_stale", "run_id", r->run_id, "task", r->task_name, "sqlstate", e->sqlstate, "error",
         e->message, NULL);
  stats_inc(STAT_LEASES_LOST);
  runner_back(r, GIVE_BACK_COUNTED, RUNNER_BUSY_MS);
}

static bool is_stale(const struct err *e) {
  return strcmp(e->sqlstate, "UV001") == 0 || strcmp(e->sqlstate, "UV002") == 0;
}

/* ---- failures ---- */

static char *failure_json(const char *code, const char *message, const char *sqlstate) {
  struct buf b;

  buf_init(&b);
  buf_puts(&b, "{\"code\":");
  json_write_string_lossy(&b, code, strlen(code), 64);
  buf_puts(&b, ",\"message\":");
  json_write_string_lossy(&b, message, strlen(message), 1500);
  if (sqlstate && sqlstate[0]) {
    buf_puts(&b, ",\"sqlstate\":");
    json_write_string_lossy(&b, sqlstate, strlen(sqlstate), 8);
  }
  buf_putc(&b, '}');
  return buf_take(&b);
}

void runner_set_failure(struct run *r, const char *code, const char *message, const char *sqlstate) {
  free(r->outcome);
  free(r->failure);
  r->outcome = failure_json(code, message, sqlstate);
  r->failure = xstrdup(r->outcome);
  r->permanent = r->task && !r->request && r->deliveries >= r->task->max_attempts;
  r->delay_ms = r->task ? task_backoff_ms(r->task, r->deliveries) : 0;
}

void runner_take_verdict(struct run *r, struct verdict *v) {
  free(r->outcome);
  free(r->failure);
  r->outcome = v->outcome;
  r->failure = v->failure;
  r->permanent = v->kind == VERDICT_FAIL || (!r->request && r->deliveries >= r->task->max_attempts);
  r->delay_ms =
      v->kind == VERDICT_RETRY && v->retry_after_ms >= 0 ? v->retry_after_ms : task_backoff_ms(r->task, r->deliveries);
}

/* The server itself is going away or has become a standby: that says nothing about the run. A function of the handler's
 * can raise the same sqlstates, or make its transaction read-only: those are errors like others. */
static bool is_server_fault(const struct err *e) {
  if (e->class != ERR_ENV) return false;
  return strcmp(e->sqlstate, "57P02") == 0 || strcmp(e->sqlstate, "57P03") == 0 || strcmp(e->sqlstate, "25006") == 0;
}

static void wait_for_retry(struct run *r) {
  gate_release(r->runner->gate, r);
  if (!r->request) source_due_in(r->runner->source, r->delay_ms);
}

/* Nothing could be recorded of it. A run whose connection ended is not charged then: the server went away under it. */
static void leave_unrecorded(struct run *r) {
  if (r->cut_off)
    runner_back(r, GIVE_BACK_UNTOUCHED, RUNNER_BUSY_MS);
  else
    runner_back(r, GIVE_BACK_COUNTED, r->delay_ms);
}

static void on_lost_recorded(struct run *r, struct ledger_call *call) {
  if (err_is_set(&call->got.err) && trouble_is(&call->got.err)) {
    trouble_tell(r->runner->loop, "failure_not_recorded", &call->got.err);
    runner_back(r, GIVE_BACK_COUNTED, r->delay_ms > TROUBLE_RETRY_MS ? r->delay_ms : TROUBLE_RETRY_MS);
    return;
  }
  if (err_is_set(&call->got.err)) {
    log_kv(LOG_WARN_, "failure_not_recorded", "run_id", r->run_id, "task", r->task_name, "sqlstate", call->got.err.sqlstate,
           "error", call->got.err.message, NULL);
    leave_unrecorded(r);
    return;
  }
  wait_for_retry(r);
  log_failure(r, !call->found ? "run_left_to_its_key" : r->permanent ? "run_failed" : "run_retried");
  if (!call->found) r->permanent = false;
  runner_finish(r, END_RETRY, "run_lost");
}

static void record_lost(struct run *r) {
  if (r->request) { /* nothing stands in the ledger, and the client comes again */
    log_failure(r, "request_failed");
    gate_release(r->runner->gate, r);
    runner_answer(r, r->outcome, strlen(r->outcome), 0);
    runner_finish(r, END_RETRY, "request_lost");
    return;
  }
  if (!ledger_fail_lost(r->runner->control, r, r->runner->worker_id, on_lost_recorded)) leave_unrecorded(r);
}

void runner_lost(struct run *r) {
  give_connection_back(r, false);
  run_set_state(r, RUN_LOST);
  record_lost(r);
}

void runner_recorded(struct run *r, const char *outcome, int64_t remaining_ms) {
  if (r->permanent)
    gate_settle(r->runner->gate, r, true, r->ledger_id, r->attempt, outcome, remaining_ms);
  else
    wait_for_retry(r);
  log_failure(r, r->permanent ? "run_failed" : "run_retried");
  runner_answer(r, outcome, strlen(outcome), remaining_ms);
  runner_finish(r, r->permanent ? END_FAILED : END_RETRY, "run_ended");
}

static void on_failed(struct run *r, struct ledger_call *call) {
  if (call->got.committed) {
    give_connection_back(r, !call->got.lost && !call->got.dirty);
    runner_recorded(r, call->outcome, call->remaining_ms);
    return;
  }
  if (call->got.lost && !call->got.refused) {
    runner_unknown(r);
    return;
  }
  if (is_stale(&call->got.err)) {
    finish_stale(r, &call->got.err);
    return;
  }
  if (trouble_is(&call->got.err))
    trouble_tell(r->runner->loop, "failure_record_refused", &call->got.err);
  else
    log_kv(LOG_WARN_, "failure_record_refused", "run_id", r->run_id, "task", r->task_name, "sqlstate", call->got.err.sqlstate,
         "error", call->got.err.message, NULL);
  runner_lost(r);
}

/* 57P01: the server ended this session. Is it going away, or was it told to end just this one (perhaps by the handler)? */
static bool is_ended(const struct err *e) {
  return strcmp(e->sqlstate, "57P01") == 0;
}

static void on_shutdown_judged(void *arg) {
  struct run *r = arg;

  if (!control_up(r->runner->control) || control_epoch(r->runner->control) != r->epoch)
    runner_back(r, GIVE_BACK_UNTOUCHED, RUNNER_BUSY_MS);
  else
    record_lost(r);
}

void runner_cut_off(struct run *r) {
  r->cut_off = true;
  give_connection_back(r, false);
  run_set_state(r, RUN_LOST);
  run_timer_start(r, r->runner->loop, RUNNER_SHUTDOWN_MS, on_shutdown_judged);
}

void runner_fail(struct run *r) {
  if (!r->conn || pgconn_state(r->conn) == PGCONN_CLOSED) {
    runner_lost(r);
    return;
  }
  run_set_state(r, RUN_FAIL);
  ledger_fail(r, on_failed);
}

void runner_failed_by(struct run *r, struct verdict *v) {
  if (is_server_fault(&v->err) || trouble_is(&v->err)) {
    free(v->outcome);
    free(v->failure);
    if (trouble_is(&v->err))
      runner_trouble(r, "handler_failed", &v->err);
    else
      runner_back(r, GIVE_BACK_UNTOUCHED, RUNNER_BUSY_MS);
    return;
  }
  runner_take_verdict(r, v);
  if (is_ended(&v->err))
    runner_cut_off(r);
  else
    runner_fail(r);
}

/* ---- completion ---- */

/* The completion was refused inside a transaction that is still there: what the ledger's checks say becomes the
 * failure. */
static void completion_refused(struct run *r, const struct err *e) {
  if (strcmp(e->sqlstate, "23514") == 0 && strstr(e->constraint, "outcome_check")) {
    runner_set_failure(r, "outcome_too_large", "the outcome has more than 4096 octets as jsonb text", NULL);
    r->permanent = true;
  } else if (strncmp(e->sqlstate, "22", 2) == 0) {
    runner_set_failure(r, "outcome_invalid", e->message, e->sqlstate);
    r->permanent = true;
  } else {
    runner_set_failure(r, "sql", e->message, e->sqlstate);
  }
  runner_fail(r);
}

void runner_completed(struct run *r, const char *outcome, int64_t remaining_ms) {
  gate_settle(r->runner->gate, r, false, r->ledger_id, r->attempt, outcome, remaining_ms);
  run_stats_purged(r, outcome);
  if (r->request) runner_answer(r, outcome, strlen(outcome), remaining_ms);
  runner_finish(r, END_COMPLETED, "run_completed");
}

static void on_completed(struct run *r, struct ledger_call *call) {
  const struct err *e = &call->got.err;

  if (call->got.committed) {
    FAILPOINT(COMMIT_ANSWERED, r->task_name, pgconn_fd(r->conn));
    stats_observe(STAT_COMMIT_TIME, runner_now_us() - r->handler_us);
    give_connection_back(r, !call->got.lost && !call->got.dirty);
    runner_completed(r, call->outcome, call->remaining_ms);
  } else if (call->got.lost && !call->got.refused) {
    runner_unknown(r);
  } else if (is_stale(e)) {
    finish_stale(r, e);
  } else if (trouble_is(e)) {
    runner_trouble(r, "completion_failed", e);
  } else if (is_server_fault(e)) {
    runner_back(r, GIVE_BACK_UNTOUCHED, RUNNER_BUSY_MS);
  } else if (runner_is_again(e) && runner_again(r, e)) {
    return;
  } else if (call->got.commit_refused || call->got.lost) {
    runner_set_failure(r, "sql", e->message, e->sqlstate);
    runner_lost(r);
  } else {
    completion_refused(r, e);
  }
}

void runner_complete(struct run *r, struct verdict *v) {
  free(v->failure);
  free(r->outcome);
  r->outcome = v->outcome;
  if (!r->conn || pgconn_state(r->conn) == PGCONN_CLOSED) {
    runner_set_failure(r, "sql", "the connection was lost before the run could be completed", "08006");
    runner_cut_off(r);
    return;
  }
  run_set_state(r, RUN_COMPLETE);
  r->handler_us = runner_now_us();
  ledger_complete(r, on_completed);
}

/* ---- an unknown COMMIT ---- */

static void resolve(void *arg);

static void resolve_later(struct run *r) {
  if (++r->resolves > RUNNER_RESOLVES_MAX) {
    log_end(r, LOG_WARN_, "commit_unresolved");
    r->token[0] = 0; /* the entry goes by its own TTL: nothing is known */
    runner_finish(r, END_UNKNOWN, "run_unresolved");
    return;
  }
  run_timer_start(r, r->runner->loop, RUNNER_RESOLVE_MS, resolve);
}

static void on_resolved(struct run *r, struct ledger_call *call) {
  if (err_is_set(&call->got.err) || call->commit == COMMIT_IN_PROGRESS) {
    resolve_later(r);
    return;
  }
  log_kv(LOG_INFO_, "commit_resolved", "run_id", r->run_id, "task", r->task_name, "verdict",
         call->commit == COMMIT_DONE ? "committed" : "rolled back", NULL);
  if (call->commit == COMMIT_ROLLED_BACK) {
    runner_back(r, GIVE_BACK_COUNTED, 0);
    return;
  }
  if (call->retryable) {
    r->permanent = false;
    wait_for_retry(r);
    runner_finish(r, END_RETRY, "run_resolved");
    return;
  }
  r->permanent = call->failed;
  if (call->outcome && call->remaining_ms > 0)
    gate_settle(r->runner->gate, r, call->failed, r->ledger_id, r->attempt, call->outcome, call->remaining_ms);
  else
    gate_release(r->runner->gate, r);
  if (call->outcome) runner_answer(r, call->outcome, strlen(call->outcome), call->remaining_ms);
  runner_finish(r, call->failed ? END_FAILED : END_COMPLETED, "run_resolved");
}

static void resolve(void *arg) {
  struct run *r = arg;

  gate_bind(r->runner->gate, r);
  if (!ledger_resolve(r->runner->control, r, on_resolved)) resolve_later(r);
}

void runner_unknown(struct run *r) {
  give_connection_back(r, false);
  run_set_state(r, RUN_UNKNOWN);
  stats_inc(STAT_COMMITS_UNKNOWN);
  log_end(r, LOG_WARN_, "commit_unknown");
  resolve(r);
}

/* ---- replays ---- */

static void on_acked(struct run *r, struct ledger_call *call) {
  if (err_is_set(&call->got.err)) {
    if (trouble_is(&call->got.err)) {
      runner_trouble(r, "ack_failed", &call->got.err);
      return;
    }
    if (!call->got.lost)
      log_kv(LOG_WARN_, "ack_failed", "run_id", r->run_id, "task", r->task_name, "sqlstate", call->got.err.sqlstate,
             "error", call->got.err.message, NULL);
    runner_back(r, GIVE_BACK_UNTOUCHED, call->got.lost ? 0 : RUNNER_BUSY_MS);
    return;
  }
  if (call->found) {
    r->replay = true;
    gate_settle(r->runner->gate, r, call->failed, call->ledger_id, call->attempt, call->outcome, call->remaining_ms);
    runner_finish(r, call->failed ? END_FAILED : END_COMPLETED, "run_replayed");
    return;
  }
  /* The ledger does not hold what the gate (or an earlier look) said. PostgreSQL decides, and our copy will replace
   * the entry. */
  r->gate_distrusted = true;
  stats_add(STAT_GATE, STATS_GATE_RESULT_UNBELIEVED, 1);
  if (r->draining || ++r->again > RUNNER_AGAIN_MAX)
    runner_back(r, GIVE_BACK_UNTOUCHED, RUNNER_BUSY_MS);
  else
    runner_after_gate(r);
}

void runner_ack(struct run *r) {
  run_set_state(r, RUN_ACK);
  gate_bind(r->runner->gate, r);
  ledger_ack(r->runner->acks, r, on_acked);
}

/* ---- ends without the ledger ---- */

static void on_ended(struct run *r, struct ledger_call *call) {
  if (err_is_set(&call->got.err) && trouble_is(&call->got.err)) {
    runner_trouble(r, "run_not_ended", &call->got.err);
    return;
  }
  if (err_is_set(&call->got.err) && !is_stale(&call->got.err)) {
    log_kv(LOG_WARN_, "run_not_ended", "run_id", r->run_id, "task", r->task_name, "sqlstate", call->got.err.sqlstate,
           "error", call->got.err.message, NULL);
    runner_back(r, GIVE_BACK_UNTOUCHED, RUNNER_BUSY_MS);
    return;
  }
  log_failure(r, r->permanent ? "run_failed" : "run_put_off");
  if (!r->permanent) source_due_in(r->runner->source, r->delay_ms);
  runner_finish(r, END_FAILED, "run_ended");
}

void runner_end(struct run *r, const char *code, const char *message) {
  runner_set_failure(r, code, message, NULL);
  r->permanent = true;
  run_set_state(r, RUN_END);
  if (!ledger_end(r->runner->control, r, on_ended)) runner_back(r, GIVE_BACK_UNTOUCHED, 0);
}

static void on_put_off(struct run *r, struct ledger_call *call) {
  r->permanent = !err_is_set(&call->got.err) && !call->found;
  r->delay_ms = call->remaining_ms;
  on_ended(r, call);
}

void runner_put_off(struct run *r, const char *code, const char *message) {
  runner_set_failure(r, code, message, NULL);
  run_set_state(r, RUN_END);
  if (!ledger_put_off(r->runner->control, r, RUNNER_PUT_OFF_MAX, on_put_off)) runner_back(r, GIVE_BACK_UNTOUCHED, 0);
}
