#include "proc/worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/json.h"
#include "base/log.h"
#include "core/control.h"
#include "core/door.h"
#include "core/gate.h"
#include "core/queue_stats.h"
#include "core/runner.h"
#include "core/sched.h"
#include "core/schedules.h"
#include "core/source_postgres.h"
#include "io/pgpool.h"
#include "io/valkey.h"
#include "proc/beat.h"
#include "proc/child.h"
#include "proc/listen.h"
#include "proc/logfile.h"
#include "proc/queues.h"
#include "proc/signals.h"

#define ANSWER_TIMEOUT_MS 10000 /* a silent server on a control connection */
#define HURRIED_DRAIN_MS 1000
#define PATIENCE_MS 2000 /* a supervisor ends a hung child so long after `stall`, at the latest (proc/watchdog.h) */
#define LINGER_MS 100 /* after the last request has been answered */
#define PARTITIONS_MS (6 * 3600 * 1000)
#define PARTITION_DAYS "7"
#define REGISTER_AGAIN_MS 1000
#define RETIRE_MS 5000 /* how long an idle connection is waited for */
#define RETIRE_LOOK_MS 50
#define ORPHAN_SPARE_S 10 /* beyond drain_timeout, as the supervisor would have given us */

struct worker {
  struct loop *loop;
  const struct conf *conf;
  struct worker_hooks hooks;
  char worker_id[37];
  struct valkey *valkey;
  struct gate *gate;
  struct pgpool *pool;
  struct control *verdicts;
  struct source *source;
  struct runner *runner;
  struct sched *sched;
  struct schedules *schedules; /* NULL: none to look after */
  struct door *door; /* NULL: no HTTP door */
  struct queue_stats *queue_stats; /* NULL without door */
  struct beat *beat;
  struct loop_timer linger;
  int left;
  struct dbclock clock;
  int64_t identity_asked_ms; /* the oldest question that is not answered, or 0 */
  struct loop_signal term, interrupt, hup, usr1;
  struct slot *slot; /* NULL: no supervisor */
  int64_t runs_ended;
  struct loop_timer retire;
  int64_t retired_ms;
  struct loop_timer identity_timer, partitions_timer, register_timer;
  bool verdicts_up, leases_up, registered;
  bool ended;
  int stops;
  int exit_code;
  char *message;
  struct loop_task end_task;
};

static void end_later(struct worker *w, int exit_code, const char *message) {
  if (w->ended) return;
  w->ended = true;
  w->exit_code = exit_code;
  w->message = message ? xstrdup(message) : NULL;
  loop_defer(w->loop, &w->end_task);
}

static void on_end(void *arg) {
  struct worker *w = arg;

  signals_hold(NULL); /* one that comes between here and exit would end us by its default action */
  slot_ended(w->slot);
  w->hooks.ended(w->hooks.arg, w->exit_code, w->message);
}

/* ---- identity of the database behind us ---- */

static void read_identity(void *arg);

static void on_identity(void *arg, struct pgresult *result) {
  struct worker *w = arg;
  uint8_t secret[64];
  const char *hex;
  size_t n;
  int64_t asked_ms = w->identity_asked_ms ? w->identity_asked_ms : loop_now_ms(w->loop);

  w->identity_asked_ms = 0;
  if (!pgresult_ok(result) || pgresult_rows(result) != 1) {
    log_err(pgresult_err(result)->class == ERR_ENV ? LOG_DEBUG_ : LOG_WARN_, "identity_unknown", pgresult_err(result), NULL);
    gate_set_identity(w->gate, NULL, NULL, 0);
    pgresult_free(result);
    return;
  }
  hex = pgresult_value(result, 0, 1);
  n = strlen(hex) / 2;
  if (n > sizeof secret || !hex_decode(hex, 2 * n, secret, n))
    die("umavez.gate_secret() gave no hexadecimal secret of at most %zu octets", sizeof secret);
  dbclock_set(&w->clock, strtoll(pgresult_value(result, 0, 2), NULL, 10), asked_ms);
  gate_set_identity(w->gate, pgresult_value(result, 0, 0), secret, n);
  pgresult_free(result);
}

static void read_identity(void *arg) {
  struct worker *w = arg;
  struct pgquery q = {
      .sql = "SELECT umavez.database_identity(), encode(umavez.gate_secret(), 'hex'),"
             " floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
      .done = on_identity,
      .arg = w};

  if (w->valkey || w->door) {
    if (!control_query(w->verdicts, &q))
      gate_set_identity(w->gate, NULL, NULL, 0);
    else if (!w->identity_asked_ms)
      w->identity_asked_ms = loop_now_ms(w->loop);
  }
  loop_timer_start(w->loop, &w->identity_timer, w->conf->identity_interval_ms);
}

