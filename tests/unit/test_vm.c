/* vm: the life of threads and boxes, seen from C. What scripts see is in tests/spec/coroutine_spec.lua. */
#include "cm.h"

#include <stdlib.h>
#include <string.h>

#include <signal.h>

#include "base/slots.h"
#include "host/vm.h"
#include "host/vm_trace.h"

static struct loop *loop;
static struct vm *vm;

static struct {
  int done, status, nresults, cancelled, freed;
  char text[256];
  struct vm_await *box;
  struct vm_thread *thread;
} seen;

static void on_done(void *arg, struct vm_thread *t, lua_State *T, int status, int nresults) {
  struct buf b = BUF_INIT;
  seen.done++;
  seen.status = status;
  seen.nresults = nresults;
  if (status || nresults) vm_error_text(T, -1, sizeof seen.text - 1, &b);
  snprintf(seen.text, sizeof seen.text, "%s", buf_cstr(&b));
  buf_fini(&b);
}

static void free_result(void *r) {
  seen.freed++;
  free(r);
}

static void cancel(void *arg) { seen.cancelled++; }

/* box(cancellable) → box */
static int l_box(lua_State *L) {
  bool cancellable = lua_toboolean(L, 1);
  vm_await_check(L);
  seen.box = vm_await_push(L, free_result);
  if (cancellable) seen.box->cancel = cancel;
  return 1;
}

static int l_text(lua_State *L) {
  lua_pushstring(L, vm_await_result(L, 1));
  return 1;
}

static int l_drop(lua_State *L) {
  vm_thread_drop(seen.thread);
  return 0;
}

static int l_answer(lua_State *L) {
  vm_await_done(seen.box, xstrdup("at once"));
  return 0;
}

static struct vm_thread *run(const char *script) {
  struct vm_thread *t = vm_thread_new(vm, on_done, NULL);
  lua_State *T = vm_thread_state(t);
  assert_int_equal(luaL_loadstring(T, script), 0);
  seen.thread = t;
  vm_thread_start(t, 0);
  return t;
}

static int setup(void **state) {
  struct err e = ERR_INIT;
  memset(&seen, 0, sizeof seen);
  loop = loop_new();
  vm = vm_new(loop, "lua", &e);
  if (!vm) fail_msg("%s", e.message);
  lua_State *L = vm_state(vm);
  lua_register(L, "box", l_box);
  lua_register(L, "text", l_text);
  lua_register(L, "drop", l_drop);
  lua_register(L, "answer", l_answer);
  assert_int_equal(luaL_dostring(L, "await = require('umavez.vm').await"), 0);
  return 0;
}

static int teardown(void **state) {
  vm_free(vm);
  loop_free(loop);
  return 0;
}

static void collect(void) {
  lua_gc(vm_state(vm), LUA_GCCOLLECT, 0);
  lua_gc(vm_state(vm), LUA_GCCOLLECT, 0);
}

static void returns_and_raises(void **state) {
  run("return 1, 'two'");
  assert_int_equal(seen.done, 1);
  assert_int_equal(seen.nresults, 2);
  assert_string_equal(seen.text, "two");
  run("error({ message = 'typed' })");
  assert_int_equal(seen.status, LUA_ERRRUN);
  assert_string_equal(seen.text, "typed");
  run("error(setmetatable({}, { __tostring = function() error('x') end }))");
  assert_string_equal(seen.text, "(error while describing an error)");
  assert_int_equal(vm_threads(vm), 0);
}

static void an_answer_wakes(void **state) {
  run("return text(await(box()))");
  assert_int_equal(seen.done, 0);
  assert_int_equal(vm_threads(vm), 1);
  vm_await_done(seen.box, xstrdup("hello"));
  assert_int_equal(seen.done, 1);
  assert_string_equal(seen.text, "hello");
  collect();
  assert_int_equal(seen.freed, 1);
}

static void an_answer_before_the_wait_is_kept(void **state) {
  run("local b = box() answer() return text(await(b))");
  assert_string_equal(seen.text, "at once");
  assert_null(vm_running(vm));
}

static void an_answer_to_nobody_is_freed(void **state) {
  run("box()");
  struct vm_await *a = seen.box;
  collect();
  vm_await_done(a, xstrdup("late"));
  assert_int_equal(seen.freed, 1);
}

static void a_dropped_thread_is_never_resumed(void **state) {
  struct vm_thread *t = run("await(box()) error('resumed')");
  struct vm_await *a = seen.box;
  vm_thread_drop(t);
  assert_int_equal(vm_threads(vm), 0);
  vm_await_done(a, xstrdup("late"));
  assert_int_equal(seen.done, 0);
  collect();
  assert_int_equal(seen.freed, 1);
}

static void a_drop_cancels(void **state) {
  struct vm_thread *t = run("await(box(true))");
  vm_thread_drop(t);
  assert_int_equal(seen.cancelled, 1);
  collect();
  run("box(true)");
  collect();
  assert_int_equal(seen.cancelled, 2);
  assert_int_equal(seen.done, 1);
}

