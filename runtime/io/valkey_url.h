/* valkey_url: the parts of a Valkey URL; private to valkey. */
#ifndef UMAVEZ_IO_VALKEY_URL_H
#define UMAVEZ_IO_VALKEY_URL_H

#include "base/err.h"

struct valkey_url {
  char *host;     /* NULL: path counts */
  int port;
  char *path;     /* of a unix socket */
  char *user;     /* NULL: none */
  char *password; /* NULL: none */
  int db;
  char *shown;    /* the URL without its password, for logs */
};

int valkey_url_parse(const char *text, struct valkey_url *u, struct err *e) MUST_CHECK; /* fills *u only on success */
void valkey_url_fini(struct valkey_url *u);

#endif
