/* failpoint: named places where a test stops, kills or disconnects the process. Only in the build of `make failpoints`
 * (-DUMAVEZ_FAILPOINTS): elsewhere FAILPOINT and its arguments are nothing.
 *
 * Armed by the environment, read at the first hit:
 *
 *     UMAVEZ_FAILPOINTS=socket=PATH,NAME[@TASK]:ACTION[:NTH],…
 *
 * Each armed point acts once, at its NTH hit (default 1), counted over the hits of TASK's runs when a task is given. Actions:
 *
 *     pause             tells the test, then does what it answers. The loop is blocked meanwhile, as in a real stop
 *     kill, stop        SIGKILL, SIGSTOP to itself
 *     cut-pg-read       the connection that the point is about: nothing more comes in, what has come unread is lost
 *     cut-pg-write      nothing more goes out
 *     cut-valkey-read, cut-valkey-write    the same for Valkey's connection
 *     sleep=MS
 *
 * pause connects to the unix socket PATH, writes "NAME PID TASK\n" and reads one line: `go`, or another action. An end
 * of the connection without an answer is `go`.
 *
 * To add a point: a line below, in the order of the names; FAILPOINT where it happens (a handler of the tests calls the
 * global function `failpoint(name)`); a row in tests/chaos/. */
#ifndef UMAVEZ_BASE_FAILPOINT_H
#define UMAVEZ_BASE_FAILPOINT_H

/* X(enumerator, name, where it stands) */
#define FAILPOINTS(X)                                                                                        \
  X(ACK_SENT, "ack-sent", "a replay's acknowledgement is sent, its answer not read")                         \
  X(ANSWER_BEFORE, "answer-before", "a request is settled, its HTTP answer not yet written")                 \
  X(CLAIM_ANSWERED, "claim-answered", "the key is claimed, the handler not yet started")                     \
  X(COMMIT_ANSWERED, "commit-answered", "COMMIT is answered, nothing copied to Valkey")                      \
  X(COMMIT_SENT, "commit-sent", "completion and COMMIT are sent, no answer read")                            \
  X(COMPLETION_SENT, "completion-sent", "the completion is sent, COMMIT is not")                             \
  X(COPY_SENT, "copy-sent", "the copy of an outcome is sent to Valkey, its answer not read")                 \
  X(EFFECT_AFTER, "effect-after", "in a handler, after its last effect")                                     \
  X(EFFECT_BEFORE, "effect-before", "in a handler, before its first effect")                                 \
  X(EFFECT_BETWEEN, "effect-between", "in a handler, between two effects")                                   \
  X(FAILURE_SENT, "failure-sent", "a failure's record and COMMIT are sent, no answer read")                  \
  X(GATE_BEFORE, "gate-before", "nothing has been asked of Valkey")                                          \
  X(GATE_SENT, "gate-sent", "Valkey has been asked for the key, its answer not read")                        \
  X(LOST_SENT, "lost-sent", "a failure's record is sent through a second transaction, its answer not read")  \
  X(RENEW_SENT, "renew-sent", "a renewal of leases is sent, its answer not read")                            \
  X(STATEMENT_SENT, "statement-sent", "a handler's statement is sent, its answer not read")

#ifdef UMAVEZ_FAILPOINTS

#define FAILPOINT_ENUM(id, name, doc) FAILPOINT_##id,
enum failpoint { FAILPOINTS(FAILPOINT_ENUM) FAILPOINT_COUNT };
#undef FAILPOINT_ENUM

/* task: whose run this is. pg: the PostgreSQL connection that the point is about (pgconn_fd); -1: none. */
#define FAILPOINT(id, task, pg) failpoint_hit(FAILPOINT_##id, task, pg)
void failpoint_hit(enum failpoint point, const char *task, int pg);
/* The descriptor of Valkey's connection; -1: there is none. */
#define FAILPOINT_VALKEY(fd) failpoint_valkey(fd)
void failpoint_valkey(int fd);
/* -1: no point has this name. */
int failpoint_find(const char *name);

#else
#define FAILPOINT(id, task, pg) ((void)0)
#define FAILPOINT_VALKEY(fd) ((void)0)
#endif
#endif
