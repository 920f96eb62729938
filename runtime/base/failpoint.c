#include "base/failpoint.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"

#ifndef UMAVEZ_FAILPOINTS
#error "compiled only into the build of `make failpoints`"
#endif

#define FAILPOINT_NAME(id, name, doc) name,
static const char *const names[] = {FAILPOINTS(FAILPOINT_NAME)};
#undef FAILPOINT_NAME

struct armed {
  enum failpoint point;
  char *task;   /* NULL: any */
  char *action;
  int left;     /* hits until it acts; 0: it has acted */
  struct armed *next;
};

static struct armed *all;
static char *socket_path;
static bool loaded;
static int valkey = -1;

int failpoint_find(const char *name) {
  for (int i = 0; i < FAILPOINT_COUNT; i++)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}

void failpoint_valkey(int fd) {
  valkey = fd;
}

/* NAME[@TASK]:ACTION[:NTH] */
static void arm(char *text) {
  char *action = strchr(text, ':'), *nth, *task;
  struct armed *a = xcalloc(1, sizeof *a);
  int point;

  if (!action) die("UMAVEZ_FAILPOINTS: \"%s\": expected NAME[@TASK]:ACTION[:NTH]", text);
  *action++ = 0;
  if ((nth = strchr(action, ':'))) *nth++ = 0;
  if ((task = strchr(text, '@'))) *task++ = 0;
  if ((point = failpoint_find(text)) < 0) die("UMAVEZ_FAILPOINTS: no failpoint is called \"%s\"", text);
  *a = (struct armed){point, task ? xstrdup(task) : NULL, xstrdup(action), nth ? atoi(nth) : 1, all};
  all = a;
}

static void load(void) {
  const char *text = getenv("UMAVEZ_FAILPOINTS");
  char *copy, *save, *part;

  loaded = true;
  if (!text) return;
  copy = xstrdup(text);
  for (part = strtok_r(copy, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
    if (strncmp(part, "socket=", 7) == 0)
      socket_path = xstrdup(part + 7);
    else
      arm(part);
  }
  free(copy);
}

/* What has come unread goes, too: shutdown alone would leave it to be read. */
static void cut(int fd, int how) {
  char chunk[4096];

  if (fd < 0) return;
  shutdown(fd, how);
  while (how == SHUT_RD && recv(fd, chunk, sizeof chunk, MSG_DONTWAIT) > 0) {
  }
}

static void pause_at(enum failpoint point, const char *task, int pg);

static void act(const char *action, enum failpoint point, const char *task, int pg) {
  if (strcmp(action, "pause") == 0)
    pause_at(point, task, pg);
  else if (strcmp(action, "kill") == 0)
    kill(getpid(), SIGKILL);
  else if (strcmp(action, "stop") == 0)
    raise(SIGSTOP);
  else if (strcmp(action, "cut-pg-read") == 0)
    cut(pg, SHUT_RD);
  else if (strcmp(action, "cut-pg-write") == 0)
    cut(pg, SHUT_WR);
  else if (strcmp(action, "cut-valkey-read") == 0)
    cut(valkey, SHUT_RD);
  else if (strcmp(action, "cut-valkey-write") == 0)
    cut(valkey, SHUT_WR);
  else if (strncmp(action, "sleep=", 6) == 0)
    poll(NULL, 0, atoi(action + 6));
  else if (strcmp(action, "go") != 0)
    die("failpoint %s: no action is called \"%s\"", names[point], action);
}

/* Reads a line, without its end; "" when the peer has gone. */
static void read_line(int fd, char *out, size_t size) {
  size_t n = 0;

  while (n + 1 < size) {
    ssize_t got = read(fd, out + n, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || out[n] == '\n') break;
    n++;
  }
  out[n] = 0;
}

static void pause_at(enum failpoint point, const char *task, int pg) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  char line[128];
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

  if (!socket_path || strlen(socket_path) >= sizeof address.sun_path)
    die("failpoint %s: pause needs socket=PATH in UMAVEZ_FAILPOINTS", names[point]);
  strcpy(address.sun_path, socket_path);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
    die("failpoint %s: cannot connect to %s: %s", names[point], socket_path, strerror(errno));
  dprintf(fd, "%s %d %s\n", names[point], (int)getpid(), task);
  read_line(fd, line, sizeof line);
  if (line[0]) act(line, point, task, pg);
  close(fd);
}

void failpoint_hit(enum failpoint point, const char *task, int pg) {
  if (!loaded) load();
  for (struct armed *a = all; a; a = a->next) {
    if (a->point != point || a->left == 0 || (a->task && strcmp(a->task, task) != 0)) continue;
    if (--a->left == 0) act(a->action, point, task, pg);
  }
}
