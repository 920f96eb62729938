/* Several runs that share one transaction, as a model for spin. umavez.pml is about one key and what its deliveries do to each other;
 * this one is about runs of several keys that have nothing in common but a COMMIT (runtime/core/batch.c, begin_runs, complete_runs and
 * forget_runs of sql/functions/10_ledger.sql). tests/model/README.md says how to read both.
 *
 * Worker 0 takes runs and does those that wait in batches; what a batch puts out, it does alone, on another connection, while the next
 * batch may be under way. Worker 1 does each run alone. Each step is one thing that happens at once: the claims of a batch, the end of
 * a turn, settlement with COMMIT. Between two of them anything else may happen. A define BREAK_… takes one rule away. */

/* ================================================= what a scenario chooses ====================================================== */

hidden byte MESSAGES;           /* runs: 2 or 3 */
hidden byte DUPLICATE;          /* 1: the last run has the key of the first */
hidden byte FAULTS;             /* crashes, connections cut, COMMITs lost or refused, leases that end under a living holder, errors of */
                                /* handlers, turns put off: so many in all, in any mixture */
hidden byte OPERATOR;           /* how many runs an operator discards */
hidden byte VALKEY_FAULTS;      /* 1: entries vanish at any time */
hidden byte OTHER_WORKER;       /* 1: worker 1 is there */
hidden byte key[3];

hidden byte BREAK_UNDONE, BREAK_KEPT, BREAK_CHARGE, BREAK_FORGET, BREAK_COUNT, BREAK_TWICE, BREAK_LOCK;
hidden byte BREAK_COPY, BREAK_RELEASE, BREAK_GUESS, BREAK_REDO, BREAK_COMMIT_PART;

c_code {
  static int choose(const char *option) {
    const char *text = getenv(option);
    return text ? atoi(text) : 0;
  }
};

mtype:status = { ABSENT, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED_PERMANENT, DISCARDED };       /* of a row; the last: of a run */
mtype:place = { AVAILABLE, RUNNING, ENDED };
mtype:entry = { NONE, P, C, F };
mtype:step = { IDLE, TURNS, HANDLER };                                                  /* of the batch: none, between two turns, in one */
mtype:alone = { FREE, POOL, WORKS, COMPLETE, FAIL };                                    /* of a connection with one run */
/* Where a run is in worker 0's process. */
mtype:where = { AWAY, WAITING, TURN, CURRENT, KEPT, FAILED, OUT, ALONE, UNKNOWN, COPY, RELEASE };

mtype:invariant = {
  AT_MOST_ONE_EFFECT,           /* of a key */
  COMPLETED_IFF_EFFECT,         /* a key's row is completed exactly where its effect is: nothing of a run that failed or was put off */
  SETTLED_STAYS,
  NO_CLAIM_LEFT,                /* no COMMIT leaves a claim that nobody settled */
  RUN_ENDS_AS_IN_LEDGER,
  ENDED_ONCE,
  INNOCENT_UNCHARGED,           /* a failure is recorded only of a run whose own code has failed */
  GATE_ANSWERS_AS_LEDGER,       /* a copy is made of what is committed */
  ENTRY_STANDS,                 /* nobody else gets the gate of a run that is at work, unless Valkey lost it */
  SUCCESS_MEANS_COMPLETED,
  ALL_ENDS
};

#define NOBODY 4                /* sessions: 0 and 1 of runs alone, by worker; */
#define BATCH 2                 /* of the batch; */
#define ORPHAN 3                /* of a batch whose connection was lost with COMMIT under way */
#define KEY(m) key[m]
#define IS_SETTLED(s) ((s) == COMPLETED || (s) == FAILED_PERMANENT)
#define MAY_FAIL (faults < FAULTS)
#define fault() faults++
#define IN_BATCH(m) (task[m].at == TURN || task[m].at == CURRENT || task[m].at == KEPT || task[m].at == FAILED || task[m].at == OUT)
#define ALL_ENDED (message[0].place == ENDED && message[1].place == ENDED && message[2].place == ENDED)

/* ================================================= PostgreSQL, the gate ========================================================= */

