#include "core/run_stats.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "core/runner_internal.h"

static int row_of(const struct run *r) {
  return r->task ? r->task->stats_row : 0;
}

void run_stats_taken(struct run *r, int64_t due_for_us) {
  r->due_us = runner_now_us() - (due_for_us > 0 ? due_for_us : 0);
  if (r->deliveries > 1) stats_task_add(row_of(r), STAT_TASK_RETRIES, 0, 1);
}

void run_stats_claim(enum claim_verdict verdict) {
  static const enum stats_verdict places[] = {[CLAIM_CLAIMED] = STATS_VERDICT_CLAIM_CLAIMED,
                                              [CLAIM_REPLAY] = STATS_VERDICT_CLAIM_REPLAY,
                                              [CLAIM_BUSY] = STATS_VERDICT_CLAIM_BUSY,
                                              [CLAIM_CONFLICT] = STATS_VERDICT_CLAIM_CONFLICT};

  if (verdict != CLAIM_NONE) stats_add(STAT_CLAIMS, (int)places[verdict], 1);
}

void run_stats_started(struct run *r, int64_t now_us) {
  if (!r->due_us) return;
  stats_task_observe(row_of(r), STAT_TASK_LATENCY, now_us - r->due_us);
  r->due_us = 0;
}

void run_stats_handler(const struct run *r, int64_t now_us) {
  stats_task_observe(row_of(r), STAT_TASK_HANDLER, now_us - r->handler_us);
}

/* -1: it was no delivery, only a look. */
static int result_of(const struct run *r) {
  switch (r->end) {
    case END_COMPLETED:
      return r->replay ? STATS_RESULT_REPLAY : STATS_RESULT_COMPLETED;
    case END_FAILED:
    case END_RETRY:
      if (r->replay) return STATS_RESULT_REPLAY;
      if (r->reused) return STATS_RESULT_CONFLICT;
      return r->permanent ? STATS_RESULT_FAILED_PERMANENT : STATS_RESULT_FAILED_RETRYABLE;
    case END_CONFLICT:
      return STATS_RESULT_CONFLICT;
    case END_BUSY:
      return STATS_RESULT_BUSY;
    case END_GIVEN_BACK:
      return STATS_RESULT_GIVEN_BACK;
    case END_UNKNOWN:
      return STATS_RESULT_UNKNOWN;
    case END_UNSTARTED:
    case END_NONE:
      return -1;
  }
  return -1;
}

void run_stats_ended(const struct run *r) {
  int result = result_of(r);

  if (result < 0) return;
  stats_task_add(row_of(r), STAT_TASK_RUNS, result, 1);
  if (!r->request && (result == STATS_RESULT_FAILED_PERMANENT || result == STATS_RESULT_CONFLICT))
    stats_task_add(row_of(r), STAT_TASK_DEAD, 0, 1);
}

/* ---- purges ---- */

static void add_number(const char *outcome, const char *member, enum stats_remains what) {
  struct json_value v;

  if (json_find(outcome, strlen(outcome), member, &v) == 0 && v.type == JSON_NUMBER && v.text[0] != '-')
    stats_add(STAT_PURGED, (int)what, strtoull(v.text, NULL, 10));
}

/* A purge is a row of runs, of which the last one (done) tells the sums of all. */
void run_stats_purged(const struct run *r, const char *outcome) {
  struct json_value done;

  if (!r->task || strcmp(r->task->name, "maintenance.purge") != 0) return;
  if (json_find(outcome, strlen(outcome), "done", &done) < 0 || done.type != JSON_TRUE) return;
  add_number(outcome, "tenant_keys", STATS_REMAINS_TENANT_KEYS);
  add_number(outcome, "platform_keys", STATS_REMAINS_PLATFORM_KEYS);
  add_number(outcome, "partitions_dropped", STATS_REMAINS_PARTITIONS);
  add_number(outcome, "audit_rows", STATS_REMAINS_AUDIT);
}
