/* door: the HTTP entry. It parses and authenticates a request, builds a run of it, hands that to the same runner that the queue's
 * runs go through, waits, and answers. It knows no ledger; the runner knows no HTTP.
 *
 *   request ─► route ─► who ─► key, body ─► run ─► runner ─► answer
 *                                            ▲        │
 *                                            └─ wait ◄┘ busy: somebody else holds the key; without a connection, bounded
 *
 * Built in      GET /healthz (the process is alive), GET /readyz (PostgreSQL is reachable and the worker not draining),
 *               GET /runs/{run_id} (state and outcome, to its own tenant), GET /openapi.json, GET /metrics, /ui (door_ui.h).
 * Owns          the server (io/httpd), the routes, every exchange.
 * Life cycle    door_new → … → [door_stop_accepting] → door_drain (no new connections; what is at work ends) → door_free.
 * Answers       core/door_answer.h (outcomes), core/door_problem.h (everything else); docs/http.md is the contract. */
#ifndef UMAVEZ_CORE_DOOR_H
#define UMAVEZ_CORE_DOOR_H

#include "core/control.h"
#include "core/dbclock.h"
#include "core/door_ui.h"
#include "core/queue_stats.h"
#include "core/sched.h"
#include "io/httpd.h"
#include "io/loop.h"

struct door;

enum door_metrics { DOOR_METRICS_TOKEN, DOOR_METRICS_OPEN, DOOR_METRICS_OFF }; /* as the setting `metrics` has them */

struct door_options {
  struct httpd_options http; /* address, limits; its callbacks are filled in here */
  int max_exchanges;         /* requests at work or waiting; more are answered with 503 */
  const char *openapi;       /* JSON text for /openapi.json, or NULL; copies */
  const struct dbclock *clock; /* keeps */
  enum door_metrics metrics_access;
  const char *metrics_token;       /* "" : none; copies */
  struct queue_stats *queue_stats; /* keeps */
  struct door_ui_options ui;       /* copies */
};

/* Keeps sched and control. NULL with *e: routes that conflict, or no listening socket. */
struct door *door_new(struct loop *loop, struct sched *sched, struct control *control,
                      const struct door_options *options, struct err *e) MUST_CHECK;
int door_port(const struct door *d);
void door_resume(struct door *d); /* ends http.paused; idempotent */
/* No new connection (another process takes those); requests on the open ones are served, and each connection ends with its
 * next answer. */
void door_stop_accepting(struct door *d);
int door_connections(const struct door *d);
void door_drain(struct door *d);
int door_exchanges(const struct door *d);
void door_free(struct door *d);

#endif
