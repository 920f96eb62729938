/* vm_trace: a Lua traceback of code that does not come back to the loop, on a signal.
 *
 * SIGUSR2 asks for it: the handler sets a debug hook, which LuaJIT allows at any instruction; the hook runs at the next
 * instruction that is interpreted, writes the traceback into the slot and restores the hook that was there. Compiled code
 * has no hooks, and C code no instructions: from those there is no answer, and whoever asked says so after a while.
 * One VM in a process is traced. */
#ifndef UMAVEZ_HOST_VM_TRACE_H
#define UMAVEZ_HOST_VM_TRACE_H

#include "base/slots.h"
#include "host/vm.h"

/* Listens from now on. Keeps both; slot NULL: hears the signal and does nothing. */
void vm_trace(struct vm *vm, struct slot *slot);

#endif
