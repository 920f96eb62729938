#include "bind/bind_sys.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/list.h"

/* nil, message: for what a script is expected to look at */
static int fail(lua_State *L, const char *what) {
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", what, strerror(errno));
  return 2;
}

static int done(lua_State *L, int rc, const char *what) {
  if (rc != 0) return fail(L, what);
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- sleep ---- */

struct sleep {
  struct loop_timer timer;
  struct vm_await *await;
};

static void on_sleep(void *arg) {
  struct sleep *s = arg;
  struct vm_await *await = s->await;
  free(s);
  vm_await_done(await, NULL);
}

static void cancel_sleep(void *arg) {
  struct sleep *s = arg;
  loop_timer_stop(&s->timer);
  free(s);
}

void bind_sleep_push(lua_State *L, int64_t ms) {
  struct vm_await *await = vm_await_push(L, NULL);
  struct sleep *s = xcalloc(1, sizeof *s);
  s->await = await;
  await->cancel = cancel_sleep;
  await->cancel_arg = s;
  loop_timer_init(&s->timer, on_sleep, s);
  loop_timer_start(vm_loop(vm_of(L)), &s->timer, ms);
}

static int l_sleep(lua_State *L) {
  lua_Number ms = luaL_checknumber(L, 1);
  luaL_argcheck(L, ms >= 0 && ms <= 1e12, 1, "milliseconds");
  vm_await_check(L);
  bind_sleep_push(L, (int64_t)ms);
  return 1;
}

/* ---- processes ---- */

/* A child's status, waited for by a coroutine. SIGCHLD is watched while anybody waits. */
struct child_wait {
  struct list node;
  pid_t pid;
  struct vm_await *await;
};

static struct {
  struct list waits;
  struct loop_signal signal;
  bool ready;
} children;

static int *child_status(pid_t pid, bool *over) {
  int status;
  pid_t got = waitpid(pid, &status, WNOHANG);
  *over = got != 0;
  if (got <= 0) return NULL;
  return xmemdup(&status, sizeof status);
}

static void child_wait_free(struct child_wait *w) {
  list_remove(&w->node);
  free(w);
  if (list_empty(&children.waits)) loop_signal_stop(&children.signal);
}

static void on_sigchld(void *arg) {
  struct child_wait *w, *next;
  list_for_each_safe(w, next, &children.waits, node) {
    bool over;
    int *status = child_status(w->pid, &over);
    if (!over) continue;
    struct vm_await *await = w->await;
    child_wait_free(w);
    vm_await_done(await, status);
    return on_sigchld(arg); /* the list may be another one now */
  }
}

static void cancel_child_wait(void *arg) { child_wait_free(arg); }

/* wait(pid) → box */
static int l_wait(lua_State *L) {
  pid_t pid = (pid_t)luaL_checkinteger(L, 1);
  vm_await_check(L);
  struct vm_await *await = vm_await_push(L, free);
  if (!children.ready) {
    list_init(&children.waits);
    loop_signal_init(&children.signal, on_sigchld, NULL);
    children.ready = true;
  }
  if (list_empty(&children.waits)) loop_signal_start(vm_loop(vm_of(L)), &children.signal, SIGCHLD);
  struct child_wait *w = xcalloc(1, sizeof *w);
  w->pid = pid;
  w->await = await;
  list_init(&w->node);
  list_push_back(&children.waits, &w->node);
  await->cancel = cancel_child_wait;
  await->cancel_arg = w;
  bool over;
  int *status = child_status(pid, &over);
  if (over) {
    child_wait_free(w);
    vm_await_done(await, status);
  }
  return 1;
}

/* status(box) → exit code, or nil and the signal's number, or nil, "no such child" */
static int push_status(lua_State *L, const int *status) {
  if (!status) {
    lua_pushnil(L);
    lua_pushliteral(L, "no such child");
    return 2;
  }
  if (WIFSIGNALED(*status)) {
    lua_pushnil(L);
    lua_pushinteger(L, WTERMSIG(*status));
    return 2;
  }
  lua_pushinteger(L, WEXITSTATUS(*status));
  return 1;
}

static int l_status(lua_State *L) { return push_status(L, vm_await_result(L, 1)); }

/* poll(pid) → false while it runs, else as status() */
static int l_poll(lua_State *L) {
  bool over;
  int *found = child_status((pid_t)luaL_checkinteger(L, 1), &over);
  if (!over) {
    lua_pushboolean(L, 0);
    return 1;
  }
  int status = found ? *found : 0;
  bool child = found != NULL;
  free(found);
  return push_status(L, child ? &status : NULL);
}

/* spawn's options, read into C before the fork */
struct spawn {
  char **argv, **env;
  const char *cwd, *files[3];
  int64_t uid, gid;
  bool detach;
};

static const char *string_option(lua_State *L, const char *name) {
  lua_getfield(L, 2, name);
  return luaL_optstring(L, -1, NULL); /* stays on the stack */
}

static int64_t id_option(lua_State *L, const char *name) {
  lua_getfield(L, 2, name);
  int64_t id = (int64_t)luaL_optnumber(L, -1, -1);
  lua_pop(L, 1);
  return id;
}

/* A NULL ended vector of the strings in the array at idx, in Lua's memory (pushed). */
static char **string_vector(lua_State *L, int idx) {
  size_t n = lua_objlen(L, idx);
  luaL_checkstack(L, (int)n + 8, "too many strings");
  char **v = lua_newuserdata(L, (n + 1) * sizeof *v);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, idx, (int)i + 1);
    v[i] = (char *)(uintptr_t)luaL_checkstring(L, -1);
  }
  v[n] = NULL;
  return v;
}

