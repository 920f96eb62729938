/* bind_valkey: umavez.c.valkey, a Valkey connection for the command line (lua/umavez/valkey.lua). The gate has its own.
 *
 *     open(url, timeout_ms, prefix) → connection, box      up(box) → true | nil, why
 *     send(connection, word, …) → box                      reply(box) → text | nil, why
 *     close(connection)
 *
 * A reply comes as text: integers in decimal, the elements of an array a line each, nil as nil. */
#ifndef UMAVEZ_BIND_BIND_VALKEY_H
#define UMAVEZ_BIND_BIND_VALKEY_H

#include "host/vm.h"

int bind_valkey_open(lua_State *L);

#endif
