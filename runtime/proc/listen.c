#include "proc/listen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/httpd_listen.h"

int listen_split(const char *text, char address[64]) {
  const char *colon = strrchr(text, ':');
  bool brackets = colon && text[0] == '[';

  if (colon)
    snprintf(address, 64, "%.*s", (int)(colon - text) - (brackets ? 2 : 0), text + brackets);
  else
    strcpy(address, "127.0.0.1");
  return atoi(colon ? colon + 1 : text);
}

int listen_open(const char *text, struct err *e) {
  char address[64];
  int port = listen_split(text, address);

  return httpd_listen(address, port, e);
}