static void child_fail(int fd) {
  int e = errno;
  ssize_t ignored = write(fd, &e, sizeof e);
  (void)ignored;
  _exit(127);
}

static void child_run(const struct spawn *s, int report) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  for (int sig = 1; sig < 32; sig++) signal(sig, SIG_DFL);
  if (s->detach) setsid();
  for (int fd = 0; fd < 3; fd++) {
    const char *file = s->files[fd];
    if (!file) continue;
    int flags = fd == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_APPEND;
    int opened = open(file, flags, 0644);
    if (opened < 0 || dup2(opened, fd) < 0) child_fail(report);
    if (opened > 2) close(opened);
  }
  if (s->gid >= 0 && (setgroups(0, NULL) != 0 || setgid((gid_t)s->gid) != 0)) child_fail(report);
  if (s->uid >= 0 && setuid((uid_t)s->uid) != 0) child_fail(report);
  if (s->cwd && chdir(s->cwd) != 0) child_fail(report);
  if (s->env) {
    execvpe(s->argv[0], s->argv, s->env);
  } else {
    execvp(s->argv[0], s->argv);
  }
  child_fail(report);
}

/* spawn(argv, {env = {"K=V", …} (whole), cwd, stdin, stdout, stderr (file names), uid, gid, detach}) → pid | nil, message */
static int l_spawn(lua_State *L) {
  struct spawn s = {.uid = -1, .gid = -1};
  luaL_checktype(L, 1, LUA_TTABLE);
  if (lua_isnoneornil(L, 2)) {
    lua_settop(L, 1);
    lua_newtable(L);
  }
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  s.argv = string_vector(L, 1);
  luaL_argcheck(L, s.argv[0], 1, "no program");
  lua_getfield(L, 2, "env");
  if (lua_istable(L, -1)) s.env = string_vector(L, lua_gettop(L));
  s.cwd = string_option(L, "cwd");
  s.files[0] = string_option(L, "stdin");
  s.files[1] = string_option(L, "stdout");
  s.files[2] = string_option(L, "stderr");
  s.uid = id_option(L, "uid");
  s.gid = id_option(L, "gid");
  lua_getfield(L, 2, "detach");
  s.detach = lua_toboolean(L, -1);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return fail(L, "pipe");
  pid_t pid = fork();
  if (pid == 0) child_run(&s, report[1]);
  int saved = errno, child_errno = 0;
  close(report[1]);
  if (pid < 0) {
    close(report[0]);
    errno = saved;
    return fail(L, "fork");
  }
  ssize_t n;
  do {
    n = read(report[0], &child_errno, sizeof child_errno);
  } while (n < 0 && errno == EINTR);
  close(report[0]);
  if (n > 0) {
    waitpid(pid, NULL, 0);
    errno = child_errno;
    return fail(L, s.argv[0]);
  }
  lua_pushinteger(L, pid);
  return 1;
}