/* ---- what is told to the database at start ---- */

static void on_partitions(void *arg, struct pgresult *result) {
  if (!pgresult_ok(result))
    log_err(pgresult_err(result)->class == ERR_ENV ? LOG_DEBUG_ : LOG_WARN_, "partitions_not_made", pgresult_err(result), NULL);
  pgresult_free(result);
}

static void make_partitions(void *arg) {
  struct worker *w = arg;
  struct pgquery q = {.sql = "SELECT umavez.make_partitions(" PARTITION_DAYS ")", .done = on_partitions, .arg = w};

  if (!control_query(w->verdicts, &q)) log_kv(LOG_DEBUG_, "partitions_not_made", "why", "PostgreSQL is away", NULL);
  loop_timer_start(w->loop, &w->partitions_timer, PARTITIONS_MS);
}

static void add_task(void *arg, struct task *t) {
  struct buf *b = arg;

  buf_puts(b, b->len > 1 ? ",{\"task\":" : "{\"task\":");
  json_write_string_lossy(b, t->name, strlen(t->name), 1024);
  buf_printf(b, ",\"owner\":\"%s\",\"queue\":", t->owner == TASK_OWNER_TENANT ? "tenant" : "platform");
  json_write_string_lossy(b, t->queue, strlen(t->queue), 1024);
  buf_putc(b, '}');
}

static void maybe_start(struct worker *w) {
  if (!w->verdicts_up || !w->leases_up || !w->registered || w->stops > 0) return;
  sched_start(w->sched);
  schedules_start(w->schedules);
  if (w->door) door_resume(w->door);
  slot_ready(w->slot);
  stats_set(STAT_CHILDREN, 0, 1);
}

/* 3F000, 42883, 42501, 42P01: the schema is not there, or not ours to use. Waiting does not help. */
static bool is_not_migrated(const struct err *e) {
  return strcmp(e->sqlstate, "3F000") == 0 || strcmp(e->sqlstate, "42883") == 0 || strcmp(e->sqlstate, "42P01") == 0 ||
         strcmp(e->sqlstate, "42501") == 0;
}

static void on_registered(void *arg, struct pgresult *result) {
  struct worker *w = arg;
  const struct err *e = pgresult_err(result);

  if (pgresult_ok(result)) {
    w->registered = true;
    log_kv(LOG_INFO_, "worker_ready", "worker_id", w->worker_id, NULL);
    logfile_settled();
    maybe_start(w);
  } else if (is_not_migrated(e)) {
    struct buf b;
    buf_init(&b);
    buf_printf(
        &b,
        "the database is not ready for this worker: %s (run 'umavez migrate', and grant umavez_worker to this role)",
        e->message);
    end_later(w, 4, buf_cstr(&b));
    buf_fini(&b);
  } else {
    if (e->class != ERR_ENV) log_err(LOG_ERROR_, "tasks_not_registered", e, NULL);
    loop_timer_start(w->loop, &w->register_timer, REGISTER_AGAIN_MS);
  }
  pgresult_free(result);
}

/* Without an answer nothing is taken: asked again until there is one. */
static void register_tasks(void *arg) {
  struct worker *w = arg;
  struct buf b;
  const char *values[2] = {NULL, task_declared()};

  if (!w->verdicts_up || w->registered) return;
  buf_init(&b);
  buf_putc(&b, '[');
  task_each(add_task, &b);
  buf_putc(&b, ']');
  values[0] = buf_cstr(&b);
  struct pgquery q = {.sql = "SELECT umavez.register_tasks($1::jsonb), umavez.declare_limits($2::jsonb)",
                      .nparams = 2,
                      .values = values,
                      .done = on_registered,
                      .arg = w};
  if (!control_query(w->verdicts, &q)) bug("a connection that has just come up is down");
  buf_fini(&b);
}

/* ---- PostgreSQL comes and goes ---- */

static void on_verdicts_up(void *arg) {
  struct worker *w = arg;

  w->verdicts_up = true;
  read_identity(w);
  register_tasks(w);
  beat_now(w->beat);
  make_partitions(w);
  maybe_start(w);
}

static void paused(struct worker *w, const struct err *why) {
  gate_set_identity(w->gate, NULL, NULL, 0);
  if (why->class == ERR_INPUT && !w->registered) {
    end_later(w, 4, why->message);
    return;
  }
  if (w->sched) sched_pause(w->sched);
}

