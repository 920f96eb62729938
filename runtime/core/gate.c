#include "core/gate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/stats.h"

/* Offsets of the entry's fixed-width fields, from 0. The scripts below use the same, from 1. */
enum {
  AT_STATE = 4,
  AT_FINGERPRINT = 6,
  AT_DBID = 71,
  AT_ID = 88,
  AT_ATTEMPT = 108,
  AT_TIME = 119,
  AT_TOKEN = 136,
  AT_RUN_ID = 169,
  AT_HMAC = 206,
  AT_OUTCOME = 271,
};
#define DBID_CHARS 16
#define TIME_CHARS 16
#define TIME_MAX INT64_C(9999999999999999)
#define HELD_SPARE_MS 10000 /* beyond prepare, handler and a lease: what a holder may wait for a connection */
#define ENTRY_MAX_BYTES 16384 /* an outcome has 4096 octets at most; anything larger is not ours */

struct gate {
  struct valkey *valkey;
  const struct dbclock *clock;
  char *prefix;
  int64_t replay_cache_ms;
  bool known; /* identity and secret are there */
  char dbid[DBID_CHARS + 1];
  uint8_t secret[64];
  size_t secret_len;
};

/* KEYS[1]; ARGV: entry, px, run_id → "+" acquired, "?" unreadable, or { entry, pttl } */
static struct valkey_script acquire_script = {
    .text =
        "local t = redis.call('TYPE', KEYS[1]).ok\n"
        "if t == 'string' then\n"
        "  if redis.call('STRLEN', KEYS[1]) > 16384 then return '?' end\n"
        "  local v = redis.call('GET', KEYS[1])\n"
        "  if not (string.sub(v, 1, 6) == 'uv3:P:' and string.sub(v, 170, 205) == ARGV[3]) then\n"
        "    return { v, redis.call('PTTL', KEYS[1]) }\n"
        "  end\n"
        "elseif t ~= 'none' then return '?' end\n"
        "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n"
        "return '+'\n"};

/* KEYS[1]; ARGV: token, px ('0': delete) */
static struct valkey_script hold_script = {
    .text =
        "if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return 0 end\n"
        "local v = redis.call('GETRANGE', KEYS[1], 0, 204)\n"
        "if string.sub(v, 1, 6) ~= 'uv3:P:' or string.sub(v, 137, 168) ~= ARGV[1] then return 0 end\n"
        "if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end\n"
        "return redis.call('PEXPIRE', KEYS[1], ARGV[2])\n"};

/* KEYS[1]; ARGV: entry, px, "id:attempt", dbid, force */
static struct valkey_script settle_script = {
    .text =
        "if ARGV[5] == '0' and redis.call('TYPE', KEYS[1]).ok == 'string' then\n"
        "  local v = redis.call('GETRANGE', KEYS[1], 0, 204)\n"
        "  if string.sub(v, 1, 4) == 'uv3:' and string.sub(v, 5, 5) ~= 'P' and string.sub(v, 72, 87) == ARGV[4]\n"
        "     and string.sub(v, 89, 118) > ARGV[3] then return 0 end\n"
        "end\n"
        "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n"
        "return 1\n"};

struct gate *gate_new(struct valkey *v, const struct dbclock *clock, const char *prefix, int64_t replay_cache_ms) {
  struct gate *g = xcalloc(1, sizeof *g);

  g->valkey = v;
  g->clock = clock;
  g->prefix = xstrdup(prefix);
  g->replay_cache_ms = replay_cache_ms;
  return g;
}

void gate_free(struct gate *g) {
  if (!g) return;
  free(g->prefix);
  free(g);
}

void gate_set_identity(struct gate *g, const char *identity, const uint8_t *secret, size_t secret_len) {
  uint8_t digest[DIGEST_BYTES];
  char hex[2 * DIGEST_BYTES + 1];

  g->known = identity && g->clock->known && secret_len > 0 && secret_len <= sizeof g->secret;
  if (!g->known) return;
  digest_sha256(identity, strlen(identity), digest);
  hex_encode(digest, sizeof digest, hex);
  memcpy(g->dbid, hex, DBID_CHARS);
  memcpy(g->secret, secret, secret_len);
  g->secret_len = secret_len;
}

void gate_bind(const struct gate *g, struct run *r) {
  if (g->known)
    memcpy(r->bound, g->dbid, sizeof r->bound);
  else
    r->bound[0] = 0;
}

static void owner_text(const struct run *r, char out[24]) {
  if (r->has_tenant)
    snprintf(out, 24, "t%" PRId64, r->tenant_id);
  else
    strcpy(out, "p");
}

static void key_text(const struct gate *g, const struct run *r, struct buf *out) {
  char owner[24];

  owner_text(r, owner);
  const char *const parts[] = {g->prefix, ":gate:{", owner, ":", r->key_hex, "}"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) buf_puts(out, parts[i]);
}

