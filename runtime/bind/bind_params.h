/* bind_params: Lua values as parameters of a statement, in text format, types left to the server.
 *
 *   nil, umavez.null   NULL (anywhere in the list)
 *   boolean            true, false
 *   number             shortest exact text: 100000000000000, 0.30000000000000004, NaN, Infinity
 *   int64, uint64      decimal digits
 *   string             as it is; a NUL octet is refused
 *   umavez.decimal     its text
 *   umavez.json(v)     JSON text
 *   umavez.bytea(s)    hexadecimal
 *   umavez.array{…}    an array literal, nested for more dimensions
 * Anything else is refused with a message that names the parameter. */
#ifndef UMAVEZ_BIND_BIND_PARAMS_H
#define UMAVEZ_BIND_BIND_PARAMS_H

#include "base/buf.h"
#include "base/err.h"
#include "host/vm.h"

enum { BIND_PARAMS_MAX = 65535 };

struct bind_params {
  int n;
  const char **values; /* n pointers, NULL for NULL */
  struct buf text;     /* where they point */
};

/* The n values from stack index first on. Never raises. -1: class ERR_INPUT, code "parameter"; p is empty then.
 * On success bind_params_fini is due. */
int bind_params_init(struct bind_params *p, lua_State *L, int first, int n, struct err *e) MUST_CHECK;
void bind_params_fini(struct bind_params *p);

#endif
