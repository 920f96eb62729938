#include "bind/bind_run.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/digest.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "bind/bind_json.h"
#include "bind/bind_outcome.h"
#include "bind/bind_params.h"
#include "bind/bind_pg.h"
#include "bind/bind_rows.h"
#include "bind/bind_sys.h"
#include "bind/bind_task.h"
#include "bind/bind_value.h"
#include "bind/sql_guard.h"
#include "core/run.h"
#include "core/runner.h"

#define STEP_META "umavez.step"
#define RETRY_AFTER_MAX_MS 4e12 /* a century and more: what is beyond no timestamp can hold */

enum phase { PHASE_PREPARE, PHASE_EFFECT };

/* One start of a handler. Two may hold it: the run (while it is its current step) and the Lua handle. */
struct step {
  int holders;
  enum phase phase;
  struct run *run;          /* NULL: over */
  struct vm_thread *thread; /* NULL: ended or dropped */
  struct vm_await *pending; /* the statement under way */
  char *fail;               /* ctx:fail's detail: the verdict, whatever comes */
  char *retry;              /* ctx:retry's detail, likewise */
  int64_t retry_after_ms;
  bool aborted;     /* the transaction is: a statement failed outside of a savepoint that was undone */
  struct err first; /* what aborted it */
};

/* handler_data */
struct handler {
  struct step *step; /* NULL: none under way */
  int prepared;      /* registry reference of prepare's result */
  int place;         /* in the slot, among the started runs */
};

static struct slot *the_slot; /* NULL: nobody watches */
static struct vm *the_vm; /* handler_ops carries no argument; one VM runs handlers in a process */
static char context_key;  /* registry: the table of lua/umavez/context.lua that starts steps */

/* ---- steps ---- */

static void step_release(struct step *s) {
  if (--s->holders > 0) return;
  free(s->fail);
  free(s->retry);
  free(s);
}

/* The run is done with it: a handle that is left says so. */
static void step_over(struct handler *h) {
  struct step *s = h->step;
  if (!s) return;
  h->step = NULL;
  s->run = NULL;
  if (s->pending) { /* nobody will answer it any more */
    struct vm_await *await = s->pending;
    s->pending = NULL;
    vm_await_done(await, NULL);
    s->holders--; /* on_answer's hold */
  }
  step_release(s);
}

static struct handler *handler_of(struct run *r) {
  struct handler *h = r->handler_data;
  if (!h) {
    h = r->handler_data = xcalloc(1, sizeof *h);
    h->prepared = LUA_NOREF;
    h->place = slot_start_run(the_slot, r->run_id);
  }
  return h;
}

/* ---- what a supervisor sees ---- */

static int64_t clock_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t); /* the loop's time is that of the tick, which may have begun long ago */
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void enter_run(const struct run *r, int64_t deadline_ms) {
  if (!the_slot) return;
  struct slot_run now = {.has_tenant = r->has_tenant, .tenant_id = r->tenant_id, .since_ms = clock_ms(),
                         .deadline_ms = deadline_ms};
  memcpy(now.run_id, r->run_id, sizeof now.run_id);
  err_copy_text(now.task, sizeof now.task, r->task_name);
  slot_enter_run(the_slot, &now);
}

static void enter_step(void *arg) {
  struct step *s = arg;
  if (s->run) enter_run(s->run, s->run->deadline_ms);
}

static void leave_step(void) { slot_leave_run(the_slot); }

static const struct vm_watch watch = {enter_step, leave_step};

void bind_run_watch(struct slot *slot) { the_slot = slot; }

/* ---- verdicts ---- */

