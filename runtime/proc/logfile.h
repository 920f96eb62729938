/* logfile: the setting log_file. The file takes the place of standard error, so that whatever is written there lands in it:
 * the log's lines, what libraries and a dying process say, and all that of the children, which inherit it. */
#ifndef UMAVEZ_PROC_LOGFILE_H
#define UMAVEZ_PROC_LOGFILE_H

#include "base/err.h"

/* Appends to path from now on; "": to what standard error is. -1: ERR_INPUT bad_option, nothing changed. Copies. */
int logfile_open(const char *path, struct err *e) MUST_CHECK;
/* Opens the path anew, which a log rotation may have moved away. Failing, it says so in the old file and goes on there. */
void logfile_reopen(void);

/* Whoever starts a worker by hand waits for a word on the terminal, log_file or not. So what standard error was is kept until
 * the worker is ready, and then let go: a terminal that is held open keeps its session from ending.
 * logfile_tell: a line for the starter; lands in the log once the worker is ready. logfile_back: standard error is the
 * starter's again, if he is still there; the log is no longer written to. */
void logfile_tell(const char *line);
void logfile_back(void);
void logfile_settled(void);

#endif
