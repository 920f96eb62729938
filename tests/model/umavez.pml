/* The gated idempotency protocol, as a model for spin. tests/model/README.md says how to read it and how to run it.
 *
 * One key. Its deliveries come to two workers; in front of it stands the gate, behind it the ledger's row. Each step below is one
 * thing that really happens at once: a script in Valkey, a statement or a COMMIT in PostgreSQL, a decision in the worker. Between
 * two steps everything else may happen: the other worker's steps, a crash, a cut connection, time. A worker that gets no turn for
 * long is a zombie; no more is needed to have them.
 *
 * Names are the code's: a worker's states are those of runtime/core/run.h (docs/state-machine.md), what PostgreSQL is asked for is
 * named as in sql/functions/10_ledger.sql, the gate's scripts as in runtime/core/gate.c. A define BREAK_… takes one rule away;
 * tests/model/run lists them, with the invariant that must fail then. */

/* ================================================= what a scenario chooses ====================================================== */

/* Constants of a run: init reads them from the environment. Hidden: they are no part of a state. */
hidden byte MESSAGES;           /* runs, or requests, with this key: 1 or 2 */
hidden byte DOOR;               /* 0: runs of the queue; 1: requests of the HTTP door, which hands out the gate's copies unverified */
hidden byte OTHER_PAYLOAD;      /* 1: message 1 has another payload under the same key */
hidden byte ONE_PROCESS;        /* 1: both workers' deliveries are in one process, with one worker_id */
hidden byte PROGRAMS;           /* other programs, that commit their claim before they do the effect: 0 to 2 */
hidden byte FAULTS;             /* crashes, cut connections, lost COMMITs, leases that end under a living holder, retryable errors: so */
                                /* many in all, in any mixture */
hidden byte VALKEY_FAULTS;      /* 1: commands and answers get lost, entries turn into junk, without limit; 2: within FAULTS */
hidden byte WIRE;               /* 1: a command to Valkey may be executed long after it was sent */
hidden byte VALKEY_FAILOVER;    /* 1: Valkey comes back once with an older value */
hidden byte FAILOVER;           /* 1: PostgreSQL loses its last commits, once */
hidden byte RETENTIONS;         /* how often a retention ends */
hidden byte OPERATOR;           /* how often an operator retries a dead run */
hidden byte SENT_AGAIN;         /* answered requests that their client sends once more */

/* Rules taken away, one at a time (tests/model/run says what each means). */
hidden byte BREAK_FENCE, BREAK_ATTEMPT, BREAK_APART, BREAK_FINGERPRINT, BREAK_PURGE, BREAK_FAILURE_FENCE, BREAK_GUESS;
hidden byte BREAK_DEL, BREAK_SET_NX, BREAK_GATE_DECIDES, BREAK_HMAC, BREAK_IDENTITY, BREAK_STAMP, BREAK_COPY_EARLY, BREAK_TTL;
hidden byte BREAK_NEWER, BREAK_ACK, BREAK_RESOLVE, BREAK_RETRY;

c_code {
  static int choose(const char *option) {
    const char *text = getenv(option);
    return text ? atoi(text) : 0;
  }
};

mtype:status = { ABSENT, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED_PERMANENT, KEY_REUSED };     /* of a row; the last: of a run */
mtype:place = { AVAILABLE, RUNNING, ENDED };                                                            /* of a message */
mtype:state = { IDLE, GATE, GATE_SET, POOL, HANDLER, COMPLETE, FAIL, LOST, UNKNOWN, ACK, END, COPY,
                RELEASE_GATE };                                                          /* of a worker; from there it is done */
mtype:entry = { NONE, P, C, F, JUNK, RELEASE };                                          /* of the gate; the last: a command */
mtype:said = { ACQUIRED, BUSY, SETTLED, UNAVAILABLE, CLAIMED, REPLAY, CONFLICT };        /* by the gate, or by claim */

/* What must hold, wherever it is checked by must(). */
mtype:invariant = {
  AT_MOST_ONE_EFFECT,           /* of a key, within its retention */
  COMPLETED_IFF_EFFECT,         /* the row is completed, its retention lasting, exactly where there is an effect */
  SETTLED_STAYS,                /* what is completed or failed_permanent is never changed before its retention ends */
  ATTEMPTS_RISE_BY_ONE,         /* from one commit of the row to the next claim */
  LIVE_ROW_STAYS,               /* a new row comes only where there is none, or one whose retention is over: attempt 1 */
  RUN_ENDS_AS_IN_LEDGER,        /* a run ends as settled only with status and outcome of its own payload's row */
  REPLAY_OF_ITS_PAYLOAD,        /* no answer goes to another payload under the same key */
  SUCCESS_MEANS_COMPLETED,      /* who is told of success has a completed row and its effect */
  GATE_ANSWERS_AS_LEDGER,       /* what the gate hands out unverified is what the ledger holds at that moment */
  GATE_DECIDES_NOTHING,         /* having the gate is no reason for an effect */
  ENTRY_STANDS,                 /* as long as its holder is at work and Valkey has no fault, whatever the others send */
  COPY_REPLACES_NO_NEWER,
  COPY_OF_ITS_PAYLOAD,          /* an entry never carries the outcome of another payload */
  RETRY_REOPENS_ITS_OWN,        /* an operator's retry opens no other payload's failure */
  ALL_ENDS                      /* nothing stands still before every message has ended */
};

#define NOBODY 4                /* holders of locks: 0 and 1 are workers, */
#define ORPHAN 2                /* a session whose client is gone, */
#define PROGRAM 3               /* another program */
#define NO_DATABASE 2           /* identity: unknown; 0 and 1 are the timelines before and after the failover */

