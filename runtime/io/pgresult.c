#include "io/pgresult.h"

#include <stdlib.h>
#include <string.h>

static const struct err no_error = ERR_INIT;

void pgresult_one_line(char *dst, size_t size, const char *text) {
  char *line = xstrdup(text ? text : "");
  size_t n = 0;
  for (const char *p = line; *p; p++) {
    bool blank = *p == ' ' || *p == '\n' || *p == '\t' || *p == '\r';
    if (!blank) line[n++] = *p;
    else if (n > 0 && line[n - 1] != ' ') line[n++] = ' ';
  }
  while (n > 0 && line[n - 1] == ' ') n--;
  line[n] = '\0';
  err_copy_text(dst, size, line);
  free(line);
}

static void copy_field(char *dst, size_t size, const PGresult *res, int field) {
  const char *text = PQresultErrorField(res, field);
  err_copy_text(dst, size, text ? text : "");
}

bool pgresult_fatal(const PGresult *res) {
  const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
  return severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
}

void pgresult_error(const PGresult *res, struct err *e) {
  const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
  const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
  if (message == NULL || *message == '\0') message = PQresultErrorMessage(res);
  if (pgresult_fatal(res) || sqlstate == NULL) err_set(e, ERR_ENV, "connection_lost", "%s", "");
  else err_set(e, ERR_SQL, "sql", "%s", "");
  pgresult_one_line(e->message, sizeof e->message, message);
  err_copy_text(e->sqlstate, sizeof e->sqlstate, sqlstate ? sqlstate : "08006");
  copy_field(e->constraint, sizeof e->constraint, res, PG_DIAG_CONSTRAINT_NAME);
  copy_field(e->detail, sizeof e->detail, res, PG_DIAG_MESSAGE_DETAIL);
}

struct pgresult *pgresult_take(PGresult *res) {
  struct pgresult *r = xcalloc(1, sizeof *r);
  r->res = res;
  switch (PQresultStatus(res)) {
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
    case PGRES_EMPTY_QUERY:
      return r;
    case PGRES_PIPELINE_ABORTED:
      r->err = xcalloc(1, sizeof *r->err);
      err_set(r->err, ERR_CANCELLED, "skipped", "skipped after an error in the same group");
      return r;
    default:
      r->err = xcalloc(1, sizeof *r->err);
      pgresult_error(res, r->err);
      return r;
  }
}

struct pgresult *pgresult_failed(const struct err *e) {
  struct pgresult *r = xcalloc(1, sizeof *r);
  r->err = xmemdup(e, sizeof *e);
  return r;
}

bool pgresult_is_state(const struct pgresult *r, const char *sqlstate) {
  return r->err != NULL && strcmp(r->err->sqlstate, sqlstate) == 0;
}

bool pgresult_from_function(const struct pgresult *r, const char *function) {
  const char *f = r->res ? PQresultErrorField(r->res, PG_DIAG_SOURCE_FUNCTION) : NULL;
  return f != NULL && strcmp(f, function) == 0;
}

void pgresult_reclass(struct pgresult *r, enum err_class c, const char *code) {
  if (r->err == NULL) bug("a result that is ok has no error to reclass");
  r->err->class = c;
  err_copy_text(r->err->code, sizeof r->err->code, code);
}

bool pgresult_ok(const struct pgresult *r) { return r->err == NULL; }

const struct err *pgresult_err(const struct pgresult *r) { return r->err ? r->err : &no_error; }

int pgresult_rows(const struct pgresult *r) { return r->res ? PQntuples(r->res) : 0; }

int pgresult_columns(const struct pgresult *r) { return r->res ? PQnfields(r->res) : 0; }

/* libpq would answer a place that is not there with NULL, and with a notice to the receiver of a connection that may be gone. */
static bool has_column(const struct pgresult *r, int col) { return col >= 0 && col < pgresult_columns(r); }

static bool has_value(const struct pgresult *r, int row, int col) {
  return row >= 0 && row < pgresult_rows(r) && has_column(r, col);
}

const char *pgresult_value(const struct pgresult *r, int row, int col) {
  return has_value(r, row, col) ? PQgetvalue(r->res, row, col) : "";
}

int pgresult_length(const struct pgresult *r, int row, int col) {
  return has_value(r, row, col) ? PQgetlength(r->res, row, col) : 0;
}

bool pgresult_null(const struct pgresult *r, int row, int col) {
  return !has_value(r, row, col) || PQgetisnull(r->res, row, col);
}

const char *pgresult_column(const struct pgresult *r, int col) { return has_column(r, col) ? PQfname(r->res, col) : ""; }

int pgresult_column_index(const struct pgresult *r, const char *name) {
  for (int i = 0; i < pgresult_columns(r); i++) {
    if (strcmp(PQfname(r->res, i), name) == 0) return i;
  }
  return -1;
}

unsigned pgresult_type(const struct pgresult *r, int col) { return has_column(r, col) ? PQftype(r->res, col) : 0; }

const char *pgresult_tag(const struct pgresult *r) { return r->res && r->err == NULL ? PQcmdStatus(r->res) : ""; }

int64_t pgresult_affected(const struct pgresult *r) {
  return r->res && r->err == NULL ? strtoll(PQcmdTuples(r->res), NULL, 10) : 0;
}

void pgresult_free(struct pgresult *r) {
  if (r == NULL) return;
  PQclear(r->res);
  free(r->err);
  free(r);
}
