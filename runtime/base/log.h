/* log: one line an event, to one file descriptor, as logfmt or JSON.
 *
 *   log_kv(LOG_INFO_, "run_completed", "run_id", run->run_id, "attempt", log_i64(run->attempt), NULL);
 *   ts=2026-01-31T12:00:00.123Z level=info event=run_completed run_id=… attempt=1
 *
 * A line is written by one write(2) and is at most LOG_LINE_MAX octets, which a pipe takes as a whole, so that
 * processes can share the descriptor. Control characters, newlines among them, are always escaped, invalid UTF-8 is
 * replaced, a value above LOG_VALUE_MAX octets is cut and ends in "…"; pairs that no longer fit are left out and
 * `truncated=true` says so. A line that the descriptor does not take (full pipe, no space) is dropped and counted;
 * logging never waits and never fails.
 *
 * Never log args, outcomes, statements' parameters or URLs with passwords (conf_redact_url).
 * Event and key names are ours: lower_case, [a-z0-9_]. State is one static per process; call from the loop's thread
 * only.
 */
#ifndef UMAVEZ_BASE_LOG_H
#define UMAVEZ_BASE_LOG_H

#include "base/err.h"

enum { LOG_VALUE_MAX = 1024, LOG_LINE_MAX = 4096 };

enum log_level { LOG_DEBUG_, LOG_INFO_, LOG_WARN_, LOG_ERROR_ };
enum log_format { LOG_LOGFMT, LOG_JSON };

struct log_pair {
  const char *key;
  const char *value; /* NULL: the pair is left out */
};

/* Before log_init: level info, logfmt, descriptor 2. May be called again. The descriptor is borrowed for good. */
void log_init(enum log_level level, enum log_format format, int fd);

/* Pairs that every later line carries after `event` (worker id, pid); copies them; replaces the former ones. At most
 * 8. */
void log_set_common(const struct log_pair *pairs, size_t n);

bool log_enabled(enum log_level level); /* to spare the making of values */

/* Pairs (const char *key, const char *value) until a NULL key; a pair whose value is NULL is left out. */
void log_kv(enum log_level level, const char *event, ...) __attribute__((sentinel));
void log_pairs(enum log_level level, const char *event, const struct log_pair *pairs, size_t n);

/* Adds class, code, sqlstate and message of *e (which may be NULL) behind the given pairs. */
void log_err(enum log_level level, const char *event, const struct err *e, ...) __attribute__((sentinel));

/* Decimal text in a ring of 16 slots: valid until the sixteenth call after; the JSON format writes such a value as a
 * number. */
const char *log_i64(int64_t value);

uint64_t log_dropped(void); /* lines that the descriptor did not take, since the start */
const char *log_level_name(enum log_level level);

#endif
