/* supervisor_internal: what the supervisor's own files share (supervisor.c: life, signals, reload; supervisor_child.c: the
 * children, one by one). Private to runtime/proc/supervisor*.c. */
#ifndef UMAVEZ_PROC_SUPERVISOR_INTERNAL_H
#define UMAVEZ_PROC_SUPERVISOR_INTERNAL_H

#include <sys/types.h>

#include "base/list.h"
#include "base/slots.h"
#include "proc/notify.h"
#include "proc/supervisor.h"
#include "proc/watchdog.h"

#define WORKERS_MAX 512
#define CRASH_LOOP 5 /* so many young deaths in a row are one */

/* How a child is told to stop. */
enum stop_why { STOP_NOT, STOP_DRAIN, STOP_RELOAD, STOP_RECYCLE, STOP_CANARY };

struct sup_child {
  struct list node; /* in supervisor.children, oldest first */
  pid_t pid;
  int slot;
  int64_t generation;
  int64_t started_ms;
  int64_t ready_ms;   /* 0: not yet */
  enum stop_why why;  /* STOP_NOT: it is not told to stop */
  int stops;          /* SIGTERMs sent */
  int64_t kill_ms;    /* SIGKILL is due; 0: never */
  bool killed;        /* by that, or because it never came back from loading */
  bool traced;        /* a traceback of what it loads was asked for */
  bool canary;        /* the first of a generation that does not count yet */
  int failures;       /* young deaths in a row in this place, before it */
  struct sup_child *heir_of; /* it is started to take the place of that one, which goes on until then */
};

/* A place without child, until it is due. */
struct vacancy {
  int failures;
  int64_t due_ms;
};

enum reload_phase { RELOAD_NONE, RELOAD_CANARY, RELOAD_ROLL };

struct supervisor {
  struct loop *loop;
  const struct conf *conf;
  struct supervisor_hooks hooks;
  struct slots *slots;
  struct notify *notify;
  struct watchdog *watch; /* over the children */
  struct treewatch *files; /* NULL: changed files are not looked for */
  int listen_fd; /* -1: no door */
  struct list children;
  int want;           /* children that the present generation is to have */
  int64_t generation; /* the present one; 0: none has ever been ready */
  struct vacancy vacancy[WORKERS_MAX];
  int nvacancies;
  int64_t load_timeout_ms; /* the present generation's */

  enum reload_phase phase;
  int64_t phase_until_ms; /* when the reload is given up; 0: never */
  bool again;             /* a SIGHUP came meanwhile */
  int first_failures;     /* deaths of first children, before there was a ready one */
  int64_t first_due_ms;
  int64_t fork_ms;    /* not before that: the last fork failed */
  int64_t recycle_ms; /* not before that: the last heir did not come up */

  int stops; /* of ours; > 0: draining */
  bool bad;  /* a child did not end well in the drain */
  bool was_looping;
  int64_t gone_ms; /* draining: when the last child was gone; 0: not yet */
  bool finished;
  int exit_code;
  char *message;
  char said[256]; /* the last STATUS */

  struct loop_signal term, interrupt, hup, usr1, chld;
  struct loop_timer tick, watchdog;
  struct loop_task step, end;
};

/* ---- supervisor_child.c ---- */

/* NULL: no slot is free now, or fork failed (it is said); to be tried again. */
struct sup_child *sup_start(struct supervisor *s, int64_t generation, int failures);
/* SIGTERM, once more: the first time with the child's own drain_timeout. */
void sup_stop(struct supervisor *s, struct sup_child *c, enum stop_why why);
void sup_reap(struct supervisor *s, void (*died)(struct supervisor *s, struct sup_child *c, int status));
void sup_signal(void *supervisor, int slot, int sig); /* to the child in that slot */
void sup_look(struct supervisor *s); /* notices children that have become ready, kills those that overstay */
int sup_count(struct supervisor *s, bool (*which)(const struct supervisor *s, const struct sup_child *c));
/* Reports `child_died`; next_ms: until the next start in its place, or -1. */
void sup_say_death(struct supervisor *s, const struct sup_child *c, int status, int64_t next_ms);
void sup_settings(struct supervisor *s, const struct sup_child *c, struct slot_settings *out);
/* What a child is loading, or was when it died; false: nothing. */
bool sup_loading(struct supervisor *s, const struct sup_child *c, struct slot_run *out);
bool sup_is_young(struct supervisor *s, const struct sup_child *c);
int64_t sup_delay_ms(int failures); /* jittered; 0 for the first */

/* ---- supervisor.c ---- */

void sup_wake(struct supervisor *s); /* something has changed: look at it all at the safe point */

#endif
