/* bind: what Lua code sees of the program. bind_open registers every module (umavez.c.*) with a VM; the library in
 * lua/umavez wraps them. Each bind_X.c is one such module and declares only its open function here. */
#ifndef UMAVEZ_BIND_BIND_H
#define UMAVEZ_BIND_BIND_H

#include "host/vm.h"

void bind_open(struct vm *vm);

#endif
