#include "proc/watchdog.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "proc/keeper.h"

#define TICK_MIN_MS 50
#define TICK_MAX_MS 500
#define GRACE_MS 1000      /* past a run's time-out: its own loop may just be ending it */
#define TURN_MS 3000       /* a worker's loop turns at least once a second, when nothing happens */
#define TRACE_MS 500       /* how long a traceback is waited for */
#define LATE_MS 2000       /* we were late by so much: we were stopped, or starved, and so may they have been */

/* Why a child is killed. */
enum verdict { SPARE, KILL_TIMEOUT, KILL_STUCK, KILL_LEASES };

struct watched {
  char worker_id[37]; /* of the child that is watched here; "": none yet */
  uint64_t turns;
  int64_t turned_ms;   /* when turns was last seen to change */
  int64_t since_ms;    /* the stall that is going on; 0: none */
  int64_t asked_ms;    /* a traceback was asked for; 0: not yet */
  uint32_t traces;     /* slot_traces then */
  bool told;
  int64_t renewed_ms, renewing_ms; /* last answered, last asked renewal of this stall; 0: none */
  enum verdict verdict;
  char culprit[37];
  int64_t culprit_since_ms;
};

/* The keeper of one database. */
struct kept {
  struct list node;
  struct keeper *keeper;
  char *url;
};