#define FINGERPRINT(m) (OTHER_PAYLOAD && (m) == 1)
#define WORKER_ID(w) (ONE_PROCESS -> 0 : (w))
#define IS_SETTLED(s) ((s) == COMPLETED || (s) == FAILED_PERMANENT)
#define MAY_FAIL (faults < FAULTS)
#define VALKEY_MAY_FAIL (VALKEY_FAULTS == 1 || (VALKEY_FAULTS == 2 && MAY_FAIL))
#define fault() faults++
#define valkey_fault() faults = faults + (VALKEY_FAULTS == 2)

#define SAME_PAYLOAD(fp) (BREAK_FINGERPRINT || row.fingerprint == (fp))
#define ITS_ROW(w) (BREAK_RESOLVE || row.id == worker[w].id)
#define OF_ANOTHER_DATABASE(w) (worker[w].database == NO_DATABASE || (worker[w].bound != worker[w].database && !BREAK_STAMP))
#define OUTLIVED(w) (!worker[w].in_retention && !BREAK_TTL)
#define ENDED_BY_ROW(mm) (BREAK_RETRY || row.id == message[mm].row_id)
#define FENCED (row.id == id && (BREAK_FENCE || (row.attempt == attempt && row.status == PROCESSING)))
#define ABSENT_OR_OVER (row.status == ABSENT || (row.status != PROCESSING && !row.in_time))

/* ================================================= PostgreSQL =================================================================== */

typedef Row {
  mtype:status status = ABSENT;
  bit fingerprint;
  bit in_time;                  /* expires_at is ahead: the end of the lease while processing, afterwards of the retention */
  byte attempt, id, outcome
};
Row row;                        /* the key's row, as everybody sees it */
Row tip;                        /* the same, as the transaction sees it that has changed it */
byte writer = NOBODY;           /* whose transaction that is; it has the row's lock */
byte key_lock = NOBODY;         /* the key's advisory lock */
byte last_id;                   /* of the identity column */

typedef Message {
  mtype:place place = AVAILABLE;
  byte holder;                  /* its worker_id, while RUNNING */
  mtype:status verdict = ABSENT; /* once ENDED, with the outcome and the row that it comes from */
  byte outcome, row_id
};
Message message[2];

byte effects;                   /* committed ones, within the present retention */
byte settlements;               /* ghost: how many outcomes were ever stored; each is a number of its own */
bit settled_for[8];             /* ghost: the payload of each */
byte timeline;

/* A session that its client lost while settlement and COMMIT were under way: the server may yet do both. */
mtype:status orphan_settles = ABSENT;
byte orphan_message, orphan_id, orphan_attempt;
bit orphan_effect;

Row standby_row;                /* what the standby has got so far */
byte standby_effects, standby_last_id;
Message standby_message[2];

/* ================================================= the gate ===================================================================== */

typedef Entry {
  mtype:entry state = NONE;
  bit fingerprint;
  byte database, id, attempt, token, message, outcome
};
Entry gate;

Entry replica;                  /* what Valkey's replica has got so far */
bit valkey_failed_over;

typedef Command {
  mtype:entry op = NONE;        /* RELEASE, or the copy: C or F */
  bit fingerprint, force;
  byte database, id, attempt, token, outcome
};
Command cmd;                    /* being sent; empty between two steps */
Command wire;                   /* sent and not yet executed */

/* ================================================= workers ====================================================================== */

typedef Worker {
  mtype:state at = IDLE;
  byte m;                       /* the message that it delivers */
  bit open, lost;               /* its transaction; its connection is gone */
  bit effect;                   /* made in the transaction */
  bit permanent;                /* the failure to be recorded, or copied */
  byte id, attempt, outcome;    /* of the claim, then of what is copied to the gate */
  byte token;                   /* 0: nothing of ours is in the gate */
  bit guarded;                  /* ghost: our entry stands, and only a settled copy or a fault may take it away */
  bit distrusted;
  bit in_retention;             /* of what is to be copied */
  byte database;                /* the identity as it was read last */
  byte bound                    /* as it was read last before the outcome to be copied was settled */
};
Worker worker[2];
byte faults, retentions, sent_again, retries;

hidden mtype:said said;         /* results of the inlines; they mean nothing between two steps */
hidden byte is_settled;
hidden byte token;

#define FAILURE(w) (worker[w].permanent -> FAILED_PERMANENT : FAILED_RETRYABLE)
#define TO_SETTLE(w) (worker[w].at == COMPLETE -> COMPLETED : FAILURE(w))
#define GATE_STATUS (gate.state == F -> FAILED_PERMANENT : COMPLETED)
#define AT_WORK(w, mm) (worker[w].at != IDLE && worker[w].m == (mm))
#define ALL_ENDED (message[0].place == ENDED && message[1].place == ENDED)

/* ================================================= structures =================================================================== */

inline copy_row(to, from) {
  to.status = from.status; to.fingerprint = from.fingerprint; to.in_time = from.in_time;
  to.attempt = from.attempt; to.id = from.id; to.outcome = from.outcome
}

inline clear_row(r) {
  r.status = ABSENT; r.fingerprint = 0; r.in_time = 0; r.attempt = 0; r.id = 0; r.outcome = 0
}

inline copy_message(to, from) {
  to.place = from.place; to.holder = from.holder; to.verdict = from.verdict; to.outcome = from.outcome; to.row_id = from.row_id
}

inline copy_entry(to, from) {
  to.state = from.state; to.fingerprint = from.fingerprint; to.database = from.database; to.id = from.id;
  to.attempt = from.attempt; to.token = from.token; to.message = from.message; to.outcome = from.outcome
}

