/* vm: the Lua state and its coroutines.
 *
 * Owns one lua_State, the library path and every coroutine started through it. Only this file resumes a coroutine.
 *
 * A thread (struct vm_thread) is a coroutine that C started:
 *
 *     vm_thread_new ─► (push function and arguments) ─► vm_thread_start
 *                                                            │
 *            ┌──── vm_await_done wakes ◄── suspended ◄───────┤ waits
 *            └──────────────► running ───────────────────────┤
 *                                                            ├─ returned or raised ─► done(), then freed
 *              vm_thread_drop at any time ─► freed, done() is never called
 *
 * Waiting: a C function makes a box (vm_await_push), hands its request over and returns the box; Lua code then calls
 * await(box) (lua/umavez/vm.lua), which yields up to vm.c, through coroutines that the script itself made too. Whoever
 * owns the request calls vm_await_done once; that wakes the thread. A box that nobody holds any more swallows its
 * result. One thread waits for one box at a time.
 *
 * Lua code runs in vm_thread_start, vm_await_done (when no other thread is running, else at the tick's safe point) and
 * in nobody else's call.
 */
#ifndef UMAVEZ_HOST_VM_H
#define UMAVEZ_HOST_VM_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "io/loop.h"

struct vm;
struct vm_thread;

/* A new state with the standard libraries and lua_dir (borrows; the folder that holds umavez/) on package.path.
 * NULL and err when the library can't be loaded. */
struct vm *vm_new(struct loop *loop, const char *lua_dir, struct err *err) MUST_CHECK;
/* Drops all threads and closes the state. Not from inside Lua. */
void vm_free(struct vm *vm);

lua_State *vm_state(struct vm *vm); /* the main state; run nothing on it that can raise, except inside lua_pcall */
struct loop *vm_loop(struct vm *vm);
struct vm *vm_of(lua_State *L);
const char *vm_lua_dir(struct vm *vm);
size_t vm_threads(struct vm *vm); /* alive now; for tests and statistics */

/* require(name) in Lua will call open. */
void vm_preload(struct vm *vm, const char *name, lua_CFunction open);

/* Called when the thread's function ended. status 0: nresults values on top of T; otherwise one error value on top of
 * T, whose stack is still there for a traceback. T lives until the call returns. */
typedef void vm_done(void *arg, struct vm_thread *t, lua_State *T, int status, int nresults);

/* keeps arg until done or drop. */
struct vm_thread *vm_thread_new(struct vm *vm, vm_done *done, void *arg);
lua_State *vm_thread_state(struct vm_thread *t);
/* Runs the function that lies below nargs arguments on the thread's stack, at the safe point if another thread is
 * running. t may be gone afterwards. */
void vm_thread_start(struct vm_thread *t, int nargs);
/* Forgets the thread: what it waits for is cancelled, done is not called. A thread that is running right now (drop
 * from inside its own code) is forgotten when it next leaves Lua. */
void vm_thread_drop(struct vm_thread *t);
struct vm_thread *vm_running(struct vm *vm); /* NULL outside of Lua */

/* Who is told around each stretch of a thread's code, done() included: whatever happens in between is that thread's. */
struct vm_watch {
  void (*enter)(void *arg); /* the thread's arg */
  void (*leave)(void);
};
void vm_thread_watch(struct vm_thread *t, const struct vm_watch *watch); /* keeps watch */
void *vm_thread_arg(struct vm_thread *t);

/* Text of the error value at idx of L, cleaned of nothing, at most max octets; never raises. */
void vm_error_text(lua_State *L, int idx, size_t max, struct buf *out);
/* Appends the traceback of T, at most max octets; never raises. */
void vm_traceback(struct vm *vm, lua_State *T, size_t max, struct buf *out);

struct vm_await {
  /* public: set right after vm_await_push when the request can be taken back. After cancel, vm_await_done must not be
   * called any more. */
  void (*cancel)(void *arg);
  void *cancel_arg;
  /* private */
  struct vm_thread *thread; /* who made it; NULL once dropped */
  void *result;
  void (*free_result)(void *result);
  bool done;   /* the result is there */
  bool orphan; /* the Lua box is gone */
};

/* Raises a Lua error, with a reason that a script's author understands, where waiting is impossible. Call it before
 * anything is sent. */
void vm_await_check(lua_State *L);
/* Pushes a box. free_result (may be NULL) takes results that nobody fetched. */
struct vm_await *vm_await_push(lua_State *L, void (*free_result)(void *));
/* The answer is there: takes result. Exactly once, unless cancelled. */
void vm_await_done(struct vm_await *a, void *result);
/* The result of the box at idx (borrows: the box keeps it); raises when idx is no box or not done. */
void *vm_await_result(lua_State *L, int idx);

#endif
