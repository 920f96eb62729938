#include "io/treewatch.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/log.h"

#define QUIET_MS 150 /* an editor's save is several changes */
#define DEPTH_MAX 32
#define EVENTS (IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_ONLYDIR)

struct treewatch {
  struct loop *loop;
  char *path;
  int fd;
  struct loop_io io;
  struct loop_timer quiet;
  void (*changed)(void *arg);
  void *arg;
};

/* A folder that is watched already is not watched twice: the kernel knows it. Those that are gone in between are skipped, and links,
 * which may go round: errno is ENOTDIR then. */
static int add_folder(struct treewatch *w, const char *path, int depth) {
  char below[PATH_MAX];
  DIR *dir;

  if (inotify_add_watch(w->fd, path, EVENTS | (depth > 0 ? IN_DONT_FOLLOW : 0)) < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
  if (depth == DEPTH_MAX || !(dir = opendir(path))) return 0;
  for (struct dirent *d; (d = readdir(dir));) {
    if (d->d_name[0] == '.' || (d->d_type != DT_DIR && d->d_type != DT_UNKNOWN)) continue;
    if (snprintf(below, sizeof below, "%s/%s", path, d->d_name) >= (int)sizeof below) continue;
    if (add_folder(w, below, depth + 1) < 0) {
      closedir(dir);
      return -1;
    }
  }
  closedir(dir);
  return 0;
}

static bool ends_with(const char *name, const char *end) {
  size_t n = strlen(name), m = strlen(end);

  return n >= m && strcmp(name + n - m, end) == 0;
}

static bool matters(const struct inotify_event *event) {
  if (event->len == 0 || event->name[0] == '.') return false;
  if (event->mask & IN_ISDIR) return true;
  return ends_with(event->name, ".lua") && !ends_with(event->name, "_spec.lua") && !(event->mask & IN_CREATE);
}

static void on_events(void *arg, int events) {
  struct treewatch *w = arg;
  union {
    struct inotify_event align;
    char octets[16384];
  } buffer;
  bool any = false, folders = false;
  ssize_t n;

  while ((n = read(w->fd, buffer.octets, sizeof buffer.octets)) > 0)
    for (const char *at = buffer.octets; at < buffer.octets + n;) {
      const struct inotify_event *event = (const struct inotify_event *)at;
      any |= matters(event) || (event->mask & IN_Q_OVERFLOW);
      folders |= (event->mask & (IN_ISDIR | IN_Q_OVERFLOW)) != 0;
      at += sizeof *event + event->len;
    }
  if (folders && add_folder(w, w->path, 0) < 0)
    log_kv(LOG_WARN_, "watch_incomplete", "folder", w->path, "why", strerror(errno), NULL);
  if (any) loop_timer_start(w->loop, &w->quiet, QUIET_MS);
}

static void on_quiet(void *arg) {
  struct treewatch *w = arg;

  w->changed(w->arg);
}

struct treewatch *treewatch_new(struct loop *loop, const char *path, void (*changed)(void *arg), void *arg,
                                struct err *e) {
  struct treewatch *w = xcalloc(1, sizeof *w);

  w->loop = loop;
  w->path = xstrdup(path);
  w->changed = changed;
  w->arg = arg;
  loop_io_init(&w->io, on_events, w);
  loop_timer_init(&w->quiet, on_quiet, w);
  w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (w->fd < 0 || access(path, R_OK | X_OK) < 0 || add_folder(w, path, 0) < 0) {
    err_set(e, ERR_ENV, "watch_failed", "cannot watch the folder %s: %s", path, strerror(errno));
    treewatch_free(w);
    return NULL;
  }
  loop_io_start(loop, &w->io, w->fd, LOOP_READ);
  return w;
}

void treewatch_free(struct treewatch *w) {
  if (!w) return;
  loop_timer_stop(&w->quiet);
  if (w->fd >= 0) {
    loop_io_stop(&w->io);
    close(w->fd);
  }
  free(w->path);
  free(w);
}