struct watchdog {
  struct loop *loop;
  struct slots *slots;
  struct watchdog_hooks hooks;
  const struct conf *conf;
  struct list kept;
  struct loop_timer timer;
  struct loop_task look;
  int64_t interval_ms, looked_ms;
  int64_t amnesty_ms; /* what children did before does not count */
  struct watched *watched;
};

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t sooner(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- the databases ---- */

static void on_renewed(void *arg, const char *worker_id, int64_t asked_ms);

/* Of the database that a child works with; its settings may be newer than ours, or older. */
static struct keeper *keeper_for(struct watchdog *w, const struct slot_settings *settings) {
  const char *url = settings->database_url[0] ? settings->database_url : w->conf->database_url;
  struct keeper_hooks hooks = {on_renewed, w};
  struct kept *k;

  list_for_each(k, &w->kept, node) if (strcmp(k->url, url) == 0) return k->keeper;
  k = xcalloc(1, sizeof *k);
  list_init(&k->node);
  list_push_back(&w->kept, &k->node);
  k->url = xstrdup(url);
  k->keeper = keeper_new(w->loop, w->conf, url, &hooks);
  return k->keeper;
}

static void free_kept(struct kept *k) {
  list_remove(&k->node);
  keeper_free(k->keeper);
  free(k->url);
  free(k);
}

static void free_idle(struct watchdog *w) {
  struct kept *k, *next;

  list_for_each_safe(k, next, &w->kept, node) if (keeper_idle(k->keeper)) free_kept(k);
}

/* ---- one child ---- */

static bool is_stopped(pid_t pid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *f = fopen(path, "re");
  if (!f) return false;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[n] = 0;
  const char *state = strrchr(text, ')');
  return state && strlen(state) > 2 && (state[2] == 'T' || state[2] == 't');
}

/* Since when the loop does not turn; 0: it does. */
static int64_t stalled_since(struct watchdog *w, struct watched *c, const struct slot *slot,
                             const struct slot_settings *settings, int64_t now) {
  int64_t busy = slot->busy_since_ms;
  uint64_t turns = slot->turns;

  if (turns != c->turns || c->turned_ms == 0) {
    c->turns = turns;
    c->turned_ms = now;
  }
  if (busy) return later(busy, w->amnesty_ms);
  int64_t turned = later(c->turned_ms, w->amnesty_ms);
  return now - turned > settings->stall_ms + TURN_MS ? turned : 0;
}

static void log_run(enum log_level level, const char *event, const struct slot *slot, const struct slot_run *run, int64_t ms,
                    const char *key, const char *value) {
  log_kv(level, event, "child", log_i64(slot->pid), key, value, "ms", log_i64(ms), "run_id", run ? run->run_id : NULL, "task",
         run ? run->task : NULL, "tenant", run && run->has_tenant ? log_i64(run->tenant_id) : NULL, NULL);
}

static void ask(struct watchdog *w, int i, struct watched *c, int64_t now) {
  c->asked_ms = now;
  c->traces = slot_traces(slots_at(w->slots, i));
  w->hooks.kill(w->hooks.arg, i, SIGUSR2);
}

/* Tells of the stall, once, when the traceback has come or will not come. last: now or never. */
static void tell(struct watchdog *w, int i, struct watched *c, const struct slot_run *run, int64_t ms, int64_t now,
                 bool last) {
  struct slot *slot = slots_at(w->slots, i);
  char text[SLOT_TRACEBACK_MAX + 1];
  const char *trace = "none: compiled code, or a call that blocks";

  if (c->told) return;
  if (is_stopped(slot->pid)) {
    trace = "none: the process is stopped";
  } else if (slot_traces(slot) != c->traces && slot_traceback(slot, text)) {
    trace = text;
  } else if (!last && now - c->asked_ms < TRACE_MS) {
    return;
  }
  c->told = true;
  log_run(LOG_WARN_, "loop_stalled", slot, run, ms, "traceback", trace);
}

static enum verdict judge(const struct watchdog *w, const struct watched *c, const struct slot_run *run,
                          const struct slot_settings *settings, int64_t ms, int64_t now) {
  int64_t stall = settings->stall_ms, lease = settings->lease_ms;

  if (ms < stall) return SPARE;
  if (run && run->deadline_ms && now >= run->deadline_ms + GRACE_MS && now - later(run->since_ms, w->amnesty_ms) >= stall)
    return KILL_TIMEOUT;
  if (!run && ms >= 2 * stall) return KILL_STUCK;
  /* At best the last renewal of its own was answered just before the loop got busy; at worst it was a third of a lease ago. */
  int64_t safe_ms = c->renewed_ms ? c->renewed_ms + lease : c->since_ms + lease * 2 / 3;
  return now > safe_ms - lease / 10 ? KILL_LEASES : SPARE;
}

static void end_child(struct watchdog *w, int i, struct watched *c, const struct slot_run *run, int64_t ms) {
  static const char *const why[] = {"", "its run is past its time-out, and its code does not come back",
                                    "its loop does not turn, in nobody's code",
                                    "its leases end and could not be renewed"};

  c->culprit[0] = 0;
  if (run) {
    err_copy_text(c->culprit, sizeof c->culprit, run->run_id);
    c->culprit_since_ms = run->since_ms;
  }
  log_run(LOG_ERROR_, "child_killed", slots_at(w->slots, i), run, ms, "why", why[c->verdict]);
  w->hooks.kill(w->hooks.arg, i, SIGKILL);
}

/* Leases of a child that may still come back go on; of one that may not, they don't. */
static void renew(struct watchdog *w, struct watched *c, const struct slot_run *run, const struct slot_settings *settings,
                  int64_t ms, int64_t now) {
  int64_t lease = settings->lease_ms;

  if (ms < lease / 6 || now - c->renewing_ms < lease / 3) return; /* the connection has to be made first */
  if (run && run->deadline_ms && now >= later(run->deadline_ms + GRACE_MS, run->since_ms + settings->stall_ms)) return;
  c->renewing_ms = now;
  keeper_renew(keeper_for(w, settings), c->worker_id, lease);
}

static void come_back(struct watched *c, const struct slot *slot, int64_t now) {
  if (c->told) log_run(LOG_INFO_, "loop_turns_again", slot, NULL, now - c->since_ms, "worker_id", c->worker_id);
  c->since_ms = c->asked_ms = c->renewed_ms = c->renewing_ms = 0;
  c->told = false;
}

/* Gives when the child should be looked at again, in ms. */
static int64_t look_at(struct watchdog *w, int i, int64_t now) {
  struct slot *slot = slots_at(w->slots, i);
  struct watched *c = &w->watched[i];
  enum slot_state state = slot_state(slot);
  struct slot_settings settings;
  struct slot_run run;
  char worker_id[37];

  if ((state != SLOT_READY && state != SLOT_DRAINING) || !slot_told(slot, worker_id, &settings)) return TICK_MAX_MS;
  if (strcmp(worker_id, c->worker_id) != 0) {
    memset(c, 0, sizeof *c);
    memcpy(c->worker_id, worker_id, sizeof c->worker_id);
  }
  int64_t next = sooner(settings.stall_ms / 8, settings.lease_ms / 6);
  int64_t since = stalled_since(w, c, slot, &settings, now);
  if (c->verdict != SPARE) return next;
  if (since == 0 || since > c->since_ms) come_back(c, slot, now);
  if (since == 0) return next;
  c->since_ms = since;
  int64_t ms = now - since;
  const struct slot_run *current = slot_current_run(slot, &run) ? &run : NULL;
  renew(w, c, current, &settings, ms, now);
  if (c->asked_ms == 0 && ms >= later(settings.stall_ms / 2, settings.stall_ms - TRACE_MS)) ask(w, i, c, now);
  c->verdict = judge(w, c, current, &settings, ms, now);
  if (ms >= settings.stall_ms) tell(w, i, c, current, ms, now, c->verdict != SPARE);
  if (c->verdict != SPARE) end_child(w, i, c, current, ms);
  return next;
}

static void look(void *arg) {
  struct watchdog *w = arg;
  int64_t now = loop_now_ms(w->loop), next = TICK_MAX_MS;

  if (now - w->looked_ms > w->interval_ms + LATE_MS) w->amnesty_ms = now;
  w->looked_ms = now;
  for (int i = 0; i < slots_count(w->slots); i++)
    next = sooner(next, look_at(w, i, now));
  free_idle(w);
  w->interval_ms = later(next, TICK_MIN_MS);
  loop_timer_start(w->loop, &w->timer, w->interval_ms);
}

static void on_timer(void *arg) {
  struct watchdog *w = arg;

  loop_defer(w->loop, &w->look);
}

static void on_renewed(void *arg, const char *worker_id, int64_t asked_ms) {
  struct watchdog *w = arg;

  for (int i = 0; i < slots_count(w->slots); i++) {
    struct watched *c = &w->watched[i];
    if (strcmp(c->worker_id, worker_id) == 0 && c->renewing_ms != 0) c->renewed_ms = later(c->renewed_ms, asked_ms);
  }
}

/* ---- a death ---- */

struct death {
  const char *code;
  char how[128];
  bool fault; /* a signal that the program's own faults send */
};

static void describe(struct death *d, const struct watched *c, int status) {
  d->code = "worker_lost";
  d->fault = false;
  if (WIFSIGNALED(status)) {
    int sig = WTERMSIG(status);
    d->fault = sig != SIGKILL && sig != SIGTERM && sig != SIGINT && sig != SIGHUP;
    snprintf(d->how, sizeof d->how, "its worker died of signal %d (%s)", sig, strsignal(sig));
  } else {
    snprintf(d->how, sizeof d->how, "its worker ended with exit status %d", WEXITSTATUS(status));
  }
  if (c->verdict == KILL_TIMEOUT) {
    d->code = "timeout";
    snprintf(d->how, sizeof d->how, "it did not end within its timeout and held up its worker, which was killed");
  }
}

static char *failure_json(const struct death *d, const char *tail, const char *worker_id, const char *traceback) {
  struct buf b = BUF_INIT;
  char message[256];
  int n = snprintf(message, sizeof message, "%s%s", d->how, tail);

  buf_printf(&b, "{\"code\":\"%s\",\"message\":", d->code);
  json_write_string_lossy(&b, message, (size_t)n, 1024);
  buf_printf(&b, ",\"worker_id\":\"%s\"", worker_id);
  if (traceback) {
    buf_puts(&b, ",\"traceback\":");
    json_write_string_lossy(&b, traceback, strlen(traceback), 2 * SLOT_TRACEBACK_MAX);
  }
  buf_putc(&b, '}');
  return buf_take(&b);
}

/* The run whose code was executing, if it is to blame. */
static bool find_culprit(const struct watched *c, const struct slot *slot, bool ours, struct slot_run *run) {
  if (!slot_current_run(slot, run)) return false;
  if (c->verdict == SPARE) return !ours;
  return c->verdict == KILL_TIMEOUT && strcmp(c->culprit, run->run_id) == 0 && c->culprit_since_ms == run->since_ms;
}

static int collect_started(const struct slot *slot, char (*ids)[37]) {
  int n = 0;

  for (int i = 0; i < SLOT_STARTED_MAX; i++)
    if (slot_started_run(slot, i, ids[n])) n++;
  return n;
}

void watchdog_child_died(struct watchdog *w, int i, int status, bool ours) {
  struct slot *slot = slots_at(w->slots, i);
  struct watched *c = &w->watched[i];
  char worker_id[37], charged[SLOT_STARTED_MAX][37], text[SLOT_TRACEBACK_MAX + 1];
  struct slot_settings settings;
  struct slot_run run;
  struct death d;
  int n = 0;

  if (!slot_told(slot, worker_id, &settings)) return; /* it has never taken a run */
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && slot_state(slot) == SLOT_ENDED) return;
  if (strcmp(c->worker_id, worker_id) != 0) memset(c, 0, sizeof *c);
  describe(&d, c, status);
  const char *tail = " while its code was executing";
  bool traced = c->told && slot_traces(slot) != c->traces && slot_traceback(slot, text);
  if (find_culprit(c, slot, ours, &run)) {
    memcpy(charged[n++], run.run_id, sizeof run.run_id);
    log_run(LOG_ERROR_, "run_lost_its_worker", slot, &run, later(0, loop_now_ms(w->loop) - run.since_ms), "message", d.how);
  } else if (d.fault && c->verdict == SPARE && !ours) {
    n = collect_started(slot, charged);
    tail = " while it had been started, though its code was not executing: any of those beside it may be to blame";
    log_kv(LOG_ERROR_, "runs_lost_their_worker", "child", log_i64(slot->pid), "runs", log_i64(n), "message", d.how, NULL);
  }
  char *failure = n > 0 ? failure_json(&d, c->verdict == KILL_TIMEOUT ? "" : tail, worker_id, traced ? text : NULL) : NULL;
  keeper_bury(keeper_for(w, &settings), &(struct keeper_burial){worker_id, (const char(*)[37])charged, n, failure});
  free(failure);
  memset(c, 0, sizeof *c);
}

