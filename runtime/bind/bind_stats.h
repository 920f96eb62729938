/* bind_stats: umavez.c.stats, the table of metrics (base/stats.h), for docs and checks. */
#ifndef UMAVEZ_BIND_BIND_STATS_H
#define UMAVEZ_BIND_BIND_STATS_H

#include <lua.h>

int bind_stats_open(lua_State *L);

#endif
