#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/treewatch.h"

static struct loop *l;
static char dir[64];
static struct treewatch *w;
static int changes;

static void on_changed(void *arg) {
  changes++;
  loop_stop(arg);
}

static void on_too_late(void *arg) { fail_msg("nothing was told within 30 s"); }

/* Runs the loop until a change is told. */
static void wait_for_change(void) {
  struct loop_timer late;

  loop_timer_init(&late, on_too_late, NULL);
  loop_timer_start(l, &late, 30000);
  loop_run(l);
  loop_timer_stop(&late);
}

static char *at(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static void put(const char *name) {
  FILE *f = fopen(at(name), "w");
  assert_non_null(f);
  fputs("text", f);
  fclose(f);
}

static void folder(const char *name) { assert_int_equal(mkdir(at(name), 0700), 0); }

static int setup(void **state) {
  struct err e = ERR_INIT;

  l = loop_new();
  strcpy(dir, "/tmp/umavez-treewatch-XXXXXX");
  assert_non_null(mkdtemp(dir));
  folder("a");
  folder("a/b");
  folder(".hidden");
  assert_int_equal(symlink("..", at("a/up")), 0); /* goes round */
  assert_int_equal(symlink("..", at("a/b/up")), 0);
  changes = 0;
  w = treewatch_new(l, dir, on_changed, l, &e);
  assert_non_null(w);
  return 0;
}

static int teardown(void **state) {
  char command[128];

  treewatch_free(w);
  loop_free(l);
  snprintf(command, sizeof command, "rm -rf %s", dir);
  return system(command);
}

static void test_each_change_is_told(void **state) {
  put("one.lua");
  wait_for_change();
  put("a/b/deep.lua");
  wait_for_change();
  assert_int_equal(rename(at("one.lua"), "/tmp/umavez-treewatch-gone"), 0);
  unlink("/tmp/umavez-treewatch-gone");
  wait_for_change();
  unlink(at("a/b/deep.lua"));
  wait_for_change();
  assert_int_equal(changes, 4);
}

static void test_folders_that_come_later_are_watched(void **state) {
  folder("new");
  wait_for_change();
  put("new/task.lua");
  wait_for_change();
  folder("new/er");
  wait_for_change();
  put("new/er/task.lua");
  wait_for_change();
  assert_int_equal(changes, 4);
}

static void test_what_comes_together_is_told_once(void **state) {
  char name[32];

  for (int i = 0; i < 50; i++) {
    snprintf(name, sizeof name, "a/file%d.lua", i);
    put(name);
  }
  wait_for_change();
  assert_int_equal(changes, 1);
}

static void stop(void *arg) { loop_stop(arg); }

static void test_what_is_no_reason_is_not_told(void **state) {
  struct loop_timer quiet;

  put("a/one_spec.lua");
  put("a/notes.txt");
  put("a/.one.lua.swp");
  put(".hidden/one.lua");
  loop_timer_init(&quiet, stop, l);
  loop_timer_start(l, &quiet, 400); /* nothing tells that nothing comes: longer than what is waited for quiet */
  loop_run(l);
  assert_int_equal(changes, 0);
}

static void test_no_folder_is_an_error(void **state) {
  struct err e = ERR_INIT;

  assert_null(treewatch_new(l, "/nowhere/at/all", on_changed, l, &e));
  assert_string_equal(e.code, "watch_failed");
  assert_non_null(strstr(e.message, "/nowhere/at/all"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_each_change_is_told, setup, teardown),
      cmocka_unit_test_setup_teardown(test_folders_that_come_later_are_watched, setup, teardown),
      cmocka_unit_test_setup_teardown(test_what_comes_together_is_told_once, setup, teardown),
      cmocka_unit_test_setup_teardown(test_what_is_no_reason_is_not_told, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_folder_is_an_error, setup, teardown),
  };
  return cmocka_run_group_tests_name("treewatch", tests, NULL, NULL);
}
