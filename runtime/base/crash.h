/* crash: what a process that dies of a signal leaves on stderr, so that a log is enough to find the place.
 *
 * crash_install once, at the start of the process; crash_note wherever a step begins whose end is not near. On SIGSEGV,
 * SIGBUS, SIGFPE, SIGILL or SIGABRT the handler writes, with write(2) alone and on a stack of its own,
 *
 *   umavez: crash: SIGSEGV at address 0x0, pid 4711
 *   umavez: crash: note: 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c complete       (the last CRASH_NOTES, latest first)
 *   umavez: crash: stack:
 *   build/umavez(run_free+0x1c)[0x55d0c1a2b3c4]
 *   build/umavez(+0x2e1f4)[0x55d0c1a2b1f4]                    (a static function: addr2line -f -e build/umavez 0x2e1f4)
 *
 * and dies of the same signal: exit status and core dump are what they would have been without it. The notes hold ids and
 * state names, never args. In a build with a sanitizer nothing is installed: that has a better report of its own.
 */
#ifndef UMAVEZ_BASE_CRASH_H
#define UMAVEZ_BASE_CRASH_H

enum { CRASH_NOTES = 8 };

void crash_install(void);

/* id is copied (at most 47 octets of it); what is kept, for good: a literal. */
void crash_note(const char *id, const char *what);

#endif
