/* door_answer: what a run's outcome says to an HTTP client. A pure function of the stored text, so that the first answer and every
 * replay have the same octets.
 *
 *   completed  { status?, headers?, body? }   status (100–599, default 200), headers of the allow-list, body as JSON
 *              { status?, … }                 the body is all but status and headers
 *   failed     { status?, code, message, … }  application/problem+json: type urn:umavez:failure:<code>, status (default 422),
 *                                             detail the message, and the other members of the detail as they are
 * Allow-list: Location, ETag, Link, Content-Type, Content-Language. Others are dropped, never stored cookies or dates. */
#ifndef UMAVEZ_CORE_DOOR_ANSWER_H
#define UMAVEZ_CORE_DOOR_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

enum { DOOR_ANSWER_HEADERS = 5 };

struct door_answer {
  int status;
  struct {
    const char *name; /* static */
    struct buf value;
  } header[DOOR_ANSWER_HEADERS];
  int nheaders; /* Content-Type is always among them */
  struct buf body;
};

/* -1: the outcome is no JSON object, which a ledger does not hold. Fills *a: door_answer_fini. */
int door_answer_init(struct door_answer *a, const char *outcome, size_t len, bool failed, struct err *e) MUST_CHECK;
void door_answer_fini(struct door_answer *a);

#endif
