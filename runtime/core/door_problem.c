#include "core/door_problem.h"

#include <string.h>

#include "base/json.h"

static const struct {
  const char *name;
  int status;
  const char *title;
} table[PROBLEM_COUNT] = {
#define X(id, name, status, title) [PROBLEM_##id] = {name, status, title},
    DOOR_PROBLEMS(X)
#undef X
};

int door_problem_status(enum door_problem p) {
  return table[p].status;
}

const char *door_problem_name(enum door_problem p) {
  return table[p].name;
}

enum door_problem door_problem_of_status(int status) {
  for (int p = 0; p < PROBLEM_COUNT; p++)
    if (table[p].status == status) return (enum door_problem)p;
  return PROBLEM_BAD_REQUEST;
}

static void add_string(struct buf *out, const char *name, const char *value) {
  buf_printf(out, ",\"%s\":", name);
  json_write_string_lossy(out, value, strlen(value), 2048);
}

void door_problem_body(enum door_problem p, const char *detail, const char *run_id, struct buf *out) {
  buf_printf(out, "{\"type\":\"" DOOR_PROBLEM_TYPE "%s\"", table[p].name);
  add_string(out, "title", table[p].title);
  buf_printf(out, ",\"status\":%d", table[p].status);
  if (detail) add_string(out, "detail", detail);
  if (run_id) add_string(out, "run_id", run_id);
  buf_putc(out, '}');
}
