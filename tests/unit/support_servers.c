#include "support_servers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include <setjmp.h>
#include <cmocka.h>

static char top[64];
static pid_t owner;
static struct server *servers[16];
static int nservers;

int64_t wall_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap(void) { usleep(5000); } /* between two looks at something that gives no event */

static void become_postgres(void) {
  struct passwd *pw = getuid() == 0 ? getpwnam("postgres") : NULL;
  if (pw == NULL) return;
  if (initgroups("postgres", pw->pw_gid) != 0 || setgid(pw->pw_gid) != 0 || setuid(pw->pw_uid) != 0) _exit(126);
}

static const char *top_dir(void) {
  if (*top) return top;
  strcpy(top, "/tmp/uvt-XXXXXX");
  if (mkdtemp(top) == NULL) die("mkdtemp: %s", strerror(errno));
  struct passwd *pw = getuid() == 0 ? getpwnam("postgres") : NULL;
  if (pw != NULL && chown(top, pw->pw_uid, pw->pw_gid) != 0) die("chown: %s", strerror(errno));
  owner = getpid();
  atexit(support_cleanup);
  return top;
}

/* Starts a program in a session of its own, its output in DIR/log, ended when the test ends. */
static pid_t spawn(const char *dir, char *const *argv) {
  pid_t parent = getpid(), pid = fork();
  if (pid < 0) die("fork: %s", strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  char log[200];
  snprintf(log, sizeof log, "%s/log", dir);
  signal(SIGPIPE, SIG_DFL);
  become_postgres();
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* cleared by setuid */
  int fd = open(log, O_CREAT | O_WRONLY | O_APPEND, 0644);
  dup2(fd, 1);
  dup2(fd, 2);
  execvp(argv[0], argv);
  _exit(127);
}

static int reap(pid_t pid) {
  int status;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return status;
}

static void show_log(const char *dir) {
  char path[200], line[400];
  snprintf(path, sizeof path, "%s/log", dir);
  FILE *f = fopen(path, "r");
  while (f != NULL && fgets(line, sizeof line, f)) fputs(line, stderr);
  if (f != NULL) fclose(f);
}

static void run_tool(const char *dir, char *const *argv) {
  if (reap(spawn(dir, argv)) == 0) return;
  show_log(dir);
  die("%s failed", argv[0]);
}

static const char *pg_bin(const char *name) {
  static char path[8][256];
  static int i;
  char *out = path[i++ % 8];
  glob_t g;
  char pattern[100];
  snprintf(pattern, sizeof pattern, "/usr/lib/postgresql/*/bin/%s", name);
  if (glob(pattern, 0, NULL, &g) != 0) die("no %s", pattern);
  snprintf(out, 256, "%s", g.gl_pathv[g.gl_pathc - 1]);
  globfree(&g);
  return out;
}

static void server_init(struct server *s, const char *kind) {
  static int serial;
  snprintf(s->dir, sizeof s->dir, "%s/%s%d", top_dir(), kind, ++serial);
  struct passwd *pw = getuid() == 0 ? getpwnam("postgres") : NULL;
  if (mkdir(s->dir, 0755) != 0) die("mkdir %s: %s", s->dir, strerror(errno));
  if (pw != NULL && chown(s->dir, pw->pw_uid, pw->pw_gid) != 0) die("chown: %s", strerror(errno));
  servers[nservers++] = s;
}

/* ── PostgreSQL ── */

void pg_start(struct server *s) {
  char data[200], option[400];
  if (*s->dir == '\0') {
    server_init(s, "pg");
    s->port = 5432;
    snprintf(s->socket, sizeof s->socket, "%s", s->dir);
    snprintf(s->url, sizeof s->url, "host=%s port=5432 user=postgres dbname=postgres", s->socket);
    snprintf(data, sizeof data, "%s/data", s->dir);
    run_tool(s->dir, (char *[]){(char *)pg_bin("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8",
                                "--locale=C", NULL});
  }
  snprintf(data, sizeof data, "%s/data", s->dir);
  snprintf(option, sizeof option, "unix_socket_directories=%s", s->socket);
  char *argv[] = {(char *)pg_bin("postgres"), "-D", data, "-c", option, "-c", "listen_addresses=", "-c", "fsync=off", "-c",
                  "max_connections=40", "-c", "shared_buffers=8MB", "-c", "log_statement=none", NULL};
  s->pid = spawn(s->dir, argv);
  char *ready[] = {(char *)pg_bin("pg_isready"), "-q", "-h", s->socket, "-U", "postgres", NULL};
  for (int64_t end = wall_ms() + 30000; reap(spawn(s->dir, ready)) != 0;) {
    if (wall_ms() > end || waitpid(s->pid, NULL, WNOHANG) != 0) {
      show_log(s->dir);
      die("postgres does not start");
    }
    nap();
  }
}

static int children_of(pid_t pid, pid_t *out, int max) {
  DIR *d = opendir("/proc");
  struct dirent *e;
  int n = 0;
  while ((e = readdir(d)) != NULL && n < max) {
    char path[300], text[512];
    int parent;
    snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
    if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
    FILE *f = fopen(path, "r");
    if (f == NULL) continue;
    if (fgets(text, sizeof text, f) && strrchr(text, ')') && sscanf(strrchr(text, ')') + 1, " %*c %d", &parent) == 1 &&
        parent == pid)
      out[n++] = atoi(e->d_name);
    fclose(f);
  }
  closedir(d);
  return n;
}

void server_signal_all(struct server *s, int sig) {
  pid_t children[128];
  if (sig == SIGSTOP) kill(s->pid, sig);
  int n = children_of(s->pid, children, 128);
  if (sig != SIGSTOP) kill(s->pid, sig);
  for (int i = 0; i < n; i++) kill(children[i], sig);
}

void pg_stop(struct server *s, const char *mode) {
  if (strcmp(mode, "kill") == 0) server_signal_all(s, SIGKILL);
  else kill(s->pid, strcmp(mode, "fast") == 0 ? SIGINT : SIGQUIT);
  reap(s->pid);
  s->pid = 0;
}

void pg_psql(struct server *s, const char *sql) {
  run_tool(s->dir, (char *[]){(char *)pg_bin("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", s->socket, "-U", "postgres", "-d",
                              "postgres", "-c", (char *)sql, NULL});
}

/* ── Valkey ── */

static redisContext *valkey_dial(struct server *s) {
  struct timeval limit = {5, 0};
  redisContext *c = redisConnectUnixWithTimeout(s->socket, limit);
  if (c != NULL && c->err == 0) return c;
  if (c != NULL) redisFree(c);
  return NULL;
}

void valkey_start(struct server *s, const char *const *extra) {
  if (*s->dir == '\0') {
    server_init(s, "vk");
    snprintf(s->socket, sizeof s->socket, "%s/s", s->dir);
    snprintf(s->url, sizeof s->url, "unix://%s", s->socket);
  }
  const char *program = access("/usr/bin/valkey-server", X_OK) == 0 ? "/usr/bin/valkey-server" : "redis-server";
  char *argv[40] = {(char *)program, "--port", "0", "--unixsocket", s->socket, "--save", "", "--appendonly", "no", "--dir", s->dir};
  int n = 11;
  for (; extra != NULL && *extra != NULL; extra++) argv[n++] = (char *)*extra;
  argv[n] = NULL;
  s->pid = spawn(s->dir, argv);
  redisContext *c;
  for (int64_t end = wall_ms() + 15000; (c = valkey_dial(s)) == NULL;) {
    if (wall_ms() > end || waitpid(s->pid, NULL, WNOHANG) != 0) {
      show_log(s->dir);
      die("%s does not start", program);
    }
    nap();
  }
  redisFree(c);
}

void valkey_stop(struct server *s) {
  kill(s->pid, SIGKILL);
  reap(s->pid);
  s->pid = 0;
}

char *valkey_ask(struct server *s, int argc, const char *const *argv) {
  redisContext *c = valkey_dial(s);
  if (c == NULL) die("the test cannot connect to Valkey");
  redisReply *r = redisCommandArgv(c, argc, (const char **)argv, NULL);
  if (r == NULL) die("the test's own Valkey command failed: %s", c->errstr);
  char *text = r->str ? xstrdup(r->str) : xasprintf("%lld", r->integer);
  freeReplyObject(r);
  redisFree(c);
  return text;
}

/* ── proxy ── */

static int unix_socket(const char *path, bool serve) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  snprintf(a.sun_path, sizeof a.sun_path, "%.100s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (serve) unlink(path);
  int rc = serve ? bind(fd, (struct sockaddr *)&a, sizeof a) : connect(fd, (struct sockaddr *)&a, sizeof a);
  if (rc == 0 && serve) rc = listen(fd, 64);
  if (rc == 0) return fd;
  close(fd);
  return -1;
}

static void proxy_loop(int lfd, const char *target) {
  struct pollfd fds[65] = {{.fd = lfd, .events = POLLIN}};
  int peer[65], n = 1;
  for (;;) {
    if (poll(fds, (nfds_t)n, -1) < 0) _exit(1);
    for (int i = n - 1; i > 0; i--) {
      char data[65536];
      if (fds[i].revents == 0 || fds[i].fd < 0) continue;
      ssize_t got = read(fds[i].fd, data, sizeof data);
      if (got > 0 && write(fds[peer[i]].fd, data, (size_t)got) == got) continue;
      close(fds[i].fd);
      close(fds[peer[i]].fd);
      fds[i].fd = fds[peer[i]].fd = -1;
    }
    if (fds[0].revents & POLLIN) {
      int a = accept(lfd, NULL, NULL), b = unix_socket(target, false);
      if (b < 0 || n + 2 > 65) {
        close(a);
        continue;
      }
      fds[n] = (struct pollfd){.fd = a, .events = POLLIN};
      fds[n + 1] = (struct pollfd){.fd = b, .events = POLLIN};
      peer[n] = n + 1;
      peer[n + 1] = n;
      n += 2;
    }
  }
}

void proxy_start(struct proxy *p, const char *path, const char *target) {
  snprintf(p->socket, sizeof p->socket, "%s", path);
  int lfd = unix_socket(path, true);
  if (lfd < 0) die("proxy: %s: %s", path, strerror(errno));
  chmod(path, 0777);
  p->pid = fork();
  if (p->pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    proxy_loop(lfd, target);
  }
  close(lfd);
}

void proxy_stop(struct proxy *p) {
  kill(p->pid, SIGKILL);
  reap(p->pid);
  unlink(p->socket);
  p->pid = 0;
}

/* ── waiting ── */

void until_at(struct loop *l, const volatile int *flag, int n, int limit_ms, const char *what, const char *file, int line) {
  int64_t end = wall_ms() + limit_ms;
  while (*flag < n) {
    int64_t left = end - wall_ms();
    if (left <= 0) {
      print_error("%s:%d: %s is %d, not %d, after %d ms\n", file, line, what, *flag, n, limit_ms);
      _fail(file, line);
    }
    loop_step(l, left);
  }
}

void support_cleanup(void) {
  if (*top == '\0' || owner != getpid()) return;
  for (int i = 0; i < nservers; i++) {
    if (servers[i]->pid == 0) continue;
    server_signal_all(servers[i], SIGKILL);
    reap(servers[i]->pid);
    servers[i]->pid = 0;
  }
  run_tool("/tmp", (char *[]){"/bin/rm", "-rf", top, NULL});
  *top = '\0';
}
