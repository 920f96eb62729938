/* trouble: a fault of the installation that meets whatever is tried, and says nothing about the run that met it: PostgreSQL's disk is full.
 *
 * Such runs go back uncharged, to be tried again in TROUBLE_RETRY_MS; and one line in TROUBLE_TOLD_MS tells of it, not one a run. A statement that itself
 * fills the disk, with its temporary files, is the run's own fault and no trouble. */
#ifndef UMAVEZ_CORE_TROUBLE_H
#define UMAVEZ_CORE_TROUBLE_H

#include "base/err.h"
#include "io/loop.h"

#define TROUBLE_RETRY_MS 5000
#define TROUBLE_TOLD_MS 10000

bool trouble_is(const struct err *e);
/* e is trouble. event: what could not be done, "take_failed". State is one static per process. */
void trouble_tell(const struct loop *l, const char *event, const struct err *e);

#endif
