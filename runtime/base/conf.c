#include "base/conf.h"

#include "base/duration.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* ---- checks of strings: 0, or -1 with what was expected ---- */

static int check_any(const char *text, const char **expected) {
  (void)text;
  (void)expected;
  return 0;
}

static int check_not_empty(const char *text, const char **expected) {
  *expected = "a text that is not empty";
  return text[0] != '\0' ? 0 : -1;
}

/* Anything else with a scheme libpq would take for a database's name. */
static int check_database_url(const char *text, const char **expected) {
  *expected = "postgres://user:password@host:5432/database, or what libpq reads (host=… dbname=…)";
  if (strncmp(text, "postgres://", 11) == 0 || strncmp(text, "postgresql://", 13) == 0) return 0;
  return strstr(text, "://") == NULL || strchr(text, '=') != NULL ? 0 : -1;
}

static int check_valkey_url(const char *text, const char **expected) {
  *expected = "redis://host:port/db, unix:///path, or nothing";
  if (text[0] == '\0') return 0;
  if (strncmp(text, "redis://", 8) == 0 && text[8] != '\0') return 0;
  if (strncmp(text, "unix:///", 8) == 0 && text[8] != '\0') return 0;
  return -1;
}

/* Braces would move the hash tag of a cluster's keys. */
static int check_valkey_prefix(const char *text, const char **expected) {
  *expected = "1 to 64 letters, digits, '_', '-', '.' or ':'";
  size_t n = strlen(text);
  if (n == 0 || n > 64) return -1;
  return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:") == n ? 0 : -1;
}

/* Quoted names are left out on purpose: the text is spliced into statements by the migration. */
/* "8080", "127.0.0.1:8080", "[::1]:8080": a port of 0 to 65535 behind the last colon, if there is one. */
static int check_listen(const char *text, const char **expected) {
  *expected = "address:port, [v6 address]:port, a port, or nothing";
  if (text[0] == '\0') return 0;
  const char *colon = strrchr(text, ':');
  const char *port = colon != NULL ? colon + 1 : text;
  size_t n = strlen(port);
  if (n == 0 || n > 5 || strspn(port, "0123456789") != n || atoi(port) > 65535) return -1;
  if (colon == text) return -1;
  bool bracketed = text[0] == '[' && colon != NULL && colon[-1] == ']';
  return bracketed || memchr(text, ':', (size_t)(port - text) > 0 ? (size_t)(port - 1 - text) : 0) == NULL ? 0 : -1;
}

/* What may stand behind "Authorization: Bearer ", and cannot be guessed. */
static int check_metrics_token(const char *text, const char **expected) {
  *expected = "16 to 512 letters, digits, '-', '.', '_', '~', '+' or '/', or nothing";
  size_t n = strlen(text);
  if (n == 0) return 0;
  if (n < 16 || n > 512) return -1;
  return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/") == n ? 0 : -1;
}

/* One item of queues. */
static int check_queue(const char *text, const char **expected) {
  size_t name = strcspn(text, ":"), digits = text[name] ? strspn(text + name + 1, "0123456789") : 0;

  *expected = "names of queues parted by commas, each perhaps with a weight from 1 to 1000 (payments:6,mail:3,default)";
  if (name == 0) return -1;
  if (text[name] == '\0') return 0;
  if (digits == 0 || digits > 4 || text[name + 1 + digits] != '\0') return -1;
  int weight = atoi(text + name + 1);
  return weight >= 1 && weight <= 1000 ? 0 : -1;
}

/* As a browser writes it in the header Origin: nothing behind the host and port. */
static int check_origin(const char *text, const char **expected) {
  *expected = "http://host[:port] or https://host[:port] in lower case, without a path, or nothing";
  if (text[0] == '\0') return 0;
  size_t scheme = strncmp(text, "https://", 8) == 0 ? 8 : strncmp(text, "http://", 7) == 0 ? 7 : 0;
  const char *host = text + scheme;
  if (scheme == 0 || host[0] == '\0' || strlen(host) > 255) return -1;
  return strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789-.:[]") == strlen(host) ? 0 : -1;
}

