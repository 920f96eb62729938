#include "proc/worker_lua.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "bind/bind_conf.h"
#include "bind/bind_run.h"
#include "bind/bind_value.h"
#include "proc/child.h"
#include "proc/logfile.h"
#include "proc/supervisor.h"
#include "proc/worker.h"

struct ended {
  int code;
  char *message; /* or NULL */
};

static struct {
  struct worker *worker; /* or */
  struct supervisor *supervisor;
  struct vm_await *await;
} the_worker; /* one in a process */

static void free_ended(void *p) {
  struct ended *e = p;
  free(e->message);
  free(e);
}

static void free_worker(void *worker) { worker_free(worker); }
static void free_supervisor(void *supervisor) { supervisor_free(supervisor); }

static void on_ended(void *arg, int exit_code, const char *message) {
  struct vm_await *await = the_worker.await;
  struct ended *e = xcalloc(1, sizeof *e);
  e->code = exit_code;
  e->message = message ? xstrdup(message) : NULL;
  if (the_worker.worker) loop_free_later(arg, free_worker, the_worker.worker);
  if (the_worker.supervisor) loop_free_later(arg, free_supervisor, the_worker.supervisor);
  the_worker.worker = NULL;
  the_worker.supervisor = NULL;
  the_worker.await = NULL;
  vm_await_done(await, e);
}

/* The settings' userdata is anchored for good: what is started borrows what is in it. */
static struct conf *keep_conf(lua_State *L) {
  struct conf *conf = bind_conf_check(L, 1);
  vm_await_check(L);
  if (the_worker.await) luaL_error(L, "a worker runs already");
  lua_pushvalue(L, 1);
  luaL_ref(L, LUA_REGISTRYINDEX);
  return conf;
}

/* From now on our supervisor sees what this process is doing. */
static void be_watched(struct vm *vm) {
  if (!child_slot()) return;
  bind_run_watch(child_slot());
  loop_watch(vm_loop(vm), child_slot());
}

/* start(settings, openapi or nil, version) → box */
static int l_start(lua_State *L) {
  struct conf *conf = keep_conf(L);
  struct vm *vm = vm_of(L);
  struct err e = ERR_INIT;
  struct worker_hooks hooks = {.ended = on_ended, .arg = vm_loop(vm)};
  struct vm_await *await = vm_await_push(L, free_ended);
  be_watched(vm);
  struct worker_program program = {.openapi = luaL_optstring(L, 2, NULL),
                                   .version = luaL_checkstring(L, 3),
                                   .ui_dir = lua_pushfstring(L, "%s/umavez/ui", vm_lua_dir(vm))};
  the_worker.worker = worker_new(vm_loop(vm), conf, bind_run_ops(vm), &program, &hooks, &e);
  lua_pop(L, 1);
  if (!the_worker.worker) {
    vm_await_done(await, NULL);
    return bind_raise(L, &e);
  }
  the_worker.await = await;
  return 1;
}

/* supervise(settings) → box */
static int l_supervise(lua_State *L) {
  struct conf *conf = keep_conf(L);
  struct loop *loop = vm_loop(vm_of(L));
  struct err e = ERR_INIT;
  struct supervisor_hooks hooks = {.ended = on_ended, .arg = loop};
  struct vm_await *await = vm_await_push(L, free_ended);
  the_worker.supervisor = supervisor_new(loop, conf, &hooks, &e);
  if (!the_worker.supervisor) {
    vm_await_done(await, NULL);
    return bind_raise(L, &e);
  }
  the_worker.await = await;
  return 1;
}

/* supervised() → whether this process is a supervisor's child */
static int l_supervised(lua_State *L) {
  lua_pushboolean(L, child_supervised());
  return 1;
}

/* running() → whether start or supervise has begun something that has not ended */
static int l_running(lua_State *L) {
  lua_pushboolean(L, the_worker.await != NULL);
  return 1;
}

/* log_to(settings): level, form and file of the log; raises bad_option when the file cannot be opened */
static int l_log_to(lua_State *L) {
  const struct conf *conf = bind_conf_check(L, 1);
  struct err e = ERR_INIT;
  log_init((enum log_level)conf->log_level, (enum log_format)conf->log_format, STDERR_FILENO);
  if (logfile_open(conf->log_file, &e)) return bind_raise(L, &e);
  if (child_supervised() || conf->supervise)
    log_set_common(&(struct log_pair){"pid", log_i64(getpid())}, 1);
  return 0;
}

/* tell(line): to whoever has started this worker, log_file or not */
static int l_tell(lua_State *L) {
  logfile_tell(luaL_checkstring(L, 1));
  return 0;
}

/* log_back(): standard error is the starter's again, unless the worker has been ready */
static int l_log_back(lua_State *L) {
  logfile_back();
  return 0;
}

/* say(event, message, "info" or nil): a line in the log; a warning unless told otherwise */
static int l_say(lua_State *L) {
  log_kv(lua_isnoneornil(L, 3) ? LOG_WARN_ : LOG_INFO_, luaL_checkstring(L, 1), "message", luaL_checkstring(L, 2), NULL);
  return 0;
}

/* fault(text, {file, task, field, found, expected} or nil): why this child cannot start, for the log and its supervisor */
static int l_fault(lua_State *L) {
  static const char *const names[] = {"file", "task", "field", "found", "expected"};
  struct log_pair pairs[6] = {{"message", luaL_checkstring(L, 1)}};
  size_t n = 1;
  if (lua_istable(L, 2))
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
      lua_getfield(L, 2, names[i]); /* stays on the stack: its text is borrowed */
      if (lua_isstring(L, -1)) pairs[n++] = (struct log_pair){names[i], lua_tostring(L, -1)};
    }
  slot_tell_fault(child_slot(), pairs[0].value);
  log_pairs(LOG_ERROR_, "worker_fault", pairs, n);
  return 0;
}

/* loading(text or nil): the file whose code is executed from now on; nil: none. For our supervisor, which ends what never comes back. */
static int l_loading(lua_State *L) {
  struct slot_run now = {.since_ms = loop_clock_us() / 1000};
  if (lua_isnoneornil(L, 1)) {
    slot_leave_run(child_slot());
    return 0;
  }
  err_copy_text(now.task, sizeof now.task, luaL_checkstring(L, 1));
  slot_enter_run(child_slot(), &now);
  return 0;
}

/* result(box) → exit code, message or nil */
static int l_result(lua_State *L) {
  const struct ended *e = vm_await_result(L, 1);
  lua_pushinteger(L, e->code);
  lua_pushstring(L, e->message);
  return 2;
}

int worker_lua_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"start", l_start},           {"supervise", l_supervise}, {"result", l_result},
                                       {"supervised", l_supervised}, {"log_to", l_log_to},       {"fault", l_fault},
                                       {"say", l_say},               {"running", l_running},     {"tell", l_tell},
                                       {"log_back", l_log_back},     {"loading", l_loading},     {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
