/* schedules: has the database enqueue what the tasks' schedules say (umavez.tick_schedules).
 *
 * What it is    a statement that is sent again when the next slot is due, and each half minute at least. PostgreSQL decides
 *               what is due and says how long to wait; this worker's wall clock counts for nothing. Any number of workers may do so.
 * Owns          a timer and the text of the tasks' schedules. Keeps the loop and the control.
 * Life cycle    schedules_new → schedules_start (each time the control has come up) → schedules_stop → schedules_free. */
#ifndef UMAVEZ_CORE_SCHEDULES_H
#define UMAVEZ_CORE_SCHEDULES_H

#include "core/control.h"
#include "io/loop.h"

struct schedules;

/* Reads the registered tasks. Gives NULL when none of them has a schedule; all others take NULL. */
struct schedules *schedules_new(struct loop *loop, struct control *control);
void schedules_start(struct schedules *s); /* asks now, unless a question is under way; nothing after schedules_stop */
void schedules_stop(struct schedules *s);  /* for good: nothing more is asked */
/* Before control_free: a late answer is then nobody's, so the control must go before the loop turns again. */
void schedules_free(struct schedules *s);

#endif
