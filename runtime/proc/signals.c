#include "proc/signals.h"

#include <stddef.h>

static void ours(sigset_t *set) {
  static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

  sigemptyset(set);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    sigaddset(set, numbers[i]);
}

void signals_hold(sigset_t *before) {
  sigset_t set;

  ours(&set);
  sigprocmask(SIG_BLOCK, &set, before);
}

void signals_let_in(void) {
  sigset_t set;

  ours(&set);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
}
