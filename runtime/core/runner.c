/* From delivery to handler: gate, prepare, connection, claim. What follows a verdict is in runner_settle.c. */
#include "core/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "core/ledger_acks.h"
#include "core/run_stats.h"
#include "core/runner_internal.h"
#include "core/trouble.h"

struct runner *runner_new(struct loop *loop, struct gate *gate, struct control *control, struct pgpool *pool,
                          struct source *source, const char *worker_id, const struct runner_hooks *hooks) {
  struct runner *rn = xcalloc(1, sizeof *rn);

  *rn = (struct runner){.loop = loop,
                        .gate = gate,
                        .control = control,
                        .acks = ledger_acks_new(loop, control),
                        .pool = pool,
                        .source = source,
                        .worker_id = worker_id,
                        .hooks = *hooks};
  return rn;
}

void runner_free(struct runner *rn) {
  if (rn) ledger_acks_free(rn->acks);
  free(rn);
}

void runner_set_handler(struct runner *rn, const struct handler_ops *ops) {
  rn->ops = ops;
}

void runner_set_patience(struct runner *rn, int64_t ms) {
  rn->patience_ms = ms;
}

int64_t runner_now_us(void) {
  struct timespec t;

  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* How long PostgreSQL lets the transaction be idle, before it takes the worker for dead. */
int64_t runner_idle_ms(const struct run *r) {
  int64_t patience = r->runner->patience_ms ? r->task->timeout_ms + r->runner->patience_ms : 0;

  return patience > r->task->lease_ms ? patience : r->task->lease_ms;
}

void runner_learn_trip(struct runner *rn, int64_t us) {
  stats_observe(STAT_CLAIM_TIME, us);
  rn->trip_us = rn->trip_us ? (7 * rn->trip_us + us) / 8 : us;
}

/* ---- delivery → gate ---- */

static void on_gate(struct run *r, const struct gate_answer *a);

static bool owner_fits(const struct run *r) {
  return (r->task->owner == TASK_OWNER_TENANT) == r->has_tenant;
}

void runner_start(struct runner *rn, struct run *r) {
  struct err e = {0};

  r->runner = rn;
  r->started_ms = loop_now_ms(rn->loop);
  r->due_loop = rn->loop;
  if (r->cancelled) {
    runner_end(r, "cancelled", r->cancelled);
    return;
  }
  if (!r->task) {
    char message[256];
    snprintf(message, sizeof message, "no manifest of this worker declares the task %s", r->task_name);
    runner_put_off(r, "unknown_task", message);
    return;
  }
  if (r->request && !owner_fits(r)) bug("the request %s was not checked by its maker", r->run_id);
  if (!owner_fits(r)) {
    runner_end(r, "owner_mismatch",
               r->has_tenant ? "the task is the platform's, but the run names a tenant: enqueue it without one"
                             : "the task is a tenant's, but the run names none: enqueue it with tenant_id");
    return;
  }
  /* More crashes than allowed: it died again although neither prepare nor effect was to be started any more. */
  if (r->task->key == TASK_KEY_FUNCTION && r->crashes > r->task->max_crashes) {
    runner_end(r, "worker_lost", "its task's key function costs each worker its life");
    return;
  }
  if (r->request) {
    hex_encode(r->key, sizeof r->key, r->key_hex);
    hex_encode(r->fingerprint, sizeof r->fingerprint, r->fingerprint_hex);
  } else if (runner_digests(rn, r, &e) < 0) {
    runner_end(r, e.code, e.message);
    return;
  }
  run_set_state(r, RUN_GATE);
  if (r->past_gate)
    runner_after_gate(r);
  else
    gate_acquire(rn->gate, r, on_gate);
}

static void on_gate(struct run *r, const struct gate_answer *a) {
  if (r->draining) {
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
    return;
  }
  switch (a->result) {
    case GATE_SETTLED:
      r->token[0] = 0;
      if (r->request) {
        r->replay = true;
        runner_answer(r, a->outcome, a->outcome_len, a->remaining_ms);
        runner_finish(r, a->failed ? END_FAILED : END_COMPLETED, "request_replayed");
      } else {
        runner_ack(r);
      }
      return;
    case GATE_BUSY:
      r->token[0] = 0;
      runner_back(r, GIVE_BACK_BUSY, a->remaining_ms);
      return;
    case GATE_ACQUIRED:
    case GATE_UNAVAILABLE:
      runner_after_gate(r);
      return;
  }
}

/* ---- prepare ---- */

static void on_prepare_timeout(void *arg) {
  struct run *r = arg;

  runner_ops(r)->drop(r);
  runner_set_failure(r, "timeout", "the prepare step did not end within the task's timeout", NULL);
  runner_lost(r);
}

void runner_after_gate(struct run *r) {
  if (!r->task->has_prepare || r->ops || r->look_only || r->cancelled || run_used_up(r)) {
    runner_to_pool(r);
    return;
  }
  run_set_state(r, RUN_PREPARE);
  run_stats_started(r, runner_now_us());
  r->deadline_ms = loop_now_ms(r->runner->loop) + r->task->timeout_ms;
  run_timer_start(r, r->runner->loop, r->task->timeout_ms, on_prepare_timeout);
  runner_ops(r)->prepare(r);
}

void runner_prepared(struct run *r) {
  if (r->state != RUN_PREPARE) bug("run %s was prepared in state %s", r->run_id, run_state_name(r->state));
  run_timer_stop(r);
  r->deadline_ms = 0;
  runner_to_pool(r);
}

/* ---- connection, claim ---- */

static void on_claimed(struct run *r, struct ledger_call *call);

void runner_connected(struct run *r, struct pgconn *conn, const struct err *e) {
  if (!conn) {
    log_kv(LOG_DEBUG_, "no_connection", "run_id", r->run_id, "error", e ? e->message : "", NULL);
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
    return;
  }
  r->conn = conn;
  run_set_state(r, RUN_CLAIM);
  gate_bind(r->runner->gate, r);
  r->handler_us = runner_now_us();
  ledger_claim(r, !r->request && control_snapshots(r->runner->control), runner_idle_ms(r), on_claimed);
}

static void on_connection(void *arg, struct pgconn *conn, const struct err *e) {
  runner_connected(arg, conn, e);
}

void runner_pause(struct runner *rn, bool paused) {
  rn->paused = paused;
}

void runner_to_pool(struct run *r) {
  if (r->runner->paused) {
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
    return;
  }
  run_set_state(r, RUN_POOL);
  if (batch_wants(r)) {
    batch_join(r);
    return;
  }
  pgwait_init(&r->wait, on_connection, r);
  pgpool_acquire(r->runner->pool, &r->wait);
}

bool runner_is_again(const struct err *e) {
  return strcmp(e->sqlstate, "40001") == 0 || strcmp(e->sqlstate, "40P01") == 0 ||
         strcmp(e->code, "prepared_lost") == 0;
}

bool runner_again(struct run *r, const struct err *e) {
  struct pgconn *conn = r->conn;

  if (r->again >= RUNNER_AGAIN_MAX || r->draining) return false;
  r->again++;
  stats_inc(STAT_SERIALIZATION);
  log_kv(LOG_INFO_, "run_again", "run_id", r->run_id, "task", r->task_name, "sqlstate", e->sqlstate, NULL);
  run_timer_stop(r);
  r->deadline_ms = 0;
  r->conn = NULL;
  ledger_rollback_later(r->runner->pool, conn);
  runner_to_pool(r);
  return true;
}

/* The claim met an error: nothing was started, so nothing is charged. */
static void claim_failed(struct run *r, const struct ledger_call *call) {
  const struct err *e = &call->got.err;
  bool held = strcmp(e->sqlstate, "55P03") == 0;

  stats_add(STAT_CLAIMS, held ? STATS_VERDICT_CLAIM_BUSY : STATS_VERDICT_CLAIM_ERROR, 1);
  if (call->got.lost) {
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
    return;
  }
  if (held) {
    runner_back(r, GIVE_BACK_BUSY, RUNNER_BUSY_MS);
    return;
  }
  if (runner_is_again(e)) {
    if (!runner_again(r, e)) runner_back(r, GIVE_BACK_BUSY, RUNNER_BUSY_MS);
    return;
  }
  if (trouble_is(e)) {
    runner_trouble(r, "claim_failed", e);
    return;
  }
  log_kv(LOG_ERROR_, "claim_failed", "run_id", r->run_id, "task", r->task_name, "sqlstate", e->sqlstate, "error",
         e->message, NULL);
  runner_back(r, GIVE_BACK_UNTOUCHED, strcmp(e->sqlstate, "25006") == 0 ? 0 : RUNNER_TROUBLE_MS);
}

static void drop_transaction(struct run *r) {
  struct pgconn *conn = r->conn;

  r->conn = NULL;
  ledger_rollback_later(r->runner->pool, conn);
}

/* Only here, with the key claimed: a run whose key is held or settled is answered by that, whatever its limits. */
static void end_used_up(struct run *r, struct ledger_call *call) {
  bool crashed = r->crashes > 0 && call->failure_code &&
                 (strcmp(call->failure_code, "timeout") == 0 || strcmp(call->failure_code, "worker_lost") == 0);
  char message[1024];

  if (crashed)
    snprintf(message, sizeof message, "%s (workers lost by this run: %d)",
             call->failure_message ? call->failure_message : "", r->crashes);
  else
    snprintf(message, sizeof message, "its worker was lost each time that the handler had started");
  runner_set_failure(r, crashed ? call->failure_code : "worker_lost", message, NULL);
  if (crashed) { /* with its traceback, if there was one */
    free(r->failure);
    r->failure = call->failure;
    call->failure = NULL;
  }
  r->permanent = true;
  runner_fail(r);
}

static void answer_replay(struct run *r, struct ledger_call *call) {
  r->replay = true;
  runner_answer(r, call->outcome, strlen(call->outcome), call->remaining_ms);
  gate_settle(r->runner->gate, r, call->failed, call->ledger_id, call->attempt, call->outcome, call->remaining_ms);
  runner_finish(r, call->failed ? END_FAILED : END_COMPLETED, "request_replayed");
}

static void on_claimed(struct run *r, struct ledger_call *call) {
  if (err_is_set(&call->got.err)) {
    claim_failed(r, call);
    return;
  }
  runner_learn_trip(r->runner, runner_now_us() - r->handler_us);
  run_stats_claim(call->claim);
  switch (call->claim) {
    case CLAIM_CLAIMED:
      if (r->look_only) {
        drop_transaction(r);
        gate_release(r->runner->gate, r);
        runner_finish(r, END_UNSTARTED, "request_unstarted");
        return;
      }
      r->ledger_id = call->ledger_id;
      r->attempt = call->attempt;
      FAILPOINT(CLAIM_ANSWERED, r->task_name, pgconn_fd(r->conn));
      if (run_used_up(r) && !r->draining)
        end_used_up(r, call);
      else if (r->refused)
        runner_fail(r);
      else
        runner_start_handler(r);
      return;
    case CLAIM_REPLAY:
      drop_transaction(r);
      if (r->request)
        answer_replay(r, call);
      else
        runner_ack(r);
      return;
    case CLAIM_BUSY:
      runner_back(r, GIVE_BACK_BUSY, call->remaining_ms > 0 ? call->remaining_ms : RUNNER_BUSY_MS);
      return;
    case CLAIM_CONFLICT:
      drop_transaction(r);
      gate_release(r->runner->gate, r);
      r->reused = true;
      if (r->request)
        runner_finish(r, END_CONFLICT, "request_conflict");
      else
        runner_end(r, "key_reused", "the idempotency key was used before with another request");
      return;
    case CLAIM_NONE:
      bug("a claim without verdict");
  }
}

/* ---- handler ---- */

static void after_stop(struct run *r) {
  if (r->batch) {
    batch_stopped(r);
    return;
  }
  if (r->draining)
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
  else
    runner_fail(r);
}

/* STOPPING ends when the statement has ended and the cancel request has been answered: one that is still under way could
 * hit the connection's next user. */
static void maybe_stopped(struct run *r) {
  if (r->pending > 0 || r->call) return;
  run_timer_stop(r);
  after_stop(r);
}

static void on_cancelled(struct run *r, struct ledger_call *call) {
  maybe_stopped(r);
}

static void close_connection(struct run *r) {
  struct pgconn *conn = r->conn;

  if (r->batch) {
    batch_discard(r);
    return;
  }
  r->conn = NULL;
  pgpool_discard(r->runner->pool, conn);
}

static void on_cancel_deadline(void *arg) {
  struct run *r = arg;

  log_kv(LOG_WARN_, "cancel_ignored", "run_id", r->run_id, "task", r->task_name, "why",
         "the statement did not end after it was cancelled: its connection is closed", NULL);
  if (r->conn) close_connection(r);
}

/* Drops the handler's coroutine; what it was waiting for is cancelled on the server. */
void runner_stop_handler(struct run *r) {
  run_timer_stop(r);
  r->deadline_ms = 0;
  runner_ops(r)->drop(r);
  run_stats_handler(r, runner_now_us());
  if (r->pending == 0) {
    after_stop(r);
    return;
  }
  run_set_state(r, RUN_STOPPING);
  if (ledger_cancel(r->runner->control, r, r->backend_pid, on_cancelled))
    run_timer_start(r, r->runner->loop, RUNNER_CANCEL_MS, on_cancel_deadline);
  else
    close_connection(r);
}

static void on_timeout(void *arg) {
  struct run *r = arg;
  char message[128];

  snprintf(message, sizeof message, "the handler did not end within the task's timeout of %lld ms",
           (long long)r->task->timeout_ms);
  stats_task_add(r->task->stats_row, STAT_TASK_TIMEOUTS, 0, 1);
  runner_set_failure(r, "timeout", message, NULL);
  runner_stop_handler(r);
}

static void set_cancelled(struct run *r) {
  runner_set_failure(r, "cancelled", r->cancelled, NULL);
  r->permanent = true;
}

void runner_start_handler(struct run *r) {
  if (r->draining) {
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
    return;
  }
  if (r->cancelled) {
    set_cancelled(r);
    runner_fail(r);
    return;
  }
  run_set_state(r, RUN_HANDLER);
  r->deadline_ms = loop_now_ms(r->runner->loop) + r->task->timeout_ms;
  run_timer_start(r, r->runner->loop, r->task->timeout_ms, on_timeout);
  r->handler_us = runner_now_us();
  r->epoch = control_epoch(r->runner->control);
  run_stats_started(r, r->handler_us);
  runner_ops(r)->effect(r);
}

static void on_connection_gone(void *arg) {
  struct run *r = arg;

  r->deadline_ms = 0;
  runner_ops(r)->drop(r);
  run_stats_handler(r, runner_now_us());
  runner_set_failure(r, "sql", "the connection was lost while the handler waited for something else", "08006");
  if (r->pending > 0)
    run_set_state(r, RUN_STOPPING); /* it has sent a statement meanwhile, whose answer (that it is lost) is on its way */
  else if (r->batch)
    batch_stopped(r);
  else
    runner_cut_off(r);
}

void runner_look(struct runner *rn, struct run *r) {
  if (r->state == RUN_HANDLER && r->pending == 0 && pgconn_state(r->conn) == PGCONN_CLOSED)
    run_timer_start(r, rn->loop, 0, on_connection_gone);
}

void runner_handler_done(struct run *r, struct verdict *v) {
  int64_t now_us = runner_now_us();

  run_timer_stop(r);
  r->deadline_ms = 0;
  if (r->state == RUN_PREPARE) {
    if (v->kind == VERDICT_RETURNED) bug("a prepare step that returned is runner_prepared");
    runner_take_verdict(r, v);
    r->refused = r->request && v->kind == VERDICT_FAIL; /* an answer, which its key has to keep */
    if (r->refused)
      runner_to_pool(r);
    else
      runner_lost(r);
    return;
  }
  if (r->state != RUN_HANDLER) bug("run %s had a verdict in state %s", r->run_id, run_state_name(r->state));
  run_stats_handler(r, now_us);
  if (r->batch) {
    batch_handler_done(r, v);
    return;
  }
  batch_learn(r, now_us - r->handler_us);
  if (v->kind == VERDICT_RETURNED)
    runner_complete(r, v);
  else if (v->kind == VERDICT_ERROR && runner_is_again(&v->err) && runner_again(r, &v->err)) {
    free(v->outcome);
    free(v->failure);
  } else {
    runner_failed_by(r, v);
  }
}

/* ---- the handler's statements ---- */

struct statement {
  struct run *run;
  struct pgconn *conn;
  void (*done)(void *arg, struct pgresult *r);
  void *arg;
};

/* The answer is the handler's as long as it is one, in this transaction. Afterwards its step is over, and has given up what
 * it kept for the answer (see step_over in bind_run.c): done must not be called any more. */
static void on_statement(void *arg, struct pgresult *result) {
  struct statement *s = arg;
  struct run *r = s->run;

  r->pending--;
  if (r->state == RUN_HANDLER && r->conn == s->conn) {
    s->done(s->arg, result);
  } else {
    pgresult_free(result);
    if (r->state == RUN_STOPPING) maybe_stopped(r);
  }
  free(s);
}

int runner_query(struct run *r, const struct pgquery *q, struct err *e) {
  struct pgquery own = *q;
  struct statement *s;

  if (r->state != RUN_HANDLER)
    return err_set(e, ERR_INPUT, "run_over", "run is over: its handler has ended, and its transaction with it");
  s = xcalloc(1, sizeof *s);
  *s = (struct statement){r, r->conn, q->done, q->arg};
  own.done = on_statement;
  own.arg = s;
  r->pending++;
  pgconn_query(r->conn, &own);
  pgconn_sync(r->conn);
  FAILPOINT(STATEMENT_SENT, r->task_name, pgconn_fd(r->conn));
  return 0;
}

void runner_taint(struct run *r) {
  if (r->batch) r->taints = true;
}

/* ---- cancel ---- */

void runner_cancel(struct runner *rn, struct run *r, const char *message) {
  if (r->cancelled || r->draining) return;
  r->cancelled = xstrdup(message);
  log_kv(LOG_INFO_, "run_cancelled", "run_id", r->run_id, "task", r->task_name, "state", run_state_name(r->state), NULL);
  switch (r->state) {
    case RUN_TAKEN:
      runner_start(rn, r);
      return;
    case RUN_PREPARE:
      run_timer_stop(r);
      runner_ops(r)->drop(r);
      set_cancelled(r);
      runner_lost(r);
      return;
    case RUN_HANDLER:
      set_cancelled(r);
      runner_stop_handler(r);
      return;
    default:
      return; /* it is seen before a handler starts */
  }
}

/* ---- drain ---- */

void runner_give_back(struct runner *rn, struct run *r) {
  if (r->state == RUN_TAKEN) {
    r->runner = rn;
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
  } else if (r->state == RUN_POOL) {
    if (list_linked(&r->member))
      batch_leave(r);
    else
      pgpool_cancel_wait(rn->pool, &r->wait);
    runner_back(r, GIVE_BACK_UNTOUCHED, 0);
  }
}

void runner_stop(struct runner *rn, struct run *r) {
  r->draining = true;
  switch (r->state) {
    case RUN_TAKEN:
    case RUN_POOL:
      runner_give_back(rn, r);
      return;
    case RUN_PREPARE:
      run_timer_stop(r);
      runner_ops(r)->drop(r);
      runner_back(r, GIVE_BACK_UNTOUCHED, 0);
      return;
    case RUN_HANDLER:
      runner_stop_handler(r);
      return;
    case RUN_TURN:
    case RUN_JOINED:
      batch_hurry(r);
      return;
    default:
      return; /* what is being settled, acked or asked goes on: it is short, and the answer matters */
  }
}