inline clear_entry(e) {
  e.state = NONE; e.fingerprint = 0; e.database = 0; e.id = 0; e.attempt = 0; e.token = 0; e.message = 0; e.outcome = 0
}

inline copy_command(to, from) {
  to.op = from.op; to.fingerprint = from.fingerprint; to.force = from.force; to.database = from.database; to.id = from.id;
  to.attempt = from.attempt; to.token = from.token; to.outcome = from.outcome
}

inline clear_command(c) {
  c.op = NONE; c.fingerprint = 0; c.force = 0; c.database = 0; c.id = 0; c.attempt = 0; c.token = 0; c.outcome = 0
}

/* The worker is free for its next delivery. */
inline clear_worker(w) {
  worker[w].at = IDLE; worker[w].m = 0; worker[w].open = 0; worker[w].lost = 0; worker[w].effect = 0; worker[w].permanent = 0;
  worker[w].id = 0; worker[w].attempt = 0; worker[w].outcome = 0; worker[w].token = 0; worker[w].guarded = 0;
  worker[w].distrusted = 0; worker[w].in_retention = 0; worker[w].bound = 0
}

/* ================================================= transactions, and what must hold ============================================= */

/* An invariant. (A counterexample shows what is printed.) */
inline must(hold, name) {
  if :: (hold) :: else -> printf("> violated: {invariant %d}\n", name); assert(false) fi
}

/* What the transaction of s has changed vanishes, and so do its locks. */
inline rollback(s) {
  if :: writer == s -> printf("> ROLLBACK by %d\n", s) :: else fi;
  if :: key_lock == s -> key_lock = NOBODY :: else fi;
  if :: writer == s -> writer = NOBODY; clear_row(tip) :: else fi
}

/* tip is committed, and `made` effects with it. What the ledger promises is asserted here, and wherever an answer is given. */
inline commit_row(made) {
  printf("> COMMIT: the row is {status %d}, attempt %d, outcome %d; effects made: %d\n", tip.status, tip.attempt, tip.outcome, made);
  effects = effects + made;
  must(effects <= 1, AT_MOST_ONE_EFFECT);
  must(!(IS_SETTLED(row.status) && row.in_time), SETTLED_STAYS);
  must(tip.id != row.id || tip.attempt == row.attempt + 1 ||
       (tip.attempt == row.attempt && row.status == PROCESSING && tip.status != PROCESSING), ATTEMPTS_RISE_BY_ONE);
  must(tip.id == row.id || (tip.attempt == 1 && ABSENT_OR_OVER), LIVE_ROW_STAYS);
  copy_row(row, tip);
  clear_row(tip);
  writer = NOBODY;
  must((row.status == COMPLETED) == (effects == 1), COMPLETED_IFF_EFFECT)
}

/* Each outcome is another number, so that two handler runs never give the same. */
inline settle_tip(how) {
  tip.status = how;
  tip.in_time = 1;
  if
  :: IS_SETTLED(how) -> settlements++; tip.outcome = settlements; settled_for[settlements] = tip.fingerprint
  :: else -> tip.outcome = 0
  fi
}

/* A message gets its end: a settled one only as the ledger has it. */
inline end_message(mm, how, what) {
  printf("> message %d ends: {status %d}, outcome %d\n", mm, how, what);
  must(!IS_SETTLED(how) || (row.status == how && row.outcome == what && row.fingerprint == FINGERPRINT(mm)),
       RUN_ENDS_AS_IN_LEDGER);
  message[mm].place = ENDED;
  message[mm].holder = 0;
  message[mm].verdict = how;
  message[mm].outcome = what;
  message[mm].row_id = (IS_SETTLED(how) -> row.id : 0)
}

inline reschedule(mm) {
  message[mm].place = AVAILABLE;
  message[mm].holder = 0
}

/* ---- umavez.claim ---- */

/* Sets said. CLAIMED: tip is the claim, not yet committed; the caller takes the locks. */
inline claim(s, fp) {
  if
  :: key_lock != NOBODY && key_lock != s ->                           /* what is settled can be read without the lock */
     if
     :: IS_SETTLED(row.status) && row.in_time -> said = (SAME_PAYLOAD(fp) -> REPLAY : CONFLICT)
     :: else -> said = BUSY
     fi
  :: else ->
     if
     :: ABSENT_OR_OVER -> said = CLAIMED
     :: else ->
        if
        :: !SAME_PAYLOAD(fp) -> said = CONFLICT
        :: else ->
           if
           :: IS_SETTLED(row.status) -> said = REPLAY
           :: row.status == PROCESSING && row.in_time -> said = BUSY
           :: else -> said = CLAIMED
           fi
        fi
     fi;
     if
     :: said == CLAIMED && writer != NOBODY -> said = BUSY            /* 55P03: a session without the key's lock has the row's */
     :: said == CLAIMED && writer == NOBODY ->
        if
        :: ABSENT_OR_OVER ->
           last_id++;
           tip.id = last_id; tip.attempt = 1; tip.fingerprint = fp
        :: else ->
           copy_row(tip, row);
           tip.attempt = tip.attempt + !BREAK_ATTEMPT
        fi;
        tip.status = PROCESSING; tip.in_time = 1; tip.outcome = 0
     :: else
     fi
  fi
}

/* ---- complete_run, fail_run, and for requests complete_request, fail_request: with COMMIT ---- */

