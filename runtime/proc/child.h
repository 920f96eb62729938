/* child: what a process knows of the supervisor that has started it.
 *
 *   supervisor: spawn_child ─fork, exec─► main: child_open ─► … proc/worker.c: child_slot, child_listen_fd
 *
 * The word is passed in one variable of the environment, which child_open takes away again before anybody reads settings. In
 * every other process nothing is known, and the functions say so. */
#ifndef UMAVEZ_PROC_CHILD_H
#define UMAVEZ_PROC_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/slots.h"

#define CHILD_VARIABLE "UMAVEZ_SUPERVISED" /* slots fd:slot:listening fd or -1:supervisor's pid:json or logfmt */

/* Once, at the start of the process; die() when the variable is there and makes no sense. */
void child_open(void);
bool child_supervised(void);
struct slot *child_slot(void); /* NULL: no supervisor */
int child_listen_fd(void);     /* the door's; -1: none */
pid_t child_supervisor(void);  /* who has started us, dead or alive; 0: nobody */
bool child_orphaned(void);     /* it is gone */

/* From now on: when the supervisor dies, we are told to drain (SIGTERM), and are gone limit_s seconds later even if our loop does not
 * turn any more, since nobody is left who would kill us. Not for a process that is stopped. */
void child_end_with_parent(unsigned limit_s);

/* The start of a supervisor's children. argv is kept: a child gets the same. */
void child_set_argv(char **argv);
struct child_start {
  int slots_fd, slot, listen_fd;
  bool json; /* form of the child's log until it knows its settings */
};
/* Forks and executes this program again; gives the pid, -1 with *e. The child dies of SIGTERM when we do. */
pid_t child_spawn(const struct child_start *start, struct err *e) MUST_CHECK;

#endif