static void verdict_of_error(struct verdict *v, struct step *s, lua_State *T, int status) {
  struct buf text = BUF_INIT, trace = BUF_INIT;
  struct err e = ERR_INIT;
  if (status) {
    bind_error_value(T, -1, &e);
    vm_error_text(T, -1, 8192, &text);
    vm_traceback(the_vm, T, 16384, &trace);
  }
  if (s->aborted) {
    e = s->first;
  } else if (status == 0) {
    bug("a verdict of error without an error");
  }
  if (e.class == ERR_SQL || e.class == ERR_ENV) v->err = e;
  if (*e.sqlstate) {
    strcpy(e.code, "sql");
  } else if (e.class == ERR_INPUT) {
    strcpy(e.code, "error");
  }
  v->kind = VERDICT_ERROR;
  v->outcome = bind_failure_detail(&e);
  v->failure = bind_failure_record(&e, buf_cstr(&text), text.len, buf_cstr(&trace), trace.len);
  buf_fini(&text);
  buf_fini(&trace);
}

static void verdict_of_return(struct verdict *v, lua_State *T, int nresults) {
  struct err e = ERR_INIT;
  v->kind = VERDICT_RETURNED;
  if (nresults == 0) {
    v->outcome = xstrdup("{}");
    return;
  }
  v->outcome = bind_outcome(T, lua_gettop(T) - nresults + 1, &e);
  if (v->outcome) return;
  v->kind = VERDICT_FAIL;
  v->outcome = bind_failure_detail(&e);
}

static void take_verdict(struct verdict *v, struct step *s, lua_State *T, int status, int nresults) {
  v->retry_after_ms = -1;
  if (s->fail) {
    v->kind = VERDICT_FAIL;
    v->outcome = s->fail;
    s->fail = NULL;
  } else if (s->retry) {
    v->kind = VERDICT_RETRY;
    v->outcome = s->retry;
    v->retry_after_ms = s->retry_after_ms;
    s->retry = NULL;
  } else if (status || s->aborted) {
    verdict_of_error(v, s, T, status);
  } else {
    verdict_of_return(v, T, nresults);
  }
}

static void on_done(void *arg, struct vm_thread *t, lua_State *T, int status, int nresults) {
  struct step *s = arg;
  struct run *r = s->run;
  struct handler *h = r->handler_data;
  s->thread = NULL;
  if (s->phase == PHASE_PREPARE && status == 0 && !s->fail && !s->retry) {
    lua_settop(T, nresults ? lua_gettop(T) - nresults + 1 : 0);
    luaL_unref(T, LUA_REGISTRYINDEX, h->prepared);
    h->prepared = LUA_NOREF;
    if (nresults) h->prepared = luaL_ref(T, LUA_REGISTRYINDEX);
    step_over(h);
    leave_step();
    runner_prepared(r);
    return;
  }
  struct verdict v = {0};
  take_verdict(&v, s, T, status, nresults);
  step_over(h);
  leave_step(); /* what follows is our own code */
  runner_handler_done(r, &v);
}

/* ---- handler_ops ---- */

/* Pushes context[name]; the table is data of ours, so this does not raise. */
static void push_context(lua_State *L, const char *name) {
  lua_pushlightuserdata(L, &context_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_istable(L, -1)) bug("umavez.context is not loaded");
  lua_pushstring(L, name);
  lua_rawget(L, -2);
  lua_remove(L, -2);
}

static void push_handle(lua_State *L, struct step *s) {
  struct step **box = lua_newuserdata(L, sizeof *box);
  *box = s;
  s->holders++;
  luaL_getmetatable(L, STEP_META);
  lua_setmetatable(L, -2);
}

static void start(struct run *r, enum phase phase) {
  struct handler *h = handler_of(r);
  if (h->step && h->step->thread) bug("run %s starts a step inside another one", r->run_id);
  step_over(h);
  struct step *s = xcalloc(1, sizeof *s);
  s->holders = 1;
  s->phase = phase;
  s->run = r;
  h->step = s;
  s->thread = vm_thread_new(the_vm, on_done, s);
  vm_thread_watch(s->thread, &watch);
  lua_State *T = vm_thread_state(s->thread);
  push_context(T, phase == PHASE_PREPARE ? "prepare" : "effect");
  push_handle(T, s);
  lua_rawgeti(T, LUA_REGISTRYINDEX, h->prepared);
  vm_thread_start(s->thread, 2);
}