/* Sets is_settled: settled and committed; else UV001 or UV002, and rolled back. */
inline settle(s, mm, how, id_, attempt_, made) {
  if
  :: writer == s && tip.id == id_ && tip.attempt == attempt_ && tip.status == PROCESSING && (DOOR || message[mm].place != ENDED) ->
     settle_tip(how);
     commit_row(made);
     key_lock = (key_lock == s -> NOBODY : key_lock);
     if
     :: DOOR
     :: !DOOR && IS_SETTLED(how) -> end_message(mm, how, row.outcome)
     :: !DOOR && !IS_SETTLED(how) -> reschedule(mm)
     fi;
     is_settled = 1
  :: else -> rollback(s); is_settled = 0
  fi
}

/* ================================================= the gate's scripts =========================================================== */

/* While its holder is at work and nothing has gone wrong in Valkey, an entry stands, whatever the others send. */
inline check_guards() {
  must((!worker[0].guarded || (gate.state == P && gate.token == worker[0].token)) &&
       (!worker[1].guarded || (gate.state == P && gate.token == worker[1].token)),
       ENTRY_STANDS)
}

inline gate_hurt() {
  worker[0].guarded = 0;
  worker[1].guarded = 0
}

/* A token that is nowhere in use. */
inline new_token(w) {
  token = 1;
  do
  :: token == gate.token || token == wire.token || token == replica.token || token == worker[1 - w].token -> token++
  :: else -> break
  od;
  worker[w].token = token
}

inline set_processing(w) {
  clear_entry(gate);
  gate.state = P; gate.fingerprint = FINGERPRINT(worker[w].m); gate.database = worker[w].database;
  gate.token = worker[w].token; gate.message = worker[w].m
}

/* What a standing entry means (gate.c: judge). */
inline judge(w) {
  if
  :: gate.state == JUNK && BREAK_HMAC -> gate.outcome = 7; said = SETTLED
  :: (gate.state == JUNK && !BREAK_HMAC) ||
     (gate.state != JUNK && gate.database != worker[w].database && !BREAK_IDENTITY) ||
     (gate.state != JUNK && gate.fingerprint != FINGERPRINT(worker[w].m) && !BREAK_FINGERPRINT) ->
     worker[w].distrusted = 1;
     said = UNAVAILABLE
  :: else -> said = (gate.state == P -> BUSY : SETTLED)
  fi
}

/* acquire: sets said. An entry of this run's own earlier delivery is taken over; a request that is sent again may be a new run. */
inline acquire(w) {
  if
  :: gate.state == NONE || (gate.state == P && gate.message == worker[w].m) ->
     if :: gate.state == P -> gate_hurt() :: else fi;
     set_processing(w);
     said = ACQUIRED
  :: gate.state != NONE && !(gate.state == P && gate.message == worker[w].m && !DOOR) -> judge(w)
  fi;
  check_guards()
}

#define GATE_HAS_NEWER(c) (!c.force && (gate.state == C || gate.state == F) && gate.database == c.database && \
                           (gate.id > c.id || (gate.id == c.id && gate.attempt > c.attempt)))

/* hold with 0 (release), or settle (the copy): executes c. */
inline execute(c) {
  printf("> the gate executes {entry %d}, token %d, outcome %d, over {entry %d}\n", c.op, c.token, c.outcome, gate.state);
  if
  :: c.op == RELEASE ->
     if
     :: gate.state == P && (gate.token == c.token || BREAK_DEL) -> clear_entry(gate)
     :: else
     fi
  :: c.op != RELEASE ->
     if
     :: GATE_HAS_NEWER(c) && !BREAK_NEWER
     :: else ->
        must(!GATE_HAS_NEWER(c), COPY_REPLACES_NO_NEWER);
        must(settled_for[c.outcome] == c.fingerprint, COPY_OF_ITS_PAYLOAD);
        gate_hurt();
        clear_entry(gate);
        gate.state = c.op; gate.fingerprint = c.fingerprint; gate.database = c.database; gate.id = c.id;
        gate.attempt = c.attempt; gate.outcome = c.outcome
     fi
  fi;
  check_guards()
}

/* Sends cmd, and waits for nothing. */
inline send() {
  if
  :: true -> execute(cmd)
  :: VALKEY_MAY_FAIL -> valkey_fault()
  :: WIRE && wire.op == NONE -> copy_command(wire, cmd)
  fi;
  clear_command(cmd)
}

inline gate_settle(w) {
  cmd.op = (worker[w].permanent -> F : C); cmd.fingerprint = FINGERPRINT(worker[w].m); cmd.force = worker[w].distrusted;
  cmd.database = worker[w].database; cmd.id = worker[w].id; cmd.attempt = worker[w].attempt; cmd.outcome = worker[w].outcome;
  worker[w].guarded = 0;
  worker[w].token = 0;
  send()
}

/* ================================================= a worker's steps ============================================================= */

/* Back to the queue; a request's client is told to come again, or looks again by itself. */
inline give_back(w) {
  rollback(w);
  worker[w].open = 0; worker[w].effect = 0;
  if
  :: message[worker[w].m].place == RUNNING && message[worker[w].m].holder == WORKER_ID(w) -> reschedule(worker[w].m)
  :: else
  fi;
  worker[w].at = RELEASE_GATE
}

inline at_release_gate(w) {
  if
  :: worker[w].token != 0 ->
     worker[w].guarded = 0;
     cmd.op = RELEASE; cmd.token = worker[w].token;
     send()
  :: else
  fi;
  clear_worker(w)
}

/* A request is answered, if its client still waits for this delivery. */
inline tell(w, how, what) {
  if
  :: DOOR && message[worker[w].m].place == RUNNING && message[worker[w].m].holder == WORKER_ID(w) ->
     printf("> message %d is answered: {status %d}, outcome %d\n", worker[w].m, how, what);
     message[worker[w].m].place = ENDED;
     message[worker[w].m].holder = 0;
     message[worker[w].m].verdict = how;
     message[worker[w].m].outcome = what
  :: else
  fi
}

