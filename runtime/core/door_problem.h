/* door_problem: the door's error answers, RFC 9457 problem details, from one table (docs/http.md shows it; a test compares).
 * None of them is ever stored or replayed. */
#ifndef UMAVEZ_CORE_DOOR_PROBLEM_H
#define UMAVEZ_CORE_DOOR_PROBLEM_H

#include <stdint.h>

#include "base/buf.h"

#define DOOR_PROBLEM_TYPE "urn:umavez:problem:"

/* X(id, name: the end of the type, status, title) */
#define DOOR_PROBLEMS(X)                                                                                              \
  X(BAD_REQUEST, "bad_request", 400, "The request cannot be read")                                                    \
  X(BODY_INVALID, "body_invalid", 400, "The body is not the JSON object that is expected")                            \
  X(KEY_MISSING, "key_missing", 400, "An Idempotency-Key is required")                                                \
  X(KEY_INVALID, "key_invalid", 400, "The Idempotency-Key has not the right form")                                    \
  X(UNAUTHENTICATED, "unauthenticated", 401, "A valid bearer token is required")                                      \
  X(SIGNATURE_INVALID, "signature_invalid", 401, "The signature does not fit the body")                               \
  X(FORBIDDEN, "forbidden", 403, "The token does not allow this")                                                     \
  X(NOT_FOUND, "not_found", 404, "There is nothing here")                                                             \
  X(METHOD_NOT_ALLOWED, "method_not_allowed", 405, "The method is not allowed here")                                  \
  X(TIMEOUT, "timeout", 408, "The request took too long to arrive")                                                   \
  X(IN_PROGRESS, "in_progress", 409, "A request with this Idempotency-Key is still at work")                          \
  X(BODY_TOO_LARGE, "body_too_large", 413, "The body is too large")                                                   \
  X(TARGET_TOO_LONG, "target_too_long", 414, "The target is too long")                                                \
  X(MEDIA_TYPE, "unsupported_media_type", 415, "The body must be application/json")                                   \
  X(KEY_REUSED, "key_reused", 422, "The Idempotency-Key was used before with another request")                        \
  X(TOO_MANY_TRIES, "too_many_tries", 429, "Too many failed attempts to log in")                                      \
  X(HEADERS_TOO_LARGE, "headers_too_large", 431, "The headers are too large")                                         \
  X(INTERNAL, "internal_error", 500, "The request failed; it may be repeated with the same Idempotency-Key")          \
  X(NOT_IMPLEMENTED, "not_implemented", 501, "The request uses what this server does not know")                       \
  X(UNAVAILABLE, "unavailable", 503, "The service is away for the moment; repeat with the same Idempotency-Key")      \
  X(OVERLOADED, "overloaded", 503, "Too many requests are waiting; repeat with the same Idempotency-Key")             \
  X(DRAINING, "draining", 503, "The server is shutting down; repeat with the same Idempotency-Key")                   \
  X(UNKNOWN, "unknown_outcome", 503, "It is not known whether the request went through; repeat it with the same key") \
  X(VERSION, "http_version", 505, "The HTTP version is not supported")

enum door_problem {
#define X(id, name, status, title) PROBLEM_##id,
  DOOR_PROBLEMS(X)
#undef X
      PROBLEM_COUNT
};

int door_problem_status(enum door_problem p);
const char *door_problem_name(enum door_problem p);
/* The problem that fits a status that the HTTP library has chosen; PROBLEM_BAD_REQUEST when there is none. */
enum door_problem door_problem_of_status(int status);

/* Appends the JSON body. detail may be NULL; instance is the run's id, or NULL. */
void door_problem_body(enum door_problem p, const char *detail, const char *run_id, struct buf *out);

#endif
