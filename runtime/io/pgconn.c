/* The queue. An item moves: unsent (while connecting) → sent → answered (its group's sync still missing) → ready → done.
 *
 * Internal items travel with the user's: PARSE in front of the query that needs it, SYNC behind a group, DEALLOCATE in groups
 * of their own, which are sent only when nothing else is pending and no transaction is open: a DEALLOCATE that failed in
 * the user's group would take his COMMIT or ROLLBACK with it.
 *
 * Everything that reaches the user goes through deliver(), a deferred task. libpq is called from I/O callbacks and from the
 * user's calls, neither of which is inside libpq, so a broken connection can be finished on the spot. */
#include "io/pgconn.h"

#include <libpq-fe.h>
#ifdef UMAVEZ_FAILPOINTS
#include <poll.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/pgitem.h"
#include "io/pgopen.h"
#include "io/pgresult.h"
#include "io/pgstmt.h"

enum { MAX_PARAMS = 65535, MAX_CLOSE = 32 };

struct notice {
  struct list node;
  char *channel, *payload;
};

struct pgconn {
  struct loop *loop;
  PGconn *pg;                /* NULL once closed */
  char *url;
  enum pgconn_state state;
  bool prepare;              /* use named statements */
  bool read_only;            /* 25006 was seen */
  bool abandoned;            /* pgconn_close_later was called: no hooks, free when all is delivered */
  bool freeing;              /* the delayed free is on its way */
  bool ready_due, closed_due; /* hooks to call at the next delivery */
  char txn;                  /* behind the last delivered group */
  int backend_pid, server_version;
  struct err error;          /* why closed */
  struct err last_fatal;     /* a FATAL notice that came between queries: the likely reason of the end that follows */
  struct pgconn_hooks hooks;
  void *arg;

  struct list unsent, sent, answered, ready;
  int pending;               /* queries of the user's not yet done */
  int open_group;            /* queries queued since the last sync */
  int syncs;                 /* groups sent and not answered */
  uint64_t group;            /* number of the group being queued */
  struct pgresult *parse_error; /* of the PARSE just answered, for the query behind it */
  struct pgstmts stmts;

  struct list notices;
  struct loop_io io;
  struct loop_task deliver;
  struct loop_timer connect_timer, answer_timer;
  int64_t connect_timeout_ms, answer_timeout_ms;
  int64_t heard_ms;          /* when octets last came, or the first group was sent */
};

static void update_io(struct pgconn *c);
static void close_idle_statements(struct pgconn *c);

/* A new item at the end of a list. */
static struct item *queue(struct pgconn *c, enum item_kind kind, struct list *where) {
  struct item *it = pgitem_new(kind);
  list_push_back(where, &it->node);
  if (kind == ITEM_QUERY) c->pending++;
  return it;
}

/* ── the end of a connection ── */

/* Moves what is pending to `ready`, answered or lost, in order; the hook follows behind it. */
static void conn_end(struct pgconn *c, const struct err *why) {
  if (c->state == PGCONN_CLOSED) return;
  c->state = PGCONN_CLOSED;
  c->error = *why;
  c->closed_due = true;
  loop_io_stop(&c->io);
  loop_timer_stop(&c->connect_timer);
  loop_timer_stop(&c->answer_timer);
  if (c->pg != NULL) {
    pgopen_redact(c->pg, &c->error);
    PQfinish(c->pg);
    c->pg = NULL;
  }
  struct err lost;
  err_set(&lost, ERR_ENV, "connection_lost", "the connection to PostgreSQL is lost: %s", c->error.message);
  err_copy_text(lost.sqlstate, sizeof lost.sqlstate, *c->error.sqlstate ? c->error.sqlstate : "08006");
  list_splice_back(&c->answered, &c->sent);
  list_splice_back(&c->answered, &c->unsent);
  struct item *it, *next;
  list_for_each_safe(it, next, &c->answered, node) {
    if (it->kind != ITEM_QUERY || it->result != NULL) continue;
    it->result = c->parse_error != NULL ? c->parse_error : pgresult_failed(&lost);
    c->parse_error = NULL;
  }
  list_splice_back(&c->ready, &c->answered);
  c->open_group = 0;
  loop_defer(c->loop, &c->deliver);
}

