#include "proc/supervisor.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "io/httpd_listen.h"
#include "io/treewatch.h"
#include "proc/listen.h"
#include "proc/logfile.h"
#include "proc/signals.h"
#include "proc/supervisor_internal.h"

#define RELOAD_MS 30000     /* for the first new child to be ready, then for the rest */
#define STARTING_MAX 4      /* children that load at one time, at least; else as many as cores */
#define TICK_BUSY_MS 20     /* while something is expected of a child */
#define TICK_MS 250
#define BUSY_MS 5000        /* how long after a start it is expected soon */
#define RECYCLE_AGAIN_MS 30000
#define TOLD_MS 3000
#define SLOTS_SPARE 64     /* for a reload that wants more children; what nobody uses takes no memory */

static void step(void *arg);

/* ---- children by kind ---- */

static bool is_current(const struct supervisor *s, const struct sup_child *c) {
  return c->generation == s->generation && c->why == STOP_NOT && !c->heir_of;
}

static bool is_ready(const struct supervisor *s, const struct sup_child *c) {
  return is_current(s, c) && c->ready_ms > 0;
}

static bool is_old(const struct supervisor *s, const struct sup_child *c) {
  return c->generation < s->generation && c->why == STOP_NOT;
}

static bool is_starting(const struct supervisor *s, const struct sup_child *c) {
  return c->ready_ms == 0 && c->why == STOP_NOT;
}

static bool is_any(const struct supervisor *s, const struct sup_child *c) {
  return true;
}

static struct sup_child *find_child(struct supervisor *s,
                                    bool (*which)(const struct supervisor *s, const struct sup_child *c)) {
  struct sup_child *c;

  list_for_each(c, &s->children, node) if (which(s, c)) return c;
  return NULL;
}