/* HMAC over owner, key, the head of the entry (up to and with the ':' before the hmac) and the outcome. */
static void entry_hmac(const struct gate *g, const struct run *r, const char *head, const char *outcome,
                       size_t outcome_len, char out[65]) {
  struct buf b;
  char owner[24];
  uint8_t mac[DIGEST_BYTES];

  buf_init(&b);
  owner_text(r, owner);
  buf_reserve(&b, sizeof owner + sizeof r->key_hex + AT_HMAC + outcome_len);
  buf_puts(&b, owner);
  buf_putc(&b, ':');
  buf_puts(&b, r->key_hex);
  buf_putc(&b, ':');
  buf_append(&b, head, AT_HMAC);
  buf_append(&b, outcome, outcome_len);
  digest_hmac(g->secret, g->secret_len, b.data, b.len, mac);
  hex_encode(mac, sizeof mac, out);
  buf_fini(&b);
}

static void write_entry(const struct gate *g, const struct run *r, char state, int64_t id, int attempt, int64_t time_ms,
                        const char *outcome, struct buf *out) {
  char mac[65], numbers[64];

  if (time_ms < 0 || time_ms > TIME_MAX) time_ms = time_ms < 0 ? 0 : TIME_MAX;
  snprintf(numbers, sizeof numbers, ":%019" PRId64 ":%010d:%016" PRId64 ":", id, attempt, time_ms);
  const char head[] = {'u', 'v', '3', ':', state, ':', 0};
  const char *const parts[] = {head, r->fingerprint_hex, ":", g->dbid, numbers, r->token, ":", r->run_id, ":"};
  buf_reserve(out, AT_OUTCOME + strlen(outcome)); /* twice a run: without printf, and without a move */
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) buf_puts(out, parts[i]);
  if (out->len != AT_HMAC) bug("a gate entry's head has %zu octets", out->len);
  entry_hmac(g, r, out->data, outcome, strlen(outcome), mac);
  buf_puts(out, mac);
  buf_putc(out, ':');
  buf_puts(out, outcome);
}

static bool authentic(const struct gate *g, const struct run *r, const char *v, size_t len) {
  char mac[65];

  if (len < AT_OUTCOME + 2 || len > ENTRY_MAX_BYTES || memchr(v, 0, len) || memcmp(v, "uv3:", 4) != 0) return false;
  entry_hmac(g, r, v, v + AT_OUTCOME, len - AT_OUTCOME, mac);
  return digest_equal(mac, v + AT_HMAC, 64) && memcmp(v + AT_DBID, g->dbid, DBID_CHARS) == 0;
}

/* The signed time of an authentic entry. */
static int64_t entry_time_ms(const char *v) {
  char digits[TIME_CHARS + 1];

  memcpy(digits, v + AT_TIME, TIME_CHARS);
  digits[TIME_CHARS] = 0;
  return strtoll(digits, NULL, 10);
}

/* Longer than any holder can be at work; it may live still, waiting for PostgreSQL: then PostgreSQL knows. */
static bool held_too_long(const struct gate *g, const struct run *r, const char *v) {
  int64_t most = 2 * r->task->timeout_ms + r->task->lease_ms + HELD_SPARE_MS;

  return dbclock_earliest_ms(g->clock) - entry_time_ms(v) > most;
}

/* What a standing entry means for this run. Anything that cannot be believed leaves the decision to PostgreSQL. */
static enum stats_gate judge(const struct gate *g, struct run *r, const char *v, size_t len, int64_t pttl, struct gate_answer *a) {
  a->result = GATE_UNAVAILABLE;
  if (!authentic(g, r, v, len) || pttl <= 0) {
    r->gate_distrusted = true;
    return STATS_GATE_RESULT_UNBELIEVED;
  }
  if (memcmp(v + AT_FINGERPRINT, r->fingerprint_hex, 64) != 0) {
    r->gate_distrusted = true;
    return STATS_GATE_RESULT_CONFLICT;
  }
  switch (v[AT_STATE]) {
    case 'P':
      if (pttl > r->task->lease_ms + 1000 || held_too_long(g, r, v)) {
        r->gate_distrusted = true;
        return STATS_GATE_RESULT_UNBELIEVED;
      }
      a->result = GATE_BUSY;
      a->remaining_ms = pttl;
      return STATS_GATE_RESULT_BUSY;
    case 'C':
    case 'F':
      a->remaining_ms = entry_time_ms(v) - dbclock_latest_ms(g->clock);
      if (a->remaining_ms <= 0) {
        r->gate_distrusted = true;
        return STATS_GATE_RESULT_UNBELIEVED;
      }
      a->result = GATE_SETTLED;
      a->failed = v[AT_STATE] == 'F';
      a->outcome = v + AT_OUTCOME;
      a->outcome_len = len - AT_OUTCOME;
      return STATS_GATE_RESULT_REPLAY;
    default:
      r->gate_distrusted = true;
      return STATS_GATE_RESULT_UNBELIEVED;
  }
}

struct acquire {
  int64_t asked_us;
  struct gate *gate;
  struct run *run;
  void (*done)(struct run *r, const struct gate_answer *a);
};

