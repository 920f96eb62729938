/* door_text: single values of a request that the door reads by itself. Pure functions of NUL-ended text. */
#ifndef UMAVEZ_CORE_DOOR_TEXT_H
#define UMAVEZ_CORE_DOOR_TEXT_H

#include <stdbool.h>

enum { DOOR_WAIT_MAX_S = 60 };

/* The query of GET /runs/{run_id}: none (0), or wait=SECONDS, whole, 0 to DOOR_WAIT_MAX_S. -1: not understood. */
int door_text_wait_s(const char *query);

/* W3C's traceparent: version-trace-parent-flags, lower-case hex. What looks otherwise is not passed on: a text column gets it. */
bool door_text_is_traceparent(const char *s);

/* A content type: application/json, or application/…+json; parameters are passed over. NULL is none. */
bool door_text_is_json(const char *type);

#endif