static void a_drop_from_inside_waits_for_the_end(void **state) {
  run("drop() local x = 1 return x");
  assert_int_equal(seen.done, 0);
  assert_int_equal(vm_threads(vm), 0);
  run("drop() await(box(true))");
  assert_int_equal(seen.done, 0);
  assert_int_equal(vm_threads(vm), 0);
}

static void an_answer_from_inside_lua_wakes_at_the_safe_point(void **state) {
  run("return text(await(box()))");
  run("answer()");
  assert_int_equal(seen.done, 1);
  loop_step(loop, 0);
  assert_int_equal(seen.done, 2);
  assert_string_equal(seen.text, "at once");
}

static void yields_to_nobody_are_errors(void **state) {
  run("coroutine.yield(1)");
  assert_int_equal(seen.status, LUA_ERRRUN);
  assert_non_null(strstr(seen.text, "outside a coroutine"));
  run("coroutine.wrap(function() await(box(true)) end)()");
  assert_int_equal(seen.done, 1);
}

static void waiting_outside_of_a_thread_is_refused(void **state) {
  assert_int_not_equal(luaL_dostring(vm_state(vm), "box()"), 0);
  assert_non_null(strstr(lua_tostring(vm_state(vm), -1), "cannot wait here"));
}

static void freeing_the_vm_drops_what_waits(void **state) {
  for (int i = 0; i < 10; i++) run("await(box(true))");
  assert_int_equal(vm_threads(vm), 10);
}

/* ---- who is watched ---- */

static struct {
  int entered, left, depth;
  void *arg;
} watched;

static void enter(void *arg) {
  watched.entered++;
  watched.depth++;
  watched.arg = arg;
}

static void leave(void) {
  watched.left++;
  watched.depth--;
}

static void on_watched_done(void *arg, struct vm_thread *t, lua_State *T, int status, int nresults) {
  assert_int_equal(watched.depth, 1); /* done() is still the thread's */
  seen.done++;
}

static void each_stretch_of_code_is_watched(void **state) {
  static const struct vm_watch watch = {enter, leave};
  memset(&watched, 0, sizeof watched);
  run("await(box())"); /* nobody watches this one */
  vm_await_done(seen.box, NULL);
  assert_int_equal(watched.entered, 0);
  struct vm_thread *t = vm_thread_new(vm, on_watched_done, &seen);
  vm_thread_watch(t, &watch);
  assert_int_equal(luaL_loadstring(vm_thread_state(t), "await(box()) await(box())"), 0);
  vm_thread_start(t, 0);
  assert_int_equal(watched.entered, 1);
  assert_int_equal(watched.left, 1);
  assert_ptr_equal(watched.arg, &seen);
  vm_await_done(seen.box, NULL);
  vm_await_done(seen.box, NULL);
  assert_int_equal(watched.entered, 3);
  assert_int_equal(watched.left, 3);
}

/* ---- tracebacks on a signal ---- */

/* ask(): the signal comes at any instruction of a handler */
static int l_ask(lua_State *L) {
  raise(SIGUSR2);
  return 0;
}

static int hooks;
static void count_hook(lua_State *L, lua_Debug *ar) { hooks++; }

static void a_signal_brings_a_traceback(void **state) {
  struct err e = ERR_INIT;
  struct slots *slots = slots_new(1, &e);
  struct slot *slot = slots_at(slots, 0);
  char text[SLOT_TRACEBACK_MAX + 1];
  lua_State *L = vm_state(vm);
  vm_trace(vm, slot);
  lua_register(L, "ask", l_ask);
  raise(SIGUSR2);
  assert_true(slot_traceback(slot, text));
  assert_string_equal(text, "no handler's code is running");
  lua_sethook(L, count_hook, LUA_MASKCOUNT, 1);
  run("local function deep() ask() local x = 1 return x end local y = deep() return y");
  assert_true(slot_traceback(slot, text));
  assert_non_null(strstr(text, "stack traceback"));
  assert_ptr_equal(lua_gethook(L), count_hook); /* the hook that it replaced is back */
  assert_int_equal(lua_gethookcount(L), 1);
  lua_sethook(L, NULL, 0, 0);
  vm_trace(vm, NULL);
  raise(SIGUSR2); /* ignored */
  slots_free(slots);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {TEST(returns_and_raises),
                                     TEST(an_answer_wakes),
                                     TEST(an_answer_before_the_wait_is_kept),
                                     TEST(an_answer_to_nobody_is_freed),
                                     TEST(a_dropped_thread_is_never_resumed),
                                     TEST(a_drop_cancels),
                                     TEST(a_drop_from_inside_waits_for_the_end),
                                     TEST(an_answer_from_inside_lua_wakes_at_the_safe_point),
                                     TEST(yields_to_nobody_are_errors),
                                     TEST(waiting_outside_of_a_thread_is_refused),
                                     TEST(freeing_the_vm_drops_what_waits),
                                     TEST(each_stretch_of_code_is_watched),
                                     TEST(a_signal_brings_a_traceback)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
