/* fuzz_json: any octets through every reader of base/json.h. Built with clang -fsanitize=fuzzer,address,undefined.
 *
 * Invariants: the readers agree on what is JSON; canonical text is its own canonical form and no longer as jsonb than what
 * it came from; a number keeps value and class in its canonical form; json_find answers with a slice that is JSON itself.
 */
// fuzz-sources: runtime/base/*.c
// fuzz-libs: -lcrypto -lm
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) \
  do { \
    if (!(condition)) bug("broken: %s", #condition); \
  } while (0)

static int on_number(void *arg, const char *lexeme, size_t n) {
  struct buf form = BUF_INIT, again = BUF_INIT;
  double d1, d2;
  int64_t i1 = 0, i2 = 0;
  (void)arg;
  MUST(json_number_valid(lexeme, n));
  enum json_number kind = json_number_classify(lexeme, n, &d1, &i1);
  if (json_number_canonical(lexeme, n, &form) == 0) {
    MUST(json_number_classify(form.data, form.len, &d2, &i2) == kind && d1 == d2 && i1 == i2);
    MUST(json_number_canonical(form.data, form.len, &again) == 0 && strcmp(form.data, again.data) == 0);
    if (kind == JSON_DOUBLE) {
      buf_clear(&again);
      MUST(json_write_double(&again, d1) == 0 && strcmp(form.data, again.data) == 0);
    }
  }
  buf_fini(&form);
  buf_fini(&again);
  return 0;
}

static int on_string(void *arg, const char *utf8, size_t n) {
  struct buf b = BUF_INIT;
  (void)arg;
  MUST(json_utf8_span(utf8, n) == n);
  MUST(json_write_string(&b, utf8, n, NULL) == 0);
  struct json_value v = {.type = JSON_STRING, .text = b.data, .len = b.len};
  struct buf back = BUF_INIT;
  MUST(json_value_string(&v, &back, NULL) == 0 && back.len == n && (n == 0 || memcmp(back.data, utf8, n) == 0));
  buf_fini(&b);
  buf_fini(&back);
  return 0;
}

static void canonical(const char *text, size_t n, bool readable) {
  struct buf once = BUF_INIT, twice = BUF_INIT;
  struct err e = ERR_INIT;
  size_t octets = 0, again = 0;
  int sized = json_jsonb_size(text, n, &octets, &e);
  MUST(sized == -1 || readable);
  if (json_canonical(text, n, &once, &e) == 0) {
    MUST(readable);
    MUST(json_canonical(once.data, once.len, &twice, &e) == 0);
    MUST(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    /* Only the scales of numbers may differ, and these only shrink. */
    if (sized == 0 && json_jsonb_size(once.data, once.len, &again, &e) == 0) MUST(again <= octets);
  } else {
    MUST(err_is_set(&e) && once.len == 0);
  }
  buf_fini(&once);
  buf_fini(&twice);
}

static void find(const char *text, size_t n, bool readable_with_nul) {
  static const char *const paths[] = {"", "a", "a.b", ".", "a.a.a"};
  static const struct json_events nothing = {.allow_nul = true};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    struct json_value v;
    MUST((json_find(text, n, paths[i], &v) == 0) == readable_with_nul);
    if (v.type == JSON_ABSENT) continue;
    MUST(v.text >= text && v.text + v.len <= text + n);
    MUST(json_read(v.text, v.len, &nothing, NULL, NULL) == 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const struct json_events events = {.number = on_number, .string = on_string, .key = on_string};
  static const struct json_events with_nul = {.allow_nul = true};
  char *text = xmemdup(data, size); /* of just that size, for the sanitizer */
  struct err e = ERR_INIT;
  bool readable = json_read(text, size, &events, NULL, &e) == 0;
  MUST(readable != err_is_set(&e));
  canonical(text, size, readable);
  find(text, size, json_read(text, size, &with_nul, NULL, NULL) == 0);
  struct buf lossy = BUF_INIT;
  size_t max = 2 + size / 2;
  json_write_string_lossy(&lossy, text, size, max);
  MUST(lossy.len <= max && json_read(lossy.data, lossy.len, &with_nul, NULL, NULL) == 0);
  buf_fini(&lossy);
  free(text);
  return 0;
}
