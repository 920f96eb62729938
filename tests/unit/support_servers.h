/* support_servers: throwaway PostgreSQL and Valkey servers on unix sockets, a cutting proxy, and waiting without sleeping.
 *
 * The build links a test with its own file only: include support_servers.c once, instead of this header, in the test.
 * Everything lives under one temporary directory per process; support_cleanup (or exit) ends the servers it started, by
 * their process ids, and removes it. Servers run as postgres when the test is root.
 */
#ifndef UMAVEZ_TESTS_SUPPORT_SERVERS_H
#define UMAVEZ_TESTS_SUPPORT_SERVERS_H

#include <sys/types.h>

#include "base/err.h"
#include "io/loop.h"

struct server {
  char dir[128];   /* data, log, sockets */
  char socket[160];/* Valkey: its path; PostgreSQL: the directory */
  char url[256];
  pid_t pid;       /* 0: not running */
  int port;        /* PostgreSQL: part of the socket's name */
};

void pg_start(struct server *s);                  /* initdb on the first call, then starts and waits until it answers */
void pg_stop(struct server *s, const char *mode); /* "fast", "immediate", or "kill": SIGKILL to all its processes */
void pg_psql(struct server *s, const char *sql);  /* runs it and checks that it worked */
void server_signal_all(struct server *s, int sig); /* to it and its children */

void valkey_start(struct server *s, const char *const *extra); /* NULL ended options, may be NULL */
void valkey_stop(struct server *s);                            /* SIGKILL */
/* One command by a blocking connection of the test's own; gives the reply as text (free). */
char *valkey_ask(struct server *s, int argc, const char *const *argv);

/* A proxy on a unix socket in a child process: passes octets both ways between its clients and the target. */
struct proxy {
  char socket[160];
  pid_t pid;
};
void proxy_start(struct proxy *p, const char *path, const char *target);
void proxy_stop(struct proxy *p); /* cuts all connections */

/* Runs the loop until *flag >= n; fails the test after limit_ms. */
#define until(loop, flag, n, limit_ms) until_at(loop, &(flag), n, limit_ms, #flag, __FILE__, __LINE__)
void until_at(struct loop *l, const volatile int *flag, int n, int limit_ms, const char *what, const char *file, int line);
int64_t wall_ms(void);
void support_cleanup(void);

#endif
