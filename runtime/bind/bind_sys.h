/* bind_sys: processes, files, clocks and digests for the command line (module umavez.c.sys; lua/umavez/sys.lua wraps it).
 * Only wait_box and sleep_box have anything to do with the loop. */
#ifndef UMAVEZ_BIND_BIND_SYS_H
#define UMAVEZ_BIND_BIND_SYS_H

#include "host/vm.h"

/* Pushes a box that is answered after ms milliseconds. */
void bind_sleep_push(lua_State *L, int64_t ms);

int bind_sys_open(lua_State *L);

#endif