static void on_verdicts_down(void *arg, const struct err *why) {
  struct worker *w = arg;

  w->verdicts_up = false;
  paused(w, why);
}

static void on_leases_up(void *arg) {
  struct worker *w = arg;

  w->leases_up = true;
  if (w->verdicts_up) read_identity(w); /* it was forgotten when the connection was lost */
  maybe_start(w);
}

static void on_leases_down(void *arg, const struct err *why) {
  struct worker *w = arg;

  w->leases_up = false;
  paused(w, why);
}

/* ---- stopping ---- */

/* The last answers are on their way out. */
static void on_lingered(void *arg) {
  struct worker *w = arg;

  end_later(w, w->left > 0,
            w->left > 0 ? "some runs could not be given back; they are redelivered when their leases end" : NULL);
}

static void on_unlisted(void *arg) {
  struct worker *w = arg;

  if (w->door)
    loop_timer_start(w->loop, &w->linger, LINGER_MS);
  else
    on_lingered(w);
}

static void on_drained(void *arg, int left) {
  struct worker *w = arg;

  w->left = left;
  log_kv(LOG_INFO_, "worker_drained", "left", log_i64(left), NULL);
  beat_end(w->beat, on_unlisted, w);
}

static void drain(struct worker *w, int64_t timeout_ms) {
  loop_timer_stop(&w->retire);
  if (w->door) door_drain(w->door);
  sched_drain(w->sched, timeout_ms, on_drained, w);
}

/* Another child serves the door's new connections: those that are open here are served until each has had its answer, so that
 * no client of a reload is turned away. An idle one is closed after a while. */
static void on_retire(void *arg) {
  struct worker *w = arg;
  int64_t now = loop_now_ms(w->loop), left = w->retired_ms + w->conf->drain_timeout_ms - now;

  if (door_connections(w->door) > 0 && left > 0 && now < w->retired_ms + RETIRE_MS)
    loop_timer_start(w->loop, &w->retire, RETIRE_LOOK_MS);
  else
    drain(w, left > 0 ? left : 0);
}

static void retire(struct worker *w) {
  w->retired_ms = loop_now_ms(w->loop);
  door_stop_accepting(w->door);
  sched_leave_queue(w->sched);
  loop_timer_start(w->loop, &w->retire, RETIRE_LOOK_MS);
}

void worker_stop(struct worker *w) {
  int64_t timeout = w->stops == 0 ? w->conf->drain_timeout_ms : w->stops == 1 ? HURRIED_DRAIN_MS : 0;

  w->stops++;
  schedules_stop(w->schedules);
  log_kv(LOG_INFO_, "worker_draining", "runs", log_i64(sched_in_flight(w->sched)), "timeout_ms", log_i64(timeout),
         NULL);
  slot_draining(w->slot);
  stats_set(STAT_CHILDREN, 0, 0);
  if (w->stops == 1 && w->door && slot_retired(w->slot))
    retire(w);
  else
    drain(w, timeout);
}

static void on_signal(void *arg) {
  if (child_orphaned())
    log_kv(LOG_ERROR_, "supervisor_gone", "supervisor", log_i64(child_supervisor()), "what",
           "this child drains and ends; nobody replaces it", NULL);
  worker_stop(arg);
}

/* A terminal that hangs up tells all of its processes; a reload is the supervisor's. */
static void on_hup(void *arg) {
  struct worker *w = arg;

  if (!w->slot)
    log_kv(LOG_WARN_, "reload_ignored", "why", "this worker has no supervisor (supervise = false): restart it", NULL);
}

static void on_usr1(void *arg) {
  logfile_reopen();
}

/* ---- life ---- */

static void make_source(struct worker *w, const struct queues *queues) {
  struct source_hooks hooks = {
      sched_on_taken, sched_on_more, sched_held, sched_on_ordered, sched_on_look, w->sched};

  struct source_postgres_options options = {
      .connection = {"leases", w->conf->database_url, w->conf->connect_timeout_ms, ANSWER_TIMEOUT_MS, w->conf->prepare, 0, false},
      .worker_id = w->worker_id,
      .queues = (const char *const *)queues->names,
      .weights = queues->weights,
      .nqueues = queues->n,
      .poll_interval_ms = w->conf->poll_interval_ms,
      .lease_ms = w->conf->lease_ms,
      .listen = w->conf->prepare,
      .on_up = on_leases_up,
      .on_down = on_leases_down,
      .arg = w,
  };
  w->source = source_postgres_new(w->loop, &options, &hooks);
}

