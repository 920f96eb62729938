/* ui_params: a target's query as the JSON object that the dashboard's SQL functions read. A pure function. */
#ifndef UMAVEZ_CORE_UI_PARAMS_H
#define UMAVEZ_CORE_UI_PARAMS_H

#include "base/buf.h"
#include "base/err.h"

enum { UI_PARAMS_MAX = 16, UI_PARAM_BYTES = 2000 };

/* "a=1&b=x%20y" → {"a":"1","b":"x y"}; an empty value counts as none. Names are lower-case letters and '_'. NULL is an empty query. -1, out
 * undefined: an escape, a name or a value (no UTF-8, a NUL, too long) is not valid, or there are too many. */
MUST_CHECK int ui_params_json(const char *query, struct buf *out);

#endif
