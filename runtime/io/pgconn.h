/* pgconn: one PostgreSQL connection in pipeline mode; the only module that reads libpq's results.
 *
 * Queries are queued with pgconn_query and leave in groups: pgconn_sync ends a group (and sends). The server runs them in
 * order; after an error it skips the rest of the group ("skipped"), the next group runs again.
 *
 * Life:  pgconn_new ─► PGCONN_CONNECTING ─on_ready─► PGCONN_READY ─on_closed─► PGCONN_CLOSED ─► pgconn_close_later
 *                              └───────────────────────on_closed───────────────────────┘
 * The owner calls pgconn_close_later exactly once, in whatever state; the pointer is dead for him afterwards, no hook is
 * called any more, but queries that are pending are still answered (as lost). on_closed comes at most once, when the
 * connection ends by itself or cannot be made; the struct stays valid (and answers every query as lost) until
 * pgconn_close_later.
 *
 * Answers. `done` is called exactly once per query, in the order of the queries, at the loop's safe point, never inside
 * a function of this module. The answers of a group come together, when its sync has been answered (the server sends them
 * so anyhow): when the last `done` of a group runs, pgconn_txn is the state behind that group, and pgconn_idle is true if
 * no other group was queued. What the server answered before a connection broke is delivered as answered; the rest as:
 *
 *   class          code               sqlstate   when
 *   ERR_ENV        connection_lost    08006, or the server's own (57P01, 25P03 …)   the connection broke, or a FATAL error
 *                                     ended it: whether the statement had its effect is unknown
 *   ERR_ENV        read_only          25006      the server is a standby, or has default_transaction_read_only on
 *   ERR_ENV        prepared_lost      26000, 42P05: a pooler gave us another session; 0A000: a table has changed
 *                                     its columns. That statement was not executed; trying again helps
 *   ERR_CANCELLED  skipped            ""         skipped after an error in the same group
 *   ERR_INPUT      not_supported      0A000      COPY, or more than 65535 parameters; COPY costs the connection
 *   ERR_SQL        sql                theirs     any other error of the server; constraint and detail are filled
 * COMMIT of a failed transaction is a success whose pgresult_tag is "ROLLBACK".
 *
 * Queries may be queued while connecting (they are sent when ready). A `done` may call anything of this module, but a
 * connection's `done`s never nest.
 *
 * Prepared statements: unless `once`, a statement is prepared on its first use and kept, up to PGCONN_STATEMENTS, by its
 * text and parameter types; the least recently used is deallocated when the connection is next idle outside a transaction.
 * The cache holds only what the server has confirmed. The names carry a random number of the connection's, so that a name
 * can never mean somebody else's statement, whatever a pooler does. A statement whose plan became invalid with a change of
 * its tables ("cached plan must not change result type") is prepared anew at its next use.
 *
 * A silent server is noticed by TCP (keepalives, tcp_user_timeout: 10 s, unless the URL sets them). On unix sockets, and
 * for a server that is stopped, use pgconn_set_answer_timeout.
 *
 * Every connection is asked to be read-write (target_session_attrs) and speaks UTF-8. Passwords never get into errors.
 * PQconnectStart resolves names with the system's resolver, which blocks the loop: use addresses or a local cache.
 */
#ifndef UMAVEZ_IO_PGCONN_H
#define UMAVEZ_IO_PGCONN_H

#include "base/err.h"
#include "io/loop.h"

enum { PGCONN_STATEMENTS = 200 }; /* prepared statements a connection keeps at most, those on their way out included */

struct pgconn;
struct pgresult;

/* ── results ── what `done` gives; free with pgresult_free, at any time, also after the connection is gone. */
bool pgresult_ok(const struct pgresult *r);
const struct err *pgresult_err(const struct pgresult *r); /* borrows; class ERR_NONE when ok */
int pgresult_rows(const struct pgresult *r);
int pgresult_columns(const struct pgresult *r);
/* Of a place that the result does not have: "", length 0, NULL, type 0. */
const char *pgresult_value(const struct pgresult *r, int row, int col); /* borrows; NUL ended text, "" for NULL */
int pgresult_length(const struct pgresult *r, int row, int col);
bool pgresult_null(const struct pgresult *r, int row, int col);
const char *pgresult_column(const struct pgresult *r, int col); /* borrows: its name */
int pgresult_column_index(const struct pgresult *r, const char *name); /* -1: none */
unsigned pgresult_type(const struct pgresult *r, int col);      /* the type's oid */
const char *pgresult_tag(const struct pgresult *r);             /* borrows: "INSERT 0 1", "COMMIT"; "" after an error */
int64_t pgresult_affected(const struct pgresult *r);            /* rows affected or returned; 0 for other statements */
void pgresult_free(struct pgresult *r);                         /* r may be NULL */