static int signal_number(lua_State *L, int idx) {
  static const struct {
    const char *name;
    int number;
  } names[] = {{"TERM", SIGTERM}, {"KILL", SIGKILL}, {"INT", SIGINT},   {"HUP", SIGHUP},   {"STOP", SIGSTOP},
               {"CONT", SIGCONT}, {"QUIT", SIGQUIT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"0", 0}};
  if (lua_type(L, idx) == LUA_TNUMBER) return (int)lua_tointeger(L, idx);
  const char *name = luaL_optstring(L, idx, "TERM");
  if (strncmp(name, "SIG", 3) == 0) name += 3;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i].name) == 0) return names[i].number;
  return luaL_error(L, "unknown signal %s", name);
}

static int l_kill(lua_State *L) { return done(L, kill((pid_t)luaL_checkinteger(L, 1), signal_number(L, 2)), "kill"); }

static int l_getpid(lua_State *L) {
  lua_pushinteger(L, getpid());
  return 1;
}

static int l_uid(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)geteuid());
  return 1;
}

static int l_gid(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)getegid());
  return 1;
}

/* user(name or uid) → {name, uid, gid, home} | nil */
static int l_user(lua_State *L) {
  struct passwd *p = lua_type(L, 1) == LUA_TNUMBER ? getpwuid((uid_t)lua_tointeger(L, 1)) : getpwnam(luaL_checkstring(L, 1));
  if (!p) return 0;
  lua_createtable(L, 0, 4);
  lua_pushstring(L, p->pw_name);
  lua_setfield(L, -2, "name");
  lua_pushinteger(L, (lua_Integer)p->pw_uid);
  lua_setfield(L, -2, "uid");
  lua_pushinteger(L, (lua_Integer)p->pw_gid);
  lua_setfield(L, -2, "gid");
  lua_pushstring(L, p->pw_dir);
  lua_setfield(L, -2, "home");
  return 1;
}

extern char **environ;

