/* In the handler only what signal-safety(7) allows: write, raise, sigaction, our own loops. backtrace() is called once at
 * installation, because its first call loads libgcc and allocates; from then on neither it nor backtrace_symbols_fd does.
 * The heap may be broken, so nothing is read but this file's own statics. */
#include "base/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

enum { FRAMES_MAX = 64, STACK_BYTES = 64 * 1024, ID_SIZE = 48, LINE_SIZE = 160 };

static struct {
  char id[ID_SIZE];
  const char *what;
} notes[CRASH_NOTES];
static unsigned next_note;
static char stack[STACK_BYTES] __attribute__((aligned(16)));

static const struct {
  int number;
  const char *name;
} signals[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};

void crash_note(const char *id, const char *what) {
  unsigned at = next_note++ % CRASH_NOTES;

  strncpy(notes[at].id, id, ID_SIZE - 1); /* the last octet stays NUL */
  notes[at].what = what;
}

/* ---- a line, without stdio ---- */

struct line {
  char text[LINE_SIZE];
  size_t len;
};

static void put_text(struct line *l, const char *text) {
  while (*text && l->len < sizeof l->text - 1) l->text[l->len++] = *text++;
}

static void put_number(struct line *l, uintmax_t n, unsigned base) {
  char digits[24];
  size_t i = sizeof digits - 1;

  digits[i] = '\0';
  do {
    digits[--i] = "0123456789abcdef"[n % base];
    n /= base;
  } while (n > 0);
  put_text(l, digits + i);
}

static void put_out(struct line *l) {
  l->text[l->len++] = '\n';
  for (size_t done = 0; done < l->len;) {
    ssize_t n = write(STDERR_FILENO, l->text + done, l->len - done);
    if (n <= 0) break; /* nobody reads it: the signal still ends us */
    done += (size_t)n;
  }
  l->len = 0;
}

/* ---- the handler ---- */

static void die_of(int number) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigset_t set;

  sigaction(number, &action, NULL);
  sigemptyset(&set);
  sigaddset(&set, number);
  raise(number);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void on_crash(int number, siginfo_t *info, void *context) {
  struct line l = {.len = 0};
  void *frames[FRAMES_MAX];

  (void)context;
  put_text(&l, "umavez: crash: ");
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
    if (signals[i].number == number) put_text(&l, signals[i].name);
  if (info->si_code > 0) { /* the processor's fault; else somebody has sent it */
    put_text(&l, " at address 0x");
    put_number(&l, (uintptr_t)info->si_addr, 16);
  }
  put_text(&l, ", pid ");
  put_number(&l, (uintmax_t)getpid(), 10);
  put_out(&l);
  for (unsigned i = 1; i <= CRASH_NOTES && i <= next_note; i++) {
    put_text(&l, "umavez: crash: note: ");
    put_text(&l, notes[(next_note - i) % CRASH_NOTES].id);
    put_text(&l, " ");
    put_text(&l, notes[(next_note - i) % CRASH_NOTES].what);
    put_out(&l);
  }
  put_text(&l, "umavez: crash: stack:");
  put_out(&l);
  backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO); /* last: a broken stack may fault again */
  die_of(number);
}

static bool has_sanitizer(void) {
#ifdef __SANITIZE_ADDRESS__
  return true;
#else
  return false;
#endif
}

void crash_install(void) {
  stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND};
  void *frame;

  if (has_sanitizer()) return;
  if (backtrace(&frame, 1) < 0 || sigaltstack(&alternate, NULL) != 0) die("cannot set up the report of a crash");
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
    if (sigaction(signals[i].number, &action, NULL) != 0) die("cannot set up the report of a crash");
}