bool watchdog_pending(const struct watchdog *w) {
  const struct kept *k;

  list_for_each(k, &w->kept, node) if (keeper_pending(k->keeper)) return true;
  return false;
}

/* ---- life ---- */

struct watchdog *watchdog_new(struct loop *loop, struct slots *slots, const struct conf *conf,
                              const struct watchdog_hooks *hooks) {
  struct watchdog *w = xcalloc(1, sizeof *w);

  w->loop = loop;
  w->slots = slots;
  w->hooks = *hooks;
  w->watched = xcalloc((size_t)slots_count(slots), sizeof *w->watched);
  w->conf = conf;
  list_init(&w->kept);
  loop_timer_init(&w->timer, on_timer, w);
  loop_task_init(&w->look, look, w);
  return w;
}

void watchdog_start(struct watchdog *w) {
  w->looked_ms = loop_now_ms(w->loop);
  w->interval_ms = TICK_MAX_MS;
  loop_timer_start(w->loop, &w->timer, w->interval_ms);
}

void watchdog_stop(struct watchdog *w) {
  loop_timer_stop(&w->timer);
  loop_task_cancel(&w->look);
}

void watchdog_free(struct watchdog *w) {
  if (!w) return;
  watchdog_stop(w);
  struct kept *k, *next;
  list_for_each_safe(k, next, &w->kept, node) free_kept(k);
  free(w->watched);
  free(w);
}
