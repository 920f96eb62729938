/* signals: those that a worker listens to are held from the start of the process until somebody does listen, so that one that
 * comes while it still loads (or between fork and exec) is obeyed afterwards, and kills nobody. */
#ifndef UMAVEZ_PROC_SIGNALS_H
#define UMAVEZ_PROC_SIGNALS_H

#include <signal.h>

void signals_hold(sigset_t *before); /* before: gets the former mask, or NULL */
void signals_let_in(void);

#endif