typedef Row { mtype:status status = ABSENT; byte outcome, by };
Row row[3];                     /* by key; by: the run that settled it */
byte key_lock[3] = NOBODY;      /* who holds it has the key's claim in its open transaction */
byte effects[3];
byte settlements;               /* each outcome is a number of its own */

typedef Message {
  mtype:place place = AVAILABLE;
  byte holder;
  byte errors, charged          /* ghosts: failures of its own code, failures recorded */
};
Message message[3];

typedef Entry { mtype:entry state = NONE; byte message, worker, outcome };      /* P: message and worker are its token */
Entry gate[3];

/* What a session that lost its client would still commit: one verdict a run, ABSENT for none. */
typedef Plan { mtype:status verdict[3] = ABSENT; bit made[3] };
Plan plan;                      /* of the batch that is being settled; empty between two steps */
Plan orphan;
bit orphan_there;

/* ================================================= worker 0 ===================================================================== */

typedef Run {
  mtype:where at = AWAY;
  bit claimed;                  /* by the batch */
  bit effect, permanent;
  bit guarded;                  /* ghost: its entry stands */
  byte outcome
};
Run task[3];
mtype:step batch = IDLE;
bit cut;                        /* the batch's session was ended; worker 0 finds out with the next statement */

typedef Single { mtype:alone at = FREE; byte m; bit effect, permanent, guarded };
Single single[2];
byte faults, discards;

hidden byte m, k, any, refused, acquired;
hidden mtype:status how;

inline must(hold, name) {
  if :: (hold) :: else -> printf("> violated: {invariant %d}\n", name); assert(false) fi
}

inline leave(mm) {
  task[mm].at = AWAY; task[mm].claimed = 0; task[mm].effect = 0; task[mm].permanent = 0; task[mm].guarded = 0; task[mm].outcome = 0
}

inline unlock(s) {
  k = 0;
  do :: k < 3 -> if :: key_lock[k] == s -> key_lock[k] = NOBODY :: else fi; k++ :: else -> break od;
  k = 0
}

inline give_back(mm, worker) {
  if :: message[mm].place == RUNNING && message[mm].holder == worker -> message[mm].place = AVAILABLE; message[mm].holder = 0 :: else fi
}

inline end_message(mm, how_, what) {
  printf("> run %d ends: {status %d}, outcome %d\n", mm, how_, what);
  must(message[mm].place != ENDED, ENDED_ONCE);
  must(!IS_SETTLED(how_) || (row[KEY(mm)].status == how_ && row[KEY(mm)].outcome == what), RUN_ENDS_AS_IN_LEDGER);
  message[mm].place = ENDED; message[mm].holder = 0
}

/* One run's part of a COMMIT. */
inline commit_one(mm, to, count) {
  printf("> COMMIT for run %d: {status %d}, effects made: %d\n", mm, to, count);
  must(!IS_SETTLED(row[KEY(mm)].status), SETTLED_STAYS);
  effects[KEY(mm)] = effects[KEY(mm)] + count;
  must(effects[KEY(mm)] <= 1, AT_MOST_ONE_EFFECT);
  row[KEY(mm)].status = to; row[KEY(mm)].by = mm;
  if
  :: IS_SETTLED(to) -> settlements++; row[KEY(mm)].outcome = settlements; end_message(mm, to, settlements)
  :: else -> row[KEY(mm)].outcome = 0; message[mm].place = AVAILABLE; message[mm].holder = 0
  fi;
  if
  :: to != COMPLETED -> message[mm].charged++; must(message[mm].charged <= message[mm].errors, INNOCENT_UNCHARGED)
  :: else
  fi;
  must((row[KEY(mm)].status == COMPLETED) == (effects[KEY(mm)] == 1), COMPLETED_IFF_EFFECT)
}

inline copy_to_gate(kk, as, text) {
  must(row[kk].status == as && row[kk].outcome == text, GATE_ANSWERS_AS_LEDGER);
  if :: gate[kk].state == C || gate[kk].state == F
  :: else -> gate[kk].state = (as == COMPLETED -> C : F); gate[kk].outcome = text; gate[kk].message = 0; gate[kk].worker = 0
  fi
}

inline release(mm, by_) {
  if
  :: gate[KEY(mm)].state == P && gate[KEY(mm)].message == mm && gate[KEY(mm)].worker == by_ ->
     gate[KEY(mm)].state = NONE; gate[KEY(mm)].message = 0; gate[KEY(mm)].worker = 0
  :: else
  fi
}