static void conn_lost(struct pgconn *c) {
  struct err why;
  if (err_is_set(&c->last_fatal)) {
    why = c->last_fatal;
  } else {
    err_set(&why, ERR_ENV, "connection_lost", "%s", "");
    pgresult_one_line(why.message, sizeof why.message, PQerrorMessage(c->pg));
    if (*why.message == '\0') err_copy_text(why.message, sizeof why.message, "the server closed the connection");
    err_copy_text(why.sqlstate, sizeof why.sqlstate, "08006");
  }
  conn_end(c, &why);
}

/* ── sending ── */

static void send_failed(struct pgconn *c, int ok) {
  if (!ok && c->state == PGCONN_READY) conn_lost(c);
}

static void heard(struct pgconn *c) { c->heard_ms = loop_now_ms(c->loop); }

/* Puts the query, and a Parse if its statement needs one, into libpq's buffer. it is in no list yet. */
static void send_query(struct pgconn *c, struct item *it, const struct pgquery *q) {
  bool parse = false;
  c->open_group++;
  if (q->nparams > MAX_PARAMS) {
    it->refused = true;
    list_push_back(&c->sent, &it->node);
    /* An error of the server's own, so that it skips the rest of the group. */
    send_failed(c, PQsendQueryParams(c->pg, "too many parameters", 0, NULL, NULL, NULL, NULL, 0));
    return;
  }
  int ntypes = q->types != NULL ? q->nparams : 0;
  if (c->prepare && !q->once) it->stmt = pgstmts_use(&c->stmts, q->sql, q->types, ntypes, c->group, &parse);
  if (parse) {
    struct item *p = queue(c, ITEM_PARSE, &c->sent);
    p->stmt = it->stmt;
    pgstmt_ref(p->stmt);
    if (!PQsendPrepare(c->pg, p->stmt->name, q->sql, ntypes, q->types)) {
      list_push_back(&c->sent, &it->node);
      conn_lost(c);
      return;
    }
  }
  list_push_back(&c->sent, &it->node);
  if (it->stmt != NULL) {
    send_failed(c, PQsendQueryPrepared(c->pg, it->stmt->name, q->nparams, q->values, q->lengths, q->formats, 0));
  } else {
    send_failed(c, PQsendQueryParams(c->pg, q->sql, q->nparams, q->types, q->values, q->lengths, q->formats, 0));
  }
}

static void send_sync(struct pgconn *c) {
  if (c->syncs++ == 0) heard(c);
  queue(c, ITEM_SYNC, &c->sent);
  c->open_group = 0;
  c->group++;
  if (!PQpipelineSync(c->pg)) {
    conn_lost(c);
    return;
  }
  if (c->answer_timeout_ms > 0 && !loop_timer_active(&c->answer_timer)) {
    loop_timer_start(c->loop, &c->answer_timer, c->answer_timeout_ms);
  }
  update_io(c);
}

void pgconn_query(struct pgconn *c, const struct pgquery *q) {
  if (c->abandoned) bug("pgconn_query after pgconn_close_later");
  struct item *it = queue(c, ITEM_QUERY, &c->unsent);
  it->done = q->done;
  it->arg = q->arg;
  switch (c->state) {
    case PGCONN_CONNECTING:
      it->copy = pgitem_copy(q);
      c->open_group++;
      break;
    case PGCONN_READY:
      list_remove(&it->node);
      send_query(c, it, q);
      break;
    case PGCONN_CLOSED:
      list_remove(&it->node);
      it->result = pgresult_failed(&c->error);
      pgresult_reclass(it->result, ERR_ENV, "connection_lost");
      if (*it->result->err->sqlstate == '\0') err_copy_text(it->result->err->sqlstate, 6, "08006");
      list_push_back(&c->ready, &it->node);
      loop_defer(c->loop, &c->deliver);
      break;
  }
}

void pgconn_sync(struct pgconn *c) {
  if (c->open_group == 0) return;
  if (c->state == PGCONN_READY) {
    send_sync(c);
  } else if (c->state == PGCONN_CONNECTING) {
    queue(c, ITEM_SYNC, &c->unsent);
    c->open_group = 0;
  }
}

void pgconn_exec(struct pgconn *c, const char *sql, void (*done)(void *, struct pgresult *), void *arg) {
  pgconn_query(c, &(struct pgquery){.sql = sql, .once = true, .done = done, .arg = arg});
  pgconn_sync(c);
}

/* What was queued while connecting; if the connection ends meanwhile, the rest is lost with it. */
static void send_unsent(struct pgconn *c) {
  c->open_group = 0;
  struct item *it;
  while (c->state == PGCONN_READY && (it = list_pop_front(&c->unsent, struct item, node)) != NULL) {
    if (it->kind == ITEM_SYNC) {
      pgitem_free(it);
      send_sync(c);
    } else {
      struct pgquery *q = it->copy;
      it->copy = NULL;
      send_query(c, it, q);
      free(q);
    }
  }
}

