/* bind_run: handlers as coroutines, and what ctx can do (module umavez.c.run; lua/umavez/context.lua wraps it).
 *
 * Implements core's handler_ops. Each start of a step (prepare or effect) is a struct step with a coroutine of its own:
 *
 *   prepare()/effect() ─► step, coroutine ─► on_done ─► verdict ─► runner_prepared | runner_handler_done
 *                               └─ drop() ─► forgotten
 * Lua holds a handle of the step, never the run: after the end every call on it says "run is over".
 *
 * What a step remembers decides the verdict, whatever the handler does with the errors it was told:
 *   ctx:fail and ctx:retry stand; a statement that failed outside of a savepoint has aborted the transaction, so it is the
 *   verdict, and the first one is, not the 25P02 that follow it. */
#ifndef UMAVEZ_BIND_BIND_RUN_H
#define UMAVEZ_BIND_BIND_RUN_H

#include "base/slots.h"
#include "core/handler.h"
#include "host/vm.h"

/* Handlers run on this VM from now on (keeps). The ops are static. */
const struct handler_ops *bind_run_ops(struct vm *vm);

/* Which run's code is executing, and which have been started, is written into slot from now on (keeps; NULL: nowhere). */
void bind_run_watch(struct slot *slot);

int bind_run_open(lua_State *L);

#endif