/* The outcome that the row holds is this delivery's answer, and is to be copied. */
inline adopt_row(w) {
  worker[w].permanent = (row.status == FAILED_PERMANENT);
  worker[w].outcome = row.outcome;
  worker[w].in_retention = row.in_time
}

inline take(w, mm) {
  printf("> worker %d takes message %d\n", w, mm);
  message[mm].place = RUNNING;
  message[mm].holder = WORKER_ID(w);
  worker[w].m = mm;
  worker[w].at = GATE
}

/* Whatever goes wrong here leaves the decision to PostgreSQL. */
inline at_gate(w) {
  if
  :: worker[w].database == NO_DATABASE -> worker[w].at = POOL
  :: DOOR && worker[w].database != NO_DATABASE -> worker[w].at = POOL /* a waiting request looks past the gate every other time */
  :: worker[w].database != NO_DATABASE ->
     new_token(w);
     if
     :: VALKEY_MAY_FAIL -> printf("> worker %d gets no answer of the gate\n", w); valkey_fault(); worker[w].at = POOL   /* not executed; we cannot know */
     :: BREAK_SET_NX && gate.state == NONE -> worker[w].at = GATE_SET
     :: !(BREAK_SET_NX && gate.state == NONE) ->
        acquire(w);
        if
        :: VALKEY_MAY_FAIL -> valkey_fault(); worker[w].distrusted = 0; worker[w].at = POOL       /* executed; the answer is lost */
        :: true -> gate_answered(w)
        fi
     fi
  fi
}

inline gate_answered(w) {
  printf("> worker %d asks the gate: {said %d}\n", w, said);
  if
  :: said == ACQUIRED ->
     worker[w].guarded = 1; worker[w].at = POOL;
     effects = effects + BREAK_GATE_DECIDES;
     must(effects <= 1, GATE_DECIDES_NOTHING)
  :: said == UNAVAILABLE -> worker[w].at = POOL
  :: said == BUSY -> worker[w].token = 0; give_back(w)
  :: said == SETTLED ->
     worker[w].token = 0;
     if
     :: DOOR ->
        must(row.in_time && row.status == GATE_STATUS && row.outcome == gate.outcome && row.fingerprint == FINGERPRINT(worker[w].m),
             GATE_ANSWERS_AS_LEDGER);
        tell(w, row.status, gate.outcome);
        clear_worker(w)
     :: !DOOR && BREAK_ACK -> end_message(worker[w].m, GATE_STATUS, gate.outcome); clear_worker(w)
     :: !DOOR && !BREAK_ACK -> worker[w].at = ACK
     fi
  fi
}

inline at_gate_set(w) {                                               /* BREAK_SET_NX */
  printf("> worker %d sets the gate\n", w);                            /* BREAK_SET_NX */
  set_processing(w);                                                  /* BREAK_SET_NX */
  worker[w].guarded = 1; worker[w].at = POOL;                         /* BREAK_SET_NX */
  check_guards()
}

/* BEGIN, begin_run, SAVEPOINT */
inline at_pool(w) {
  worker[w].bound = worker[w].database;
  claim(w, FINGERPRINT(worker[w].m));
  printf("> worker %d claims: {said %d}\n", w, said);
  if
  :: said == CLAIMED ->
     key_lock = w; writer = w;
     worker[w].open = 1; worker[w].id = tip.id; worker[w].attempt = tip.attempt;
     worker[w].at = HANDLER
  :: said == BUSY -> give_back(w)
  :: said == REPLAY && !DOOR -> worker[w].at = ACK
  :: said == REPLAY && DOOR ->
     must(row.fingerprint == FINGERPRINT(worker[w].m), REPLAY_OF_ITS_PAYLOAD);
     adopt_row(w); worker[w].id = row.id; worker[w].attempt = row.attempt;
     worker[w].at = COPY
  :: said == CONFLICT ->
     if
     :: DOOR -> tell(w, KEY_REUSED, 0); worker[w].at = RELEASE_GATE
     :: !DOOR -> worker[w].at = END
     fi
  fi
}

inline at_handler(w) {
  if
  :: worker[w].lost -> worker[w].permanent = 0; worker[w].at = LOST
  :: worker[w].lost -> worker[w].permanent = 1; worker[w].at = LOST   /* the last attempt */
  :: !worker[w].lost ->
     if
     :: true ->
        worker[w].effect = !BREAK_APART;
        effects = effects + BREAK_APART;
        must(effects <= 1, AT_MOST_ONE_EFFECT);
        if
        :: BREAK_COPY_EARLY -> worker[w].permanent = 0; worker[w].outcome = settlements + 1; gate_settle(w)
        :: else
        fi;
        worker[w].at = COMPLETE
     :: MAY_FAIL -> fault(); worker[w].permanent = 0; worker[w].at = FAIL
     :: true -> worker[w].permanent = 1; worker[w].at = FAIL
     fi
  fi
}

