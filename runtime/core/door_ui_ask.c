/* The dashboard's questions to PostgreSQL, over a connection of its own. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/door_ui_internal.h"
#include "io/pgoutage.h"

enum { ANSWER_MS = UI_STATEMENT_MS * 2 }; /* a server that is silent, whatever its time-outs say */

struct ui_ask {
  struct list node;
  struct ui *ui;
  struct exchange *x; /* NULL: forgotten, or for nobody in particular */
  void (*done)(struct exchange *x, struct pgresult *r);
  void (*done_for)(struct ui *ui, struct pgresult *r);
};

static const char operator_hint[] = "grant umavez_operator to the role of ui_database_url (or database_url), and migrate";

/* 3F000, 42883, 42501, 42P01: the functions are not there, or not for this role. */
static bool is_no_operator(const char *state) {
  static const char *const states[] = {"3F000", "42883", "42501", "42P01"};

  for (size_t i = 0; i < sizeof states / sizeof *states; i++)
    if (strcmp(states[i], state) == 0) return true;
  return false;
}

/* Told at the start, and not to the first who tries to log in alone. */
static void on_probe(struct ui *ui, struct pgresult *r) {
  (void)ui;
  if (!pgresult_ok(r) && is_no_operator(pgresult_err(r)->sqlstate))
    log_err(LOG_ERROR_, "ui_not_allowed", pgresult_err(r), "hint", operator_hint, NULL);
}

static void on_up(void *arg) {
  bool asked = ui_ask_for(arg, "SELECT 1 FROM umavez.ui_token(0, NULL)", on_probe);

  (void)asked;
}

/* Others tell of a server that is away; a role or a password of our own that is wrong nobody else finds. */
static void on_down(void *arg, const struct err *why) {
  (void)arg;
  if (why->class == ERR_INPUT) log_err(LOG_ERROR_, "ui_not_connected", why, "hint", pgoutage_hint(why), NULL);
}

void ui_ask_connect(struct ui *ui, const struct door_ui_options *o) {
  struct control_options options = {.name = "ui",
                                    .url = o->database_url,
                                    .connect_timeout_ms = o->connect_timeout_ms,
                                    .answer_timeout_ms = ANSWER_MS,
                                    .prepare = o->prepare,
                                    .statement_timeout_ms = UI_STATEMENT_MS,
                                    .apart = true};
  struct control_hooks hooks = {.on_up = on_up, .on_down = on_down, .arg = ui};

  ui->db = control_new(ui->door->loop, &options, &hooks);
}

static void on_answer(void *arg, struct pgresult *r) {
  struct ui_ask *a = arg;
  struct exchange *x = a->x;

  list_remove(&a->node);
  a->ui->nasks--;
  if (x) {
    x->visit->ask = NULL;
    x->asking = false;
    a->done(x, r);
    door_maybe_end(x);
  } else if (a->done_for) {
    a->done_for(a->ui, r);
  }
  pgresult_free(r);
  free(a);
}

static struct ui_ask *send(struct ui *ui, const char *sql, int nparams, const char *const *values) {
  struct ui_ask *a = xcalloc(1, sizeof *a);
  struct pgquery q = {
      .sql = sql, .nparams = nparams, .once = true, .values = values, .done = on_answer, .arg = a};

  a->ui = ui;
  list_init(&a->node);
  if (!control_query(ui->db, &q)) {
    free(a);
    return NULL;
  }
  list_push_back(&ui->asks, &a->node);
  ui->nasks++;
  return a;
}

void ui_ask(struct exchange *x, const char *sql, int nparams, const char *const *values,
            void (*done)(struct exchange *x, struct pgresult *r)) {
  struct ui *ui = x->door->ui;
  struct ui_ask *a;

  if (ui->nasks >= UI_ASKS) {
    ui_refuse(x, PROBLEM_OVERLOADED, "too many questions of the dashboard are under way", 1);
    return;
  }
  a = send(ui, sql, nparams, values);
  if (!a) {
    ui_refuse(x, PROBLEM_UNAVAILABLE, "PostgreSQL is away, or does not let the dashboard in (see the worker's log)", 2);
    return;
  }
  a->x = x;
  a->done = done;
  x->visit->ask = a;
  x->asking = true;
}

bool ui_ask_for(struct ui *ui, const char *sql, void (*done)(struct ui *ui, struct pgresult *r)) {
  struct ui_ask *a = ui->nasks < UI_ASKS ? send(ui, sql, 0, NULL) : NULL;

  if (a) a->done_for = done;
  return a != NULL;
}

void ui_ask_forget(struct ui_ask *a) {
  a->x = NULL;
}

void ui_ask_end(struct ui *ui) {
  struct ui_ask *a;

  while ((a = list_pop_front(&ui->asks, struct ui_ask, node)) != NULL)
    free(a);
}

void ui_ask_failed(struct exchange *x, struct pgresult *r) {
  const struct err *e = pgresult_err(r);

  if (strncmp(e->sqlstate, "22", 2) == 0 || strncmp(e->sqlstate, "23", 2) == 0) {
    ui_refuse(x, PROBLEM_BAD_REQUEST, e->message, -1);
  } else if (strcmp(e->sqlstate, "57014") == 0) {
    ui_refuse(x, PROBLEM_UNAVAILABLE, "PostgreSQL took too long for this; ask for less", 2);
  } else if (is_no_operator(e->sqlstate)) {
    log_err(LOG_ERROR_, "ui_not_allowed", e, "hint", operator_hint, NULL);
    ui_refuse(x, PROBLEM_UNAVAILABLE, "the role that the dashboard logs in as is no umavez_operator, or the database is not migrated",
              -1);
  } else {
    if (e->class != ERR_ENV) log_err(LOG_ERROR_, "ui_query_failed", e, NULL);
    ui_refuse(x, e->class == ERR_ENV ? PROBLEM_UNAVAILABLE : PROBLEM_INTERNAL, NULL, 2);
  }
}
