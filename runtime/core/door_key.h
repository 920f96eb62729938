/* door_key: what a request's Idempotency-Key says, and the digests that it becomes. Pure functions.
 *
 * Header        draft-ietf-httpapi-idempotency-key-header-07: a structured-field string (RFC 8941, section 3.3.3), "abc" in
 *               quotes. Most clients send the bare value; both name the same key. A bare value has no blank, comma, quote or
 *               backslash, so that a list is never taken for a key.
 * Digests       framed like base/digest's, in domains of their own, so that a queue's key and a door's never meet:
 *               key          SHA-256("umavez.door.key.v1" NUL, owner, task, key)
 *               fingerprint  SHA-256("umavez.door.request.v1" NUL, method, target, body)
 *               each part a u32be length and its octets; the body's length is a u64be. owner is "t<tenant>" or "p"; target is
 *               the path as sent, with "?" and the query as sent if there is one. */
#ifndef UMAVEZ_CORE_DOOR_KEY_H
#define UMAVEZ_CORE_DOOR_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"

enum { DOOR_KEY_MAX = 255 };

/* Appends the key that the field value names. -1 with ERR_INPUT "key_invalid" and a message for the client. */
int door_key_parse(const char *value, bool uuid_only, struct buf *key, struct err *e) MUST_CHECK;

void door_key_digest(const char *owner, const char *task, const char *key, size_t len, uint8_t out[DIGEST_BYTES]);
void door_request_fingerprint(const char *method, const char *path, const char *query, const char *body, size_t len,
                              uint8_t out[DIGEST_BYTES]);

#endif
