/* httpd_listen: the listening socket; for io/httpd.c, and for a supervisor whose children inherit it. */
#ifndef UMAVEZ_IO_HTTPD_LISTEN_H
#define UMAVEZ_IO_HTTPD_LISTEN_H

#include "base/err.h"

/* Gives a listening, non-blocking descriptor; -1 with *e (ERR_INPUT address, ERR_ENV listen_failed). */
int httpd_listen(const char *address, int port, struct err *e) MUST_CHECK;
int httpd_listen_port(int fd);
bool httpd_listen_is_ipv6(int fd);

#endif