/* Gives in any: 0 go on (acquired: its entry is ours), 1 busy, 2 it was acknowledged. A copy is checked against the ledger in the statement that removes the run. */
inline ask_gate(mm, by_) {
  any = 0; acquired = 0;
  if
  :: gate[KEY(mm)].state == NONE ->
     must(!(task[0].guarded && IN_BATCH(0) && KEY(0) == KEY(mm)) && !(task[1].guarded && IN_BATCH(1) && KEY(1) == KEY(mm)) &&
          !(task[2].guarded && IN_BATCH(2) && KEY(2) == KEY(mm)), ENTRY_STANDS);
     gate[KEY(mm)].state = P; gate[KEY(mm)].message = mm; gate[KEY(mm)].worker = by_; acquired = 1
  :: gate[KEY(mm)].state == P && gate[KEY(mm)].message == mm ->        /* its own earlier delivery's, whose token it takes over */
     task[mm].guarded = 0; gate[KEY(mm)].worker = by_; acquired = 1
  :: gate[KEY(mm)].state == P && gate[KEY(mm)].message != mm -> any = 1
  :: gate[KEY(mm)].state == C || gate[KEY(mm)].state == F ->
     if
     :: IS_SETTLED(row[KEY(mm)].status) ->
        if :: message[mm].place != ENDED -> end_message(mm, row[KEY(mm)].status, row[KEY(mm)].outcome) :: else fi;
        any = 2
     :: else
     fi
  fi
}

/* ---- a batch ---- */

/* The transaction did not commit: every run of it is done again, alone. */
inline scatter() {
  printf("> the batch is undone\n");
  unlock(BATCH);
  m = 0;
  do
  :: m < MESSAGES ->
     if
     :: IN_BATCH(m) && BREAK_CHARGE && message[m].place == RUNNING && message[m].holder == 0 && !IS_SETTLED(row[KEY(m)].status) ->
        commit_one(m, FAILED_RETRYABLE, 0); task[m].at = RELEASE; task[m].claimed = 0; task[m].effect = 0     /* BREAK_CHARGE */
     :: IN_BATCH(m) && !BREAK_CHARGE -> task[m].at = ALONE; task[m].claimed = 0; task[m].effect = 0; task[m].permanent = 0
     :: else
     fi;
     m++
  :: else -> break
  od;
  m = 0; batch = IDLE; cut = 0
}

/* begin_runs: the keys that nobody holds and that have no row. A duplicate of a key waits for the next batch. */
inline begin_batch() {
  m = 0; any = 0;
  do
  :: m < MESSAGES ->
     if
     :: task[m].at == WAITING && m > 0 && KEY(m) == 0 && IN_BATCH(0) && !BREAK_TWICE
     :: task[m].at == WAITING && !(m > 0 && KEY(m) == 0 && IN_BATCH(0) && !BREAK_TWICE) ->
        if
        :: row[KEY(m)].status == ABSENT && (key_lock[KEY(m)] == NOBODY || (key_lock[KEY(m)] == BATCH && BREAK_TWICE) || BREAK_LOCK) ->
           key_lock[KEY(m)] = BATCH; task[m].at = TURN; task[m].claimed = 1
        :: else -> task[m].at = OUT
        fi;
        any++
     :: else
     fi;
     m++
  :: else -> break
  od;
  printf("> a batch of %d begins\n", any);
  m = 0; any = 0; batch = TURNS
}

/* The handler of run mm ends, and with it its savepoint. */
inline end_turn(mm) {
  batch = TURNS;
  if
  :: true -> printf("> run %d returns\n", mm); task[mm].effect = 1; task[mm].at = KEPT;
     if :: BREAK_COPY -> copy_to_gate(KEY(mm), COMPLETED, settlements + 1) :: else fi                          /* BREAK_COPY */
  :: MAY_FAIL -> fault(); printf("> run %d fails\n", mm); message[mm].errors++;
     if :: task[mm].permanent = 0 :: task[mm].permanent = 1 fi;
     task[mm].effect = BREAK_KEPT;                                    /* ROLLBACK TO SAVEPOINT */
     task[mm].at = (BREAK_UNDONE -> KEPT : FAILED);
     if :: BREAK_RELEASE -> release(mm, 0) :: else fi                                                            /* BREAK_RELEASE */
  :: MAY_FAIL -> fault(); printf("> run %d is put off\n", mm); task[mm].effect = 0; task[mm].at = OUT
  fi
}