static int check_table(const char *text, const char **expected) {
  *expected = "a table's name like public.tenants (lower-case letters, digits and '_')";
  bool start = true;
  int dots = 0;
  for (const char *p = text; *p != '\0'; p++) {
    bool letter = (*p >= 'a' && *p <= 'z') || *p == '_';
    if (*p == '.' && !start && dots == 0) {
      dots++;
      start = true;
    } else if (letter || (!start && *p >= '0' && *p <= '9')) {
      start = false;
    } else {
      return -1;
    }
  }
  return start ? -1 : 0;
}

/* ---- the table ---- */

#define RANGE(least, greatest) .min = least, .max = greatest
#define LIMIT_STRING(limit) .check = check_##limit
#define LIMIT_INT(limit) RANGE limit
#define LIMIT_DURATION(limit) RANGE limit
#define LIMIT_BOOL(limit) .values = NULL
#define LIMIT_LIST(limit) .check = check_##limit
#define LIMIT_ENUM(limit) .values = limit
#define MEMBER_STRING(name) name
#define MEMBER_INT(name) name
#define MEMBER_DURATION(name) name##_ms
#define MEMBER_BOOL(name) name
#define MEMBER_LIST(name) name
#define MEMBER_ENUM(name) name

static struct conf_option options[] = {
#define X(type_, name_, def_, limit, env_, doc_) \
  {.id = CONF_ID_##name_, .name = #name_, .type = CONF_##type_, .def = def_, .env = env_, .doc = doc_, \
   .offset = offsetof(struct conf, MEMBER_##type_(name_)), LIMIT_##type_(limit)},
    CONF_OPTIONS(X)
#undef X
};

static char env_names[CONF_ID_COUNT][48]; /* UMAVEZ_<NAME>, for every option */

static const char prefix[] = "UMAVEZ_";

/* Makes the environment variables' names that follow from the options' names. */
static void complete_table(void) {
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    char *to = env_names[i];
    if (*to != '\0') return;
    strcpy(to, prefix);
    to += strlen(prefix);
    for (const char *p = options[i].name; *p != '\0'; p++) *to++ = (char)toupper((unsigned char)*p);
    *to = '\0';
    if (options[i].env == NULL) options[i].env = env_names[i];
  }
}

const char *conf_type_name(enum conf_type t) {
  static const char *const names[] = {"string", "integer", "duration", "boolean", "list", "choice"};
  if ((unsigned)t > CONF_ENUM) bug("conf_type_name: %d", (int)t);
  return names[t];
}

int conf_each(int (*fn)(const struct conf_option *o, void *arg), void *arg) {
  complete_table();
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    int result = fn(&options[i], arg);
    if (result != 0) return result;
  }
  return 0;
}

static char folded(char c) { return c == '-' ? '_' : (char)tolower((unsigned char)c); }

static bool same_name(const char *a, const char *b) {
  while (*a != '\0' && (*a == '-' ? '_' : *a) == *b) a++, b++;
  return *a == '\0' && *b == '\0';
}

const struct conf_option *conf_find(const char *name) {
  complete_table();
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    if (same_name(name, options[i].name)) return &options[i];
  }
  return NULL;
}

/* Levenshtein's distance, with a swap of neighbours as one step (optimal string alignment). */
static int distance(const char *a, const char *b) {
  enum { MAX = 48 };
  int na = (int)strnlen(a, MAX), nb = (int)strnlen(b, MAX);
  int rows[3][MAX + 1];
  for (int j = 0; j <= nb; j++) rows[0][j] = j;
  for (int i = 1; i <= na; i++) {
    int *row = rows[i % 3], *above = rows[(i - 1) % 3], *above2 = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= nb; j++) {
      bool same = folded(a[i - 1]) == b[j - 1];
      int best = above[j - 1] + (same ? 0 : 1);
      if (above[j] + 1 < best) best = above[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      bool swapped = i > 1 && j > 1 && folded(a[i - 1]) == b[j - 2] && folded(a[i - 2]) == b[j - 1];
      if (swapped && above2[j - 2] + 1 < best) best = above2[j - 2] + 1;
      row[j] = best;
    }
  }
  return rows[na % 3][nb];
}

