/* bind_task: manifests' tasks into core's registry. Functions of module umavez.c.run. */
#ifndef UMAVEZ_BIND_BIND_TASK_H
#define UMAVEZ_BIND_BIND_TASK_H

#include "host/vm.h"

/* task_add{name, queue, owner, key ("run_id", "function" or array of paths), fingerprint (array), lease_ms, …}: a checked
 * task of lua/umavez/manifest.lua. Raises when the name is taken. */
int bind_task_add(lua_State *L);

/* task_declare(json): what umavez.queues.declared gives. */
int bind_task_declare(lua_State *L);

/* duration(text) → milliseconds | nil, message */
int bind_task_duration(lua_State *L);

#endif