inline first_turn() {
  if
  :: task[0].at == TURN -> task[0].at = CURRENT; batch = HANDLER
  :: task[0].at != TURN && task[1].at == TURN -> task[1].at = CURRENT; batch = HANDLER
  :: task[0].at != TURN && task[1].at != TURN && task[2].at == TURN -> task[2].at = CURRENT; batch = HANDLER
  fi
}

/* forget_runs, fail_run for each failure, complete_runs, COMMIT; s: BATCH or ORPHAN. All or nothing. Sets refused. */
inline commit_all(s, p) {
  refused = 0; m = 0;
  do
  :: m < MESSAGES ->
     if :: p.verdict[m] != ABSENT && message[m].place == ENDED -> refused = refused + !BREAK_COUNT :: else fi;   /* UV002 */
     m++
  :: else -> break
  od;
  m = 0;
  do
  :: m < MESSAGES && (!refused || BREAK_COMMIT_PART) ->
     if
     :: p.verdict[m] != ABSENT && !(refused && message[m].place == ENDED) -> commit_one(m, p.verdict[m], p.made[m])
     :: else
     fi;
     m++
  :: else -> break
  od;
  m = 0;
  unlock(s)
}

inline collect() {
  m = 0; any = 0;
  do
  :: m < MESSAGES ->
     plan.verdict[m] = (task[m].at == KEPT -> COMPLETED : (task[m].at == FAILED -> (task[m].permanent -> FAILED_PERMANENT : FAILED_RETRYABLE) : ABSENT));
     plan.made[m] = task[m].effect && (task[m].at == KEPT || task[m].at == FAILED);
     any = any + (plan.verdict[m] != ABSENT);
     m++
  :: else -> break
  od;
  m = 0
}

inline forget_verdicts() {
  m = 0;
  do :: m < 3 -> plan.verdict[m] = ABSENT; plan.made[m] = 0; m++ :: else -> break od;
  m = 0
}

/* COMMIT was answered. */
inline tell() {
  m = 0;
  do
  :: m < MESSAGES ->
     if
     :: task[m].at == KEPT || (task[m].at == FAILED && task[m].permanent) -> task[m].outcome = row[KEY(m)].outcome; task[m].at = COPY
     :: task[m].at == FAILED && !task[m].permanent -> task[m].at = RELEASE
     :: task[m].at == OUT -> task[m].at = ALONE
     :: else
     fi;
     if :: task[m].claimed && task[m].at == ALONE && BREAK_FORGET -> row[KEY(m)].status = PROCESSING :: else fi;      /* BREAK_FORGET */
     must(row[KEY(m)].status != PROCESSING, NO_CLAIM_LEFT);
     task[m].claimed = 0;
     m++
  :: else -> break
  od;
  m = 0; batch = IDLE
}

/* COMMIT was not answered: who was to be settled asks the ledger, who was put off is done alone. */
inline wonder() {
  m = 0;
  do
  :: m < MESSAGES ->
     if
     :: task[m].at == KEPT || task[m].at == FAILED -> task[m].at = UNKNOWN
     :: task[m].at == OUT -> task[m].at = ALONE
     :: else
     fi;
     task[m].claimed = 0;
     orphan.verdict[m] = plan.verdict[m]; orphan.made[m] = plan.made[m];
     m++
  :: else -> break
  od;
  m = 0; batch = IDLE; orphan_there = 1;
  k = 0;
  do :: k < 3 -> if :: key_lock[k] == BATCH -> key_lock[k] = ORPHAN :: else fi; k++ :: else -> break od;
  k = 0
}

inline settle_batch() {
  collect();
  if
  :: any == 0 || cut -> scatter()
  :: else ->
     if
     :: true ->
        commit_all(BATCH, plan);
        if :: refused && !BREAK_COMMIT_PART -> scatter() :: refused && BREAK_COMMIT_PART -> tell() :: else -> tell() fi
     :: MAY_FAIL -> fault(); printf("> COMMIT is refused\n"); scatter()                  /* a deferred constraint of one of them */
     :: MAY_FAIL && !orphan_there -> fault(); printf("> COMMIT is not answered\n"); wonder()
     fi
  fi;
  any = 0; refused = 0; forget_verdicts()
}

