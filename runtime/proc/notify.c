#include "proc/notify.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"

struct notify {
  int fd; /* -1: nobody listens */
  struct sockaddr_un to;
  socklen_t to_len;
  int64_t watchdog_ms;
};

/* A path, or '@' and a name in the abstract namespace. */
static bool set_address(struct notify *n, const char *text) {
  size_t len = strlen(text);

  if ((text[0] != '/' && text[0] != '@') || len < 2 || len >= sizeof n->to.sun_path) return false;
  n->to.sun_family = AF_UNIX;
  memcpy(n->to.sun_path, text, len);
  if (text[0] == '@') n->to.sun_path[0] = 0;
  n->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
  return true;
}

static int64_t read_watchdog(void) {
  const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
  char *end;

  if (!usec || (pid && strtol(pid, NULL, 10) != (long)getpid())) return 0;
  long long n = strtoll(usec, &end, 10);
  if (n <= 0 || *end) return 0;
  return n < 2000 ? 1 : n / 2000;
}

struct notify *notify_new(void) {
  struct notify *n = xcalloc(1, sizeof *n);
  const char *socket_name = getenv("NOTIFY_SOCKET");

  n->fd = -1;
  if (socket_name && set_address(n, socket_name)) {
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    n->watchdog_ms = read_watchdog();
  } else if (socket_name) {
    log_kv(LOG_WARN_, "notify_unusable", "why", "NOTIFY_SOCKET is neither a path nor an abstract name", NULL);
  }
  unsetenv("NOTIFY_SOCKET");
  unsetenv("WATCHDOG_USEC");
  unsetenv("WATCHDOG_PID");
  return n;
}

void notify_free(struct notify *n) {
  if (!n) return;
  if (n->fd >= 0) close(n->fd);
  free(n);
}

bool notify_send(struct notify *n, const char *fmt, ...) {
  struct buf text = BUF_INIT;
  va_list ap;

  if (n->fd < 0) return false;
  va_start(ap, fmt);
  buf_vprintf(&text, fmt, ap);
  va_end(ap);
  ssize_t sent = sendto(n->fd, text.data, text.len, MSG_NOSIGNAL, (const struct sockaddr *)&n->to, n->to_len);
  bool ok = sent == (ssize_t)text.len;
  if (!ok) log_kv(LOG_DEBUG_, "notify_lost", "text", buf_cstr(&text), NULL);
  buf_fini(&text);
  return ok;
}

void notify_reloading(struct notify *n) {
  struct timespec t;

  clock_gettime(CLOCK_MONOTONIC, &t);
  notify_send(n, "RELOADING=1\nMONOTONIC_USEC=%" PRId64, (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000);
}

int64_t notify_watchdog_ms(const struct notify *n) {
  return n->fd >= 0 ? n->watchdog_ms : 0;
}