/* A name that was cut short is nearer than its distance says. */
static bool begins_with(const char *option, const char *name) {
  size_t n = 0;
  while (name[n] != '\0' && folded(name[n]) == option[n]) n++;
  return n >= 3 && name[n] == '\0';
}

const struct conf_option *conf_nearest(const char *name) {
  complete_table();
  const struct conf_option *nearest = NULL;
  int least = (int)strnlen(name, 48) / 2 + 1; /* half of it wrong is no slip of the pen */
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    int d = begins_with(options[i].name, name) ? 1 : distance(name, options[i].name);
    if (d < least) {
      least = d;
      nearest = &options[i];
    }
  }
  return nearest;
}

/* ---- values ---- */

static void *member(struct conf *c, const struct conf_option *o) { return (char *)c + o->offset; }

/* What a URL was is not said: it may hold a password. */
static int refuse(const struct conf_option *o, const char *source, const char *expected, const char *found,
                  struct err *e) {
  bool secret = o->id == CONF_ID_database_url || o->id == CONF_ID_valkey_url || o->id == CONF_ID_metrics_token;
  if (secret) return err_set(e, ERR_INPUT, "bad_option", "%s: %s: expected %s", source, o->name, expected);
  return err_set(e, ERR_INPUT, "bad_option", "%s: %s: expected %s, found \"%.60s\"", source, o->name, expected, found);
}

static int parse_int(const char *text, int64_t *value) {
  char *end;
  errno = 0;
  long long v = strtoll(text, &end, 10);
  bool digits = text[0] == '-' ? isdigit((unsigned char)text[1]) : isdigit((unsigned char)text[0]);
  if (!digits || *end != '\0' || errno != 0) return -1;
  *value = v;
  return 0;
}

static int set_int(int64_t *to, const struct conf_option *o, const char *text, const char *source, struct err *e) {
  int64_t v;
  if (parse_int(text, &v) != 0 || v < o->min || v > o->max) {
    char expected[80];
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, o->min, o->max);
    return refuse(o, source, expected, text, e);
  }
  *to = v;
  return 0;
}

static int set_duration(int64_t *to, const struct conf_option *o, const char *text, const char *source, struct err *e) {
  int64_t v;
  if (duration_parse(text, &v, e) != 0) return err_prefix(e, "%s: %s", source, o->name);
  if (v < o->min || v > o->max) {
    char least[32], greatest[32], expected[96];
    duration_format(o->min, least);
    duration_format(o->max, greatest);
    snprintf(expected, sizeof expected, "a duration from %s to %s", least, greatest);
    return refuse(o, source, expected, text, e);
  }
  *to = v;
  return 0;
}

static int set_bool(bool *to, const struct conf_option *o, const char *text, const char *source, struct err *e) {
  static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
  for (int i = 0; i < 4; i++) {
    if (strcmp(text, yes[i]) != 0 && strcmp(text, no[i]) != 0) continue;
    *to = strcmp(text, yes[i]) == 0;
    return 0;
  }
  return refuse(o, source, "true or false", text, e);
}

static int set_enum(int *to, const struct conf_option *o, const char *text, const char *source, struct err *e) {
  size_t n = strlen(text);
  const char *p = o->values;
  for (int index = 0;; index++) {
    size_t size = strcspn(p, "|");
    if (size == n && memcmp(p, text, n) == 0) {
      *to = index;
      return 0;
    }
    if (p[size] == '\0') break;
    p += size + 1;
  }
  char expected[96];
  snprintf(expected, sizeof expected, "one of %s", o->values);
  return refuse(o, source, expected, text, e);
}

static void free_list(struct conf_list *l) {
  for (int i = 0; i < l->n; i++) free(l->items[i]);
  free(l->items);
  *l = (struct conf_list){NULL, 0};
}

