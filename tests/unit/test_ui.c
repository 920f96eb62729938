/* The dashboard's pure parts: sessions, the bound on guessing, queries as JSON, the table of files. */
#include "cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/ui_files.h"
#include "core/ui_params.h"
#include "core/ui_session.h"

static const uint8_t signing[DIGEST_BYTES] = {1, 2, 3}, other[DIGEST_BYTES] = {1, 2, 4};

static void a_session_is_what_was_signed(void **state) {
  struct ui_cookie made, read;
  char a[DIGEST_HEX_SIZE], b[DIGEST_HEX_SIZE], header[UI_COOKIE_MAX + 64];

  ui_cookie_make(signing, 7, 2000, &made);
  assert_true(ui_cookie_parse(made.text, &read));
  assert_int_equal(read.token_id, 7);
  assert_int_equal(read.end_s, 2000);
  assert_true(ui_cookie_valid(&read, signing, 1999));
  assert_false(ui_cookie_valid(&read, signing, 2000));
  assert_false(ui_cookie_valid(&read, other, 1999));
  snprintf(header, sizeof header, "a=b;  " UI_COOKIE "=%s; c", made.text);
  assert_true(ui_cookie_find(header, &read));
  assert_string_equal(read.text, made.text);
  ui_csrf(&read, signing, a);
  ui_cookie_make(signing, 7, 2000, &made);
  assert_string_not_equal(made.text, read.text); /* a nonce of its own */
  ui_csrf(&made, signing, b);
  assert_string_not_equal(a, b);
}

/* No octet of it can be another one. */
static void a_changed_session_is_none(void **state) {
  struct ui_cookie made, read;
  char text[UI_COOKIE_MAX];

  ui_cookie_make(signing, 12, 2000, &made);
  for (size_t i = 0; made.text[i]; i++) {
    for (const char *c = "0123456789abcdefA.; "; *c; c++) {
      if (*c == made.text[i]) continue;
      strcpy(text, made.text);
      text[i] = *c;
      assert_false(ui_cookie_parse(text, &read) && ui_cookie_valid(&read, signing, 1999));
    }
    strcpy(text, made.text);
    text[i] = 0;
    assert_false(ui_cookie_parse(text, &read));
  }
}

static void a_cookie_header_names_it_once(void **state) {
  static const char *const none[] = {"", ";", "x", "umavez_ui", "umavez_ui=", "umavez_uix=1", "xumavez_ui=1", "umavez_ui=1; umavez_ui=2", "umavez_ui ="};
  struct ui_cookie made, c;
  char twice[2 * UI_COOKIE_MAX + 64];

  for (size_t i = 0; i < COUNT(none); i++)
    assert_false(ui_cookie_find(none[i], &c));
  ui_cookie_make(signing, 1, 2, &made);
  snprintf(twice, sizeof twice, UI_COOKIE "=%s;" UI_COOKIE "=%s", made.text, made.text);
  assert_false(ui_cookie_find(twice, &c));
}

static void guessing_is_bounded_by_sender(void **state) {
  struct ui_throttle *t = calloc(1, sizeof *t);
  int64_t now = 1000000;

  for (int i = 0; i < UI_TRIES; i++) {
    assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.1", now), 0);
    ui_throttle_failed(t, "192.0.2.1", now);
  }
  assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.1", now), UI_TRY_MS);
  assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.2", now), 0);
  assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.1", now + UI_TRY_MS - 1), 1);
  assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.1", now + UI_TRY_MS), 0);
  ui_throttle_failed(t, "192.0.2.1", now + UI_TRY_MS);
  assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.1", now + UI_TRY_MS), UI_TRY_MS);
  assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.1", now + 100 * UI_TRY_MS), 0);
  for (int i = 0; i < UI_TRIES - 1; i++)
    ui_throttle_failed(t, "192.0.2.1", now + 100 * UI_TRY_MS);
  assert_int_equal(ui_throttle_wait_ms(t, "192.0.2.1", now + 100 * UI_TRY_MS), 0);
  free(t);
}

static void expect_params(const char *query, const char *json) {
  struct buf out = BUF_INIT;

  assert_int_equal(ui_params_json(query, &out), 0);
  assert_string_equal(buf_cstr(&out), json);
  buf_fini(&out);
}

static void queries_become_json(void **state) {
  static const char *const bad[] = {"a=%", "a=%2", "a=%zz", "a=%00", "a=%ff", "a=%c3", "A=1", "=1", "a b=1", "a[]=1", "a\"=1",
                                    "a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9&j=1&k=2&l=3&m=4&n=5&o=6&p=7&q=8"};

  expect_params(NULL, "{}");
  expect_params("", "{}");
  expect_params("&&", "{}");
  expect_params("a=1", "{\"a\":\"1\"}");
  expect_params("a=&b&c=x+y%20z%26", "{\"c\":\"x y z&\"}");
  expect_params("q=%22%5c%0a%3C&a_b=%C3%A9=", "{\"q\":\"\\\"\\\\\\n<\",\"a_b\":\"\xC3\xA9=\"}");
  for (size_t i = 0; i < COUNT(bad); i++) {
    struct buf out = BUF_INIT;
    if (ui_params_json(bad[i], &out) == 0) fail_msg("%s: %s", bad[i], buf_cstr(&out));
    buf_fini(&out);
  }
}

static void put(const char *dir, const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void files_are_those_of_the_folder(void **state) {
  char dir[] = "/tmp/umavez-ui-XXXXXX", path[256];
  struct err e = ERR_INIT;

  assert_non_null(mkdtemp(dir));
  assert_null(ui_files_new(dir, &e));
  assert_string_equal(e.code, "ui_files");
  put(dir, "index.html", "<p>");
  put(dir, "a.js", "1");
  put(dir, "notes.txt", "no");
  put(dir, ".js", "no");
  struct ui_files *fs = ui_files_new(dir, &e);
  assert_non_null(fs);
  const struct ui_file *f = ui_files_find(fs, "index.html");
  assert_string_equal(f->type, "text/html; charset=utf-8");
  assert_string_equal(buf_cstr((struct buf *)&f->body), "<p>");
  assert_int_equal(strlen(f->etag), 34);
  assert_string_not_equal(f->etag, ui_files_find(fs, "a.js")->etag);
  assert_null(ui_files_find(fs, "notes.txt"));
  assert_null(ui_files_find(fs, ".js"));
  assert_null(ui_files_find(fs, "../index.html"));
  ui_files_free(fs);
  for (const char *const *name = (const char *const[]){"index.html", "a.js", "notes.txt", ".js", NULL}; *name; name++) {
    snprintf(path, sizeof path, "%s/%s", dir, *name);
    unlink(path);
  }
  rmdir(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_session_is_what_was_signed), cmocka_unit_test(a_changed_session_is_none),
      cmocka_unit_test(a_cookie_header_names_it_once), cmocka_unit_test(guessing_is_bounded_by_sender),
      cmocka_unit_test(queries_become_json),          cmocka_unit_test(files_are_those_of_the_folder),
  };
  return RUN(tests);
}