/* ── connection ── */
enum pgconn_state { PGCONN_CONNECTING, PGCONN_READY, PGCONN_CLOSED };

struct pgconn_hooks { /* any may be NULL; all are called at the safe point */
  void (*on_ready)(void *arg);
  void (*on_closed)(void *arg, const struct err *why); /* borrows why. Codes: see pgconn_error */
  void (*on_notify)(void *arg, const char *channel, const char *payload); /* borrows; after a LISTEN */
};

/* url: a connection URI or keyword string, "" for PG* variables alone (borrows). hooks are copied. Never fails by itself:
 * a bad URL arrives at on_closed. Gives: pgconn_close_later. */
struct pgconn *pgconn_new(struct loop *l, const char *url, const struct pgconn_hooks *hooks, void *arg,
                          int64_t connect_timeout_ms);
void pgconn_close_later(struct pgconn *c); /* takes; pending queries are answered as lost */
void pgconn_set_prepare(struct pgconn *c, bool prepare); /* false: every query is `once` (poolers) */

/* The connection is given up (on_closed, connection_lost) when a group has been sent and no octet has come for that long.
 * 0 (the default): no limit. Only for connections whose statements are all quick. */
void pgconn_set_answer_timeout(struct pgconn *c, int64_t ms);

struct pgquery {
  const char *sql; /* one statement */
  int nparams;
  const char *const *values; /* NULL element: NULL. Text must not hold NUL: libpq would cut it in silence. */
  const int *lengths;        /* for binary values; NULL when all are text */
  const int *formats;        /* 0 text, 1 binary; NULL: all text */
  const unsigned *types;     /* oids, 0: the server infers; NULL: it infers all */
  bool once;                 /* do not prepare */
  void (*done)(void *arg, struct pgresult *r); /* gives r: free or keep it. NULL: nobody is interested */
  void *arg;
};

void pgconn_query(struct pgconn *c, const struct pgquery *q); /* borrows everything for the call; copies */
void pgconn_sync(struct pgconn *c); /* ends the group and sends; nothing when no query was queued since the last one */
/* Both at once, for a text without parameters. */
void pgconn_exec(struct pgconn *c, const char *sql, void (*done)(void *, struct pgresult *), void *arg);

enum pgconn_state pgconn_state(const struct pgconn *c);
bool pgconn_idle(const struct pgconn *c); /* ready, and no query of the user's is pending or undelivered */
char pgconn_txn(const struct pgconn *c);  /* behind the last delivered group: 'I' none, 'T' open, 'E' failed, '?' closed */
int pgconn_backend_pid(const struct pgconn *c); /* for pg_cancel_backend from another connection; 0: not ready */
int pgconn_server_version(const struct pgconn *c); /* 150004; 0: not ready */
/* The server has told (parameter status) or shown (25006) that this session cannot write. */
bool pgconn_read_only(const struct pgconn *c);
/* Why it is closed; class ERR_NONE while it is not. class ERR_INPUT: trying again cannot help before somebody has changed
 * something: bad_url, auth_failed, no_database. ERR_ENV: connect_failed, connect_timeout, read_only, connection_lost. */
const struct err *pgconn_error(const struct pgconn *c);

#ifdef UMAVEZ_FAILPOINTS
/* Its socket, after all that was queued has been sent, be it a whole group or not; -1 once closed. */
int pgconn_fd(struct pgconn *c);
#endif

struct pgconn_stats {
  int statements;    /* prepared on the server as far as we know, those on their way out included */
  int64_t prepared;  /* Parse messages with a name, over the life */
  int64_t evicted;   /* of them deallocated again */
};
struct pgconn_stats pgconn_stats(const struct pgconn *c);

#endif
