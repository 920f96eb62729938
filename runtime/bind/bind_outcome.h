/* bind_outcome: what a handler's end is as JSON. Never raises. */
#ifndef UMAVEZ_BIND_BIND_OUTCOME_H
#define UMAVEZ_BIND_BIND_OUTCOME_H

#include "base/err.h"
#include "host/vm.h"

enum { OUTCOME_MAX = 4096 /* octets as jsonb text: the ledger's check */, FAILURE_MAX = 16384 };

/* The JSON text of a handler's result at idx (nil counts as {}); gives. NULL: e->code is outcome_invalid or
 * outcome_too_large. */
char *bind_outcome(lua_State *L, int idx, struct err *e);

/* The detail of a failure, {"code", "message", "sqlstate"?, "constraint"?}; always storable; gives. */
char *bind_failure_detail(const struct err *e);

/* The same with a traceback, for the run's failure column, at most FAILURE_MAX; gives. traceback may be empty. */
char *bind_failure_record(const struct err *e, const char *text, size_t text_len, const char *trace, size_t trace_len);

/* The detail that ctx:fail names: the table at idx with code and message made sure of; cut to those two when it cannot be
 * stored as it is; gives. */
char *bind_fail_detail(lua_State *L, int idx);

#endif