/* Settlement and COMMIT travel together. how: COMPLETED or a failure, which is recorded after ROLLBACK TO SAVEPOINT. */
inline settle_and_commit(w, how) {
  if
  :: worker[w].lost -> worker[w].effect = 0; worker[w].permanent = 0; worker[w].at = LOST          /* known before it was sent */
  :: worker[w].lost -> worker[w].effect = 0; worker[w].lost = 0; worker[w].at = UNKNOWN
  :: !worker[w].lost ->
     if
     :: true -> settle(w, worker[w].m, how, worker[w].id, worker[w].attempt, worker[w].effect);
        worker[w].open = 0; worker[w].effect = 0;
        if
        :: !is_settled -> give_back(w)                                      /* stale: whoever else has ended it */
        :: is_settled && IS_SETTLED(row.status) -> adopt_row(w); worker[w].at = COPY
        :: is_settled && !IS_SETTLED(row.status) -> give_back(w)                   /* recorded; a request's client is told to come again */
        fi
     :: MAY_FAIL && orphan_settles == ABSENT ->                       /* lost: the session may or may not commit, now or later */
        fault();
        orphan_settles = how; orphan_message = worker[w].m; orphan_id = worker[w].id; orphan_attempt = worker[w].attempt;
        orphan_effect = worker[w].effect;
        key_lock = ORPHAN; writer = ORPHAN;
        worker[w].open = 0; worker[w].effect = 0;
        worker[w].at = UNKNOWN
     :: MAY_FAIL ->                                                   /* COMMIT is refused (a deferred constraint) */
        fault();
        rollback(w);
        worker[w].open = 0; worker[w].effect = 0; worker[w].permanent = 0;
        worker[w].at = LOST
     fi
  fi
}

/* fail_lost_run, in a transaction of its own */
inline at_lost(w) {
  printf("> worker %d records the failure of a lost transaction\n", w);
  if
  :: BREAK_FAILURE_FENCE && !DOOR && writer == NOBODY ->
     copy_row(tip, row); tip.attempt++; settle_tip(FAILED_PERMANENT); commit_row(0); worker[w].at = RELEASE_GATE   /* BREAK_FAILURE_FENCE */
  :: !BREAK_FAILURE_FENCE && !DOOR && message[worker[w].m].place == RUNNING && message[worker[w].m].holder == WORKER_ID(w) ->
     claim(w, FINGERPRINT(worker[w].m));
     if
     :: said == CLAIMED ->
        key_lock = w; writer = w;
        settle(w, worker[w].m, FAILURE(w), tip.id, tip.attempt, 0)
     :: else -> reschedule(worker[w].m)
     fi;
     worker[w].at = RELEASE_GATE
  :: else -> give_back(w)                                             /* left; or a request: no record is needed */
  :: MAY_FAIL -> fault(); give_back(w)
  fi
}

/* resolve_commit. While the lock is held nothing is known yet; the worker asks again, and at last gives up. */
inline at_unknown(w) {
  printf("> worker %d resolves its COMMIT\n", w);
  worker[w].bound = worker[w].database;
  if
  :: key_lock != NOBODY -> clear_worker(w)                            /* given up */
  :: BREAK_GUESS && key_lock == NOBODY ->
     adopt_row(w); worker[w].at = COPY;                               /* BREAK_GUESS */
     must(row.status == COMPLETED && effects == 1, SUCCESS_MEANS_COMPLETED)
  :: !BREAK_GUESS && key_lock == NOBODY ->
     if
     :: DOOR && row.id == worker[w].id && row.attempt == worker[w].attempt && IS_SETTLED(row.status) ->
        adopt_row(w); worker[w].at = COPY
     :: !DOOR && message[worker[w].m].place == ENDED && IS_SETTLED(row.status) && ITS_ROW(w) -> adopt_row(w); worker[w].at = COPY
     :: else -> give_back(w)                                          /* rolled back; or ended, and nothing to be copied */
     fi
  fi
}

/* ack_replay: one statement, which verifies */
inline at_ack(w) {
  printf("> worker %d acks a replay\n", w);
  if
  :: IS_SETTLED(row.status) && row.in_time && SAME_PAYLOAD(FINGERPRINT(worker[w].m)) ->
     if
     :: message[worker[w].m].place != ENDED -> end_message(worker[w].m, row.status, row.outcome)
     :: else
     fi;
     adopt_row(w); worker[w].id = row.id; worker[w].attempt = row.attempt; worker[w].bound = worker[w].database;
     if
     :: true -> worker[w].at = COPY
     :: MAY_FAIL -> fault(); give_back(w)                             /* its answer is lost */
     fi
  :: else -> worker[w].distrusted = 1; worker[w].at = POOL
  fi
}

/* end_run: the conflict ends the run, and touches nothing else */
inline at_end(w) {
  if
  :: message[worker[w].m].place != ENDED -> end_message(worker[w].m, KEY_REUSED, 0)
  :: else
  fi;
  worker[w].at = RELEASE_GATE
}

/* The copy, unless it would outlive the retention, or belong to a database that is not the one it comes from. */
inline at_copy(w) {
  tell(w, (worker[w].permanent -> FAILED_PERMANENT : COMPLETED), worker[w].outcome);
  if
  :: OF_ANOTHER_DATABASE(w) || OUTLIVED(w) -> worker[w].at = RELEASE_GATE
  :: else -> gate_settle(w); clear_worker(w)
  fi
}

proctype deliver(byte w) {
end_idle:
  do
  :: atomic { worker[w].at == IDLE && message[0].place == AVAILABLE -> take(w, 0) }
  :: atomic { worker[w].at == IDLE && message[1].place == AVAILABLE -> take(w, 1) }
  :: atomic { worker[w].at == GATE -> at_gate(w) }
  :: atomic { worker[w].at == GATE_SET -> at_gate_set(w) }            /* BREAK_SET_NX */
  :: atomic { worker[w].at == POOL -> at_pool(w) }
  :: atomic { worker[w].at == HANDLER -> at_handler(w) }
  :: atomic { worker[w].at == COMPLETE || worker[w].at == FAIL -> settle_and_commit(w, TO_SETTLE(w)) }
  :: atomic { worker[w].at == LOST -> at_lost(w) }
  :: atomic { worker[w].at == UNKNOWN && key_lock == NOBODY -> at_unknown(w) }
  :: atomic { worker[w].at == UNKNOWN && key_lock != NOBODY && MAY_FAIL -> fault(); at_unknown(w) }
  :: atomic { worker[w].at == ACK -> at_ack(w) }
  :: atomic { worker[w].at == END -> at_end(w) }
  :: atomic { worker[w].at == COPY -> at_copy(w) }
  :: atomic { worker[w].at == RELEASE_GATE -> at_release_gate(w) }
  :: atomic { worker[w].database != timeline -> worker[w].database = timeline }       /* reconnected, identity read */
  od
}