static void prepare(struct run *r) { start(r, PHASE_PREPARE); }
static void effect(struct run *r) { start(r, PHASE_EFFECT); }

static void drop(struct run *r) {
  struct handler *h = r->handler_data;
  if (!h || !h->step || !h->step->thread) return;
  struct step *s = h->step;
  struct vm_thread *t = s->thread;
  s->thread = NULL;
  if (s->pending) {
    s->run = NULL; /* the answer may still come: forget() is the end of waiting for it */
    vm_thread_drop(t);
    return;
  }
  step_over(h);
  vm_thread_drop(t);
}

static void forget(struct run *r) {
  struct handler *h = r->handler_data;
  if (!h) return;
  drop(r);
  step_over(h);
  luaL_unref(vm_state(the_vm), LUA_REGISTRYINDEX, h->prepared);
  slot_end_run(the_slot, h->place);
  free(h);
  r->handler_data = NULL;
}

/* key(run): context.key(task name, args text) gives the key, or nil and why */
static int key(struct run *r, char **text, size_t *len, struct err *e) {
  lua_State *L = vm_state(the_vm);
  int top = lua_gettop(L), rc = -1;
  push_context(L, "key");
  lua_pushstring(L, r->task->name);
  lua_pushlstring(L, r->args, r->args_len);
  enter_run(r, loop_now_ms(vm_loop(the_vm)) + r->task->timeout_ms);
  int status = lua_pcall(L, 2, 2, 0);
  leave_step();
  if (status != 0) {
    struct err why = ERR_INIT;
    bind_error_value(L, -1, &why);
    err_set(e, ERR_INPUT, "key_error", "the key function raised an error: %s", why.message);
  } else if (lua_type(L, -2) == LUA_TSTRING) {
    const char *s = lua_tolstring(L, -2, len);
    *text = xmemdup(s, *len + 1);
    rc = 0;
  } else {
    bool absent = lua_isnil(L, -2);
    err_set(e, ERR_INPUT, absent ? "key_missing" : "key_error", "the key function returned %s, expected a string",
            bind_kind_name(L, -2));
  }
  lua_settop(L, top);
  return rc;
}

/* context.args_fault(task name, args text) gives a JSON text, or nil. It is data of ours that it works with: an error is one of
 * args that JSON holds and Lua does not, and becomes the fault. */
static char *args_fault(struct run *r) {
  lua_State *L = vm_state(the_vm);
  int top = lua_gettop(L);
  struct err why = ERR_INIT;
  char *fault = NULL;
  push_context(L, "args_fault");
  lua_pushstring(L, r->task->name);
  lua_pushlstring(L, r->args, r->args_len);
  enter_run(r, loop_now_ms(vm_loop(the_vm)) + r->task->timeout_ms);
  int status = lua_pcall(L, 2, 1, 0);
  leave_step();
  if (status != 0) {
    bind_error_value(L, -1, &why);
    fault = bind_failure_detail(&why);
  } else if (lua_isstring(L, -1)) {
    fault = xstrdup(lua_tostring(L, -1));
  }
  lua_settop(L, top);
  return fault;
}

const struct handler_ops *bind_run_ops(struct vm *vm) {
  static const struct handler_ops ops = {
      .key = key, .args_fault = args_fault, .prepare = prepare, .effect = effect, .drop = drop, .forget = forget};
  the_vm = vm;
  return &ops;
}

/* ---- what ctx can do ---- */

static struct step *check_step(lua_State *L) {
  struct step *s = *(struct step **)luaL_checkudata(L, 1, STEP_META);
  if (!s->run || !s->thread) bind_refuse(L, "run_over", "run is over: its ctx cannot be used any more");
  if (vm_running(vm_of(L)) != s->thread) bind_refuse(L, "run_over", "this ctx belongs to another run, which is still at work");
  return s;
}

