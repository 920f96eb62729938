/* bind_conf: the settings as Lua sees them (module umavez.c.conf; lua/umavez/conf.lua wraps it). The userdata owns a
 * struct conf, which C code that is started from Lua (the worker) borrows. */
#ifndef UMAVEZ_BIND_BIND_CONF_H
#define UMAVEZ_BIND_BIND_CONF_H

#include "base/conf.h"
#include "host/vm.h"

/* The struct inside the userdata at idx; raises when it is none. Borrows: lives as long as the userdata. */
struct conf *bind_conf_check(lua_State *L, int idx);

int bind_conf_open(lua_State *L);

#endif
