/* main: finds the Lua library, makes loop and VM, and runs lua/umavez/start.lua with the command line in a coroutine.
 * The process's exit code is what that returns. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/err.h"
#include "base/log.h"
#include "bind/bind.h"
#include "host/vm.h"
#include "host/vm_trace.h"
#include "io/loop.h"
#include "proc/child.h"
#include "proc/signals.h"
#include "proc/worker_lua.h"

#ifndef UMAVEZ_PREFIX
#define UMAVEZ_PREFIX "/usr/local"
#endif

struct program {
  struct loop *loop;
  bool ended;
  int code;
};

static void on_done(void *arg, struct vm_thread *t, lua_State *T, int status, int nresults) {
  struct program *p = arg;
  (void)t;
  p->ended = true;
  if (status) {
    struct buf text;
    buf_init(&text);
    buf_puts(&text, "umavez: ");
    vm_error_text(T, -1, 65536, &text);
    buf_putc(&text, '\n');
    vm_traceback(vm_of(T), T, 65536, &text);
    fprintf(stderr, "%s\n", buf_cstr(&text));
    buf_fini(&text);
    p->code = 1;
  } else if (nresults > 0 && lua_isnumber(T, -nresults)) {
    p->code = (int)lua_tointeger(T, -nresults);
  } else {
    p->code = nresults > 0 && lua_isboolean(T, -nresults) && !lua_toboolean(T, -nresults) ? 1 : 0;
  }
  loop_stop(p->loop);
}

/* The folder with umavez/start.lua: beside the tree's build folder, or where `make install` puts it. */
static const char *find_lua_dir(char *out, size_t size) {
  static const char *const beside[] = {"../lua", "../share/umavez/lua"};
  char exe[PATH_MAX], probe[PATH_MAX + 64];
  ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (n > 0) {
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (slash) *slash = 0;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
      snprintf(probe, sizeof probe, "%s/%s/umavez/start.lua", exe, beside[i]);
      if (access(probe, R_OK) != 0) continue;
      snprintf(probe, sizeof probe, "%s/%s", exe, beside[i]);
      char *real = realpath(probe, NULL);
      if (!real) continue;
      snprintf(out, size, "%s", real);
      free(real);
      return out;
    }
  }
  snprintf(out, size, "%s/share/umavez/lua", UMAVEZ_PREFIX);
  return out;
}

static int push_start(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "umavez.start");
  lua_call(L, 1, 1);
  return 1;
}

int main(int argc, char **argv) {
  crash_install();
  if (argc > 1 && strcmp(argv[1], "worker") == 0) {
    signals_hold(NULL); /* one that comes while it still loads makes it drain, not die */
    child_set_argv(argv);
  }
  char lua_dir[PATH_MAX];
  struct err err = {0};
  signal(SIGPIPE, SIG_IGN);
  log_init(LOG_INFO_, LOG_LOGFMT, STDERR_FILENO);
  child_open();
  struct program p = {.loop = loop_new()};
  struct vm *vm = vm_new(p.loop, find_lua_dir(lua_dir, sizeof lua_dir), &err);
  if (!vm) die("%s", err.message);
  bind_open(vm);
  vm_preload(vm, "umavez.c.worker", worker_lua_open);
  if (child_slot()) vm_trace(vm, child_slot()); /* before any code of the user's is loaded */

  struct vm_thread *t = vm_thread_new(vm, on_done, &p);
  lua_State *T = vm_thread_state(t);
  lua_pushcfunction(T, push_start);
  if (lua_pcall(T, 0, 1, 0) != 0) die("%s", lua_tostring(T, -1));
  if (!lua_checkstack(T, argc + 1)) die("too many arguments");
  for (int i = 1; i < argc; i++) lua_pushstring(T, argv[i]);
  vm_thread_start(t, argc - 1);
  if (!p.ended) loop_run(p.loop);
  if (!p.ended) die("the script waits for something that never comes");
  fflush(stdout);
  vm_free(vm);
  loop_free(p.loop);
  return p.code;
}