/* Items are trimmed; an empty one is a fault, an empty text an empty list. */
static int set_list(struct conf_list *to, const struct conf_option *o, const char *text, const char *source,
                    struct err *e) {
  struct conf_list l = {NULL, 0};
  const char *p = text + strspn(text, " \t");
  while (*p != '\0' || l.n > 0) {
    p += strspn(p, " \t");
    size_t size = strcspn(p, ","), item = size;
    while (item > 0 && (p[item - 1] == ' ' || p[item - 1] == '\t')) item--;
    if (item == 0) {
      free_list(&l);
      return refuse(o, source, "names parted by commas, none of them empty", text, e);
    }
    l.items = xrealloc(l.items, (size_t)(l.n + 1) * sizeof *l.items);
    l.items[l.n++] = xstrndup(p, item);
    const char *expected = NULL;
    if (o->check(l.items[l.n - 1], &expected) != 0) {
      int failed = refuse(o, source, expected, l.items[l.n - 1], e);
      free_list(&l);
      return failed;
    }
    if (p[size] == '\0') break;
    p += size + 1;
  }
  free_list(to);
  *to = l;
  return 0;
}

static int set_string(char **to, const struct conf_option *o, const char *text, const char *source, struct err *e) {
  const char *expected = NULL;
  if (o->check(text, &expected) != 0) return refuse(o, source, expected, text, e);
  free(*to);
  *to = xstrdup(text);
  return 0;
}

static int set_value(struct conf *c, const struct conf_option *o, const char *text, const char *source, struct err *e) {
  void *to = member(c, o);
  switch (o->type) {
    case CONF_STRING: return set_string(to, o, text, source, e);
    case CONF_INT: return set_int(to, o, text, source, e);
    case CONF_DURATION: return set_duration(to, o, text, source, e);
    case CONF_BOOL: return set_bool(to, o, text, source, e);
    case CONF_LIST: return set_list(to, o, text, source, e);
    case CONF_ENUM: return set_enum(to, o, text, source, e);
  }
  bug("conf: type %d", (int)o->type);
}

void conf_init(struct conf *c) {
  complete_table();
  memset(c, 0, sizeof *c);
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    struct err e = ERR_INIT;
    if (set_value(c, &options[i], options[i].def, "default", &e) != 0) bug("conf: %s", e.message);
  }
}

void conf_fini(struct conf *c) {
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    if (options[i].type == CONF_STRING) free(*(char **)member(c, &options[i]));
    if (options[i].type == CONF_LIST) free_list(member(c, &options[i]));
    free(c->source_[i]);
  }
  memset(c, 0, sizeof *c);
}

int conf_set(struct conf *c, const char *name, const char *text, const char *source, struct err *e) {
  const struct conf_option *o = conf_find(name);
  if (o == NULL) {
    const struct conf_option *near = conf_nearest(name);
    return err_set(e, ERR_INPUT, "unknown_option", "%s: unknown option %.60s%s%s%s", source, name,
                   near != NULL ? "; did you mean " : "", near != NULL ? near->name : "", near != NULL ? "?" : "");
  }
  if (set_value(c, o, text, source, e) != 0) return -1;
  char **from = &c->source_[o->id];
  free(*from);
  *from = xstrdup(source);
  return 0;
}

/* Variables of ours that are no settings: where things lie, and what tests and tools go by. */
static bool is_no_setting(const char *name, size_t n) {
  static const char *const others[] = {"CONFIG", "LUA_DIR", "BIN", "LONG",
#ifdef UMAVEZ_FAILPOINTS
                                       "FAILPOINTS",
#endif
  };
  if (n >= 5 && memcmp(name, "TEST_", 5) == 0) return true;
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    if (strlen(others[i]) == n && memcmp(others[i], name, n) == 0) return true;
  }
  return false;
}