static char *read_file(const char *setting, const char *path, struct err *e) {
  struct buf b = BUF_INIT;
  char chunk[4096];
  size_t n;
  FILE *f = fopen(path, "re");

  if (!f) {
    err_set(e, ERR_INPUT, "bad_option", "%s: cannot read %s: %s", setting, path, strerror(errno));
    return NULL;
  }
  while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
    buf_append(&b, chunk, n);
  fclose(f);
  return buf_take(&b);
}

static struct door_ui_options ui_options(const struct conf *c, const char *dir, bool tls) {
  return (struct door_ui_options){
      .mode = (enum door_ui_mode)c->ui,
      .dir = dir,
      .database_url = c->ui_database_url[0] ? c->ui_database_url : c->database_url,
      .connect_timeout_ms = c->connect_timeout_ms,
      .prepare = c->prepare,
      .origin = c->ui_origin,
      .tls = tls,
      .session_ms = c->ui_session_ms,
  };
}

static int make_door(struct worker *w, const struct worker_program *program, const char *queues, struct err *e) {
  const struct conf *c = w->conf;
  char address[64], *cert = NULL, *key = NULL;
  struct door_options o = {.max_exchanges = (int)c->http_max_requests, .openapi = program->openapi, .clock = &w->clock,
                           .metrics_access = (enum door_metrics)c->metrics, .metrics_token = c->metrics_token};

  if (w->slot ? child_listen_fd() < 0 : !c->http_listen[0]) return 0; /* a supervisor has opened its own, or none */
  if (!c->http_tls_cert[0] != !c->http_tls_key[0])
    return err_set(e, ERR_INPUT, "bad_option", "http_tls_cert and http_tls_key go together: %s is not set",
                   c->http_tls_cert[0] ? "http_tls_key" : "http_tls_cert");
  if (c->http_tls_cert[0] && (!(cert = read_file("http_tls_cert", c->http_tls_cert, e)) ||
                              !(key = read_file("http_tls_key", c->http_tls_key, e)))) {
    free(cert);
    return -1;
  }
  o.http = (struct httpd_options){
      .port = listen_split(c->http_listen, address),
      .address = address,
      .listen_fd = child_listen_fd(),
      .paused = !slot_alone(w->slot), /* until it can serve: a client is not to be told that our database is away */
      .tls_cert = cert,
      .tls_key = key,
      .max_header_bytes = (size_t)c->http_max_header_bytes,
      .max_body_bytes = (size_t)c->http_max_body_bytes,
      .max_connections = (int)c->http_max_connections,
      .max_connections_per_address = (int)c->http_max_connections_per_address,
      .header_timeout_ms = c->http_header_timeout_ms,
      .body_timeout_ms = c->http_body_timeout_ms,
      .idle_timeout_ms = c->http_idle_timeout_ms,
  };
  o.ui = ui_options(c, program->ui_dir, cert != NULL);
  o.queue_stats = w->queue_stats = queue_stats_new(w->loop, w->verdicts, w->sched, queues, program->version);
  w->door = door_new(w->loop, w->sched, w->verdicts, &o, e);
  free(cert);
  free(key);
  return w->door ? 0 : -1;
}

static void shortest_lease(void *arg, struct task *t) {
  int64_t *ms = arg;

  if (t->lease_ms < *ms) *ms = t->lease_ms;
}

static void tell_supervisor(struct worker *w) {
  struct slot_settings settings = {
      .stall_ms = w->conf->stall_ms,
      .load_timeout_ms = w->conf->load_timeout_ms,
      .workers = w->conf->workers,
      .max_runs = w->conf->max_runs,
      .max_memory_bytes = w->conf->max_memory << 20,
      .drain_timeout_ms = w->conf->drain_timeout_ms,
      .lease_ms = w->conf->lease_ms,
  };

  task_each(shortest_lease, &settings.lease_ms);
  err_copy_text(settings.http_listen, sizeof settings.http_listen, w->conf->http_listen);
  if (strlen(w->conf->database_url) < sizeof settings.database_url) strcpy(settings.database_url, w->conf->database_url);
  slot_tell(w->slot, w->worker_id, &settings);
  if (w->slot) child_end_with_parent((unsigned)(w->conf->drain_timeout_ms / 1000) + ORPHAN_SPARE_S);
}

static void on_run_ended(void *arg, struct run *r) {
  struct worker *w = arg;

  sched_on_ended(w->sched, r);
  w->runs_ended++;
  slot_counts(w->slot, sched_in_flight(w->sched), w->runs_ended, 0);
}

