/* pgstmt: which prepared statements one server session has. Bookkeeping only, no I/O; used by pgconn alone.
 *
 * A statement is known by its text and parameter types. Its states (owned by the cache, referenced by pgconn's queue):
 *
 *   use ─► PREPARING ─answer ok─► READY ─evicted, stale─► DOOMED ─sent─► CLOSING ─answer─► gone
 *              └─failed, skipped─► gone                      ▲──skipped────┘
 *
 * What the server really has is READY, DOOMED and CLOSING, and perhaps PREPARING: all of them count against the limit, so that
 * a session never holds more, whatever is skipped in failed groups. PREPARING is usable only within the group that
 * prepares it: if its Parse is skipped, so is what follows in that group; another group could meet a statement that
 * does not exist.
 */
#ifndef UMAVEZ_IO_PGSTMT_H
#define UMAVEZ_IO_PGSTMT_H

#include "base/err.h"
#include "base/list.h"

enum pgstmt_state { PGSTMT_PREPARING, PGSTMT_READY, PGSTMT_DOOMED, PGSTMT_CLOSING, PGSTMT_GONE };

struct pgstmt {
  enum pgstmt_state state;
  int refs;          /* queue items that point here, plus one while the cache does */
  uint64_t group;    /* the sync group that prepares it */
  uint64_t hash;     /* of text and types */
  struct list chain; /* in its bucket; only PREPARING and READY are found there */
  struct list node;  /* in `used` (PREPARING, READY; most recent first) or `doomed` */
  char name[40];
  int ntypes;
  unsigned *types;
  char *sql;
};

enum { PGSTMT_BUCKETS = 256 };

struct pgstmts {
  int limit, count;  /* count: all but GONE */
  uint32_t id;       /* random, part of the names */
  int64_t made, evicted;
  struct list used, doomed, closing;
  struct list bucket[PGSTMT_BUCKETS];
};

void pgstmts_init(struct pgstmts *s, int limit);
void pgstmts_fini(struct pgstmts *s); /* every reference must have been dropped */

/* The statement to execute in `group`, with a reference taken (pgstmt_unref), or NULL: send it without a name.
 * *parse says that it must be prepared first. */
struct pgstmt *pgstmts_use(struct pgstmts *s, const char *sql, const unsigned *types, int ntypes, uint64_t group, bool *parse);
void pgstmt_ref(struct pgstmt *t);
void pgstmt_unref(struct pgstmt *t);

void pgstmts_parsed(struct pgstmts *s, struct pgstmt *t, bool ok); /* the answer to its Parse; not ok: failed or skipped */
void pgstmts_doom(struct pgstmts *s, struct pgstmt *t);            /* deallocate it, prepare anew at the next use */
struct pgstmt *pgstmts_close_next(struct pgstmts *s);              /* the next DOOMED, now CLOSING, referenced; or NULL */
void pgstmts_closed(struct pgstmts *s, struct pgstmt *t, bool skipped); /* the answer to its DEALLOCATE */
void pgstmts_forget(struct pgstmts *s);                            /* the session is another one: all gone */

#endif