static int check_variable(const char *variable, size_t n, struct err *e) {
  size_t skip = strlen(prefix);
  if (n < skip || memcmp(variable, prefix, skip) != 0 || is_no_setting(variable + skip, n - skip)) return 0;
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    if (strlen(env_names[i]) == n && memcmp(env_names[i], variable, n) == 0) return 0;
  }
  char name[64];
  snprintf(name, sizeof name, "%.*s", n - skip < 60 ? (int)(n - skip) : 60, variable + skip);
  const struct conf_option *near = conf_nearest(name);
  return err_set(e, ERR_INPUT, "unknown_option", "environment: unknown variable %s%s%s%s%s", prefix, name,
                 near != NULL ? "; did you mean " : "", near != NULL ? near->env : "", near != NULL ? "?" : "");
}

static int load_variable(struct conf *c, const struct conf_option *o, const char *variable, struct err *e) {
  const char *text = getenv(variable);
  if (text == NULL || text[0] == '\0') return 0;
  char source[80];
  snprintf(source, sizeof source, "environment variable %s", variable);
  return conf_set(c, o->name, text, source, e);
}

int conf_load_env(struct conf *c, struct err *e) {
  complete_table();
  for (char **p = environ; *p != NULL; p++) {
    if (check_variable(*p, strcspn(*p, "="), e) != 0) return -1;
  }
  for (int i = 0; i < CONF_ID_COUNT; i++) {
    if (load_variable(c, &options[i], options[i].env, e) != 0) return -1;
    if (options[i].env != env_names[i] && load_variable(c, &options[i], env_names[i], e) != 0) return -1;
  }
  return 0;
}

const char *conf_source(const struct conf *c, const struct conf_option *o) {
  const char *source = c->source_[o->id];
  return source != NULL ? source : "default";
}

static void put_choice(struct buf *out, const char *values, int index) {
  for (; index > 0; index--) values += strcspn(values, "|") + 1;
  buf_append(out, values, strcspn(values, "|"));
}

void conf_get(const struct conf *c, const struct conf_option *o, struct buf *out) {
  const void *from = (const char *)c + o->offset;
  char text[32];
  switch (o->type) {
    case CONF_STRING: buf_puts(out, *(char *const *)from); return;
    case CONF_INT: buf_printf(out, "%" PRId64, *(const int64_t *)from); return;
    case CONF_BOOL: buf_puts(out, *(const bool *)from ? "true" : "false"); return;
    case CONF_ENUM: put_choice(out, o->values, *(const int *)from); return;
    case CONF_DURATION:
      duration_format(*(const int64_t *)from, text);
      buf_puts(out, text);
      return;
    case CONF_LIST:
      for (int i = 0; i < ((const struct conf_list *)from)->n; i++) {
        buf_printf(out, "%s%s", i > 0 ? "," : "", ((const struct conf_list *)from)->items[i]);
      }
      return;
  }
}

/* The value of a password word ends at white space or '&', or at its closing quote; libpq's \' escape is honoured. */
static const char *skip_password(const char *p) {
  if (*p != '\'') return p + strcspn(p, " \t\n&");
  for (p++; *p != '\0' && *p != '\''; p++) {
    if (*p == '\\' && p[1] != '\0') p++;
  }
  return *p == '\'' ? p + 1 : p;
}

void conf_redact_url(const char *url, struct buf *out) {
  const char *scheme = strstr(url, "://");
  const char *p = url;
  if (scheme != NULL) {
    const char *start = scheme + 3, *end = start + strcspn(start, "/?#");
    const char *at = memrchr(start, '@', (size_t)(end - start));
    const char *colon = at != NULL ? memchr(start, ':', (size_t)(at - start)) : NULL;
    if (colon != NULL) {
      buf_append(out, url, (size_t)(colon + 1 - url));
      buf_puts(out, "***");
      p = at;
    }
  }
  while (*p != '\0') {
    /* sslpassword ends in it */
    const char *value = strncasecmp(p, "password", 8) == 0 ? p + 8 + strspn(p + 8, " \t") : NULL;
    if (value == NULL || *value != '=') {
      buf_putc(out, *p++);
      continue;
    }
    value += 1 + strspn(value + 1, " \t");
    buf_append(out, p, (size_t)(value - p));
    buf_puts(out, "***");
    p = skip_password(value);
  }
}