/* resolve_commit, one run at a time. */
inline resolve(mm) {
  printf("> run %d: its COMMIT is looked for\n", mm);
  if
  :: BREAK_GUESS ->                                                                                            /* BREAK_GUESS */
     must(row[KEY(mm)].status == COMPLETED && row[KEY(mm)].by == mm, SUCCESS_MEANS_COMPLETED); leave(mm)
  :: BREAK_REDO && key_lock[KEY(mm)] != ORPHAN ->                                                              /* BREAK_REDO */
     effects[KEY(mm)]++; must(effects[KEY(mm)] <= 1, AT_MOST_ONE_EFFECT); leave(mm)
  :: !BREAK_GUESS && !BREAK_REDO && key_lock[KEY(mm)] != NOBODY -> leave(mm)                                   /* given up */
  :: !BREAK_GUESS && !BREAK_REDO && key_lock[KEY(mm)] == NOBODY ->
     if
     :: message[mm].place == ENDED && IS_SETTLED(row[KEY(mm)].status) && row[KEY(mm)].by == mm ->
        task[mm].outcome = row[KEY(mm)].outcome; task[mm].permanent = (row[KEY(mm)].status == FAILED_PERMANENT); task[mm].at = COPY
     :: else -> give_back(mm, 0); task[mm].at = RELEASE
     fi
  fi
}

inline take(mm) {
  message[mm].place = RUNNING; message[mm].holder = 0;
  ask_gate(mm, 0);
  task[mm].guarded = acquired;
  if
  :: any == 0 -> task[mm].at = WAITING
  :: any == 1 -> give_back(mm, 0); task[mm].guarded = 0
  :: any == 2 -> task[mm].guarded = 0
  fi;
  any = 0
}

#define EACH(condition, what) \
  :: atomic { 0 < MESSAGES && (condition(0)) -> what(0) } \
  :: atomic { 1 < MESSAGES && (condition(1)) -> what(1) } \
  :: atomic { 2 < MESSAGES && (condition(2)) -> what(2) }
#define IS_FREE(m) (message[m].place == AVAILABLE && task[m].at == AWAY)
#define IS_CURRENT(m) (task[m].at == CURRENT && !cut)
#define IS_UNKNOWN(m) (task[m].at == UNKNOWN && (key_lock[KEY(m)] == NOBODY || MAY_FAIL || BREAK_GUESS))
#define IS_COPY(m) (task[m].at == COPY)
#define IS_RELEASE(m) (task[m].at == RELEASE)
#define HAS_TURN (task[0].at == TURN || task[1].at == TURN || task[2].at == TURN)

inline at_unknown(mm) {
  if :: key_lock[KEY(mm)] != NOBODY && !BREAK_GUESS -> fault() :: else fi;
  resolve(mm)
}
inline at_copy(mm) {
  copy_to_gate(KEY(mm), (task[mm].permanent -> FAILED_PERMANENT : COMPLETED), task[mm].outcome);
  leave(mm)
}
inline at_release(mm) { release(mm, 0); leave(mm) }

inline put_out() {
  m = 0;
  do :: m < MESSAGES -> if :: task[m].at == TURN -> task[m].at = OUT :: else fi; m++ :: else -> break od;
  m = 0
}

proctype batches() {
end_idle:
  do
  EACH(IS_FREE, take)
  :: atomic { batch == IDLE && (task[0].at == WAITING || task[1].at == WAITING || task[2].at == WAITING) -> begin_batch() }
  :: atomic { batch == TURNS && HAS_TURN && !cut -> first_turn() }
  :: atomic { batch == TURNS && HAS_TURN && MAY_FAIL -> fault(); put_out() }             /* its time is over, or a drain */
  EACH(IS_CURRENT, end_turn)
  :: atomic { batch == HANDLER && cut -> scatter() }
  :: atomic { batch == TURNS && (!HAS_TURN || cut) -> settle_batch() }
  EACH(IS_UNKNOWN, at_unknown)
  EACH(IS_COPY, at_copy)
  EACH(IS_RELEASE, at_release)
  od
}