/* For what needs the transaction. */
static struct step *check_effect(lua_State *L) {
  struct step *s = check_step(L);
  if (s->phase != PHASE_EFFECT)
    bind_refuse(L, "no_transaction", "prepare runs before the transaction: ctx.sql and ctx:enqueue are there in effect");
  if (s->fail) bind_refuse(L, "run_over", "the run has been failed by ctx:fail: nothing more is sent");
  if (s->retry) bind_refuse(L, "run_over", "the run has been put off by ctx:retry: nothing more is sent");
  return s;
}

static int l_gc(lua_State *L) {
  struct step **box = lua_touserdata(L, 1);
  if (*box) step_release(*box);
  *box = NULL;
  return 0;
}

/* info(handle) → a new table with what ctx shows */
static int l_info(lua_State *L) {
  struct step *s = check_step(L);
  const struct run *r = s->run;
  char hex[DIGEST_HEX_SIZE];
  struct timespec now;
  hex_encode(r->key, sizeof r->key, hex);
  clock_gettime(CLOCK_REALTIME, &now);
  lua_createtable(L, 0, 16);
  lua_pushstring(L, r->run_id);
  lua_setfield(L, -2, "run_id");
  lua_pushstring(L, r->task_name);
  lua_setfield(L, -2, "task");
  if (r->has_tenant) {
    bind_push_int64(L, r->tenant_id);
    lua_setfield(L, -2, "tenant_id");
  }
  lua_pushinteger(L, r->attempt);
  lua_setfield(L, -2, "attempt");
  lua_pushinteger(L, r->deliveries);
  lua_setfield(L, -2, "deliveries");
  lua_pushstring(L, hex);
  lua_setfield(L, -2, "key");
  if (r->traceparent) {
    lua_pushstring(L, r->traceparent);
    lua_setfield(L, -2, "traceparent");
  }
  int64_t left_ms = r->deadline_ms ? r->deadline_ms - loop_now_ms(vm_loop(the_vm)) : r->task->timeout_ms;
  lua_pushnumber(L, (lua_Number)now.tv_sec + (lua_Number)now.tv_nsec / 1e9 + (lua_Number)left_ms / 1000);
  lua_setfield(L, -2, "deadline");
  return 1;
}

static int l_args(lua_State *L) {
  struct step *s = check_step(L);
  struct err e = ERR_INIT;
  if (bind_json_decode(L, s->run->args, s->run->args_len, &e)) return bind_raise(L, &e);
  return 1;
}

/* remaining_ms(handle) */
static int l_remaining_ms(lua_State *L) {
  const struct run *r = check_step(L)->run;
  int64_t left_ms = r->deadline_ms ? r->deadline_ms - loop_now_ms(vm_loop(the_vm)) : r->task->timeout_ms;
  lua_pushnumber(L, (lua_Number)(left_ms > 0 ? left_ms : 0));
  return 1;
}

/* The arg of a statement's pgquery: it outlives the step if the answer comes late. */
static void on_answer(void *arg, struct pgresult *result) {
  struct step *s = arg;
  struct vm_await *await = s->pending;
  s->pending = NULL;
  if (await) {
    vm_await_done(await, result);
  } else {
    pgresult_free(result);
  }
  step_release(s);
}

static int send(lua_State *L, struct step *s, const struct pgquery *q) {
  struct err e = ERR_INIT;
  struct vm_await *await = vm_await_push(L, bind_pg_free_result);
  struct pgquery own = *q;
  own.done = on_answer;
  own.arg = s;
  if (s->pending) bug("run %s sends two statements at once", s->run->run_id);
  s->holders++;
  s->pending = await;
  if (runner_query(s->run, &own, &e) == 0) return 0;
  s->pending = NULL;
  step_release(s);
  vm_await_done(await, NULL);
  lua_pop(L, 1);
  bind_push_error(L, &e);
  return -1;
}

