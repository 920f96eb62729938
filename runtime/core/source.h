/* source: where deliveries come from, and where runs are given back to. An interface: PostgreSQL's queue implements it
 * (source_postgres); Valkey Streams and RabbitMQ can come later.
 *
 * Ending a run is not here: its removal commits with the effect (G1), so it is part of the ledger's functions. */
#ifndef UMAVEZ_CORE_SOURCE_H
#define UMAVEZ_CORE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/run.h"

enum give_back {
  GIVE_BACK_BUSY,      /* its key is held: not charged, tried again at the latest after delay_ms */
  GIVE_BACK_UNTOUCHED, /* no handler started: not charged */
  GIVE_BACK_COUNTED,   /* its handler started: the delivery stays counted */
};

/* What an operator has ordered about a run that this worker holds. */
enum source_order {
  ORDER_CANCEL, /* it ends as failed for good, its effect rolled back, unless it is being settled already */
  ORDER_RETURN, /* its queue is paused: it goes back unless it has begun */
};

struct source;

struct source_hooks {
  void (*taken)(void *arg, struct run *r); /* gives a run in RUN_TAKEN */
  void (*more)(void *arg);                 /* the last want brought something: say how many more are wanted now */
  /* Calls each(each_arg, run) for every run of this worker that has been taken and has not ended. */
  void (*held)(void *arg, void (*each)(void *each_arg, const struct run *r), void *each_arg);
  /* Heard with the answer to a renewal; message: who has ordered it, and why (borrows; may be empty). The run may have ended
   * meanwhile. */
  void (*ordered)(void *arg, const char *run_id, enum source_order order, const char *message);
  /* There may be orders: renew soon. */
  void (*look)(void *arg);
  void *arg;
};

struct source_ops {
  /* Asks for up to n runs, as soon as there are any; replaces an earlier want. 0: stop. skip: names of tasks not to
   * be taken
   * (borrows). hooks.more follows when runs were taken. */
  void (*want)(struct source *s, int n, const char *const *skip, int nskip);
  /* Returns a run to the queue. It is sent with the others of this tick, and again after a reconnection until it is
   * answered. */
  void (*give_back)(struct source *s, const char *run_id, enum give_back how, int64_t delay_ms);
  /* Prolongs the leases of n runs in one statement, which also asks for orders about them. */
  void (*renew)(struct source *s, struct run *const *runs, int n);
  /* A run has ended. limited: it held a place of a limit; then it looks for the next one, or tells those who can. */
  void (*ended)(struct source *s, bool limited);
  /* A hint: something becomes due in ms, look then. */
  void (*due_in)(struct source *s, int64_t ms);
  /* True while something given back has not been confirmed. */
  bool (*pending)(const struct source *s);
  void (*free)(struct source *s);
};

struct source {
  const struct source_ops *ops;
  struct source_hooks hooks;
};

static inline void source_want(struct source *s, int n, const char *const *skip, int nskip) {
  s->ops->want(s, n, skip, nskip);
}
static inline void source_give_back(struct source *s, const char *id, enum give_back how, int64_t ms) {
  s->ops->give_back(s, id, how, ms);
}
static inline void source_renew(struct source *s, struct run *const *runs, int n) {
  s->ops->renew(s, runs, n);
}
static inline void source_ended(struct source *s, bool limited) {
  s->ops->ended(s, limited);
}
static inline void source_due_in(struct source *s, int64_t ms) {
  s->ops->due_in(s, ms);
}
static inline bool source_pending(const struct source *s) {
  return s->ops->pending(s);
}
static inline void source_free(struct source *s) {
  s->ops->free(s);
}

#endif