/* ================================================= one run in a transaction ===================================================== */

inline be_free(w) {
  if :: w == 0 && single[w].at != FREE && task[single[w].m].at == ALONE -> leave(single[w].m) :: else fi;
  single[w].at = FREE; single[w].m = 0; single[w].effect = 0; single[w].permanent = 0; single[w].guarded = 0
}

inline claim_one(w) {
  if
  :: IS_SETTLED(row[KEY(single[w].m)].status) ->                       /* ack_replay */
     if
     :: message[single[w].m].place != ENDED -> end_message(single[w].m, row[KEY(single[w].m)].status, row[KEY(single[w].m)].outcome)
     :: else
     fi;
     copy_to_gate(KEY(single[w].m), row[KEY(single[w].m)].status, row[KEY(single[w].m)].outcome);
     be_free(w)
  :: !IS_SETTLED(row[KEY(single[w].m)].status) && key_lock[KEY(single[w].m)] != NOBODY ->            /* BUSY */
     give_back(single[w].m, w); release(single[w].m, w); be_free(w)
  :: else -> key_lock[KEY(single[w].m)] = w; single[w].at = WORKS
  fi
}

inline work_alone(w) {
  if
  :: true -> single[w].effect = 1; single[w].at = COMPLETE
  :: MAY_FAIL -> fault(); message[single[w].m].errors++;
     if :: single[w].permanent = 0 :: single[w].permanent = 1 fi;
     single[w].at = FAIL
  fi
}

inline settle_alone(w) {
  how = (single[w].at == COMPLETE -> COMPLETED : (single[w].permanent -> FAILED_PERMANENT : FAILED_RETRYABLE));
  unlock(w);
  if
  :: message[single[w].m].place == ENDED -> release(single[w].m, w); be_free(w)             /* it is gone: rolled back */
  :: message[single[w].m].place != ENDED ->
     commit_one(single[w].m, how, single[w].effect);
     if
     :: IS_SETTLED(how) -> copy_to_gate(KEY(single[w].m), how, row[KEY(single[w].m)].outcome)
     :: else -> release(single[w].m, w)
     fi;
     be_free(w)
  fi;
  how = ABSENT
}

inline take_alone(w, mm) {
  message[mm].place = RUNNING; message[mm].holder = w;
  ask_gate(mm, w);
  single[w].guarded = acquired;
  if
  :: any == 0 -> single[w].at = POOL; single[w].m = mm
  :: any == 1 -> give_back(mm, w); single[w].guarded = 0
  :: any == 2 -> single[w].guarded = 0
  fi;
  any = 0
}

proctype alone(byte w) {
end_idle:
  do
  :: atomic { w == 0 && single[w].at == FREE && task[0].at == ALONE -> single[w].at = POOL; single[w].m = 0 }
  :: atomic { w == 0 && single[w].at == FREE && task[1].at == ALONE -> single[w].at = POOL; single[w].m = 1 }
  :: atomic { w == 0 && single[w].at == FREE && task[2].at == ALONE -> single[w].at = POOL; single[w].m = 2 }
  :: atomic { w == 1 && single[w].at == FREE && message[0].place == AVAILABLE -> take_alone(w, 0) }
  :: atomic { w == 1 && single[w].at == FREE && message[1].place == AVAILABLE -> take_alone(w, 1) }
  :: atomic { w == 1 && single[w].at == FREE && message[2].place == AVAILABLE -> take_alone(w, 2) }
  :: atomic { single[w].at == POOL -> claim_one(w) }
  :: atomic { single[w].at == WORKS -> work_alone(w) }
  :: atomic { single[w].at == COMPLETE || single[w].at == FAIL -> settle_alone(w) }
  od
}

/* ================================================= the world ==================================================================== */

#define NOBODY_HAS(x) (message[x].place == RUNNING && \
                       ((message[x].holder == 0 && task[x].at == AWAY) || \
                        (message[x].holder == 1 && !(single[1].at != FREE && single[1].m == (x)))))
inline come_again(mm) { message[mm].place = AVAILABLE; message[mm].holder = 0 }