/* send(handle, sql, n, …) → box. The text has passed guard(). */
static int l_send(lua_State *L) {
  struct step *s = check_effect(L);
  size_t len;
  const char *sql = luaL_checklstring(L, 2, &len);
  int n = (int)luaL_checkinteger(L, 3);
  struct bind_params params;
  struct err e = ERR_INIT;
  vm_await_check(L);
  luaL_argcheck(L, n >= 0 && n <= lua_gettop(L) - 3, 3, "number of parameters");
  if (s->pending) return bind_refuse(L, "run_busy", "another statement of this run is under way");
  if (bind_params_init(&params, L, 4, n, &e)) return bind_raise(L, &e);
  if (sql_sets_constraints(sql, len)) runner_taint(s->run);
  int rc = send(L, s, &(struct pgquery){.sql = sql, .nparams = n, .values = params.values});
  bind_params_fini(&params);
  return rc ? lua_error(L) : 1;
}

/* savepoint(handle, "SAVEPOINT" | "RELEASE SAVEPOINT" | "ROLLBACK TO SAVEPOINT", depth) → box */
static int l_savepoint(lua_State *L) {
  struct step *s = check_effect(L);
  char sql[96];
  snprintf(sql, sizeof sql, "%.40s umavez_%d", luaL_checkstring(L, 2), (int)luaL_checkinteger(L, 3));
  vm_await_check(L);
  if (s->pending) return bind_refuse(L, "run_busy", "another statement of this run is under way");
  return send(L, s, &(struct pgquery){.sql = sql, .once = true}) ? lua_error(L) : 1;
}

/* Remembers what aborted the transaction, before the handler hears of it. */
static void note_result(lua_State *L, struct step *s) {
  const struct pgresult *r = vm_await_result(L, 2);
  if (!r || pgresult_ok(r) || s->aborted) return;
  s->aborted = true;
  s->first = *pgresult_err(r);
}

static int finish(lua_State *L, int (*convert)(lua_State *)) {
  struct step *s = check_step(L);
  note_result(L, s);
  lua_remove(L, 1);
  return convert(L);
}

static int l_rows(lua_State *L) { return finish(L, bind_pg_rows); }
static int l_row(lua_State *L) { return finish(L, bind_pg_row); }
static int l_affected(lua_State *L) { return finish(L, bind_pg_affected); }

/* aborted(handle) → nil, or the error object that aborted the transaction */
static int l_aborted(lua_State *L) {
  struct step *s = check_step(L);
  if (!s->aborted) return 0;
  bind_push_error(L, &s->first);
  return 1;
}

/* undone(handle): the savepoint before the fault was restored */
static int l_undone(lua_State *L) {
  check_step(L)->aborted = false;
  return 0;
}

/* ended(handle) → true when ctx:fail or ctx:retry have decided */
static int l_ended(lua_State *L) {
  struct step *s = check_step(L);
  lua_pushboolean(L, s->fail || s->retry);
  return 1;
}

/* fail(handle, detail): the first one stands */
static int l_fail(lua_State *L) {
  struct step *s = check_step(L);
  if (!s->fail) s->fail = bind_fail_detail(L, 2);
  return 0;
}

/* retry(handle, after_ms or -1, detail) */
static int l_retry(lua_State *L) {
  struct step *s = check_step(L);
  lua_Number after_ms = luaL_checknumber(L, 2);
  luaL_argcheck(L, after_ms <= RETRY_AFTER_MAX_MS, 2, "milliseconds");
  if (s->fail || s->retry) return 0;
  s->retry_after_ms = after_ms < 0 ? -1 : (int64_t)after_ms;
  s->retry = bind_fail_detail(L, 3);
  return 0;
}