/* ================================================= another program ============================================================== */

/* It commits its claim, works, and settles in a second transaction: held by the lease only. It may stop anywhere, for ever. */
proctype program() {
  byte id, attempt;

  atomic {
    claim(PROGRAM, 0);
    if
    :: said == CLAIMED -> id = tip.id; attempt = tip.attempt; commit_row(0)
    :: else -> goto over
    fi
  };
  do
  :: atomic {                                                         /* complete; it waits for whoever holds the row's lock */
       writer == NOBODY ->
       if
       :: FENCED -> copy_row(tip, row); settle_tip(COMPLETED); commit_row(1)
       :: else                                                        /* UV001 */
       fi;
       break
     }
  :: atomic {                                                         /* fail */
       writer == NOBODY ->
       if
       :: FENCED -> copy_row(tip, row); settle_tip(FAILED_RETRYABLE); commit_row(0)
       :: else
       fi;
       break
     }
  :: atomic {                                                         /* release: uncharged */
       writer == NOBODY ->
       if
       :: FENCED && !BREAK_FENCE && attempt == 1 -> clear_row(row)
       :: FENCED && !BREAK_FENCE && attempt > 1 ->
          row.attempt--; row.status = FAILED_RETRYABLE; row.in_time = 1
       :: else
       fi;
       break
     }
  :: atomic {                                                         /* renew, late */
       writer == NOBODY && FENCED && !BREAK_FENCE && !row.in_time && MAY_FAIL ->
       fault(); row.in_time = 1
     }
  :: break
  od;
over:
  skip
}

/* ================================================= the world ==================================================================== */

/* What happens by itself, sooner or later: in PostgreSQL … */
proctype time_passes() {
end_waiting:
  do
  /* a delivery that nobody works at any more is delivered again: the run's lease has ended, the client has seen its connection die */
  :: atomic { message[0].place == RUNNING && !AT_WORK(0, 0) && !AT_WORK(1, 0) -> reschedule(0) }
  :: atomic { message[1].place == RUNNING && !AT_WORK(0, 1) && !AT_WORK(1, 1) -> reschedule(1) }
  /* the orphan's session ends */
  :: atomic {
       orphan_settles != ABSENT ->
       if
       :: true -> settle(ORPHAN, orphan_message, orphan_settles, orphan_id, orphan_attempt, orphan_effect)
       :: true -> rollback(ORPHAN)
       fi;
       orphan_settles = ABSENT; orphan_message = 0; orphan_id = 0; orphan_attempt = 0; orphan_effect = 0
     }
  /* the lease of a committed claim ends */
  :: atomic { row.status == PROCESSING && row.in_time -> printf("> a committed lease ends\n"); row.in_time = 0 }
  /* purge_keys: the retention is over, or a claim was abandoned; a row that somebody has locked is stepped over */
  :: atomic { row.status != ABSENT && (!row.in_time || BREAK_PURGE) && writer == NOBODY ->
              printf("> the purge removes a row that is {status %d}\n", row.status); clear_row(row) }
  od
}

/* … and in Valkey. */
proctype valkey_forgets() {
end_waiting:
  do
  /* an entry's TTL ends, or its server is flushed, restarted, evicting */
  :: atomic { gate.state != NONE -> printf("> the gate loses its entry\n"); clear_entry(gate); gate_hurt() }
  /* what was sent long ago is executed */
  :: atomic { wire.op != NONE -> execute(wire); clear_command(wire) }
  od
}

inline crash(w) {
  printf("> worker %d is killed, at {state %d}\n", w, worker[w].at);
  rollback(w);
  clear_worker(w);
  worker[w].database = timeline
}

/* The server ends the session: the network, a time-out of an idle transaction whose worker is a zombie, an administrator. */
inline cut(w) {
  printf("> worker %d: its session is ended, at {state %d}\n", w, worker[w].at);
  rollback(w);
  worker[w].open = 0;
  worker[w].lost = 1
}

inline fail_over() {
  printf("> PostgreSQL fails over: the row is {status %d}\n", standby_row.status);
  rollback(0); rollback(1); rollback(ORPHAN);
  orphan_settles = ABSENT; orphan_message = 0; orphan_id = 0; orphan_attempt = 0; orphan_effect = 0;
  copy_row(row, standby_row);
  effects = standby_effects;
  last_id = standby_last_id;
  if
  :: DOOR
  :: !DOOR ->
     copy_message(message[0], standby_message[0]);
     copy_message(message[1], standby_message[1])
  fi;
  timeline = 1;
  worker[0].database = NO_DATABASE; worker[0].lost = worker[0].open; worker[0].open = 0;
  worker[1].database = NO_DATABASE; worker[1].lost = worker[1].open; worker[1].open = 0
}

inline replicate() {
  copy_row(standby_row, row);
  standby_effects = effects;
  standby_last_id = last_id;
  copy_message(standby_message[0], message[0]);
  copy_message(standby_message[1], message[1])
}