proctype time_passes() {
end_waiting:
  do
  EACH(NOBODY_HAS, come_again)
  :: atomic { orphan_there ->
       if
       :: true -> commit_all(ORPHAN, orphan)
       :: true -> printf("> the lost COMMIT was never done\n"); unlock(ORPHAN)
       fi;
       orphan_there = 0; refused = 0; m = 0;
       do :: m < 3 -> orphan.verdict[m] = ABSENT; orphan.made[m] = 0; m++ :: else -> break od;
       m = 0
     }
  od
}

/* An entry's time ends when its holder is not there to renew it, or Valkey loses it. */
#define HELD(k) (gate[k].state == P && \
                 (gate[k].worker == 0 -> task[gate[k].message].at != AWAY : (single[1].at != FREE && single[1].m == gate[k].message)))
inline lose_entry(kk) {
  gate[kk].state = NONE; gate[kk].message = 0; gate[kk].worker = 0; gate[kk].outcome = 0;
  m = 0;
  do :: m < MESSAGES -> if :: KEY(m) == kk -> task[m].guarded = 0 :: else fi; m++ :: else -> break od;
  m = 0
}
#define MAY_VANISH(k) (gate[k].state != NONE && (VALKEY_FAULTS || (gate[k].state == P && !HELD(k))))

proctype valkey_forgets() {
end_waiting:
  do
  EACH(MAY_VANISH, lose_entry)
  od
}

inline crash(w) {
  printf("> worker %d is killed\n", w);
  unlock(w); be_free(w);
  if
  :: w == 0 ->
     unlock(BATCH); batch = IDLE; cut = 0;
     leave(0); leave(1); leave(2)
  :: else
  fi
}

inline discard(mm) { discards++; end_message(mm, DISCARDED, 0) }
#define MAY_DISCARD(m) (discards < OPERATOR && message[m].place != ENDED)
#define LEASE_MAY_END(m) (MAY_FAIL && message[m].place == RUNNING && message[m].holder == 0 && task[m].at != AWAY)
inline end_lease(mm) { fault(); come_again(mm) }

proctype trouble() {
end_quiet:
  do
  :: atomic { MAY_FAIL && (batch != IDLE || single[0].at != FREE) -> fault(); crash(0) }
  :: atomic { MAY_FAIL && OTHER_WORKER && single[1].at != FREE -> fault(); crash(1) }
  :: atomic { MAY_FAIL && batch != IDLE && !cut -> fault(); printf("> the batch's session is ended\n"); cut = 1; unlock(BATCH) }
  EACH(LEASE_MAY_END, end_lease)
  EACH(MAY_DISCARD, discard)
  od
}

init {
  atomic {
    c_code {
      MESSAGES = choose("MESSAGES"); DUPLICATE = choose("DUPLICATE"); FAULTS = choose("FAULTS"); OPERATOR = choose("OPERATOR");
      VALKEY_FAULTS = choose("VALKEY_FAULTS"); OTHER_WORKER = choose("OTHER_WORKER");
      BREAK_UNDONE = choose("BREAK_UNDONE"); BREAK_KEPT = choose("BREAK_KEPT"); BREAK_CHARGE = choose("BREAK_CHARGE");
      BREAK_FORGET = choose("BREAK_FORGET"); BREAK_COUNT = choose("BREAK_COUNT"); BREAK_TWICE = choose("BREAK_TWICE");
      BREAK_LOCK = choose("BREAK_LOCK"); BREAK_COPY = choose("BREAK_COPY"); BREAK_RELEASE = choose("BREAK_RELEASE");
      BREAK_GUESS = choose("BREAK_GUESS"); BREAK_REDO = choose("BREAK_REDO"); BREAK_COMMIT_PART = choose("BREAK_COMMIT_PART");
    };
    key[1] = 1; key[2] = 2;
    if :: DUPLICATE -> key[MESSAGES - 1] = 0 :: else fi;
    if :: MESSAGES < 3 -> message[2].place = ENDED :: else fi;
    run batches();
    run alone(0);
    run time_passes();
    run valkey_forgets();
    if :: OTHER_WORKER -> run alone(1) :: else fi;
    run trouble()
  };
  timeout -> must(ALL_ENDED, ALL_ENDS)
}

#ifdef LIVENESS
ltl ends { <> ALL_ENDED }
#endif