static void on_acquire(void *arg, const struct valkey_reply *reply) {
  struct acquire *q = arg;
  struct gate_answer a = {.result = GATE_UNAVAILABLE};
  enum stats_gate counted;

  if (!reply || !q->gate->known) {
    counted = STATS_GATE_RESULT_DOWN;
  } else if ((reply->type == V_STRING || reply->type == V_STATUS) && reply->len == 1 && reply->str[0] == '+') {
    a.result = GATE_ACQUIRED;
    counted = STATS_GATE_RESULT_ACQUIRED;
  } else if (reply->type == V_ARRAY && reply->elements == 2 && reply->element[0].type == V_STRING &&
             reply->element[1].type == V_INT) {
    counted = judge(q->gate, q->run, reply->element[0].str, reply->element[0].len, reply->element[1].integer, &a);
  } else {
    q->run->gate_distrusted = true;
    counted = STATS_GATE_RESULT_UNBELIEVED;
  }
  stats_add(STAT_GATE, (int)counted, 1);
  if (reply) stats_observe(STAT_GATE_TIME, loop_clock_us() - q->asked_us);
  q->done(q->run, &a);
  free(q);
}

/* argv[0] and lens[0] are the key's place. */
static void eval(struct gate *g, struct run *r, struct valkey_script *s, int n, const char **argv, size_t *lens,
                 valkey_done *done, void *arg) {
  struct buf key;

  buf_init(&key);
  key_text(g, r, &key);
  argv[0] = key.data;
  lens[0] = key.len;
  valkey_eval(g->valkey, s, 1, n, argv, lens, done, arg);
  buf_fini(&key);
}

void gate_acquire(struct gate *g, struct run *r, void (*done)(struct run *r, const struct gate_answer *a)) {
  struct acquire *q;
  struct buf entry;
  char px[24];
  uint8_t token[16];

  FAILPOINT(GATE_BEFORE, r->task_name, -1);
  if (!g->valkey || !g->known) {
    struct gate_answer a = {.result = GATE_UNAVAILABLE};
    if (g->valkey) stats_add(STAT_GATE, STATS_GATE_RESULT_DOWN, 1);
    done(r, &a);
    return;
  }
  random_bytes(token, sizeof token);
  hex_encode(token, sizeof token, r->token);
  q = xcalloc(1, sizeof *q);
  *q = (struct acquire){loop_clock_us(), g, r, done};
  buf_init(&entry);
  write_entry(g, r, 'P', 0, 0, dbclock_latest_ms(g->clock), "{}", &entry);
  snprintf(px, sizeof px, "%" PRId64, r->task->lease_ms);
  const char *argv[4] = {NULL, entry.data, px, r->run_id};
  size_t lens[4] = {0, entry.len, strlen(px), strlen(r->run_id)};
  eval(g, r, &acquire_script, 4, argv, lens, on_acquire, q);
  FAILPOINT(GATE_SENT, r->task_name, valkey_flush(g->valkey));
  buf_fini(&entry);
}

static void hold(struct gate *g, struct run *r, int64_t px_ms) {
  char px[24];

  if (!g->valkey || !r->token[0]) return;
  snprintf(px, sizeof px, "%" PRId64, px_ms);
  const char *argv[3] = {NULL, r->token, px};
  size_t lens[3] = {0, strlen(r->token), strlen(px)};
  eval(g, r, &hold_script, 3, argv, lens, NULL, NULL);
}

void gate_release(struct gate *g, struct run *r) {
  hold(g, r, 0);
  r->token[0] = 0;
}

void gate_renew(struct gate *g, struct run *r) {
  hold(g, r, r->task->lease_ms);
}

void gate_settle(struct gate *g, struct run *r, bool failed, int64_t ledger_id, int attempt, const char *outcome,
                 int64_t remaining_ms) {
  struct buf entry;
  char px[24], order[40];
  int64_t ttl = remaining_ms < g->replay_cache_ms ? remaining_ms : g->replay_cache_ms;

  if (!g->valkey || !g->known || strcmp(r->bound, g->dbid) != 0 || ttl <= 0) {
    gate_release(g, r); /* no copy can be made: at least the duplicates need not wait for our entry's end */
    return;
  }
  if (!r->token[0]) memset(r->token, '0', sizeof r->token - 1);
  buf_init(&entry);
  write_entry(g, r, failed ? 'F' : 'C', ledger_id, attempt, dbclock_earliest_ms(g->clock) + remaining_ms, outcome, &entry);
  snprintf(px, sizeof px, "%" PRId64, ttl);
  snprintf(order, sizeof order, "%019" PRId64 ":%010d", ledger_id, attempt);
  const char *force = r->gate_distrusted ? "1" : "0";
  const char *argv[6] = {NULL, entry.data, px, order, g->dbid, force};
  size_t lens[6] = {0, entry.len, strlen(px), strlen(order), DBID_CHARS, 1};
  eval(g, r, &settle_script, 6, argv, lens, NULL, NULL);
  FAILPOINT(COPY_SENT, r->task_name, valkey_flush(g->valkey));
  buf_fini(&entry);
  r->token[0] = 0;
}
