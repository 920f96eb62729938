/* pgitem: one thing in a connection's queue; private to pgconn. */
#ifndef UMAVEZ_IO_PGITEM_H
#define UMAVEZ_IO_PGITEM_H

#include "base/list.h"
#include "io/pgconn.h"
#include "io/pgstmt.h"

enum item_kind { ITEM_QUERY, ITEM_PARSE, ITEM_DEALLOCATE, ITEM_SYNC };

struct item {
  struct list node;
  enum item_kind kind;
  char txn;                /* SYNC, in `ready`: the state behind its group; '?': not known, another one is under way */
  bool refused;            /* QUERY: the server got a stand-in, the answer is ours */
  struct pgstmt *stmt;     /* referenced; NULL: none */
  struct pgresult *result; /* owned until done */
  struct pgquery *copy;    /* in `unsent` only: one allocation */
  void (*done)(void *, struct pgresult *);
  void *arg;
};

struct item *pgitem_new(enum item_kind kind); /* gives: pgitem_free; in no list */
void pgitem_free(struct item *it);            /* with its result, copy and reference to a statement; in no list */
struct pgquery *pgitem_copy(const struct pgquery *q); /* gives, in one allocation that holds all it points at: free */

#endif
