/* supervisor: the parent of a worker's processes. It starts them, replaces those that die, reloads, drains.
 *
 * What it is    a small process that runs no task and needs neither PostgreSQL nor Valkey. A child is this program started anew
 *               (proc/child.h), so it reads settings, manifests and code for itself: a reload is nothing but new children, then
 *               the end of the old ones. What children are doing is read from shared memory (base/slots.h).
 * Life cycle    supervisor_new ─► first child alone, until it is ready ─► the others ─► … ─SIGTERM─► drained ─► ended ─►
 *               supervisor_free
 *
 *   SIGHUP        a reload: one new child first. When it is ready its settings count, and the rest follow; each old one is
 *                 told to stop when a new one is ready. When it is not: `reload_failed`, and the old ones go on. Signals that
 *                 come meanwhile make one more reload afterwards.
 *   SIGTERM, INT  drain: all children are told to stop. Each further one hurries them. Who is not gone by drain_timeout and
 *                 a margin is killed, and it is said.
 *   SIGUSR1       the log file is opened anew, here and in the children.
 *   death         of ours: the kernel tells the children to stop.
 *
 * Invariants    a child is told to stop for a reload or its age only when another is ready in its place. The listening socket
 *               stays open until the drain, whatever children come and go. */
#ifndef UMAVEZ_PROC_SUPERVISOR_H
#define UMAVEZ_PROC_SUPERVISOR_H

#include "base/conf.h"
#include "io/loop.h"

struct supervisor;

/* Exit codes beside those of the command line (lua/umavez/cli.lua). */
enum { SUPERVISOR_DRAINED = 0, SUPERVISOR_LEFT = 1, SUPERVISOR_CRASH_LOOP = 5 };

struct supervisor_hooks {
  /* Once, at the safe point: all children are gone. SUPERVISOR_DRAINED: all ended well. SUPERVISOR_LEFT: some did not.
   * SUPERVISOR_CRASH_LOOP: children died again and again. Another code is the first child's own, which could not start;
   * it has said why. message: NULL, or what is to be said. */
  void (*ended)(void *arg, int exit_code, const char *message);
  void *arg;
};

/* Keeps conf; copies hooks. NULL: e says what is wrong. */
struct supervisor *supervisor_new(struct loop *loop, const struct conf *conf, const struct supervisor_hooks *hooks,
                                  struct err *e) MUST_CHECK;
void supervisor_free(struct supervisor *s); /* after ended */

#endif
