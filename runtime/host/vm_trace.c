#include "host/vm_trace.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static struct {
  struct vm *vm;
  lua_State *L; /* the main state: a hook is set for all of its coroutines */
  struct slot *slot;
  volatile sig_atomic_t asked; /* our hook is set, and has not run */
  lua_Hook hook;               /* what it stands in place of */
  int mask, count;
} tracer;

static void on_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_sethook(L, tracer.hook, tracer.mask, tracer.count);
  tracer.asked = 0;
  if (!lua_checkstack(L, 4)) return;
  size_t len;
  luaL_traceback(L, L, NULL, 0);
  const char *text = lua_tolstring(L, -1, &len);
  slot_write_traceback(tracer.slot, text, len);
  lua_pop(L, 1);
}

static void on_signal(int sig) {
  static const char none[] = "no handler's code is running";
  int error = errno;
  (void)sig;
  if (!vm_running(tracer.vm)) {
    slot_write_traceback(tracer.slot, none, sizeof none - 1);
  } else if (!tracer.asked) {
    tracer.asked = 1;
    tracer.hook = lua_gethook(tracer.L);
    tracer.mask = lua_gethookmask(tracer.L);
    tracer.count = lua_gethookcount(tracer.L);
    lua_sethook(tracer.L, on_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
  }
  errno = error;
}

void vm_trace(struct vm *vm, struct slot *slot) {
  struct sigaction action = {.sa_handler = slot ? on_signal : SIG_IGN, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  tracer.vm = vm;
  tracer.L = vm_state(vm);
  tracer.slot = slot;
  if (sigaction(SIGUSR2, &action, NULL) != 0) bug("SIGUSR2: %s", strerror(errno));
}
