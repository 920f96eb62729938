/* valkey: one Valkey (or Redis) connection with deadlines, reconnect and a circuit breaker; the only module that uses hiredis.
 *
 * Life: valkey_new → commands → valkey_free. A server that is absent at the start is as good as one that goes away later.
 *
 * The contract of a command: `done` is called exactly once, at the loop's safe point, never inside valkey_command, in the
 * order of the commands as far as they are answered by the server (an EVALSHA that needs EVAL comes later). It gets a reply,
 * or NULL: unavailable. NULL says nothing about whether the server has run the command.
 *
 * Breaker:
 *            all answered (AUTH, SELECT, then a write as probe)
 *   OPEN ◄──────────────────────────────────────────────────────► CLOSED
 *            a deadline passed, connection lost, or an error reply of the server's state (see valkey_reply_unavailable)
 * OPEN: every command is answered NULL without being sent; probes go out with a jittered backoff, 100 ms to 2 s, each on a
 * new connection. Opening drops the connection and answers all that is pending with NULL, so a late reply reaches nobody.
 * After a short life of the closed state the backoff goes on where it was, so that a flapping server is not hammered, nor
 * the log. One log line per change of state.
 *
 * A deadline runs from the moment a command is handed to the socket, and is prolonged, up to four times the time-out in all,
 * while replies keep coming. A loop that was busy longer than that reads what has arrived before it judges.
 *
 * Names are resolved by the system's resolver, which blocks the loop: use addresses, unix sockets, or a local cache.
 */
#ifndef UMAVEZ_IO_VALKEY_H
#define UMAVEZ_IO_VALKEY_H

#include "base/err.h"
#include "io/loop.h"

struct valkey;

enum valkey_type { V_NIL, V_STRING, V_INT, V_ARRAY, V_ERROR, V_STATUS };

struct valkey_reply {
  enum valkey_type type;
  const char *str; /* V_STRING, V_ERROR, V_STATUS: NUL ended, may hold NUL inside; else NULL */
  size_t len;
  int64_t integer;                      /* V_INT */
  size_t elements;                      /* V_ARRAY */
  const struct valkey_reply *element;   /* V_ARRAY: that many, in place */
};

/* url: redis://[[user]:password@]host[:port][/db] (valkey:// is the same), unix:///path[?db=N&user=U&password=P]; parts are
 * percent-decoded. rediss:// is refused: TLS is not built in. prefix names the probe's keys, "<prefix>:probe:<random>", which
 * live one second. NULL with *e (ERR_INPUT, bad_valkey_url; never the password) when the URL is wrong. Gives: valkey_free. */
struct valkey *valkey_new(struct loop *l, const char *url, int64_t timeout_ms, const char *prefix, struct err *e) MUST_CHECK;
void valkey_free(struct valkey *v); /* takes; pending commands are answered NULL at the next safe point; v may be NULL */

typedef void valkey_done(void *arg, const struct valkey_reply *r); /* borrows r for the call; NULL: unavailable */

/* Copies the arguments. lens may be NULL: all are NUL ended. done may be NULL. */
void valkey_command(struct valkey *v, int argc, const char *const *argv, const size_t *lens, valkey_done *done, void *arg);

/* A server-side script. Static data: {.text = "…"}; sha is filled in on first use. */
struct valkey_script {
  const char *text;
  char sha[41];
};
/* EVALSHA, and EVAL when the server doesn't know the script. keys_and_args: nkeys keys, then the arguments, n in all. */
void valkey_eval(struct valkey *v, struct valkey_script *s, int nkeys, int n, const char *const *keys_and_args,
                 const size_t *lens, valkey_done *done, void *arg);

bool valkey_up(const struct valkey *v); /* the breaker is closed */
/* Error replies about the server, not about the command: they open the breaker and the command gets NULL. */
bool valkey_reply_unavailable(const char *error, size_t len);
/* One hook, called at the safe point after each change; why borrows, NULL when up. */
void valkey_on_state(struct valkey *v, void (*cb)(void *arg, bool up, const char *why), void *arg);

struct valkey_stats {
  int64_t commands;    /* handed in */
  int64_t unavailable; /* of them answered NULL */
  int64_t timeouts;    /* deadlines missed */
  int64_t opened;      /* times the breaker opened */
  int64_t probes;      /* connections tried */
};
struct valkey_stats valkey_stats(const struct valkey *v);

#ifdef UMAVEZ_FAILPOINTS
int valkey_flush(struct valkey *v); /* sends what is queued, at once; gives -1 (no connection of PostgreSQL's) */
#endif

#endif
