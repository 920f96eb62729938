#include "io/pgoutage.h"

#include <string.h>

#include "base/log.h"

static struct {
  int parts, up, down;
  enum { TOLD_NOTHING, TOLD_UP, TOLD_DOWN } told;
  char code[32]; /* of the reason that was told */
} all;

/* What a user can do about this reason; NULL: nothing but wait. */
static const char *remedy(const struct err *e) {
  static const char *const hints[][2] = {
      {"bad_url", "correct DATABASE_URL (or database_url); it looks like postgres://user:password@host:5432/database"},
      {"auth_failed",
       "check user and password in DATABASE_URL (or PGUSER, PGPASSWORD, ~/.pgpass), the role's rights, and pg_hba.conf"},
      {"no_database", "create the database, or correct its name in DATABASE_URL (or PGDATABASE)"},
      {"too_many_connections", "lower pool_size or the number of workers, or raise max_connections"},
      {"read_only", "the server is a standby or read-only; waiting for one that can write"},
  };

  for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
    if (strcmp(hints[i][0], e->code) == 0) return hints[i][1];
  return NULL;
}

const char *pgoutage_hint(const struct err *e) {
  return remedy(e) ? remedy(e) : "it is waited for; what runs is given back, and nothing is lost";
}

static void set(struct pgoutage *part, int state) {
  all.up += (state == PGOUTAGE_UP) - (part->state == PGOUTAGE_UP);
  all.down += (state == PGOUTAGE_DOWN) - (part->state == PGOUTAGE_DOWN);
  part->state = state;
}

void pgoutage_init(struct pgoutage *part, const char *name) {
  *part = (struct pgoutage){.name = name};
  all.parts++;
}

void pgoutage_up(struct pgoutage *part) {
  set(part, PGOUTAGE_UP);
  if (all.up < all.parts || all.told == TOLD_UP) {
    log_kv(LOG_DEBUG_, "postgres_connected", "connection", part->name, NULL);
    return;
  }
  all.told = TOLD_UP;
  log_kv(LOG_INFO_, "postgres_up", "connection", part->name, NULL);
}

void pgoutage_down(struct pgoutage *part, const struct err *why) {
  bool first = all.told != TOLD_DOWN,
       news = (remedy(why) || why->class == ERR_INPUT) && strcmp(why->code, all.code) != 0;

  set(part, PGOUTAGE_DOWN);
  if (!first && !news) {
    log_err(LOG_DEBUG_, "postgres_disconnected", why, "connection", part->name, NULL);
    return;
  }
  all.told = TOLD_DOWN;
  err_copy_text(all.code, sizeof all.code, why->code);
  log_err(why->class == ERR_INPUT ? LOG_ERROR_ : LOG_WARN_, "postgres_down", why, "connection", part->name, "hint",
          pgoutage_hint(why), NULL);
}

void pgoutage_fini(struct pgoutage *part) {
  set(part, PGOUTAGE_UNKNOWN);
  all.parts--;
}