/* ── receiving ── */

static bool parameter_on(const struct pgconn *c, const char *name, bool *known) {
  const char *value = c->pg ? PQparameterStatus(c->pg, name) : NULL;
  if (value != NULL) *known = true;
  return value != NULL && strcmp(value, "on") == 0;
}

static bool session_read_only(const struct pgconn *c, bool *known) {
  *known = false;
  bool standby = parameter_on(c, "in_hot_standby", known);
  return parameter_on(c, "default_transaction_read_only", known) || standby;
}

/* Errors that say something about the session rather than the statement. Called when the whole group is known: the server
 * reports a changed parameter in front of ReadyForQuery. */
static void judge_query(struct pgconn *c, struct item *it) {
  struct pgresult *r = it->result;
  bool known;
  if (r == NULL || pgresult_ok(r) || r->err->class != ERR_SQL) return;
  if (it->refused) {
    err_set(r->err, ERR_INPUT, "not_supported", "a statement has at most %d parameters", MAX_PARAMS);
    err_copy_text(r->err->sqlstate, sizeof r->err->sqlstate, "0A000");
  } else if (pgresult_is_state(r, "25006")) {
    /* A transaction that the user has made read-only is his own affair. */
    if (session_read_only(c, &known) || !known) {
      c->read_only = true;
      pgresult_reclass(r, ERR_ENV, "read_only");
    }
  } else if (it->stmt != NULL && (pgresult_is_state(r, "26000") || pgresult_is_state(r, "42P05")) &&
             strstr(r->err->message, it->stmt->name) != NULL) { /* not an EXECUTE of the user's */
    pgresult_reclass(r, ERR_ENV, "prepared_lost");
    if (c->prepare) log_kv(LOG_WARN_, "pg_prepared_statements_lost", "sqlstate", r->err->sqlstate, "hint",
                           "a pooler in transaction mode, or DISCARD/DEALLOCATE: this connection goes on without them", NULL);
    c->prepare = false;
    pgstmts_forget(&c->stmts);
  } else if (it->stmt != NULL && pgresult_is_state(r, "0A000") && pgresult_from_function(r, "RevalidateCachedQuery")) {
    pgresult_reclass(r, ERR_ENV, "prepared_lost");
    pgstmts_doom(&c->stmts, it->stmt);
  }
}

static void query_answered(struct pgconn *c, struct item *it) {
  if (c->parse_error != NULL && !pgresult_ok(it->result)) {
    pgresult_free(it->result);
    it->result = c->parse_error;
    c->parse_error = NULL;
  }
}

/* All results of the first sent item are in. */
static void item_answered(struct pgconn *c, struct item *it) {
  list_remove(&it->node);
  bool ok = pgresult_ok(it->result);
  bool skipped = !ok && it->result->err->class == ERR_CANCELLED;
  switch (it->kind) {
    case ITEM_QUERY:
      query_answered(c, it);
      list_push_back(&c->answered, &it->node);
      return;
    case ITEM_PARSE:
      pgstmts_parsed(&c->stmts, it->stmt, ok);
      if (!ok && !skipped) {
        c->parse_error = it->result;
        it->result = NULL;
      }
      break;
    case ITEM_DEALLOCATE:
      pgstmts_closed(&c->stmts, it->stmt, skipped);
      break;
    case ITEM_SYNC:
      bug("a sync has no results");
  }
  pgitem_free(it);
}

static char txn_letter(const PGconn *pg) {
  switch (PQtransactionStatus(pg)) {
    case PQTRANS_IDLE: return 'I';
    case PQTRANS_INTRANS: return 'T';
    case PQTRANS_INERROR: return 'E';
    default: return '?';
  }
}

static void sync_answered(struct pgconn *c, struct item *sync) {
  list_remove(&sync->node);
  c->syncs--;
  sync->txn = txn_letter(c->pg);
  struct item *it;
  list_for_each(it, &c->answered, node) judge_query(c, it);
  list_push_back(&c->ready, &sync->node); /* in front of its group: the state holds when the answers arrive */
  list_splice_back(&c->ready, &c->answered);
  loop_defer(c->loop, &c->deliver);
}

