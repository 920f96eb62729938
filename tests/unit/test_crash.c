/* A process that dies of a signal says where and at what, and dies of that signal. */
#include "cm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/err.h"

static char said[65536];

/* Runs fn in a child that has the handler; said: what it wrote on stderr. Gives its wait status. */
static int status_of(void (*fn)(void)) {
  int ends[2], status;
  size_t len = 0;
  ssize_t n;

  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    crash_install();
    for (int i = 0; i < CRASH_NOTES; i++) crash_note("an older note", "old");
    crash_note("6b1d1d2e-9d3f-4f0e-8f0a-2f6d1c1b0a99", "handler");
    crash_note("a text that is longer than what a note keeps of an id, which is no reason to write behind it", "pool");
    fn();
    _exit(0);
  }
  close(ends[1]);
  while ((n = read(ends[0], said + len, sizeof said - 1 - len)) > 0) len += (size_t)n;
  said[len] = '\0';
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static bool has(const char *text) { return strstr(said, text) != NULL; }

static int notes(void) {
  int n = 0;
  for (const char *p = said; (p = strstr(p, "crash: note: ")); p++) n++;
  return n;
}

/* Not static, so that the dynamic symbol table has its name. */
void read_what_is_not_there(void);
__attribute__((noinline)) void read_what_is_not_there(void) {
  int *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *(volatile int *)page = 1;
}

/* In a build with a sanitizer crash_install does nothing, and cmocka's own handler has the fault. */
#ifdef __SANITIZE_ADDRESS__
#define SKIP_WITH_SANITIZER() skip()
#else
#define SKIP_WITH_SANITIZER() ((void)0)
#endif

static void assert_died_of(int status, int number) {
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), number);
}

static void a_fault_says_where_and_what(void **state) {
  SKIP_WITH_SANITIZER();
  assert_died_of(status_of(read_what_is_not_there), SIGSEGV);
  assert_true(has("umavez: crash: SIGSEGV at address 0x"));
  assert_true(has("umavez: crash: note: 6b1d1d2e-9d3f-4f0e-8f0a-2f6d1c1b0a99 handler\n"));
  assert_int_equal(notes(), CRASH_NOTES);
  assert_true(strstr(said, " pool\n") < strstr(said, " handler\n")); /* the latest first */
  assert_true(strstr(said, " handler\n") < strstr(said, "an older note old\n"));
  assert_true(has("read_what_is_not_there+0x"));
}

static volatile int deep = 1 << 30;

static __attribute__((noinline)) int overflow(int depth) {
  volatile char room[4096];
  room[depth % 4096] = (char)depth;
  return depth < deep ? overflow(depth + 1) + room[depth % 4096] : 0;
}

static void overflow_the_stack(void) { deep = overflow(0); }

static void a_stack_without_room_is_told_too(void **state) {
  SKIP_WITH_SANITIZER();
  assert_died_of(status_of(overflow_the_stack), SIGSEGV);
  assert_true(has("umavez: crash: SIGSEGV at address 0x"));
  assert_true(has("/test_crash("));
}

static void hit_a_bug(void) { bug("the number %d", 42); }

static void a_bug_has_its_stack(void **state) {
  SKIP_WITH_SANITIZER();
  assert_died_of(status_of(hit_a_bug), SIGABRT);
  assert_true(has("the number 42"));
  assert_true(has("umavez: crash: SIGABRT, pid "));
  assert_true(has("/test_crash("));
}

static void sent_from_outside(void) { kill(getpid(), SIGBUS); }

static void a_signal_that_was_sent_has_no_address(void **state) {
  SKIP_WITH_SANITIZER();
  assert_died_of(status_of(sent_from_outside), SIGBUS);
  assert_true(has("umavez: crash: SIGBUS, pid "));
}

static void end_well(void) {}

static void nothing_is_said_of_an_ordinary_end(void **state) {
  assert_int_equal(status_of(end_well), 0);
  assert_string_equal(said, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_fault_says_where_and_what),
      cmocka_unit_test(a_stack_without_room_is_told_too),
      cmocka_unit_test(a_bug_has_its_stack),
      cmocka_unit_test(a_signal_that_was_sent_has_no_address),
      cmocka_unit_test(nothing_is_said_of_an_ordinary_end),
  };
  return RUN(tests);
}
