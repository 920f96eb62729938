/* The list of failpoints: sorted, named alike in C and for people, each one hit somewhere; and nothing of it in a release. */
#include <ctype.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/failpoint.h"
#include "cm.h"

#define ROW(id, name, doc) {#id, name, doc},
static const struct {
  const char *id, *name, *doc;
} points[] = {FAILPOINTS(ROW)};

static struct buf sources; /* all of runtime/ but the list itself, and the tests' handlers */

static int add_source(const char *path, const struct stat *st, int type) {
  size_t n = strlen(path);
  char chunk[4096];
  FILE *f;

  (void)st;
  if (type != FTW_F || strstr(path, "base/failpoint.") || (strcmp(path + n - 2, ".c") != 0 && strcmp(path + n - 4, ".lua") != 0))
    return 0;
  f = fopen(path, "r");
  assert_non_null(f);
  while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) buf_append(&sources, chunk, n);
  fclose(f);
  return 0;
}

static void test_the_list_is_sorted(void **state) {
  for (size_t i = 1; i < COUNT(points); i++)
    if (strcmp(points[i - 1].name, points[i].name) >= 0) fail_msg("%s stands before %s", points[i - 1].name, points[i].name);
}

static void test_names_agree(void **state) {
  for (size_t i = 0; i < COUNT(points); i++) {
    assert_int_equal(strlen(points[i].id), strlen(points[i].name));
    for (size_t j = 0; points[i].id[j]; j++)
      assert_int_equal(points[i].id[j] == '_' ? '-' : tolower((unsigned char)points[i].id[j]), points[i].name[j]);
    assert_true(strlen(points[i].doc) > 10);
  }
}

static void test_each_is_hit_somewhere(void **state) {
  char in_c[80], in_lua[80];

  for (size_t i = 0; i < COUNT(points); i++) {
    snprintf(in_c, sizeof in_c, "FAILPOINT(%s, ", points[i].id);
    snprintf(in_lua, sizeof in_lua, "failpoint(\"%s\")", points[i].name);
    if (!strstr(buf_cstr(&sources), in_c) && !strstr(buf_cstr(&sources), in_lua)) fail_msg("%s is hit nowhere", points[i].name);
  }
}

static int read_sources(void **state) {
  buf_init(&sources);
  return ftw("runtime", add_source, 16) || ftw("tests/support/tasks", add_source, 16);
}

static int free_sources(void **state) {
  buf_fini(&sources);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_list_is_sorted),
      cmocka_unit_test(test_names_agree),
      cmocka_unit_test(test_each_is_hit_somewhere),
  };
  return cmocka_run_group_tests_name("failpoint", tests, read_sources, free_sources);
}
