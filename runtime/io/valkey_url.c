#include "io/valkey_url.h"

#include <stdlib.h>
#include <string.h>

static int refuse(struct err *e, const char *what) {
  return err_set(e, ERR_INPUT, "bad_valkey_url",
                 "the Valkey URL %s; it looks like redis://:password@host:6379/0 or unix:///run/valkey/valkey.sock?db=0", what);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* Gives the decoded text, or NULL: a bad escape, or NUL inside. */
static char *percent_decode(const char *from, size_t n) {
  char *out = xmalloc(n + 1);
  size_t len = 0;
  for (size_t i = 0; i < n; i++) {
    char c = from[i];
    if (c == '%') {
      int hi = i + 2 < n ? hex_digit(from[i + 1]) : -1;
      int lo = hi >= 0 ? hex_digit(from[i + 2]) : -1;
      if (lo < 0 || (hi == 0 && lo == 0)) {
        free(out);
        return NULL;
      }
      c = (char)(hi * 16 + lo);
      i += 2;
    }
    out[len++] = c;
  }
  out[len] = '\0';
  return out;
}

static bool parse_int(const char *from, size_t n, int max, int *out) {
  int value = 0;
  if (n == 0 || n > 9) return false;
  for (size_t i = 0; i < n; i++) {
    if (from[i] < '0' || from[i] > '9') return false;
    value = value * 10 + (from[i] - '0');
  }
  if (value > max) return false;
  *out = value;
  return true;
}

static const char *find_last(const char *from, const char *end, char c) {
  for (const char *p = end; p > from; p--) {
    if (p[-1] == c) return p - 1;
  }
  return NULL;
}

/* [[user]:password@]host[:port]; an IPv6 address stands in brackets. */
static int parse_authority(const char *from, const char *end, struct valkey_url *u, struct err *e) {
  const char *at = find_last(from, end, '@');
  if (at != NULL) {
    const char *colon = memchr(from, ':', (size_t)(at - from));
    const char *user_end = colon ? colon : at;
    if (user_end > from && (u->user = percent_decode(from, (size_t)(user_end - from))) == NULL)
      return refuse(e, "has a bad %-escape in the user");
    if (colon && colon + 1 < at && (u->password = percent_decode(colon + 1, (size_t)(at - colon - 1))) == NULL)
      return refuse(e, "has a bad %-escape in the password");
    if (u->user != NULL && u->password == NULL) return refuse(e, "names a user without a password");
    from = at + 1;
  }
  const char *host_end = end, *port = NULL;
  if (from < end && *from == '[') {
    const char *close = memchr(from, ']', (size_t)(end - from));
    if (close == NULL) return refuse(e, "has no ] behind its IPv6 address");
    if (close + 1 < end) {
      if (close[1] != ':') return refuse(e, "has something other than a port behind its IPv6 address");
      port = close + 2;
    }
    from++;
    host_end = close;
  } else if ((port = find_last(from, end, ':')) != NULL) {
    host_end = port++;
  }
  if (port != NULL && (!parse_int(port, (size_t)(end - port), 65535, &u->port) || u->port == 0))
    return refuse(e, "has a port that is not a number from 1 to 65535");
  u->host = host_end > from ? percent_decode(from, (size_t)(host_end - from)) : xstrdup("127.0.0.1");
  return u->host ? 0 : refuse(e, "has a bad %-escape in the host");
}

/* db=N&user=U&password=P */
static int parse_query(const char *from, struct valkey_url *u, struct err *e) {
  while (*from) {
    const char *end = strchr(from, '&');
    if (end == NULL) end = from + strlen(from);
    const char *eq = memchr(from, '=', (size_t)(end - from));
    if (eq == NULL) return refuse(e, "has an option without a value");
    size_t name = (size_t)(eq - from), len = (size_t)(end - eq - 1);
    if (name == 2 && memcmp(from, "db", 2) == 0) {
      if (!parse_int(eq + 1, len, 1000000, &u->db)) return refuse(e, "has a database that is not a number");
    } else if (name == 4 && memcmp(from, "user", 4) == 0) {
      free(u->user);
      if ((u->user = percent_decode(eq + 1, len)) == NULL) return refuse(e, "has a bad %-escape in the user");
    } else if (name == 8 && memcmp(from, "password", 8) == 0) {
      free(u->password);
      if ((u->password = percent_decode(eq + 1, len)) == NULL) return refuse(e, "has a bad %-escape in the password");
    } else {
      return refuse(e, "has an option other than db, user and password");
    }
    from = *end ? end + 1 : end;
  }
  if (u->user != NULL && u->password == NULL) return refuse(e, "names a user without a password");
  return 0;
}

static int parse(const char *text, struct valkey_url *u, struct err *e) {
  const char *rest = strstr(text, "://");
  if (rest == NULL) return refuse(e, "has no scheme");
  size_t scheme = (size_t)(rest - text);
  rest += 3;
  const char *query = strchr(rest, '?');
  const char *end = query ? query : rest + strlen(rest);
  if (scheme == 4 && memcmp(text, "unix", 4) == 0) {
    if (*rest != '/') return refuse(e, "has no absolute path");
    if ((u->path = percent_decode(rest, (size_t)(end - rest))) == NULL) return refuse(e, "has a bad %-escape in the path");
    if (strlen(u->path) > 107) return refuse(e, "has a path that is too long for a unix socket");
  } else if ((scheme == 5 && memcmp(text, "redis", 5) == 0) || (scheme == 6 && memcmp(text, "valkey", 6) == 0)) {
    const char *slash = find_last(rest, end, '/');
    if (slash != NULL && find_last(slash, end, '@') != NULL) slash = NULL; /* inside a password */
    if (slash != NULL && slash + 1 < end && !parse_int(slash + 1, (size_t)(end - slash - 1), 1000000, &u->db))
      return refuse(e, "has a database that is not a number");
    if (parse_authority(rest, slash ? slash : end, u, e) != 0) return -1;
  } else if ((scheme == 6 && memcmp(text, "rediss", 6) == 0) || (scheme == 7 && memcmp(text, "valkeys", 7) == 0)) {
    return refuse(e, "asks for TLS, which is not built in: use redis:// in a private network, a unix socket, or a TLS tunnel");
  } else {
    return refuse(e, "has an unknown scheme");
  }
  if (query != NULL && parse_query(query + 1, u, e) != 0) return -1;
  u->shown = u->path ? xasprintf("unix://%s?db=%d", u->path, u->db) : xasprintf("redis://%s:%d/%d", u->host, u->port, u->db);
  return 0;
}

int valkey_url_parse(const char *text, struct valkey_url *u, struct err *e) {
  struct valkey_url parsed = {.port = 6379};
  if (parse(text, &parsed, e) != 0) {
    valkey_url_fini(&parsed);
    return -1;
  }
  *u = parsed;
  return 0;
}

void valkey_url_fini(struct valkey_url *u) {
  free(u->host);
  free(u->path);
  free(u->user);
  free(u->password);
  free(u->shown);
  *u = (struct valkey_url){0};
}