static void copy_refused(struct pgconn *c, struct item *it) {
  struct err e;
  err_set(&e, ERR_INPUT, "not_supported", "COPY is not supported here");
  err_copy_text(e.sqlstate, sizeof e.sqlstate, "0A000");
  pgresult_free(it->result);
  it->result = pgresult_failed(&e);
  err_set(&e, ERR_ENV, "connection_lost", "a COPY was started on the connection");
  conn_end(c, &e);
}

static bool protocol_broken(struct pgconn *c) {
  struct err e;
  err_set(&e, ERR_ENV, "connection_lost", "the server's answers do not match the questions");
  conn_end(c, &e);
  return false;
}

/* One step of PQgetResult; false: nothing more can be had now. */
static bool take_result(struct pgconn *c) {
  struct item *it = list_first(&c->sent, struct item, node);
  PGresult *res = PQgetResult(c->pg);
  if (res == NULL) {
    if (it->kind == ITEM_SYNC || it->result == NULL) return false;
    item_answered(c, it);
    return true;
  }
  switch (PQresultStatus(res)) {
    case PGRES_PIPELINE_SYNC:
      PQclear(res);
      if (it->kind != ITEM_SYNC) return protocol_broken(c);
      sync_answered(c, it);
      return true;
    case PGRES_COPY_IN:
    case PGRES_COPY_OUT:
    case PGRES_COPY_BOTH:
      PQclear(res);
      copy_refused(c, it);
      return false;
    default:
      break;
  }
  if (PQstatus(c->pg) == CONNECTION_BAD && PQresultErrorField(res, PG_DIAG_SQLSTATE) == NULL &&
      PQresultStatus(res) == PGRES_FATAL_ERROR) {
    PQclear(res); /* libpq's own words about the loss: not an answer */
    return false;
  }
  struct pgresult *r = pgresult_take(res);
  bool fatal = r->err != NULL && r->err->class == ERR_ENV;
  if (fatal) c->last_fatal = *r->err;
  if (it->kind == ITEM_SYNC) { /* FATAL behind the last answer of a group */
    pgresult_free(r);
  } else {
    pgresult_free(it->result);
    it->result = r;
  }
  /* libpq would call the rest of the group skipped. Behind a pooler it may have been executed all the same. */
  if (fatal) conn_lost(c);
  return !fatal && it->kind != ITEM_SYNC;
}

static void take_notifications(struct pgconn *c) {
  PGnotify *n;
  while ((n = PQnotifies(c->pg)) != NULL) {
    struct notice *copy = xcalloc(1, sizeof *copy);
    list_init(&copy->node);
    copy->channel = xstrdup(n->relname);
    copy->payload = xstrdup(n->extra ? n->extra : "");
    list_push_back(&c->notices, &copy->node);
    loop_defer(c->loop, &c->deliver);
    PQfreemem(n);
  }
}

static void on_notice(void *arg, const PGresult *res) {
  struct pgconn *c = arg;
  struct err e;
  pgresult_error(res, &e);
  if (pgresult_fatal(res) && *e.message) c->last_fatal = e;
  if (!log_enabled(LOG_DEBUG_)) return;
  log_kv(LOG_DEBUG_, "pg_notice", "severity", PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED), "sqlstate", e.sqlstate,
         "message", e.message, NULL);
}

static void update_io(struct pgconn *c) {
  if (c->state != PGCONN_READY) return;
  int left = PQflush(c->pg);
  int fd = PQsocket(c->pg);
  if (left < 0 || fd < 0) {
    conn_lost(c);
    return;
  }
  loop_io_start(c->loop, &c->io, fd, LOOP_READ | (left > 0 ? LOOP_WRITE : 0));
}

/* ── connecting ── */

static void connect_failed(struct pgconn *c) {
  struct err e;
  pgopen_error(c->url, c->pg, &e);
  conn_end(c, &e);
}

static void connected(struct pgconn *c) {
  loop_timer_stop(&c->connect_timer);
  PQsetErrorVerbosity(c->pg, PQERRORS_DEFAULT);
  if (PQsetnonblocking(c->pg, 1) != 0 || PQenterPipelineMode(c->pg) != 1) bug("libpq refuses pipeline mode");
  c->state = PGCONN_READY;
  c->txn = 'I';
  c->backend_pid = PQbackendPID(c->pg);
  c->server_version = PQserverVersion(c->pg);
  c->ready_due = true;
  loop_defer(c->loop, &c->deliver);
  send_unsent(c);
  update_io(c);
}

