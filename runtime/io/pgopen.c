#include "io/pgopen.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "io/pgresult.h"

/* Ours in front of dbname may be overridden by the URL, those behind it override the URL. A silent peer is noticed after
 * 10 s of unacknowledged data, or 5 + 3 * 3 s of nothing at all. */
PGconn *pgopen_start(const char *url) {
  const char *keys[] = {"fallback_application_name", "keepalives_idle", "keepalives_interval", "keepalives_count",
                        "tcp_user_timeout", "dbname", "client_encoding", "target_session_attrs", NULL};
  const char *values[] = {"umavez", "5", "3", "3", "10000", *url ? url : NULL, "UTF8", "read-write", NULL};
  PGconn *pg = PQconnectStartParams(keys, values, 1);
  if (pg == NULL) bug("out of memory in libpq");
  PQsetErrorVerbosity(pg, PQERRORS_VERBOSE); /* the only way to learn the sqlstate of a refused start-up */
  return pg;
}

/* Masks "quoted" parts: all, or those that hold an '@' and so may be a piece of a password. */
static void mask_quoted(char *text, bool all) {
  for (char *open = strchr(text, '"'); open != NULL;) {
    char *close = strchr(open + 1, '"');
    if (close == NULL) close = open + strlen(open);
    bool option = open - text >= 7 && strncmp(open - 7, "option ", 7) == 0;
    if ((all && !option) || (open[1] != '@' && memchr(open, '@', (size_t)(close - open)) != NULL)) {
      for (char *p = open + 1; p < close; p++) *p = '*';
    }
    open = *close ? strchr(close + 1, '"') : NULL;
  }
}

/* "FATAL:  28P01: password …": takes the sqlstate out, whatever the language of the severity. */
static void take_sqlstate(struct err *e) {
  for (char *p = strchr(e->message, ':'); p != NULL; p = strchr(p + 1, ':')) {
    char *code = p + 1;
    while (*code == ' ') code++;
    int n = 0, digits = 0;
    for (; n < 5 && (isupper((unsigned char)code[n]) || isdigit((unsigned char)code[n])); n++) digits += !isupper((unsigned char)code[n]);
    if (n < 5 || digits == 0 || code[5] != ':') continue; /* "FATAL:" has no digit */
    memcpy(e->sqlstate, code, 5);
    e->sqlstate[5] = '\0';
    memmove(code, code + 7, strlen(code + 7) + 1);
    char *location = strstr(e->message, " LOCATION: ");
    if (location != NULL) *location = '\0';
    return;
  }
}

static const struct {
  const char *sqlstate; /* exact, or NULL */
  const char *text;     /* a part of libpq's own message, or NULL */
  enum err_class class;
  const char *code;
} reasons[] = {
  {"28P01", NULL, ERR_INPUT, "auth_failed"},
  {"28000", NULL, ERR_INPUT, "auth_failed"},
  {"42501", NULL, ERR_INPUT, "auth_failed"},
  {NULL, "no password supplied", ERR_INPUT, "auth_failed"},
  {"3D000", NULL, ERR_INPUT, "no_database"},
  {NULL, "session is read-only", ERR_ENV, "read_only"},
  {NULL, "server is in hot standby mode", ERR_ENV, "read_only"},
  {"53300", NULL, ERR_ENV, "too_many_connections"},
};

/* libpq refuses a bad URL itself, before it connects. */
static bool url_refused(const char *url, struct err *e) {
  char *text = NULL;
  if (strchr(url, '=') == NULL && strncmp(url, "postgres", 8) != 0) return false;
  PQconninfoOption *options = PQconninfoParse(url, &text);
  bool refused = options == NULL;
  if (refused) {
    err_set(e, ERR_INPUT, "bad_url", "%s", "");
    pgresult_one_line(e->message, sizeof e->message, text);
    mask_quoted(e->message, true);
    err_prefix(e, "the database URL is not valid");
  }
  PQconninfoFree(options);
  PQfreemem(text);
  return refused;
}

void pgopen_redact(const PGconn *pg, struct err *e) {
  const char *password = PQpass(pg);
  size_t n = password ? strlen(password) : 0;
  if (n < 3) return;
  for (char *p = strstr(e->message, password); p != NULL; p = strstr(p, password)) {
    memmove(p + 3, p + n, strlen(p + n) + 1);
    memcpy(p, "***", 3);
    p += 3;
  }
}

void pgopen_error(const char *url, const PGconn *pg, struct err *e) {
  if (url_refused(url, e)) return;
  err_set(e, ERR_ENV, "connect_failed", "%s", "");
  pgresult_one_line(e->message, sizeof e->message, PQerrorMessage(pg));
  bool invalid = strncmp(e->message, "invalid ", 8) == 0; /* an option's value */
  mask_quoted(e->message, invalid);
  take_sqlstate(e);
  pgopen_redact(pg, e);
  if (invalid) {
    e->class = ERR_INPUT;
    err_copy_text(e->code, sizeof e->code, "bad_url");
    return;
  }
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
    if (reasons[i].sqlstate != NULL && strcmp(reasons[i].sqlstate, e->sqlstate) != 0) continue;
    if (reasons[i].text != NULL && strstr(e->message, reasons[i].text) == NULL) continue;
    e->class = reasons[i].class;
    err_copy_text(e->code, sizeof e->code, reasons[i].code);
    return;
  }
}