struct worker *worker_new(struct loop *loop, const struct conf *conf, const struct handler_ops *ops,
                          const struct worker_program *program, const struct worker_hooks *hooks, struct err *e) {
  struct worker *w = xcalloc(1, sizeof *w);
  struct control_options verdicts = {"verdicts", conf->database_url, conf->connect_timeout_ms, ANSWER_TIMEOUT_MS,
                                     conf->prepare, 0, false};
  struct control_hooks verdict_hooks = {.on_up = on_verdicts_up, .on_down = on_verdicts_down, .arg = w};
  struct sched_options sched_options = {
      .pool_size = (int)conf->pool_size, .queue = conf->queue, .prefetch = (int)conf->prefetch};
  struct queues queues;

  if (queues_init(&queues, conf, e)) {
    free(w);
    return NULL;
  }
  w->loop = loop;
  w->conf = conf;
  w->hooks = *hooks;
  w->slot = child_slot();
  uuid_v4(w->worker_id);
  if (conf->valkey_url[0]) {
    w->valkey = valkey_new(loop, conf->valkey_url, conf->gate_timeout_ms, conf->valkey_prefix, e);
    if (!w->valkey) {
      queues_fini(&queues);
      free(w);
      return NULL;
    }
  }
  loop_signal_init(&w->term, on_signal, w);
  loop_signal_init(&w->interrupt, on_signal, w);
  loop_signal_init(&w->hup, on_hup, w);
  loop_signal_init(&w->usr1, on_usr1, w);
  loop_task_init(&w->end_task, on_end, w);
  loop_timer_init(&w->linger, on_lingered, w);
  loop_timer_init(&w->retire, on_retire, w);
  loop_timer_init(&w->identity_timer, read_identity, w);
  loop_timer_init(&w->partitions_timer, make_partitions, w);
  loop_timer_init(&w->register_timer, register_tasks, w);
  w->clock.loop = loop;
  w->gate = gate_new(w->valkey, &w->clock, conf->valkey_prefix, conf->replay_cache_ms);
  w->pool = pgpool_new(loop, conf->database_url, (int)conf->pool_size, conf->connect_timeout_ms, conf->prepare);
  w->verdicts = control_new(loop, &verdicts, &verdict_hooks);
  char *names = queues_json(&queues);
  w->beat = beat_new(loop, w->verdicts, w->worker_id, program->version, conf->queue ? names : NULL, conf);
  w->sched = sched_new(loop, &sched_options);
  if (conf->schedules) w->schedules = schedules_new(loop, w->verdicts);
  make_source(w, &queues);
  queues_fini(&queues);
  struct runner_hooks runner_hooks = {on_run_ended, w};
  w->runner = runner_new(loop, w->gate, w->verdicts, w->pool, w->source, w->worker_id, &runner_hooks);
  runner_set_handler(w->runner, ops);
  if (w->slot) runner_set_patience(w->runner, conf->stall_ms + PATIENCE_MS);
  sched_connect(w->sched, w->source, w->runner, w->gate);
  int made = make_door(w, program, names, e);
  free(names);
  if (made < 0) {
    worker_free(w);
    return NULL;
  }
  loop_signal_start(loop, &w->term, SIGTERM);
  loop_signal_start(loop, &w->interrupt, SIGINT);
  loop_signal_start(loop, &w->hup, SIGHUP);
  loop_signal_start(loop, &w->usr1, SIGUSR1);
  tell_supervisor(w);
  loop_measure(loop);
  signals_let_in();
  return w;
}

void worker_free(struct worker *w) {
  if (!w || sched_in_flight(w->sched) > 0)
    return; /* runs that could not be given back still hold everything: the process ends */
  loop_signal_stop(&w->term);
  loop_signal_stop(&w->interrupt);
  loop_signal_stop(&w->hup);
  loop_signal_stop(&w->usr1);
  loop_timer_stop(&w->identity_timer);
  loop_timer_stop(&w->partitions_timer);
  loop_timer_stop(&w->linger);
  loop_timer_stop(&w->retire);
  loop_timer_stop(&w->register_timer);
  loop_task_cancel(&w->end_task);
  door_free(w->door);
  queue_stats_free(w->queue_stats);
  sched_free(w->sched);
  schedules_free(w->schedules);
  runner_free(w->runner);
  source_free(w->source);
  beat_free(w->beat);
  control_free(w->verdicts);
  pgpool_close_later(w->pool);
  gate_free(w->gate);
  valkey_free(w->valkey);
  free(w->message);
  free(w);
}
