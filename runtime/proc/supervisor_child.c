#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "proc/child.h"
#include "proc/supervisor_internal.h"

#define HEALTHY_MS 10000 /* who has served so long has not died young */
#define BACKOFF_MS 200
#define BACKOFF_CAP_MS 30000
#define HURRIED_MS 1000
#define FORK_AGAIN_MS 1000
/* Beyond drain_timeout: a worker takes some seconds to have its roll-backs and returned leases confirmed (core/sched.c), and one
 * that still loads hears nothing until its database has answered or connect_timeout is over. */
#define MARGIN_MS 10000

/* ---- start ---- */

static bool serves(const struct supervisor *s, const struct sup_child *c) {
  return c->ready_ms > 0 && c->why == STOP_NOT;
}

struct sup_child *sup_start(struct supervisor *s, int64_t generation, int failures) {
  int64_t now = loop_now_ms(s->loop);
  int slot = now < s->fork_ms ? -1 : slot_reserve(s->slots, generation, sup_count(s, serves) == 0, now);
  struct err e = ERR_INIT;

  if (slot < 0) return NULL; /* the old ones are still draining */
  struct child_start start = {.slots_fd = slots_fd(s->slots), .slot = slot, .listen_fd = s->listen_fd,
                              .json = s->conf->log_format == 1};
  pid_t pid = child_spawn(&start, &e);
  if (pid < 0) {
    log_err(LOG_ERROR_, "child_not_started", &e, NULL);
    slot_release(s->slots, slot);
    s->fork_ms = now + FORK_AGAIN_MS;
    return NULL;
  }
  struct sup_child *c = xcalloc(1, sizeof *c);
  list_init(&c->node);
  list_push_back(&s->children, &c->node);
  c->pid = pid;
  c->slot = slot;
  c->generation = generation;
  c->started_ms = now;
  c->failures = failures;
  log_kv(LOG_DEBUG_, "child_started", "child", log_i64(pid), "generation", log_i64(generation), NULL);
  sup_wake(s);
  return c;
}

void sup_settings(struct supervisor *s, const struct sup_child *c, struct slot_settings *out) {
  if (slot_told(slots_at(s->slots, c->slot), NULL, out)) return;
  *out = (struct slot_settings){.workers = s->conf->workers, .load_timeout_ms = s->conf->load_timeout_ms,
                                .drain_timeout_ms = s->conf->drain_timeout_ms};
}

/* ---- stop ---- */

static const char *stop_name(enum stop_why why) {
  static const char *const names[] = {"none", "drain", "reload", "recycle", "failed reload"};

  return names[why];
}

void sup_stop(struct supervisor *s, struct sup_child *c, enum stop_why why) {
  int64_t now = loop_now_ms(s->loop);
  struct slot_settings settings;

  sup_settings(s, c, &settings);
  int64_t due = now + MARGIN_MS + (c->stops == 0 ? settings.drain_timeout_ms : HURRIED_MS);
  if (c->stops == 0 || due < c->kill_ms) c->kill_ms = due;
  if (why == STOP_RELOAD || why == STOP_RECYCLE) slot_retire(slots_at(s->slots, c->slot));
  if (c->why == STOP_NOT || why == STOP_DRAIN) c->why = why;
  c->stops++;
  kill(c->pid, SIGTERM);
  kill(c->pid, SIGCONT); /* one that is stopped could not hear it */
  log_kv(c->stops == 1 ? LOG_INFO_ : LOG_DEBUG_, "child_stopping", "child", log_i64(c->pid), "generation",
         log_i64(c->generation), "why", stop_name(why), NULL);
}

void sup_signal(void *supervisor, int slot, int sig) {
  struct supervisor *s = supervisor;
  struct sup_child *c;

  list_for_each(c, &s->children, node) if (c->slot == slot) kill(c->pid, sig);
}

bool sup_loading(struct supervisor *s, const struct sup_child *c, struct slot_run *out) {
  return slot_current_run(slots_at(s->slots, c->slot), out) && !out->run_id[0];
}

/* It holds nothing yet, so a fixed time is enough; a database that is waited for is nobody's code. */
static void look_at_loading(struct supervisor *s, struct sup_child *c, int64_t now) {
  struct slot *slot = slots_at(s->slots, c->slot);
  char text[SLOT_TRACEBACK_MAX + 1];
  struct slot_run what;

  if (slot_state(slot) != SLOT_STARTING || c->killed || !sup_loading(s, c, &what)) return;
  int64_t ms = now - what.since_ms;
  if (ms >= s->load_timeout_ms / 2 && !c->traced) {
    c->traced = true;
    kill(c->pid, SIGUSR2);
  }
  if (ms < s->load_timeout_ms) return;
  c->killed = true;
  log_kv(LOG_ERROR_, "child_killed", "child", log_i64(c->pid), "why", "it does not come back from loading within load_timeout",
         "loading", what.task, "ms", log_i64(ms), "traceback",
         slot_traceback(slot, text) ? text : "none: compiled code, or a call that blocks", NULL);
  kill(c->pid, SIGKILL);
}