/* A copy's end is signed: from then on nobody believes it, wherever it comes from. */
inline end_retention() {
  printf("> the retention ends\n");
  row.in_time = 0;
  effects = 0;
  worker[0].in_retention = 0;
  worker[1].in_retention = 0;
  if :: gate.state == C || gate.state == F -> clear_entry(gate) :: else fi;
  if :: replica.state == C || replica.state == F -> clear_entry(replica) :: else fi;
  if :: wire.op == C || wire.op == F -> clear_command(wire) :: else fi
}

/* retry_run: the dead run comes back, and its row, if it is still the one that it failed by, is open again */
inline retry_run(mm) {
  printf("> an operator retries message %d\n", mm);
  retries++;
  if
  :: row.status == FAILED_PERMANENT && ENDED_BY_ROW(mm) ->
     must(!row.in_time || row.fingerprint == FINGERPRINT(mm), RETRY_REOPENS_ITS_OWN);
     row.status = FAILED_RETRYABLE
  :: else
  fi;
  message[mm].place = AVAILABLE; message[mm].verdict = ABSENT; message[mm].outcome = 0; message[mm].row_id = 0
}

/* What may happen, a limited number of times. */
proctype trouble() {
end_quiet:
  do
  :: atomic { MAY_FAIL && worker[0].at != IDLE -> fault(); crash(0) }
  :: atomic { MAY_FAIL && worker[1].at != IDLE -> fault(); crash(1) }
  :: atomic { MAY_FAIL && worker[0].open -> fault(); cut(0) }
  :: atomic { MAY_FAIL && worker[1].open -> fault(); cut(1) }
  /* a lease ends under its living holder (a zombie), a client loses patience and sends again */
  :: atomic { MAY_FAIL && message[0].place == RUNNING && (AT_WORK(0, 0) || AT_WORK(1, 0)) -> fault(); reschedule(0) }
  :: atomic { VALKEY_MAY_FAIL && gate.state != JUNK -> valkey_fault(); clear_entry(gate); gate.state = JUNK; gate_hurt() }
  :: atomic { VALKEY_FAILOVER && !valkey_failed_over && gate.state != JUNK -> copy_entry(replica, gate) }
  :: atomic { VALKEY_FAILOVER && !valkey_failed_over ->
              valkey_failed_over = 1; copy_entry(gate, replica); clear_entry(replica); gate_hurt() }
  :: atomic { retentions < RETENTIONS && row.status != ABSENT && row.status != PROCESSING && row.in_time ->
              retentions++; end_retention() }
  :: atomic { FAILOVER && timeline == 0 -> replicate() }
  :: atomic { FAILOVER && timeline == 0 -> fail_over() }
  :: atomic { retries < OPERATOR && writer == NOBODY && message[0].place == ENDED && message[0].verdict == FAILED_PERMANENT ->
              retry_run(0) }
  :: atomic { sent_again < SENT_AGAIN && message[0].place == ENDED ->
              sent_again++; message[0].place = AVAILABLE; message[0].verdict = ABSENT; message[0].outcome = 0; message[0].row_id = 0 }
  od
}

init {
  atomic {
    c_code {
      MESSAGES = choose("MESSAGES"); DOOR = choose("DOOR"); OTHER_PAYLOAD = choose("OTHER_PAYLOAD");
      ONE_PROCESS = choose("ONE_PROCESS"); PROGRAMS = choose("PROGRAMS"); FAULTS = choose("FAULTS");
      VALKEY_FAULTS = choose("VALKEY_FAULTS"); WIRE = choose("WIRE"); VALKEY_FAILOVER = choose("VALKEY_FAILOVER");
      FAILOVER = choose("FAILOVER"); RETENTIONS = choose("RETENTIONS"); OPERATOR = choose("OPERATOR");
      SENT_AGAIN = choose("SENT_AGAIN"); BREAK_FENCE = choose("BREAK_FENCE"); BREAK_ATTEMPT = choose("BREAK_ATTEMPT");
      BREAK_APART = choose("BREAK_APART"); BREAK_FINGERPRINT = choose("BREAK_FINGERPRINT"); BREAK_PURGE = choose("BREAK_PURGE");
      BREAK_FAILURE_FENCE = choose("BREAK_FAILURE_FENCE"); BREAK_GUESS = choose("BREAK_GUESS"); BREAK_DEL = choose("BREAK_DEL");
      BREAK_SET_NX = choose("BREAK_SET_NX"); BREAK_GATE_DECIDES = choose("BREAK_GATE_DECIDES");
      BREAK_HMAC = choose("BREAK_HMAC"); BREAK_IDENTITY = choose("BREAK_IDENTITY"); BREAK_STAMP = choose("BREAK_STAMP");
      BREAK_COPY_EARLY = choose("BREAK_COPY_EARLY"); BREAK_TTL = choose("BREAK_TTL"); BREAK_NEWER = choose("BREAK_NEWER");
      BREAK_ACK = choose("BREAK_ACK"); BREAK_RESOLVE = choose("BREAK_RESOLVE"); BREAK_RETRY = choose("BREAK_RETRY");
    };
    message[1].place = (MESSAGES == 2 -> AVAILABLE : ENDED);
    copy_message(standby_message[1], message[1]);
    run deliver(0);
    run deliver(1);
    run time_passes();
    run valkey_forgets();
    if :: PROGRAMS > 0 -> run program() :: else fi;
    if :: PROGRAMS > 1 -> run program() :: else fi;
    run trouble()
  };
  timeout -> must(ALL_ENDED, ALL_ENDS)
}

#ifdef LIVENESS
ltl ends { <> ALL_ENDED }
#endif