/* environ() → {"K=V", …} */
static int l_environ(lua_State *L) {
  lua_newtable(L);
  for (int i = 0; environ && environ[i]; i++) {
    lua_pushstring(L, environ[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int l_setenv(lua_State *L) {
  const char *name = luaL_checkstring(L, 1), *v = luaL_optstring(L, 2, NULL);
  return done(L, v ? setenv(name, v, 1) : unsetenv(name), name);
}

/* ---- files ---- */

static int l_exists(lua_State *L) {
  struct stat st;
  if (stat(luaL_checkstring(L, 1), &st) != 0) return 0;
  lua_pushstring(L, S_ISDIR(st.st_mode) ? "directory" : S_ISREG(st.st_mode) ? "file" : S_ISSOCK(st.st_mode) ? "socket" : "other");
  return 1;
}

static int l_mkdir(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int rc = mkdir(path, (mode_t)luaL_optinteger(L, 2, 0777));
  struct stat st;
  if (rc != 0 && errno == EEXIST) {
    rc = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? 0 : -1;
    errno = EEXIST;
  }
  return done(L, rc, path);
}

static int l_rmdir(lua_State *L) { return done(L, rmdir(luaL_checkstring(L, 1)), lua_tostring(L, 1)); }
static int l_unlink(lua_State *L) { return done(L, unlink(luaL_checkstring(L, 1)), lua_tostring(L, 1)); }
static int l_chdir(lua_State *L) { return done(L, chdir(luaL_checkstring(L, 1)), lua_tostring(L, 1)); }

static int l_chmod(lua_State *L) {
  return done(L, chmod(luaL_checkstring(L, 1), (mode_t)luaL_checkinteger(L, 2)), lua_tostring(L, 1));
}

static int l_chown(lua_State *L) {
  return done(L, chown(luaL_checkstring(L, 1), (uid_t)luaL_checkinteger(L, 2), (gid_t)luaL_checkinteger(L, 3)),
              lua_tostring(L, 1));
}

static int l_realpath(lua_State *L) {
  char *real = realpath(luaL_checkstring(L, 1), NULL);
  if (!real) return fail(L, lua_tostring(L, 1));
  lua_pushstring(L, real);
  free(real);
  return 1;
}

static int l_readlink(lua_State *L) {
  char to[PATH_MAX];
  ssize_t n = readlink(luaL_checkstring(L, 1), to, sizeof to);
  if (n < 0) return fail(L, lua_tostring(L, 1));
  lua_pushlstring(L, to, (size_t)n);
  return 1;
}

static int l_cwd(lua_State *L) {
  char path[PATH_MAX];
  if (!getcwd(path, sizeof path)) return fail(L, "getcwd");
  lua_pushstring(L, path);
  return 1;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* list(path) → sorted array of names | nil, message */
static int l_list(lua_State *L) {
  DIR *dir = opendir(luaL_checkstring(L, 1));
  if (!dir) return fail(L, lua_tostring(L, 1));
  char **names = NULL;
  size_t n = 0;
  for (struct dirent *d; (d = readdir(dir));) {
    if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0) continue;
    names = xrealloc(names, (n + 1) * sizeof *names);
    names[n++] = xstrdup(d->d_name);
  }
  closedir(dir);
  if (n) qsort(names, n, sizeof *names, compare_names);
  lua_newtable(L);
  for (size_t i = 0; i < n; i++) {
    lua_pushstring(L, names[i]);
    lua_rawseti(L, -2, (int)i + 1);
    free(names[i]);
  }
  free(names);
  return 1;
}

/* ---- the rest ---- */

static int l_isatty(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
  return 1;
}

/* columns(fd) → width of the terminal | nil */
static int l_columns(lua_State *L) {
  struct winsize size;
  if (ioctl((int)luaL_checkinteger(L, 1), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 0;
  lua_pushinteger(L, size.ws_col);
  return 1;
}

static lua_Number clock_ms(clockid_t id) {
  struct timespec ts;
  clock_gettime(id, &ts);
  return (lua_Number)ts.tv_sec * 1000 + (lua_Number)(ts.tv_nsec / 1000) / 1000;
}

static int l_monotonic_ms(lua_State *L) {
  lua_pushnumber(L, clock_ms(CLOCK_MONOTONIC));
  return 1;
}

static int l_wall_ms(lua_State *L) {
  lua_pushnumber(L, clock_ms(CLOCK_REALTIME));
  return 1;
}

/* A TCP port of 127.0.0.1 that nobody listens on now. */
static int l_free_port(lua_State *L) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return fail(L, "socket");
  int rc = bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &len) != 0;
  int saved = errno;
  close(fd);
  errno = saved;
  if (rc) return fail(L, "bind");
  lua_pushinteger(L, ntohs(a.sin_port));
  return 1;
}

static int l_uuid(lua_State *L) {
  char text[37];
  uuid_v4(text);
  lua_pushstring(L, text);
  return 1;
}

static int l_sha256_hex(lua_State *L) {
  size_t len;
  const char *s = luaL_checklstring(L, 1, &len);
  uint8_t digest[DIGEST_BYTES];
  char hex[2 * DIGEST_BYTES + 1];
  digest_sha256(s, len, digest);
  hex_encode(digest, sizeof digest, hex);
  lua_pushlstring(L, hex, 2 * DIGEST_BYTES);
  return 1;
}

int bind_sys_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"sleep", l_sleep},       {"wait", l_wait},         {"status", l_status},
      {"poll", l_poll},         {"spawn", l_spawn},       {"kill", l_kill},
      {"getpid", l_getpid},     {"uid", l_uid},           {"gid", l_gid},
      {"user", l_user},         {"environ", l_environ},   {"setenv", l_setenv},
      {"exists", l_exists},     {"mkdir", l_mkdir},       {"rmdir", l_rmdir},
      {"unlink", l_unlink},     {"chdir", l_chdir},       {"chmod", l_chmod},
      {"chown", l_chown},       {"realpath", l_realpath}, {"readlink", l_readlink},
      {"cwd", l_cwd},           {"list", l_list},         {"isatty", l_isatty},
      {"columns", l_columns},   {"wall_ms", l_wall_ms},   {"monotonic_ms", l_monotonic_ms},
      {"uuid", l_uuid},         {"free_port", l_free_port}, {"sha256_hex", l_sha256_hex},
      {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