void sup_look(struct supervisor *s) {
  int64_t now = loop_now_ms(s->loop);
  struct sup_child *c;

  list_for_each(c, &s->children, node) {
    enum slot_state state = slot_state(slots_at(s->slots, c->slot));
    if (c->ready_ms == 0 && state == SLOT_READY) {
      c->ready_ms = now;
      log_kv(LOG_INFO_, "child_ready", "child", log_i64(c->pid), "generation", log_i64(c->generation), "after_ms",
             log_i64(now - c->started_ms), NULL);
    }
    look_at_loading(s, c, now);
    if (c->failures > 0 && c->ready_ms > 0 && now - c->ready_ms >= HEALTHY_MS) c->failures = 0;
    if (c->kill_ms == 0 || now < c->kill_ms || c->killed) continue;
    c->killed = true;
    log_kv(LOG_ERROR_, "child_killed", "child", log_i64(c->pid), "why", "it did not end within drain_timeout", "runs",
           log_i64(slots_at(s->slots, c->slot)->in_flight), NULL);
    kill(c->pid, SIGKILL);
  }
}

int sup_count(struct supervisor *s, bool (*which)(const struct supervisor *s, const struct sup_child *c)) {
  struct sup_child *c;
  int n = 0;

  list_for_each(c, &s->children, node) n += which(s, c);
  return n;
}

/* ---- death ---- */

bool sup_is_young(struct supervisor *s, const struct sup_child *c) {
  return c->ready_ms == 0 || loop_now_ms(s->loop) - c->ready_ms < HEALTHY_MS;
}

int64_t sup_delay_ms(int failures) {
  if (failures <= 1) return 0;
  int64_t ms = BACKOFF_CAP_MS;
  if (failures < 12) ms = (int64_t)BACKOFF_MS << (failures - 2);
  if (ms > BACKOFF_CAP_MS) ms = BACKOFF_CAP_MS;
  return ms / 2 + random() % (ms / 2 + 1);
}

static const char *how(int status, char out[64]) {
  if (WIFSIGNALED(status))
    snprintf(out, 64, "signal %d (%s)%s", WTERMSIG(status), strsignal(WTERMSIG(status)),
             WCOREDUMP(status) ? ", core dumped" : "");
  else
    snprintf(out, 64, "exit status %d", WEXITSTATUS(status));
  return out;
}

void sup_say_death(struct supervisor *s, const struct sup_child *c, int status, int64_t next_ms) {
  const struct slot *slot = slots_at(s->slots, c->slot);
  char text[64], worker_id[37], fault[SLOT_FAULT_MAX];
  struct slot_run run;
  bool told = slot_told(slot, worker_id, NULL), running = slot_current_run(slot, &run), faulty = slot_fault(slot, fault);
  bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0, loading = running && !run.run_id[0];

  log_kv(well ? LOG_INFO_ : LOG_ERROR_, "child_died", "child", log_i64(c->pid), "generation", log_i64(c->generation),
         "how", how(status, text), "worker_id", told ? worker_id : NULL, "run_id", running && !loading ? run.run_id : NULL,
         "task", running && !loading ? run.task : NULL, "loading", loading ? run.task : NULL, "tenant_id", running && run.has_tenant ? log_i64(run.tenant_id) : NULL, "why",
         faulty ? fault : NULL, "lived_ms", log_i64(loop_now_ms(s->loop) - c->started_ms), "failures",
         c->failures > 0 ? log_i64(c->failures) : NULL, "next_start_ms", next_ms >= 0 ? log_i64(next_ms) : NULL, NULL);
}

static struct sup_child *find(struct supervisor *s, pid_t pid) {
  struct sup_child *c;

  list_for_each(c, &s->children, node) if (c->pid == pid) return c;
  return NULL;
}

/* Whoever has no other parent any more is ours too when we are a container's first process: all are waited for. */
void sup_reap(struct supervisor *s, void (*died)(struct supervisor *s, struct sup_child *c, int status)) {
  int status;
  pid_t pid;

  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    struct sup_child *c = find(s, pid), *other;
    if (!c) continue;
    list_remove(&c->node);
    list_for_each(other, &s->children, node) if (other->heir_of == c) other->heir_of = NULL;
    watchdog_child_died(s->watch, c->slot, status, c->killed);
    died(s, c, status);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) stats_inc(STAT_CHILD_DEATHS);
    stats_fold(slots_stats(s->slots), c->slot);
    slot_release(s->slots, c->slot);
    free(c);
  }
}
