/* worker_lua: the worker's life as a box that Lua waits for (module umavez.c.worker; lua/umavez/worker.lua wraps it). */
#ifndef UMAVEZ_PROC_WORKER_LUA_H
#define UMAVEZ_PROC_WORKER_LUA_H

#include "host/vm.h"

int worker_lua_open(lua_State *L);

#endif
