/* cm: cmocka with the headers it wants, and a seeded generator for the tests that draw lots. */
#ifndef UMAVEZ_TESTS_UNIT_CM_H
#define UMAVEZ_TESTS_UNIT_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define RUN(tests) cmocka_run_group_tests_name(__FILE__, tests, NULL, NULL)

/* splitmix64: the same sequence on every machine. */
static inline uint64_t next_random(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15ULL;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
  return z ^ z >> 31;
}

#endif
