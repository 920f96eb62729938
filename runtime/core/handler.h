/* handler: how core runs user code without knowing Lua.
 *
 * The bind layer registers one struct handler_ops; core calls it and hears the end of a handler through
 * runner_handler_done().
 * A handler may end inside the very call that starts it. After drop() nothing of that run is called any more. */
#ifndef UMAVEZ_CORE_HANDLER_H
#define UMAVEZ_CORE_HANDLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct run;

enum verdict_kind {
  VERDICT_RETURNED, /* the handler returned: outcome is its result, a JSON object */
  VERDICT_FAIL,     /* ctx:fail, or an outcome that cannot be stored: final */
  VERDICT_RETRY,    /* ctx:retry: put off, counts as an attempt */
  VERDICT_ERROR,    /* raised an error: retryable */
};

struct verdict {
  enum verdict_kind kind;
  /* JSON text, malloc'ed, never NULL; for failures {"code":…,"message":…}, at most 4096 octets as jsonb text. Core
   * takes it. */
  char *outcome;
  char *failure;          /* JSON text with the traceback, at most 16 KB, or NULL. Core takes it. */
  int64_t retry_after_ms; /* VERDICT_RETRY: wanted delay, or -1 for the task's backoff */
  struct err err;         /* the SQL error that caused it, if one did (class ERR_SQL or ERR_ENV, sqlstate) */
};

struct handler_ops {
  /* TASK_KEY_FUNCTION: gives the key's text (malloc'ed). -1 with e->code "key_missing" or "key_error". */
  int (*key)(struct run *r, char **text, size_t *len, struct err *e);
  /* What keeps the args from being what the task's manifest declares: a failure's detail as JSON (malloc'ed), or NULL. The
   * handler's own start checks them, too: this is for who puts a run into the queue. */
  char *(*args_fault)(struct run *r);
  /* Starts the step before the transaction; ends by runner_prepared(r), or by runner_handler_done(r, failure). */
  void (*prepare)(struct run *r);
  /* Starts the handler (or the effect step); ends by runner_handler_done(r, &verdict). May be called again for the
   * same run after a serialization failure: the args are fresh then, and prepare's result is still there. */
  void (*effect)(struct run *r);
  /* Forgets the coroutine under way without resuming it. Idempotent. */
  void (*drop)(struct run *r);
  /* The run ends: frees handler_data. Idempotent. Called after drop. */
  void (*forget)(struct run *r);
};

#endif
