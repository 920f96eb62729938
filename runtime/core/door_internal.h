/* door_internal: what door.c (life, routing), door_request.c (key, body, run, waiting) and door_runs.c (GET /runs/{run_id}) share.
 * Nobody else includes it. */
#ifndef UMAVEZ_CORE_DOOR_INTERNAL_H
#define UMAVEZ_CORE_DOOR_INTERNAL_H

#include "core/door.h"
#include "core/door_auth.h"
#include "core/door_key.h"
#include "core/door_problem.h"
#include "core/door_route.h"

enum { DOOR_BUCKETS = 256 };

struct door {
  struct loop *loop;
  struct sched *sched;
  struct control *control;
  const struct dbclock *clock;
  struct httpd *http;
  struct door_routes *routes;
  struct door_auth *auth;
  struct list exchanges;
  int n, max;
  struct list waiting[DOOR_BUCKETS]; /* by the first octet of the key's digest */
  bool draining;
  char *openapi;
  enum door_metrics metrics_access;
  char *metrics_token;
  struct queue_stats *queue_stats;
  struct ui *ui; /* NULL: no dashboard */
  struct buf refusal; /* body of the last answer of httpd's own */
};

/* One request, until it is answered and its run has ended. */
struct exchange {
  struct list node;
  struct list wait_node;
  struct door *door;
  struct http_request *q; /* NULL: answered */
  bool gone;              /* the client has left, or has only closed its sending side */
  struct door_lookup lookup;
  struct task *task; /* NULL: GET /runs/{run_id} */
  struct buf params; /* path parameters, members of a JSON object */
  bool has_tenant;
  int64_t tenant_id;
  char *scopes;

  bool keyed; /* an Idempotency-Key was given: the answer may be a replay */
  uint8_t key[DIGEST_BYTES], fingerprint[DIGEST_BYTES];
  struct buf args;
  char run_id[37];
  struct run *run; /* at work for us, or NULL */
  int tries;
  bool past_gate;        /* the last try before it is refused: PostgreSQL is asked at once */
  bool looked;           /* nothing was stored under the key: only a free slot of the task is waited for */
  int64_t wait_until_ms; /* for somebody else's answer, or for a slot */
  struct loop_timer timer;
  struct loop_task due;
  void (*on_due)(struct exchange *x);
  struct loop_timer deadline; /* of the whole exchange */
  struct loop_task late;
  bool asking; /* a query of GET /runs/{run_id} is under way */
  bool metrics; /* GET /metrics, whose sender is being looked up */
  struct queue_look look;
  struct ui_visit *visit; /* of the dashboard's; NULL: none */
};

/* ---- door.c ---- */
/* Answers x with a problem. detail may be NULL. retry_after_s < 0: no Retry-After. */
void door_refuse(struct exchange *x, enum door_problem p, const char *detail, int retry_after_s);
void door_answer(struct exchange *x, const struct http_answer *a);
/* By its bearer token. */
void door_authenticate_token(struct exchange *x);
/* Frees x when nothing is left of it. */
void door_maybe_end(struct exchange *x);
/* on_due(x) at a safe point in ms. */
void door_later(struct exchange *x, int64_t ms, void (*on_due)(struct exchange *x));

/* ---- door_request.c ---- */
/* The sender is known: key, body, run. */
void door_request_begin(struct exchange *x);
/* A run with this key has ended: who waits for it looks at once. */
void door_request_wake(struct door *d, const uint8_t key[DIGEST_BYTES]);
void door_request_drain(struct door *d);

/* ---- door_metrics.c ---- */
bool door_metrics_is(const struct door *d, const char *path);
void door_metrics_begin(struct exchange *x);
/* The sender's token is known. */
void door_metrics_identity(struct exchange *x, const struct door_identity *who);

/* ---- door_ui.c ---- */
MUST_CHECK int door_ui_new(struct door *d, const struct door_ui_options *o, struct err *e);
void door_ui_stop(struct door *d); /* its streams end */
void door_ui_free(struct door *d);
bool door_ui_is(const struct door *d, const char *path);
void door_ui_begin(struct exchange *x);
void door_ui_gone(struct exchange *x);   /* the client of a request that has a visit has left */
void door_ui_forget(struct exchange *x); /* x ends */

/* ---- door_runs.c ---- */
bool door_runs_is(const char *path);
void door_runs_begin(struct exchange *x);

#endif