/* The socket may be another one after each step (several addresses). */
static void connect_step(struct pgconn *c) {
  loop_io_stop(&c->io);
  switch (PQconnectPoll(c->pg)) {
    case PGRES_POLLING_READING:
      loop_io_start(c->loop, &c->io, PQsocket(c->pg), LOOP_READ);
      break;
    case PGRES_POLLING_WRITING:
      loop_io_start(c->loop, &c->io, PQsocket(c->pg), LOOP_WRITE);
      break;
    case PGRES_POLLING_OK:
      connected(c);
      break;
    default:
      connect_failed(c);
      break;
  }
}

static void on_connect_timeout(void *arg) {
  struct pgconn *c = arg;
  struct err e;
  const char *host = PQhost(c->pg), *port = PQport(c->pg);
  err_set(&e, ERR_ENV, "connect_timeout", "PostgreSQL at %s port %s has not let us in within %lld ms", host ? host : "?",
          port ? port : "?", (long long)c->connect_timeout_ms);
  conn_end(c, &e);
}

/* ── events ── */

static void on_io(void *arg, int events) {
  struct pgconn *c = arg;
  if (c->state == PGCONN_CONNECTING) {
    connect_step(c);
    return;
  }
  int ok = 1;
  if (events & LOOP_READ) {
    heard(c);
    ok = PQconsumeInput(c->pg);
  }
  /* Also after a write event: libpq reads while it cannot write. And what came before an end still counts. */
  while (c->state == PGCONN_READY && !list_empty(&c->sent) && !PQisBusy(c->pg) && take_result(c)) {}
  if (c->state != PGCONN_READY) return;
  if (list_empty(&c->sent)) (void)PQisBusy(c->pg); /* parses what came without a question */
  take_notifications(c);
  /* A FATAL message ends the session, though the end of the stream may come later: nobody shall be lent this connection. */
  if (!ok || PQstatus(c->pg) == CONNECTION_BAD || err_is_set(&c->last_fatal)) conn_lost(c);
  else update_io(c);
}

static void on_answer_timeout(void *arg) {
  struct pgconn *c = arg;
  if (c->syncs == 0 || c->answer_timeout_ms == 0) return;
  int64_t silent = loop_now_ms(c->loop) - c->heard_ms;
  if (silent < c->answer_timeout_ms) {
    loop_timer_start(c->loop, &c->answer_timer, c->answer_timeout_ms - silent);
    return;
  }
  struct err e;
  err_set(&e, ERR_ENV, "connection_lost", "PostgreSQL has not answered for %lld ms", (long long)silent);
  err_copy_text(e.sqlstate, sizeof e.sqlstate, "08006");
  conn_end(c, &e);
}

/* ── delivery ── */

static void conn_free(void *p) {
  struct pgconn *c = p;
  loop_task_cancel(&c->deliver);
  pgstmts_fini(&c->stmts);
  pgresult_free(c->parse_error);
  free(c->url);
  free(c);
}

static void deliver_notices(struct pgconn *c) {
  struct list batch = LIST_INIT(batch);
  list_splice_back(&batch, &c->notices);
  struct notice *n;
  while ((n = list_pop_front(&batch, struct notice, node)) != NULL) {
    if (!c->abandoned && c->hooks.on_notify != NULL) c->hooks.on_notify(c->arg, n->channel, n->payload);
    free(n->channel);
    free(n->payload);
    free(n);
  }
}

static void deliver_item(struct pgconn *c, struct item *it) {
  if (it->kind == ITEM_SYNC && it->txn != '?') c->txn = it->txn;
  if (it->kind == ITEM_QUERY) {
    c->pending--;
    struct pgresult *r = it->result;
    it->result = NULL;
    if (it->done != NULL) it->done(it->arg, r);
    else pgresult_free(r);
  }
  pgitem_free(it);
}

static void deliver(void *arg) {
  struct pgconn *c = arg;
  if (c->freeing) return;
  if (c->ready_due) {
    c->ready_due = false;
    if (!c->abandoned && c->hooks.on_ready != NULL) c->hooks.on_ready(c->arg);
  }
  struct list batch = LIST_INIT(batch);
  list_splice_back(&batch, &c->ready);
  struct item *it;
  while ((it = list_pop_front(&batch, struct item, node)) != NULL) deliver_item(c, it);
  deliver_notices(c);
  if (!list_empty(&c->ready)) return; /* deferred again by who put it there */
  if (c->closed_due) {
    c->closed_due = false;
    c->txn = '?';
    if (!c->abandoned && c->hooks.on_closed != NULL) c->hooks.on_closed(c->arg, &c->error);
  }
  if (c->abandoned && list_empty(&c->ready)) {
    c->freeing = true;
    loop_free_later(c->loop, conn_free, c);
  } else {
    close_idle_statements(c);
  }
}

