/* ledger_internal: what ledger.c (one run), ledger_batch.c and ledger_acks.c (many) share: parameters, texts of statements, calls.
 * Nobody else includes it. */
#ifndef UMAVEZ_CORE_LEDGER_INTERNAL_H
#define UMAVEZ_CORE_LEDGER_INTERNAL_H

#include "base/buf.h"
#include "core/ledger.h"
#include "core/run.h"

/* Everything travels as text. Borrows the strings that are added. */
#define PARAMS_MAX 13

struct params {
  const char *value[PARAMS_MAX];
  int n;
  char number[PARAMS_MAX][24];
  char bytes[2][2 * DIGEST_BYTES + 3];
  int nbytes;
};

void params_text(struct params *p, const char *s); /* NULL: NULL */
void params_int(struct params *p, int64_t v);
void params_bool(struct params *p, bool v);
void params_digest(struct params *p, const char *hex);
void params_tenant(struct params *p, const struct run *r);

/* An array of one value of each run as the next parameter; b keeps its text, and is the caller's to free. */
enum params_column { OF_RUN_IDS, OF_TENANTS, OF_KEYS, OF_FINGERPRINTS, OF_LEDGER_IDS, OF_OUTCOMES };
void params_array(struct params *p, struct buf *b, enum params_column what, struct run *const *runs, int n);

/* fail_run for r->outcome, failure, permanent, delay_ms: its text and its parameters. */
#define FAIL_RUN                                                                                                  \
  "SELECT outcome, remaining_ms FROM umavez.fail_run($1::uuid, $2::bigint, $3::bytea, $4::bigint, $5::int, "      \
  "$6::boolean, $7::jsonb, $8::jsonb, $9::bigint, $10::bigint, $11::boolean)"
void params_fail_run(struct params *p, const struct run *r);
/* The last six of them, which fail_lost_run has too. */
void params_failure(struct params *p, const struct run *r);

/* A call of r, which has none; its end: done is called, and it is freed. */
struct ledger_call *ledger_call_new(struct run *r, ledger_done *done);
void ledger_call_end(void *call);

#endif
