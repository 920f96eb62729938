#include "base/digest.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <string.h>
#include <sys/random.h>

static const char key_domain[] = "umavez.key.v1";                 /* hashed with its NUL */
static const char fingerprint_domain[] = "umavez.fingerprint.v1"; /* hashed with its NUL */

static struct {
  EVP_MD *md;
  EVP_MD_CTX *md_ctx;
  EVP_MAC_CTX *mac_ctx;
  uint8_t mac_key[64]; /* that mac_ctx was started with last */
  size_t mac_key_len;  /* 0: none, or one that is longer */
} crypto;

static void check(int ok, const char *what) {
  if (ok != 1) bug("libcrypto: %s failed", what);
}

static void start_sha256(void) {
  if (crypto.md == NULL) {
    crypto.md = EVP_MD_fetch(NULL, "SHA256", NULL);
    crypto.md_ctx = EVP_MD_CTX_new();
    check(crypto.md != NULL && crypto.md_ctx != NULL, "fetching SHA-256");
  }
  check(EVP_DigestInit_ex2(crypto.md_ctx, crypto.md, NULL), "starting SHA-256");
}

static void add_sha256(const void *p, size_t n) {
  if (n > 0) check(EVP_DigestUpdate(crypto.md_ctx, p, n), "SHA-256");
}

static void end_sha256(uint8_t out[DIGEST_BYTES]) {
  unsigned n = 0;
  check(EVP_DigestFinal_ex(crypto.md_ctx, out, &n) == 1 && n == DIGEST_BYTES, "ending SHA-256");
}

void digest_sha1(const void *p, size_t n, uint8_t out[20]) {
  unsigned len = 0;
  check(EVP_Digest(p, n, out, &len, EVP_sha1(), NULL) == 1 && len == 20, "SHA-1");
}

void digest_sha256(const void *p, size_t n, uint8_t out[DIGEST_BYTES]) {
  start_sha256();
  add_sha256(p, n);
  end_sha256(out);
}

void digest_hmac(const void *key, size_t key_len, const void *p, size_t n, uint8_t out[DIGEST_BYTES]) {
  static char name[] = "SHA256";
  if (crypto.mac_ctx == NULL) {
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    crypto.mac_ctx = mac != NULL ? EVP_MAC_CTX_new(mac) : NULL;
    check(crypto.mac_ctx != NULL, "fetching HMAC");
    EVP_MAC_free(mac); /* the context holds its own reference */
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name, 0),
                                 OSSL_PARAM_construct_end()};
    check(EVP_MAC_CTX_set_params(crypto.mac_ctx, params), "HMAC-SHA-256");
  }
  size_t size = 0;
  /* The same key again spares its two blocks. A NULL or empty key would mean "the former key" to EVP_MAC_init; HMAC pads
   * keys with zeros, so one zero is the empty key. */
  static const unsigned char empty[1];
  if (key_len > 0 && key_len == crypto.mac_key_len && memcmp(key, crypto.mac_key, key_len) == 0) {
    check(EVP_MAC_init(crypto.mac_ctx, NULL, 0, NULL), "starting HMAC");
  } else {
    check(EVP_MAC_init(crypto.mac_ctx, key_len > 0 ? key : empty, key_len > 0 ? key_len : 1, NULL), "starting HMAC");
    crypto.mac_key_len = key_len <= sizeof crypto.mac_key ? key_len : 0;
    if (crypto.mac_key_len > 0) memcpy(crypto.mac_key, key, key_len);
  }
  if (n > 0) check(EVP_MAC_update(crypto.mac_ctx, p, n), "HMAC");
  check(EVP_MAC_final(crypto.mac_ctx, out, &size, DIGEST_BYTES) == 1 && size == DIGEST_BYTES, "ending HMAC");
}

static void put_u32be(uint8_t out[4], uint32_t v) {
  for (int i = 0; i < 4; i++) out[i] = (uint8_t)(v >> (24 - 8 * i));
}

