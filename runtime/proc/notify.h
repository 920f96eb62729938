/* notify: what a service manager wants to hear, in systemd's datagram protocol (man sd_notify(3), "Notes": "Standalone
 * Implementations"; WATCHDOG_USEC and WATCHDOG_PID: man sd_watchdog_enabled(3)).
 *
 * Without NOTIFY_SOCKET every call does nothing. A message that the manager does not take is lost, and nobody waits. */
#ifndef UMAVEZ_PROC_NOTIFY_H
#define UMAVEZ_PROC_NOTIFY_H

#include "base/err.h"

struct notify;

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and takes them out of the environment. Gives: notify_free. */
struct notify *notify_new(void);
void notify_free(struct notify *n);

/* "READY=1\nSTATUS=fine": assignments parted by newlines. False: nobody listens. */
bool notify_send(struct notify *n, const char *fmt, ...) PRINTF_LIKE(2, 3);
void notify_reloading(struct notify *n); /* RELOADING=1, with the time that systemd 253 and later demand */
int64_t notify_watchdog_ms(const struct notify *n); /* how often WATCHDOG=1 is due: half of what is allowed; 0: never */

#endif
