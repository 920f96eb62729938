#include "cm.h"

#include "base/digest.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

static const char *hex(const uint8_t digest[DIGEST_BYTES]) {
  static char text[DIGEST_HEX_SIZE];
  hex_encode(digest, DIGEST_BYTES, text);
  return text;
}

/* FIPS 180-4 examples. */
static void sha256(void **state) {
  uint8_t out[DIGEST_BYTES];
  digest_sha256("", 0, out);
  assert_string_equal(hex(out), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  digest_sha256(NULL, 0, out);
  assert_string_equal(hex(out), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  digest_sha256("abc", 3, out);
  assert_string_equal(hex(out), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  char *million = xmalloc(1000000);
  memset(million, 'a', 1000000);
  digest_sha256(million, 1000000, out);
  assert_string_equal(hex(out), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  free(million);
}

/* RFC 4231, test cases 1, 2, 3 and 6; then keys that must not be taken for the former one. */
static void hmac_sha256(void **state) {
  uint8_t key[131], data[50], out[DIGEST_BYTES];
  memset(key, 0x0b, 20);
  digest_hmac(key, 20, "Hi There", 8, out);
  assert_string_equal(hex(out), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  digest_hmac("Jefe", 4, "what do ya want for nothing?", 28, out);
  assert_string_equal(hex(out), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  memset(key, 0xaa, sizeof key);
  memset(data, 0xdd, sizeof data);
  digest_hmac(key, 20, data, 50, out);
  assert_string_equal(hex(out), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  digest_hmac(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54, out);
  assert_string_equal(hex(out), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  digest_hmac("", 0, "", 0, out);
  assert_string_equal(hex(out), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  digest_hmac(NULL, 0, NULL, 0, out);
  assert_string_equal(hex(out), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

/* ---- the vectors of docs/keys.md ---- */

enum { CELLS = 4 };

/* Cuts "| `a` | `b` |" into its cells; gives how many; 0 for other lines. */
static int cut_cells(char *line, char *cells[CELLS]) {
  int n = 0;
  if (strncmp(line, "| `", 3) != 0) return 0;
  char *p = line + 3;
  for (;;) {
    char *end = strstr(p, "` | `");
    if (end == NULL) end = strstr(p, "` |\n");
    if (end == NULL || n == CELLS) return 0;
    cells[n++] = p;
    bool last = end[3] == '\n';
    *end = '\0';
    if (last) return n;
    p = end + 5;
  }
}

struct parts {
  struct key_digest digest;
  char type;
  int strings;
};

static int on_part_string(void *arg, const char *text, size_t n) {
  struct parts *p = arg;
  if (p->strings++ % 2 == 0) {
    p->type = text[0];
  } else {
    key_digest_part(&p->digest, p->type, text, n);
  }
  return 0;
}

static void check_key(char *cells[CELLS]) {
  static const struct json_events events = {.string = on_part_string};
  struct parts p = {.strings = 0};
  uint8_t out[DIGEST_BYTES];
  key_digest_begin(&p.digest, cells[0]);
  assert_int_equal(json_read(cells[1], strlen(cells[1]), &events, &p, NULL), 0);
  key_digest_end(&p.digest, out);
  key_digest_drop(&p.digest);
  assert_string_equal(hex(out), cells[2]);
}

static void check_fingerprint(char *cells[CELLS]) {
  struct buf canonical = BUF_INIT;
  struct err e = ERR_INIT;
  uint8_t out[DIGEST_BYTES];
  if (json_canonical(cells[1], strlen(cells[1]), &canonical, &e) != 0) fail_msg("%s: %s", cells[1], e.message);
  assert_string_equal(canonical.data, cells[2]);
  digest_fingerprint(cells[0], canonical.data, canonical.len, out);
  assert_string_equal(hex(out), cells[3]);
  buf_fini(&canonical);
}

static void C09_published_digest_vectors(void **state) {
  FILE *page = fopen("docs/keys.md", "r");
  assert_non_null(page);
  char line[2048], *cells[CELLS];
  int keys = 0, fingerprints = 0;
  while (fgets(line, sizeof line, page) != NULL) {
    int n = cut_cells(line, cells);
    if (n == 3 && strlen(cells[2]) == 64) check_key(cells), keys++;
    if (n == 4 && strlen(cells[3]) == 64) check_fingerprint(cells), fingerprints++;
  }
  fclose(page);
  assert_true(keys > 15 && fingerprints > 10);
  assert_int_equal(system("/usr/bin/python3 tests/support/digest_vectors.py > /dev/null"), 0);
}

static void one_part(const char *task, char type, const char *text, uint8_t out[DIGEST_BYTES]) {
  struct key_digest k;
  key_digest_begin(&k, task);
  key_digest_part(&k, type, text, strlen(text));
  key_digest_end(&k, out);
}

static void C01_C02_framing_keeps_keys_apart(void **state) {
  static const struct {
    const char *task, *text;
    char type;
  } rows[] = {
      {"t.one", "1", 'n'},    {"t.one", "1", 's'},    {"t.one", "true", 'b'},  {"t.one", "true", 's'}, {"t.one", "1", 'f'},
      {"t.one", "1", 'r'},    {"t.two", "1", 's'},    {"t.on", "e1", 's'},     {"t", ".one1", 's'},    {"t.one", "", 's'},
  };
  uint8_t digests[COUNT(rows) + 2][DIGEST_BYTES];
  for (size_t i = 0; i < COUNT(rows); i++) one_part(rows[i].task, rows[i].type, rows[i].text, digests[i]);
  struct key_digest k;
  key_digest_begin(&k, "t.one");
  key_digest_part(&k, 's', "a", 1);
  key_digest_part(&k, 's', "bc", 2);
  key_digest_end(&k, digests[COUNT(rows)]);
  key_digest_begin(&k, "t.one");
  key_digest_part(&k, 's', "ab", 2);
  key_digest_part(&k, 's', "c", 1);
  key_digest_end(&k, digests[COUNT(rows) + 1]);
  for (size_t i = 0; i < COUNT(digests); i++) {
    for (size_t j = 0; j < i; j++) assert_false(digest_equal(digests[i], digests[j], DIGEST_BYTES));
  }
}

static void a_begun_key_can_be_dropped(void **state) {
  struct key_digest k;
  key_digest_begin(&k, "t.one");
  key_digest_drop(&k);
  key_digest_drop(&k);
}

static void hex_both_ways(void **state) {
  uint8_t out[4];
  char text[9];
  assert_true(hex_decode("00ffA9b1", 8, out, 4));
  assert_memory_equal(out, "\x00\xff\xa9\xb1", 4);
  hex_encode(out, 4, text);
  assert_string_equal(text, "00ffa9b1");
  assert_false(hex_decode("00ffa9b", 7, out, 4));
  assert_false(hex_decode("00ffa9b1", 8, out, 3));
  assert_false(hex_decode("00ffa9bg", 8, out, 4));
  assert_false(hex_decode("0 ffa9b1", 8, out, 4));
  assert_true(hex_decode("", 0, out, 0));
}

static void equality(void **state) {
  assert_true(digest_equal("abc", "abd", 2));
  assert_false(digest_equal("abc", "abd", 3));
  assert_true(digest_equal("", "", 0));
}

static void uuids_are_random_and_well_formed(void **state) {
  char one[37], two[37];
  for (int i = 0; i < 1000; i++) {
    uuid_v4(one);
    uuid_v4(two);
    assert_true(uuid_valid(one));
    assert_string_not_equal(one, two);
    assert_int_equal(one[14], '4');
    assert_non_null(strchr("89ab", one[19]));
  }
  assert_false(uuid_valid(""));
  assert_false(uuid_valid("6f1c1f0e-8b3a-4f59-9d3c-0d0f6f9b2a1"));
  assert_false(uuid_valid("6f1c1f0e-8b3a-4f59-9d3c-0d0f6f9b2a111"));
  assert_false(uuid_valid("6f1c1f0e-8b3a-4f59-9d3c-0d0f6f9b2a1g"));
  assert_false(uuid_valid("6f1c1f0e08b3a-4f59-9d3c-0d0f6f9b2a11"));
  assert_true(uuid_valid("6F1C1F0E-8B3A-4F59-9D3C-0D0F6F9B2A11"));
}

static void random_units_spread(void **state) {
  int buckets[10] = {0};
  for (int i = 0; i < 10000; i++) {
    double u = random_unit();
    assert_true(u >= 0 && u < 1);
    buckets[(int)(u * 10)]++;
  }
  for (int i = 0; i < 10; i++) assert_in_range(buckets[i], 700, 1300);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sha256),
      cmocka_unit_test(hmac_sha256),
      cmocka_unit_test(C09_published_digest_vectors),
      cmocka_unit_test(C01_C02_framing_keeps_keys_apart),
      cmocka_unit_test(a_begun_key_can_be_dropped),
      cmocka_unit_test(hex_both_ways),
      cmocka_unit_test(equality),
      cmocka_unit_test(uuids_are_random_and_well_formed),
      cmocka_unit_test(random_units_spread),
  };
  return RUN(tests);
}