/* guard(sql): raises statement_refused */
static int l_guard(lua_State *L) {
  size_t len;
  struct err e = ERR_INIT;
  const char *sql = luaL_checklstring(L, 1, &len);
  if (sql_guard(sql, len, &e)) return bind_raise(L, &e);
  return 0;
}

/* log(handle, level 0-3, message, {key, value, key, value …} of strings) */
static int l_log(lua_State *L) {
  struct step *s = check_step(L);
  enum log_level level = (enum log_level)luaL_checkinteger(L, 2);
  struct log_pair pairs[32];
  size_t n = 0;
  pairs[n++] = (struct log_pair){"run_id", s->run->run_id};
  pairs[n++] = (struct log_pair){"task", s->run->task_name};
  pairs[n++] = (struct log_pair){"tenant", s->run->has_tenant ? log_i64(s->run->tenant_id) : NULL};
  pairs[n++] = (struct log_pair){"attempt", log_i64(s->run->attempt)};
  pairs[n++] = (struct log_pair){"message", luaL_checkstring(L, 3)};
  luaL_checktype(L, 4, LUA_TTABLE);
  luaL_checkstack(L, 64, "log");
  for (int i = 1; i + 1 <= (int)lua_objlen(L, 4) && n < sizeof pairs / sizeof *pairs; i += 2) {
    lua_rawgeti(L, 4, i);
    lua_rawgeti(L, 4, i + 1);
    pairs[n++] = (struct log_pair){luaL_checkstring(L, -2), luaL_checkstring(L, -1)};
  }
  log_pairs(level, "task_log", pairs, n);
  return 0;
}

static int l_sleep(lua_State *L) {
  check_step(L);
  lua_Number ms = luaL_checknumber(L, 2);
  luaL_argcheck(L, ms >= 0 && ms <= 1e12, 2, "milliseconds");
  vm_await_check(L);
  bind_sleep_push(L, (int64_t)ms);
  return 1;
}

/* setup{prepare=, effect=, key=}: the functions of lua/umavez/context.lua that start a step */
static int l_setup(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_pushlightuserdata(L, &context_key);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}

#ifdef UMAVEZ_FAILPOINTS
/* failpoint(name): global, for the tests' handlers */
static int l_failpoint(lua_State *L) {
  int point = failpoint_find(luaL_checkstring(L, 1));
  struct vm_thread *t = the_vm ? vm_running(the_vm) : NULL;
  struct step *s = t ? vm_thread_arg(t) : NULL;
  luaL_argcheck(L, point >= 0, 1, "no failpoint has this name");
  if (!s || !s->run) return luaL_error(L, "failpoint: not in a handler");
  failpoint_hit((enum failpoint)point, s->run->task_name, s->run->conn ? pgconn_fd(s->run->conn) : -1);
  return 0;
}
#endif

int bind_run_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"info", l_info},
                                       {"args", l_args},
                                       {"remaining_ms", l_remaining_ms},
                                       {"send", l_send},
                                       {"savepoint", l_savepoint},
                                       {"rows", l_rows},
                                       {"row", l_row},
                                       {"affected", l_affected},
                                       {"aborted", l_aborted},
                                       {"undone", l_undone},
                                       {"ended", l_ended},
                                       {"fail", l_fail},
                                       {"retry", l_retry},
                                       {"guard", l_guard},
                                       {"log", l_log},
                                       {"sleep", l_sleep},
                                       {"setup", l_setup},
                                       {"task_add", bind_task_add},
                                       {"task_declare", bind_task_declare},
                                       {"duration", bind_task_duration},
                                       {NULL, NULL}};
#ifdef UMAVEZ_FAILPOINTS
  lua_register(L, "failpoint", l_failpoint);
#endif
  luaL_newmetatable(L, STEP_META);
  lua_pushcfunction(L, l_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushliteral(L, STEP_META);
  lua_setfield(L, -2, "__metatable");
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
