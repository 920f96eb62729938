#include "proc/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "proc/signals.h"

extern char **environ;

static struct {
  struct slots *slots;
  struct slot *slot;
  int listen_fd;
  int supervisor;
  char **argv;
} us = {.listen_fd = -1};

static void close_on_exec(int fd, bool on) {
  fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
}

void child_open(void) {
  const char *text = getenv(CHILD_VARIABLE);
  struct err e = ERR_INIT;
  char form[8];
  int fd, index;

  if (!text) return;
  if (sscanf(text, "%d:%d:%d:%d:%7s", &fd, &index, &us.listen_fd, &us.supervisor, form) != 5)
    die(CHILD_VARIABLE " is what a supervisor tells its children, and no setting: unset it");
  unsetenv(CHILD_VARIABLE);
  log_init(LOG_INFO_, strcmp(form, "json") == 0 ? LOG_JSON : LOG_LOGFMT, STDERR_FILENO);
  us.slots = slots_attach(fd, &e);
  if (us.slots) us.slot = slot_open(us.slots, index, &e);
  if (!us.slot) die("%s", e.message);
  stats_use(slots_stats(us.slots), index, fd);
  close_on_exec(fd, true);
  if (us.listen_fd >= 0) close_on_exec(us.listen_fd, true);
}

bool child_supervised(void) {
  return us.slot != NULL;
}

struct slot *child_slot(void) {
  return us.slot;
}

int child_listen_fd(void) {
  return us.listen_fd;
}

pid_t child_supervisor(void) {
  return us.supervisor;
}

bool child_orphaned(void) {
  return us.supervisor > 0 && getppid() != us.supervisor;
}

/* ---- the supervisor's side ---- */

void child_set_argv(char **argv) {
  us.argv = argv;
}

static char **environment(const struct child_start *start) {
  /* What the service manager tells the supervisor is not for children: they are no services. */
  static const char *const not_theirs[] = {CHILD_VARIABLE, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
  size_t n = 0, kept = 0;

  while (environ[n])
    n++;
  char **env = xcalloc(n + 2, sizeof *env);
  for (size_t i = 0; i < n; i++) {
    bool skip = false;
    for (size_t k = 0; k < sizeof not_theirs / sizeof *not_theirs; k++) {
      size_t len = strlen(not_theirs[k]);
      skip |= strncmp(environ[i], not_theirs[k], len) == 0 && environ[i][len] == '=';
    }
    if (!skip) env[kept++] = environ[i];
  }
  env[kept] = xasprintf(CHILD_VARIABLE "=%d:%d:%d:%d:%s", start->slots_fd, start->slot, start->listen_fd,
                        (int)getpid(), start->json ? "json" : "logfmt");
  return env;
}

static unsigned orphan_limit_s;

/* SIGALRM is nobody else's, and ends us. */
static void on_orphaned(int sig) {
  (void)sig;
  alarm(orphan_limit_s);
  kill(getpid(), SIGTERM);
}

void child_end_with_parent(unsigned limit_s) {
  struct sigaction sa = {.sa_handler = on_orphaned, .sa_flags = SA_RESTART};

  orphan_limit_s = limit_s;
  sigemptyset(&sa.sa_mask);
  sigaction(SIGRTMIN, &sa, NULL);
  prctl(PR_SET_PDEATHSIG, SIGRTMIN, 0, 0, 0);
}

/* Between fork and exec. A group of its own: what a terminal or `timeout` sends to the supervisor's group reaches the
 * supervisor alone, who tells its children once. */
static void become_child(const struct child_start *start, char **env, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
  if (getppid() != parent) _exit(0);
  close_on_exec(start->slots_fd, false);
  if (start->listen_fd >= 0) close_on_exec(start->listen_fd, false);
  execve("/proc/self/exe", us.argv, env);
  _exit(127);
}

pid_t child_spawn(const struct child_start *start, struct err *e) {
  char **env = environment(start);
  size_t last = 0;
  pid_t parent = getpid();
  sigset_t before;

  if (!us.argv) bug("child_set_argv was not called");
  signals_hold(&before); /* the child keeps them held until it listens */
  pid_t pid = fork();
  if (pid == 0) become_child(start, env, parent);
  int error = errno;
  sigprocmask(SIG_SETMASK, &before, NULL);
  while (env[last + 1])
    last++;
  free(env[last]);
  free(env);
  if (pid < 0) err_set(e, ERR_ENV, "fork", "cannot start a process: %s", strerror(error));
  return pid;
}
