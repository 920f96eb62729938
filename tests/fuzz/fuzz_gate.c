/* fuzz_gate: what stands under a gate key in Valkey is anybody's to write. The input is such an entry, or changes an authentic one.
 *
 * Invariants: an entry is only believed when it is, octet for octet, one that this gate has written for this key; then a processing one
 * makes wait no longer than a lease and a second, and not when it is older than any holder can be; a settled one gives the outcome that was
 * written, with what is left of the retention, and none when that has ended.
 */
// fuzz-sources: runtime/core/gate.c runtime/core/task.c runtime/base/*.c
// fuzz-libs: -lcrypto -lm
#include "core/gate.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) \
  do { \
    if (!(condition)) bug("broken: %s", #condition); \
  } while (0)

static const char OUTCOME[] = "{\"status\":201}";
enum { KINDS = 3, LEASE_MS = 30000, RETENTION_MS = 7200000, CACHE_MS = 3600000 };

static struct gate *gate;
static struct run run;
static struct task task = {.lease_ms = LEASE_MS, .timeout_ms = LEASE_MS};
static struct dbclock db_clock = {.known = true, .early_ms = 5000000, .late_ms = 5000000};
static int64_t now_ms = 1000;
static struct buf written; /* the entry of the last script that had one */
static struct valkey_reply *reply; /* to the next script that waits for one */

int64_t loop_clock_us(void) { return 0; }
int64_t loop_now_ms(const struct loop *l) {
  (void)l;
  return now_ms;
}

/* The scripts' server. */
void valkey_eval(struct valkey *v, struct valkey_script *s, int nkeys, int n, const char *const *args, const size_t *lens, valkey_done *done, void *arg) {
  (void)v, (void)s, (void)nkeys;
  if (n >= 4) {
    buf_clear(&written);
    buf_append(&written, args[1], lens[1]);
  }
  if (done) done(arg, reply);
}

static struct gate_answer answer;

static void on_answer(struct run *r, const struct gate_answer *a) {
  MUST(r == &run);
  answer = *a;
  if (a->result == GATE_SETTLED) MUST(a->outcome_len == sizeof OUTCOME - 1 && memcmp(a->outcome, OUTCOME, a->outcome_len) == 0);
}

static void ask(const char *entry, size_t len, int64_t pttl) {
  struct valkey_reply element[2] = {{.type = V_STRING, .str = entry, .len = len}, {.type = V_INT, .integer = pttl}};
  struct valkey_reply r = {.type = V_ARRAY, .element = element, .elements = 2};
  reply = &r;
  gate_acquire(gate, &run, on_answer);
  reply = NULL;
}

static struct buf authentic[KINDS]; /* processing, completed, failed_permanent */

static void begin(void) {
  uint8_t secret[32] = {1, 2, 3};
  gate = gate_new((struct valkey *)&run, &db_clock, "umavez", CACHE_MS);
  gate_set_identity(gate, "7331 1 5", secret, sizeof secret);
  run.task = &task;
  run.has_tenant = true;
  run.tenant_id = 7;
  memset(run.key_hex, 'a', sizeof run.key_hex - 1);
  memset(run.fingerprint_hex, 'b', sizeof run.fingerprint_hex - 1);
  strcpy(run.run_id, "00000000-0000-4000-8000-000000000001");
  gate_bind(gate, &run);
  for (int i = 0; i < KINDS; i++) {
    struct valkey_reply plus = {.type = V_STATUS, .str = "+", .len = 1};
    reply = &plus;
    gate_acquire(gate, &run, on_answer);
    MUST(answer.result == GATE_ACQUIRED && run.token[0]);
    reply = NULL;
    if (i > 0) gate_settle(gate, &run, i == 2, 12, 3, OUTCOME, RETENTION_MS);
    buf_append(&authentic[i], written.data, written.len);
  }
}

/* age: since the authentic entries were written. */
static void check(const char *entry, size_t len, int64_t pttl, int64_t age_ms) {
  int kind = 0;

  now_ms += age_ms;
  ask(entry, len, pttl);
  now_ms -= age_ms;
  while (kind < KINDS && (authentic[kind].len != len || memcmp(authentic[kind].data, entry, len) != 0))
    kind++;
  if (kind == KINDS || pttl <= 0 || (kind == 0 ? pttl > LEASE_MS + 1000 || age_ms >= CACHE_MS : age_ms >= RETENTION_MS)) {
    MUST(answer.result == GATE_UNAVAILABLE && run.gate_distrusted);
  } else if (kind == 0) {
    MUST(answer.result == GATE_BUSY && answer.remaining_ms == pttl);
  } else {
    MUST(answer.result == GATE_SETTLED && answer.failed == (kind == 2));
    MUST(answer.remaining_ms == RETENTION_MS - age_ms);
  }
  run.gate_distrusted = false;
}

/* The first octet says how: 0 as it is; else the rest is laid over the authentic entry number (octet % KINDS), at the place that the third
 * octet names. The second chooses TTL and age. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int64_t pttls[] = {-2, -1, 0, 1, LEASE_MS, LEASE_MS + 1001, CACHE_MS};
  static const int64_t ages[] = {0, 10000, CACHE_MS, RETENTION_MS};
  if (!gate) begin();
  if (size < 4) return 0;
  int64_t pttl = pttls[data[1] % (sizeof pttls / sizeof *pttls)];
  int64_t age_ms = ages[data[1] / 7 % (sizeof ages / sizeof *ages)];
  if (data[0] == 0) {
    char *exact = xmemdup(data + 2, size - 2); /* of just that size, for the sanitizer */
    check(exact, size - 2, pttl, age_ms);
    free(exact);
    return 0;
  }
  const struct buf *from = &authentic[data[0] % KINDS];
  size_t at = data[2] % from->len, n = size - 3 < from->len - at ? size - 3 : from->len - at;
  char *changed = xmemdup(from->data, from->len);
  memcpy(changed + at, data + 3, n);
  check(changed, from->len, pttl, age_ms);
  check(changed, at + n, pttl, age_ms);
  check(from->data, from->len, pttl, age_ms);
  free(changed);
  return 0;
}
