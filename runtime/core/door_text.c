#include "core/door_text.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int door_text_wait_s(const char *query) {
  char *end;
  long n;

  if (!query || !*query) return 0;
  if (strncmp(query, "wait=", 5) != 0 || query[5] < '0' || query[5] > '9') return -1;
  n = strtol(query + 5, &end, 10);
  return *end == 0 && n <= DOOR_WAIT_MAX_S ? (int)n : -1;
}

bool door_text_is_traceparent(const char *s) {
  static const char form[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";

  if (strlen(s) != sizeof form - 1) return false;
  for (size_t i = 0; form[i]; i++)
    if (form[i] == '-' ? s[i] != '-' : !strchr("0123456789abcdef", s[i])) return false;
  return true;
}

bool door_text_is_json(const char *type) {
  size_t n = type ? strcspn(type, "; \t") : 0;

  if (n == 16 && strncasecmp(type, "application/json", n) == 0) return true;
  return n > 17 && strncasecmp(type, "application/", 12) == 0 && strncasecmp(type + n - 5, "+json", 5) == 0;
}
