/* door_ui: the dashboard at /ui, as a part of the HTTP door. docs/ui.md is what its users read.
 *
 *   GET /ui/…             static files (core/ui_files.h), open to all: they tell nothing
 *   POST /ui/api/login    a token of the platform with the scope ui or ui:write → a session's cookie (core/ui_session.h)
 *   GET /ui/api/session   who one is, what one may, and the token against forged requests
 *   POST /ui/api/logout
 *   GET /ui/api/PAGE?…    what umavez.ui_read('PAGE', {…}) gives
 *   POST /ui/api/act      umavez.ui_act({action, target, reason}); only with ui = write
 *   GET /ui/api/stream    server-sent events: the overview, every UI_TICK_MS while somebody looks
 *
 * Owns          its files, its sessions' bounds, and one connection of its own: nothing that is asked here waits for a handler, or makes one
 *               wait. Each statement ends after UI_STATEMENT_MS; more than UI_ASKS at one time are refused.
 * Knows no page. What it shows, and what an operator's role may do, stands in sql/functions/70_ui.sql; how, in lua/umavez/ui. */
#ifndef UMAVEZ_CORE_DOOR_UI_H
#define UMAVEZ_CORE_DOOR_UI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { UI_STATEMENT_MS = 4000, UI_ASKS = 16, UI_BODY_BYTES = 16384, UI_STREAMS = 32, UI_TICK_MS = 2000, UI_STREAM_MS = 60000 };

enum door_ui_mode { DOOR_UI_OFF, DOOR_UI_READ, DOOR_UI_WRITE }; /* as the setting `ui` has them */

struct door_ui_options {
  enum door_ui_mode mode;
  const char *dir;          /* of the static files */
  const char *database_url;
  int64_t connect_timeout_ms;
  bool prepare;
  const char *origin;       /* "": the request's own Host */
  bool tls;                 /* the door's own: cookies are Secure */
  int64_t session_ms;
};

#endif
