/* digest: SHA-256, HMAC, the framings of idempotency keys and request fingerprints, random octets.
 *
 * The framings are an interface: docs/keys.md publishes them with test vectors, so that another program can compute
 * the same digest. Primitives are libcrypto's; the algorithms are fetched once per process, on first use, and a
 * failure there aborts (a build without SHA-256 cannot run). One context per purpose is kept for the process: call
 * from one thread only. A forked child may go on using them.
 */
#ifndef UMAVEZ_BASE_DIGEST_H
#define UMAVEZ_BASE_DIGEST_H

#include "base/buf.h"
#include "base/err.h"

#define DIGEST_BYTES 32
#define DIGEST_HEX_SIZE (2 * DIGEST_BYTES + 1)

/* Key digest, umavez.key.v1:
 *   SHA-256( "umavez.key.v1" NUL, u32be length of the task's name, its octets, then per part:
 *            1 octet type, u32be length, octets )
 * Parts: 'r' run_id as canonical lower-case text, 's' a string's UTF-8, 'n' a number in exact canonical form
 * (json_number_canonical), 'b' "true" or "false", 'f' the string that a key function returned. */
struct key_digest {
  struct buf framed; /* owned between begin and end (or drop) */
};

void key_digest_begin(struct key_digest *k, const char *task);
void key_digest_part(struct key_digest *k, char type, const void *p, size_t n); /* n below 4 GiB */
void key_digest_end(struct key_digest *k, uint8_t out[DIGEST_BYTES]);           /* frees */
void key_digest_drop(struct key_digest *k); /* frees without a digest; harmless after end */

/* Request fingerprint, umavez.fingerprint.v1:
 *   SHA-256( "umavez.fingerprint.v1" NUL, u32be length of the task's name, its octets,
 *            u64be len, the canonical octets )
 * `canonical` is json_canonical's form of the args, or of the part of them that counts. */
void digest_fingerprint(const char *task, const char *canonical, size_t len, uint8_t out[DIGEST_BYTES]);

void digest_sha256(const void *p, size_t n, uint8_t out[DIGEST_BYTES]);
void digest_sha1(const void *p, size_t n, uint8_t out[20]); /* names Valkey's scripts; nothing rests on its strength */
/* HMAC-SHA-256, RFC 2104. */
void digest_hmac(const void *key, size_t key_len, const void *p, size_t n, uint8_t out[DIGEST_BYTES]);

bool digest_equal(const void *a, const void *b, size_t n); /* in constant time */

void hex_encode(const void *p, size_t n, char *out); /* lower case; out[2 * n + 1], NUL ended */
/* Exactly n octets from 2 * n hex digits of either case; false, out undefined, for any other text. */
MUST_CHECK bool hex_decode(const char *hex, size_t hex_len, uint8_t *out, size_t n);

void random_bytes(void *out, size_t n); /* from the kernel; fit for secrets */
double random_unit(void);               /* in [0, 1), for jitter; not for secrets */
void uuid_v4(char out[37]);             /* RFC 9562, lower case */
bool uuid_valid(const char *text);      /* 36 characters, hex of either case with hyphens where they belong */

#endif