static uint32_t length32(size_t n) {
  if (n > UINT32_MAX) bug("a framed part of %zu octets", n);
  return (uint32_t)n;
}

static void put_framed(struct buf *b, const void *p, size_t n) {
  uint8_t length[4];
  put_u32be(length, length32(n));
  buf_append(b, length, sizeof length);
  buf_append(b, p, n);
}

void key_digest_begin(struct key_digest *k, const char *task) {
  buf_init(&k->framed);
  buf_append(&k->framed, key_domain, sizeof key_domain);
  put_framed(&k->framed, task, strlen(task));
}

void key_digest_part(struct key_digest *k, char type, const void *p, size_t n) {
  if (type == '\0' || strchr("rsnbf", type) == NULL) bug("key_digest_part: type 0x%02x", (unsigned char)type);
  buf_putc(&k->framed, type);
  put_framed(&k->framed, p, n);
}

void key_digest_end(struct key_digest *k, uint8_t out[DIGEST_BYTES]) {
  digest_sha256(k->framed.data, k->framed.len, out);
  buf_fini(&k->framed);
}

void key_digest_drop(struct key_digest *k) { buf_fini(&k->framed); }

void digest_fingerprint(const char *task, const char *canonical, size_t len, uint8_t out[DIGEST_BYTES]) {
  size_t task_len = strlen(task);
  uint8_t length[8];
  start_sha256();
  add_sha256(fingerprint_domain, sizeof fingerprint_domain);
  put_u32be(length, length32(task_len));
  add_sha256(length, 4);
  add_sha256(task, task_len);
  put_u32be(length, (uint32_t)((uint64_t)len >> 32));
  put_u32be(length + 4, (uint32_t)len);
  add_sha256(length, 8);
  add_sha256(canonical, len);
  end_sha256(out);
}

bool digest_equal(const void *a, const void *b, size_t n) { return CRYPTO_memcmp(a, b, n) == 0; }

void hex_encode(const void *p, size_t n, char *out) {
  static const char digits[] = "0123456789abcdef";
  const uint8_t *from = p;
  for (size_t i = 0; i < n; i++) {
    out[2 * i] = digits[from[i] >> 4];
    out[2 * i + 1] = digits[from[i] & 15];
  }
  out[2 * n] = '\0';
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool hex_decode(const char *hex, size_t hex_len, uint8_t *out, size_t n) {
  if (hex_len != 2 * n) return false;
  for (size_t i = 0; i < n; i++) {
    int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}

void random_bytes(void *out, size_t n) {
  uint8_t *to = out;
  while (n > 0) {
    ssize_t got = getrandom(to, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) bug("getrandom: %s", strerror(errno));
    to += got;
    n -= (size_t)got;
  }
}

/* xorshift64*, seeded by the kernel: a system call for each jitter would be waste. */
double random_unit(void) {
  static uint64_t state;
  while (state == 0) random_bytes(&state, sizeof state);
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (double)(state * 0x2545F4914F6CDD1DULL >> 11) / 9007199254740992.0;
}

void uuid_v4(char out[37]) {
  uint8_t octets[16];
  char hex[33];
  random_bytes(octets, sizeof octets);
  octets[6] = (uint8_t)((octets[6] & 0x0F) | 0x40);
  octets[8] = (uint8_t)((octets[8] & 0x3F) | 0x80);
  hex_encode(octets, sizeof octets, hex);
  static const int sizes[] = {8, 4, 4, 4, 12};
  const char *from = hex;
  for (int i = 0; i < 5; i++) {
    memcpy(out, from, (size_t)sizes[i]);
    from += sizes[i];
    out += sizes[i];
    *out++ = i < 4 ? '-' : '\0';
  }
}

bool uuid_valid(const char *text) {
  for (int i = 0; i < 36; i++) {
    bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;
    if (hyphen ? text[i] != '-' : hex_digit(text[i]) < 0) return false;
  }
  return text[36] == '\0';
}
