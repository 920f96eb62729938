#include "proc/beat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "proc/child.h"

#define END_MS 1000 /* so long the end's answer is waited for */
#define BEAT_MS 15000 /* one small write for each worker; three missed ones make it look dead (umavez workers) */

struct beat {
  struct loop *loop;
  struct control *control;
  const char *worker_id;
  char *version, *detail;
  char host[256], pid[16];
  struct loop_timer timer;
  bool ended;
  void (*done)(void *arg); /* of beat_end; NULL: called */
  void *arg;
};

static void on_told(void *arg, struct pgresult *result) {
  if (!pgresult_ok(result) && pgresult_err(result)->class != ERR_ENV)
    log_err(LOG_DEBUG_, "worker_not_listed", pgresult_err(result), NULL);
  pgresult_free(result);
}

static void be_done(struct beat *b) {
  void (*done)(void *) = b->done;

  loop_timer_stop(&b->timer);
  b->done = NULL;
  if (done) done(b->arg);
}

static void on_gone(void *arg, struct pgresult *result) {
  on_told(arg, result);
  be_done(arg);
}

static void on_timer(void *arg) {
  struct beat *b = arg;

  if (b->ended)
    be_done(b);
  else
    beat_now(b);
}

void beat_now(struct beat *b) {
  const char *values[5] = {b->worker_id, b->host, b->pid, b->version, b->detail};
  struct pgquery q = {.sql = "SELECT umavez.worker_beat($1::uuid, $2::text, $3::int, $4::text, $5::jsonb)",
                      .nparams = 5,
                      .values = values,
                      .done = on_told,
                      .arg = b};

  if (b->ended) return;
  if (!control_query(b->control, &q)) log_kv(LOG_DEBUG_, "beat_not_sent", NULL);
  loop_timer_start(b->loop, &b->timer, BEAT_MS);
}

void beat_end(struct beat *b, void (*done)(void *arg), void *arg) {
  const char *values[1] = {b->worker_id};
  struct pgquery q = {
      .sql = "SELECT umavez.worker_gone($1::uuid)", .nparams = 1, .values = values, .done = on_gone, .arg = b};

  b->ended = true;
  b->done = done;
  b->arg = arg;
  loop_timer_start(b->loop, &b->timer, END_MS);
  if (!control_query(b->control, &q)) be_done(b);
}

/* How the queues share this worker, as its settings say: payments:6,mail:3 or payments > mail. NULL: as usual; gives. */
static char *shares_text(const struct conf *conf) {
  bool strict = conf->queue_order != 0, weighted = false;
  struct buf b = BUF_INIT;

  for (int i = 0; i < conf->queues.n; i++) {
    weighted = weighted || strchr(conf->queues.items[i], ':') != NULL;
    buf_printf(&b, "%s%s", i == 0 ? "" : strict ? " > " : ",", conf->queues.items[i]);
  }
  if (strict || weighted) return buf_take(&b);
  buf_fini(&b);
  return NULL;
}

static char *detail_json(const char *queues, const struct conf *conf) {
  struct buf d = BUF_INIT;

  buf_printf(&d, "{\"pool_size\":%" PRId64, conf->pool_size);
  if (child_slot()) buf_printf(&d, ",\"supervisor\":%ld", (long)getppid());
  char *shares = queues ? shares_text(conf) : NULL;
  if (queues) buf_printf(&d, ",\"queues\":%s", queues);
  if (shares) {
    buf_puts(&d, ",\"shares\":");
    json_write_string_lossy(&d, shares, strlen(shares), 1024);
    free(shares);
  }
  if (conf->http_listen[0]) {
    buf_puts(&d, ",\"http\":");
    json_write_string_lossy(&d, conf->http_listen, strlen(conf->http_listen), 256);
  }
  buf_putc(&d, '}');
  return buf_take(&d);
}

struct beat *beat_new(struct loop *loop, struct control *control, const char *worker_id, const char *version, const char *queues,
                      const struct conf *conf) {
  struct beat *b = xcalloc(1, sizeof *b);

  b->loop = loop;
  b->control = control;
  b->worker_id = worker_id;
  b->version = xstrdup(version);
  b->detail = detail_json(queues, conf);
  if (gethostname(b->host, sizeof b->host - 1) != 0) strcpy(b->host, "unknown");
  snprintf(b->pid, sizeof b->pid, "%ld", (long)getpid());
  loop_timer_init(&b->timer, on_timer, b);
  return b;
}

void beat_free(struct beat *b) {
  if (!b) return;
  loop_timer_stop(&b->timer);
  free(b->version);
  free(b->detail);
  free(b);
}
