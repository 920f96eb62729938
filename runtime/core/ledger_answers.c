#include "core/ledger_answers.h"

#include <string.h>

#include "base/log.h"
#include "core/ledger_internal.h"

static void on_plain(void *arg, struct pgresult *result) {
  struct ledger_answers *a = arg;

  (void)answers_ok(a, result);
  answers_got(a, result);
}

void answers_send(struct ledger_answers *a, struct pgconn *conn, const char *sql, const struct params *p,
                  void (*on_answer)(void *, struct pgresult *), void *arg) {
  struct pgquery q = {.sql = sql, .nparams = p ? p->n : 0, .values = p ? p->value : NULL, .done = on_plain, .arg = a};

  if (on_answer) {
    q.done = on_answer;
    q.arg = arg;
  }
  a->left++;
  pgconn_query(conn, &q);
}

bool answers_ok(struct ledger_answers *a, const struct pgresult *result) {
  const struct err *e;

  if (pgresult_ok(result)) return true;
  e = pgresult_err(result);
  if (strcmp(e->code, "skipped") == 0) return false;
  if (strcmp(e->code, "connection_lost") == 0)
    a->lost = true;
  else
    a->refused = true;
  if (!err_is_set(&a->err)) a->err = *e;
  return false;
}

void answers_got(struct ledger_answers *a, struct pgresult *result) {
  pgresult_free(result);
  if (--a->left == 0 && a->done) a->done(a->arg);
}

/* A COMMIT of an aborted transaction is answered by the tag ROLLBACK, without an error. */
static void on_commit(void *arg, struct pgresult *result) {
  struct ledger_answers *a = arg;

  if (!answers_ok(a, result)) {
    a->commit_refused = pgresult_err(result)->class == ERR_SQL;
  } else if (strcmp(pgresult_tag(result), "COMMIT") == 0) {
    a->committed = true;
  } else {
    a->refused = a->commit_refused = true;
    if (!err_is_set(&a->err)) {
      err_set(&a->err, ERR_SQL, "sql", "the transaction was aborted by an earlier error: COMMIT was answered by %s",
              pgresult_tag(result));
      strcpy(a->err.sqlstate, "25P02");
    }
  }
  answers_got(a, result);
}

/* What a reset after COMMIT says does not change what was committed; a lost connection shows in the pool. */
static void on_reset(void *arg, struct pgresult *result) {
  struct ledger_answers *a = arg;

  if (!pgresult_ok(result)) {
    a->dirty = true;
    log_kv(LOG_DEBUG_, "session_reset_failed", "error", pgresult_err(result)->message, NULL);
  } else if (strcmp(pgresult_value(result, 0, 0), "t") == 0) {
    a->dirty = true;
  }
  answers_got(a, result);
}

void answers_send_reset(struct ledger_answers *a, struct pgconn *conn) {
  answers_send(a, conn, "SELECT umavez.reset_session()", NULL, on_reset, a);
}

void answers_send_commit(struct ledger_answers *a, struct pgconn *conn) {
  answers_send(a, conn, "COMMIT", NULL, on_commit, a);
  answers_send_reset(a, conn);
  pgconn_sync(conn);
}
