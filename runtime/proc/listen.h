/* listen: the setting http_listen as a listening socket. */
#ifndef UMAVEZ_PROC_LISTEN_H
#define UMAVEZ_PROC_LISTEN_H

#include "base/err.h"

/* "8080", "127.0.0.1:8080", "[::1]:8080"; conf has checked the form. Gives the port, and the address. */
int listen_split(const char *text, char address[64]);
/* Gives a listening descriptor, close-on-exec; -1 with *e. */
int listen_open(const char *text, struct err *e) MUST_CHECK;

#endif
