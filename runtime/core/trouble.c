#include "core/trouble.h"

#include <string.h>

#include "base/log.h"

static int64_t told_ms;
static bool told;

bool trouble_is(const struct err *e) {
  return strcmp(e->sqlstate, "53100") == 0 && !strstr(e->message, "pgsql_tmp");
}

void trouble_tell(const struct loop *l, const char *event, const struct err *e) {
  int64_t now = loop_now_ms(l);

  if (told && now - told_ms < TROUBLE_TOLD_MS) return;
  told = true;
  told_ms = now;
  log_err(LOG_ERROR_, event, e, "hint", "free space where PostgreSQL keeps its data; runs wait until then, uncharged", NULL);
}
