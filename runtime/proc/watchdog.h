/* watchdog: finds children whose loop does not turn, ends those that will not come back, and says whose fault a death was.
 *
 * What it sees  the children's slots (base/slots.h): since when the loop has been busy, whose code is executing and until when it may.
 * What it does  busy for `stall` (the child's setting): `loop_stalled` is told, with task, run and a Lua traceback if the code gives
 *               one. As long as that run is within its time-out the child's leases are renewed in its place (proc/keeper.h),
 *               from a sixth of the shortest lease on. SIGKILL, when one of these holds and the loop has been busy for `stall`:
 *                 - the run whose code is executing is a second past its time-out: it is charged, code `timeout`
 *                 - nobody's code is executing for twice `stall` (also: the process is stopped): nobody is charged
 *                 - the leases cannot be renewed and are about to end: nobody is charged
 * A death       of a child gives its runs back at once, uncharged, but for those that are to blame:
 *                 - the run whose code was executing, whatever killed the child, unless that was the supervisor (drain)
 *                 - nobody's code, and a signal that only a fault of the program's own sends (SIGSEGV, SIGABRT, …): all that
 *                   had been started, so that none of them can kill workers for ever
 * A pause       of this process (SIGSTOP, a frozen machine) is not held against the children: they are looked at anew. */
#ifndef UMAVEZ_PROC_WATCHDOG_H
#define UMAVEZ_PROC_WATCHDOG_H

#include "base/conf.h"
#include "base/slots.h"
#include "io/loop.h"

struct watchdog;

struct watchdog_hooks {
  void (*kill)(void *arg, int slot, int sig); /* the slot is in use; the callee sends the signal */
  void *arg;
};

/* Keeps slots and conf; copies hooks. */
struct watchdog *watchdog_new(struct loop *loop, struct slots *slots, const struct conf *conf,
                              const struct watchdog_hooks *hooks);
void watchdog_start(struct watchdog *w);
void watchdog_stop(struct watchdog *w); /* watches no more; deaths are still told */
void watchdog_free(struct watchdog *w);

/* A child was waited for; before its slot is released. ours: the supervisor itself has sent it SIGKILL. */
void watchdog_child_died(struct watchdog *w, int slot, int wait_status, bool ours);
/* PostgreSQL has not yet been told of every death. */
bool watchdog_pending(const struct watchdog *w);

#endif
