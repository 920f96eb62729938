/* bind_json: Lua values to JSON text and back. Numbers stay exact both ways: a double where it is one, int64 cdata for
 * other integers, umavez.decimal for the rest; null is umavez.null; arrays carry the array mark. */
#ifndef UMAVEZ_BIND_BIND_JSON_H
#define UMAVEZ_BIND_BIND_JSON_H

#include "base/buf.h"
#include "base/err.h"
#include "host/vm.h"

enum { BIND_JSON_MAX = 64 << 20 }; /* octets that an encoded text may have, whoever asks */

/* Appends the value at idx as JSON text. Never raises. -1: class ERR_INPUT, code "json_value" (what JSON cannot hold; the
 * message has the path) or "json_too_large" (above max octets); out may hold a part then. */
int bind_json_encode(lua_State *L, int idx, size_t max, struct buf *out, struct err *e) MUST_CHECK;

/* Pushes the decoded value; -1: nothing pushed. May raise when memory is out. */
int bind_json_decode(lua_State *L, const char *text, size_t len, struct err *e) MUST_CHECK;

#endif