static void close_idle_statements(struct pgconn *c) {
  if (c->state != PGCONN_READY || c->pending > 0 || c->open_group > 0 || c->txn != 'I') return;
  if (!list_empty(&c->sent) || !list_empty(&c->answered)) return;
  struct pgstmt *t;
  int n = 0;
  while (n < MAX_CLOSE && c->state == PGCONN_READY && (t = pgstmts_close_next(&c->stmts)) != NULL) {
    char sql[64] = "DEALLOCATE ";
    struct item *it = queue(c, ITEM_DEALLOCATE, &c->sent);
    it->stmt = t;
    send_failed(c, PQsendQueryParams(c->pg, strcat(sql, t->name), 0, NULL, NULL, NULL, NULL, 0));
    n++;
  }
  if (n > 0 && c->state == PGCONN_READY) send_sync(c);
}

/* ── life ── */

struct pgconn *pgconn_new(struct loop *l, const char *url, const struct pgconn_hooks *hooks, void *arg,
                          int64_t connect_timeout_ms) {
  struct pgconn *c = xcalloc(1, sizeof *c);
  c->loop = l;
  c->url = xstrdup(url);
  c->prepare = true;
  c->txn = '?';
  if (hooks != NULL) c->hooks = *hooks;
  c->arg = arg;
  c->connect_timeout_ms = connect_timeout_ms;
  struct list *lists[] = {&c->unsent, &c->sent, &c->answered, &c->ready, &c->notices};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) list_init(lists[i]);
  pgstmts_init(&c->stmts, PGCONN_STATEMENTS);
  loop_io_init(&c->io, on_io, c);
  loop_task_init(&c->deliver, deliver, c);
  loop_timer_init(&c->connect_timer, on_connect_timeout, c);
  loop_timer_init(&c->answer_timer, on_answer_timeout, c);
  c->pg = pgopen_start(url);
  PQsetNoticeReceiver(c->pg, on_notice, c);
  if (PQstatus(c->pg) == CONNECTION_BAD) {
    connect_failed(c);
    return c;
  }
  loop_timer_start(l, &c->connect_timer, connect_timeout_ms);
  loop_io_start(l, &c->io, PQsocket(c->pg), LOOP_WRITE); /* as libpq's documentation asks for */
  return c;
}

void pgconn_close_later(struct pgconn *c) {
  if (c->abandoned) bug("pgconn_close_later twice");
  c->abandoned = true;
  struct err e;
  err_set(&e, ERR_ENV, "connection_lost", "closed by its owner");
  conn_end(c, &e);
  loop_defer(c->loop, &c->deliver);
}

void pgconn_set_prepare(struct pgconn *c, bool prepare) { c->prepare = prepare; }

void pgconn_set_answer_timeout(struct pgconn *c, int64_t ms) {
  c->answer_timeout_ms = ms;
  loop_timer_stop(&c->answer_timer);
  if (ms > 0 && c->syncs > 0) loop_timer_start(c->loop, &c->answer_timer, ms);
}

enum pgconn_state pgconn_state(const struct pgconn *c) { return c->state; }

bool pgconn_idle(const struct pgconn *c) { return c->state == PGCONN_READY && c->pending == 0 && c->open_group == 0; }

char pgconn_txn(const struct pgconn *c) { return c->state == PGCONN_CLOSED ? '?' : c->txn; }

int pgconn_backend_pid(const struct pgconn *c) { return c->backend_pid; }

int pgconn_server_version(const struct pgconn *c) { return c->server_version; }

bool pgconn_read_only(const struct pgconn *c) {
  bool known;
  return c->read_only || session_read_only(c, &known);
}

const struct err *pgconn_error(const struct pgconn *c) { return &c->error; }

struct pgconn_stats pgconn_stats(const struct pgconn *c) {
  return (struct pgconn_stats){.statements = c->stmts.count, .prepared = c->stmts.made, .evicted = c->stmts.evicted};
}

#ifdef UMAVEZ_FAILPOINTS
int pgconn_fd(struct pgconn *c) {
  if (c->pg == NULL) return -1;
  while (PQflush(c->pg) > 0) poll(&(struct pollfd){.fd = PQsocket(c->pg), .events = POLLOUT}, 1, 100);
  return PQsocket(c->pg);
}
#endif