static int cores(void) {
  cpu_set_t set;

  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

/* The setting, as a number of children that fit into the slots twice. */
static int wanted(const struct supervisor *s, int64_t workers) {
  int want = workers > 0 ? (int)workers : cores(), most = s->slots ? slots_count(s->slots) / 2 : WORKERS_MAX;

  if (want > WORKERS_MAX) want = WORKERS_MAX;
  if (want > most) {
    log_kv(LOG_WARN_, "restart_needed", "setting", "workers", "why", "so many children need a new supervisor", "found",
           log_i64(want), "used", log_i64(most), NULL);
    want = most;
  }
  return want;
}

/* ---- what is told ---- */

static void say_status(struct supervisor *s) {
  char text[sizeof s->said];
  int64_t runs = 0;
  struct sup_child *c;

  list_for_each(c, &s->children, node) runs += slots_at(s->slots, c->slot)->in_flight;
  int ready = sup_count(s, is_ready);
  if (s->stops > 0)
    snprintf(text, sizeof text, "draining: %d children left", sup_count(s, is_any));
  else if (s->generation == 0)
    snprintf(text, sizeof text, "starting: the first child is not ready yet");
  else
    snprintf(text, sizeof text, "%s: %d of %d children ready, generation %lld%s, %lld runs in flight",
             s->phase == RELOAD_NONE ? "working" : "reloading", ready, s->want, (long long)s->generation,
             s->nvacancies > 0 ? ", some died" : "", (long long)runs);
  if (strcmp(text, s->said) == 0) return;
  strcpy(s->said, text);
  notify_send(s->notify, "STATUS=%s", text);
}

static void on_watchdog(void *arg) {
  struct supervisor *s = arg;

  notify_send(s->notify, "WATCHDOG=1");
  loop_timer_start(s->loop, &s->watchdog, notify_watchdog_ms(s->notify));
}

/* ---- the end ---- */

static void on_end(void *arg) {
  struct supervisor *s = arg;

  signals_hold(NULL); /* as in proc/worker.c */
  s->hooks.ended(s->hooks.arg, s->exit_code, s->message);
}

static void end_later(struct supervisor *s, int code, const char *message) {
  if (s->finished) return;
  s->finished = true;
  s->exit_code = code;
  s->message = message ? xstrdup(message) : NULL;
  loop_defer(s->loop, &s->end);
}

static bool crash_loop(struct supervisor *s) {
  struct sup_child *c;

  for (int i = 0; i < s->nvacancies; i++)
    if (s->vacancy[i].failures >= CRASH_LOOP) return true;
  list_for_each(c, &s->children, node) if (c->failures >= CRASH_LOOP && c->why == STOP_NOT) return true;
  return false;
}

static void drain(struct supervisor *s) {
  struct sup_child *c;
  struct slot_settings settings;
  int64_t longest = 0;

  s->was_looping |= crash_loop(s); /* before they are told to stop */
  s->stops++;
  log_kv(LOG_INFO_, "supervisor_draining", "children", log_i64(sup_count(s, is_any)), "hurried",
         s->stops > 1 ? "true" : NULL, NULL);
  if (s->listen_fd >= 0) close(s->listen_fd); /* new clients are refused rather than left waiting */
  s->listen_fd = -1;
  s->phase = RELOAD_NONE;
  s->again = false;
  s->nvacancies = 0;
  list_for_each(c, &s->children, node) {
    if (c->stops < s->stops) sup_stop(s, c, STOP_DRAIN);
    sup_settings(s, c, &settings);
    if (settings.drain_timeout_ms > longest) longest = settings.drain_timeout_ms;
  }
  notify_send(s->notify, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%lld", (long long)(longest + 15000) * 1000);
  sup_wake(s);
}

/* ---- reload ---- */

static void start_canary(struct supervisor *s) {
  struct sup_child *c = sup_start(s, s->generation + 1, s->first_failures);

  if (!c) return; /* no slot yet: the tick tries again */
  c->canary = true;
  if (s->generation > 0) s->phase_until_ms = loop_now_ms(s->loop) + RELOAD_MS;
}

static void begin_reload(struct supervisor *s) {
  s->again = false;
  s->phase = RELOAD_CANARY;
  s->phase_until_ms = 0;
  log_kv(LOG_INFO_, "reload_started", "generation", log_i64(s->generation + 1), NULL);
  notify_reloading(s->notify);
  start_canary(s);
}

static void end_reload(struct supervisor *s) {
  s->phase = RELOAD_NONE;
  s->phase_until_ms = 0;
  notify_send(s->notify, "READY=1");
  if (s->again) begin_reload(s);
}

static void reload_failed(struct supervisor *s, const char *how, const char *why) {
  log_kv(LOG_ERROR_, "reload_failed", "generation", log_i64(s->generation + 1), "how", how, "why", why, "children",
         log_i64(sup_count(s, is_ready)), "what", "the old children go on", NULL);
  end_reload(s);
}

static void warn_of_restart(struct supervisor *s, const struct slot_settings *settings) {
  if (strcmp(settings->http_listen, s->conf->http_listen) == 0) return;
  log_kv(LOG_WARN_, "restart_needed", "setting", "http_listen", "found", settings->http_listen, "used",
         s->conf->http_listen, NULL);
}

/* The first child of a generation is ready: its settings count from now on. */
static void accept_generation(struct supervisor *s, struct sup_child *c) {
  struct slot_settings settings;
  bool first = s->generation == 0;

  sup_settings(s, c, &settings);
  c->canary = false;
  s->generation = c->generation;
  s->want = wanted(s, settings.workers);
  s->load_timeout_ms = settings.load_timeout_ms;
  s->nvacancies = 0;
  s->first_failures = 0;
  s->phase = first ? RELOAD_NONE : RELOAD_ROLL;
  s->phase_until_ms = first ? 0 : loop_now_ms(s->loop) + RELOAD_MS;
  warn_of_restart(s, &settings);
  if (first) {
    log_kv(LOG_INFO_, "supervisor_ready", "workers", log_i64(s->want), NULL);
    notify_send(s->notify, "READY=1");
    logfile_settled();
  }
}

static bool is_canary(const struct supervisor *s, const struct sup_child *c) {
  return c->canary && c->why == STOP_NOT;
}

static void look_at_canary(struct supervisor *s) {
  struct sup_child *c = find_child(s, is_canary);
  int64_t now = loop_now_ms(s->loop);

  if (!c) {
    if (now >= s->first_due_ms) start_canary(s);
  } else if (c->ready_ms > 0) {
    accept_generation(s, c);
  } else if (s->phase_until_ms > 0 && now >= s->phase_until_ms) {
    sup_stop(s, c, STOP_CANARY);
    reload_failed(s, "time-out", "the new child was not ready within 30 s; is its database there?");
  }
}

/* An old child goes when a new one is there for it; all, when as many new ones are there as are wanted. */
static void roll(struct supervisor *s) {
  int ready = sup_count(s, is_ready), old = sup_count(s, is_old);
  struct sup_child *c, *next;

  list_for_each_safe(c, next, &s->children, node) {
    if (ready == 0 || (ready + old <= s->want && ready < s->want)) break;
    if (!is_old(s, c)) continue;
    sup_stop(s, c, STOP_RELOAD);
    old--;
  }
  if (s->phase != RELOAD_ROLL) return;
  if (old == 0 && ready >= s->want) {
    log_kv(LOG_INFO_, "reloaded", "generation", log_i64(s->generation), "workers", log_i64(s->want), NULL);
    end_reload(s);
  } else if (loop_now_ms(s->loop) >= s->phase_until_ms) {
    log_kv(LOG_ERROR_, "reload_unfinished", "generation", log_i64(s->generation), "ready", log_i64(ready), "workers",
           log_i64(s->want), "old", log_i64(old), NULL);
    end_reload(s);
  }
}

/* ---- replacement ---- */

/* Starts what is missing, a few at a time; a place whose child died young waits for its time. */
static void fill(struct supervisor *s) {
  int64_t now = loop_now_ms(s->loop);
  int limit = cores() > STARTING_MAX ? cores() : STARTING_MAX;
  int room = limit - sup_count(s, is_starting), missing = s->want - sup_count(s, is_current);

  if (s->generation == 0) return;
  if (s->nvacancies > missing) s->nvacancies = missing > 0 ? missing : 0;
  for (int i = 0; i < s->nvacancies && room > 0; i++) {
    struct vacancy *v = &s->vacancy[i];
    if (now < v->due_ms) continue;
    if (!sup_start(s, s->generation, v->failures)) return;
    *v = s->vacancy[--s->nvacancies];
    i--;
    room--;
    missing--;
  }
  for (; missing > s->nvacancies && room > 0; room--, missing--)
    if (!sup_start(s, s->generation, 0)) return;
}

static int64_t resident_bytes(pid_t pid) {
  char path[64];
  long long size, resident = 0;

  snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
  FILE *f = fopen(path, "re");
  if (!f) return 0;
  if (fscanf(f, "%lld %lld", &size, &resident) != 2) resident = 0;
  fclose(f);
  return resident * sysconf(_SC_PAGESIZE);
}

static bool is_worn(struct supervisor *s, const struct sup_child *c, const char **why, int64_t *found) {
  struct slot_settings settings;

  sup_settings(s, c, &settings);
  *found = slots_at(s->slots, c->slot)->runs_ended;
  *why = "max_runs";
  if (settings.max_runs > 0 && *found >= settings.max_runs) return true;
  if (settings.max_memory_bytes == 0) return false;
  *found = resident_bytes(c->pid);
  *why = "max_memory";
  return *found > settings.max_memory_bytes;
}

static bool is_heir(const struct supervisor *s, const struct sup_child *c) {
  return c->heir_of && c->why == STOP_NOT;
}

/* One at a time, and only while all others are well: a child that has grown old goes when its heir is ready. */
static void recycle(struct supervisor *s) {
  struct sup_child *heir = find_child(s, is_heir), *c;
  const char *why;
  int64_t found;

  if (heir && heir->ready_ms > 0) {
    if (heir->heir_of->why == STOP_NOT) sup_stop(s, heir->heir_of, STOP_RECYCLE);
    heir->heir_of = NULL;
  }
  if (heir || s->phase != RELOAD_NONE || sup_count(s, is_ready) < s->want || loop_now_ms(s->loop) < s->recycle_ms) return;
  list_for_each(c, &s->children, node) {
    if (!is_ready(s, c) || !is_worn(s, c, &why, &found)) continue;
    log_kv(LOG_INFO_, "child_recycled", "child", log_i64(c->pid), "why", why, "found", log_i64(found), NULL);
    heir = sup_start(s, s->generation, 0);
    if (heir) heir->heir_of = c;
    return;
  }
}

/* ---- deaths ---- */

/* Before any child was ever ready: what it says of itself is final, what kills it may pass. */
static void first_died(struct supervisor *s, struct sup_child *c, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 127) {
    char fault[SLOT_FAULT_MAX], text[SLOT_FAULT_MAX + 512];
    /* Without log_file the starter has read it already. */
    bool hidden = s->conf->log_file[0] && slot_fault(slots_at(s->slots, c->slot), fault);
    if (hidden) snprintf(text, sizeof text, "%s (all that was found is in %s)", fault, s->conf->log_file);
    end_later(s, WEXITSTATUS(status), hidden ? text : NULL);
    return;
  }
  s->first_failures++;
  if (s->first_failures >= CRASH_LOOP) {
    sup_say_death(s, c, status, -1);
    end_later(s, SUPERVISOR_CRASH_LOOP, "the first child died again and again before it was ready; nothing has run");
    return;
  }
  int64_t delay = sup_delay_ms(s->first_failures);
  s->first_due_ms = loop_now_ms(s->loop) + delay;
  sup_say_death(s, c, status, delay);
}

static void canary_died(struct supervisor *s, struct sup_child *c, int status) {
  char why[SLOT_FAULT_MAX], how[64];
  struct slot_run loading;

  if (slot_fault(slots_at(s->slots, c->slot), why))
    ; /* its own words */
  else if (sup_loading(s, c, &loading))
    snprintf(why, sizeof why, "%s while loading %s", c->killed ? "it did not come back within load_timeout" : "it died", loading.task);
  else
    strcpy(why, "it has said nothing");
  if (WIFEXITED(status))
    snprintf(how, sizeof how, "exit status %d", WEXITSTATUS(status));
  else
    snprintf(how, sizeof how, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  reload_failed(s, how, why);
}

/* A child that was to go on is gone. */
static void make_vacancy(struct supervisor *s, struct sup_child *c, int status) {
  bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0; /* somebody told it to stop */
  int failures = well ? c->failures : sup_is_young(s, c) ? c->failures + 1 : 1;
  int64_t delay = well ? 0 : sup_delay_ms(failures);

  c->failures = failures;
  sup_say_death(s, c, status, delay);
  if (failures == CRASH_LOOP)
    log_kv(LOG_ERROR_, "crash_loop", "deaths", log_i64(failures), "what",
           "a child dies each time soon after its start; it is started ever more slowly", NULL);
  if (s->nvacancies < WORKERS_MAX)
    s->vacancy[s->nvacancies++] = (struct vacancy){failures, loop_now_ms(s->loop) + delay};
}

static void on_death(struct supervisor *s, struct sup_child *c, int status) {
  bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;

  if (c->why != STOP_NOT) {
    if (!well && c->why != STOP_CANARY) sup_say_death(s, c, status, -1);
    if (!well && s->stops > 0) s->bad = true;
  } else if (c->canary && s->generation == 0) {
    first_died(s, c, status);
  } else if (c->canary) {
    canary_died(s, c, status);
  } else if (c->heir_of) {
    sup_say_death(s, c, status, RECYCLE_AGAIN_MS);
    s->recycle_ms = loop_now_ms(s->loop) + RECYCLE_AGAIN_MS;
  } else if (is_old(s, c)) {
    sup_say_death(s, c, status, -1); /* a new one is on its way anyhow */
  } else {
    make_vacancy(s, c, status);
  }
}

/* ---- the turn ---- */

static bool is_expected(const struct supervisor *s, const struct sup_child *c) {
  return c->why == STOP_NOT && c->ready_ms == 0 && loop_now_ms(s->loop) - c->started_ms < BUSY_MS;
}

/* A child that was killed amid its runs leaves them to PostgreSQL: that is waited for, a little. */
static bool is_told(struct supervisor *s) {
  int64_t now = loop_now_ms(s->loop);

  if (s->gone_ms == 0) s->gone_ms = now;
  return !watchdog_pending(s->watch) || now - s->gone_ms >= TOLD_MS;
}

static void step(void *arg) {
  struct supervisor *s = arg;

  sup_reap(s, on_death);
  sup_look(s);
  if (s->finished) return;
  if (s->stops > 0) {
    if (list_empty(&s->children) && is_told(s))
      end_later(s, s->was_looping ? SUPERVISOR_CRASH_LOOP : s->bad ? SUPERVISOR_LEFT : SUPERVISOR_DRAINED,
                s->was_looping ? "children were dying again and again when it was told to stop"
                : s->bad       ? "some children did not end well; see the log"
                               : NULL);
  } else {
    if (s->phase == RELOAD_CANARY) look_at_canary(s);
    if (s->generation > 0) {
      fill(s);
      roll(s);
      recycle(s);
    }
  }
  say_status(s);
  loop_timer_start(s->loop, &s->tick, find_child(s, is_expected) ? TICK_BUSY_MS : TICK_MS);
}

void sup_wake(struct supervisor *s) {
  loop_defer(s->loop, &s->step);
}

static void on_wake(void *arg) {
  sup_wake(arg);
}

/* ---- signals ---- */

static void on_stop(void *arg) {
  drain(arg);
}

static void on_hup(void *arg) {
  struct supervisor *s = arg;

  if (s->stops > 0)
    log_kv(LOG_INFO_, "reload_ignored", "why", "the supervisor is draining", NULL);
  else if (s->phase != RELOAD_NONE)
    s->again = s->generation > 0; /* the very first child reads what there is anyhow */
  else
    begin_reload(s);
}

static void on_files(void *arg) {
  struct supervisor *s = arg;

  log_kv(LOG_INFO_, "tasks_changed", "folder", s->conf->tasks_dir, NULL);
  on_hup(s);
}

static void on_usr1(void *arg) {
  struct supervisor *s = arg;
  struct sup_child *c;

  logfile_reopen();
  list_for_each(c, &s->children, node) kill(c->pid, SIGUSR1);
}

/* ---- life ---- */

static void listen_to_signals(struct supervisor *s) {
  loop_signal_init(&s->term, on_stop, s);
  loop_signal_init(&s->interrupt, on_stop, s);
  loop_signal_init(&s->hup, on_hup, s);
  loop_signal_init(&s->usr1, on_usr1, s);
  loop_signal_init(&s->chld, on_wake, s);
  loop_signal_start(s->loop, &s->term, SIGTERM);
  loop_signal_start(s->loop, &s->interrupt, SIGINT);
  loop_signal_start(s->loop, &s->hup, SIGHUP);
  loop_signal_start(s->loop, &s->usr1, SIGUSR1);
  loop_signal_start(s->loop, &s->chld, SIGCHLD);
  signals_let_in();
}

struct supervisor *supervisor_new(struct loop *loop, const struct conf *conf, const struct supervisor_hooks *hooks,
                                  struct err *e) {
  struct supervisor *s = xcalloc(1, sizeof *s);

  s->loop = loop;
  s->conf = conf;
  s->hooks = *hooks;
  s->listen_fd = -1;
  list_init(&s->children);
  s->want = wanted(s, conf->workers);
  s->load_timeout_ms = conf->load_timeout_ms;
  s->slots = slots_new(3 * s->want + SLOTS_SPARE, e);
  if (!s->slots || (conf->watch_tasks && !(s->files = treewatch_new(loop, conf->tasks_dir, on_files, s, e))) ||
      (conf->http_listen[0] && (s->listen_fd = listen_open(conf->http_listen, e)) < 0)) {
    treewatch_free(s->files);
    slots_free(s->slots);
    free(s);
    return NULL;
  }
  stats_use(slots_stats(s->slots), STATS_BASE, slots_fd(s->slots));
  srandom((unsigned)(getpid() ^ time(NULL))); /* for the jitter of sup_delay_ms alone */
  s->notify = notify_new();
  s->watch = watchdog_new(loop, s->slots, conf, &(struct watchdog_hooks){sup_signal, s});
  watchdog_start(s->watch);
  loop_timer_init(&s->tick, on_wake, s);
  loop_timer_init(&s->watchdog, on_watchdog, s);
  loop_task_init(&s->step, step, s);
  loop_task_init(&s->end, on_end, s);
  listen_to_signals(s);
  log_kv(LOG_INFO_, "supervisor_started", "workers", log_i64(s->want), "port",
         s->listen_fd >= 0 ? log_i64(httpd_listen_port(s->listen_fd)) : NULL, NULL);
  if (notify_watchdog_ms(s->notify) > 0) loop_timer_start(loop, &s->watchdog, 0);
  s->phase = RELOAD_CANARY;
  sup_wake(s);
  return s;
}

void supervisor_free(struct supervisor *s) {
  struct sup_child *c, *next;

  if (!s) return;
  list_for_each_safe(c, next, &s->children, node) {
    list_remove(&c->node);
    free(c);
  }
  loop_signal_stop(&s->term);
  loop_signal_stop(&s->interrupt);
  loop_signal_stop(&s->hup);
  loop_signal_stop(&s->usr1);
  loop_signal_stop(&s->chld);
  loop_timer_stop(&s->tick);
  loop_timer_stop(&s->watchdog);
  loop_task_cancel(&s->step);
  loop_task_cancel(&s->end);
  if (s->listen_fd >= 0) close(s->listen_fd);
  treewatch_free(s->files);
  notify_free(s->notify);
  watchdog_free(s->watch);
  stats_use(NULL, 0, -1);
  slots_free(s->slots);
  free(s->message);
  free(s);
}
