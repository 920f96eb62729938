#include "base/log.h"

#include "base/buf.h"
#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RING = 16, NUMBER_SIZE = 24, PAIRS_MAX = 32, COMMON_MAX = 8 };

static struct {
  enum log_level level;
  enum log_format format;
  int fd;
  uint64_t dropped;
  struct log_pair common[COMMON_MAX]; /* owns both texts */
  size_t ncommon;
  char ring[RING][NUMBER_SIZE];
  unsigned ring_next;
  struct buf value; /* scratch: one value, cleaned and cut */
  struct buf line;  /* scratch: one line */
} log_state = {.level = LOG_INFO_, .format = LOG_LOGFMT, .fd = STDERR_FILENO};

void log_init(enum log_level level, enum log_format format, int fd) {
  log_state.level = level;
  log_state.format = format;
  log_state.fd = fd;
}

void log_set_common(const struct log_pair *pairs, size_t n) {
  if (n > COMMON_MAX) bug("log_set_common: %zu pairs", n);
  for (size_t i = 0; i < log_state.ncommon; i++) {
    free((char *)log_state.common[i].key);
    free((char *)log_state.common[i].value);
  }
  for (size_t i = 0; i < n; i++) {
    log_state.common[i].key = xstrdup(pairs[i].key);
    log_state.common[i].value = pairs[i].value == NULL ? NULL : xstrdup(pairs[i].value);
  }
  log_state.ncommon = n;
}

bool log_enabled(enum log_level level) { return level >= log_state.level; }

uint64_t log_dropped(void) { return log_state.dropped; }

const char *log_level_name(enum log_level level) {
  static const char *const names[] = {"debug", "info", "warn", "error"};
  if ((unsigned)level > LOG_ERROR_) bug("log_level_name: %d", (int)level);
  return names[level];
}

const char *log_i64(int64_t value) {
  char *slot = log_state.ring[log_state.ring_next++ % RING];
  snprintf(slot, NUMBER_SIZE, "%" PRId64, value);
  return slot;
}

static bool is_number(const char *value) {
  uintptr_t p = (uintptr_t)value, start = (uintptr_t)log_state.ring;
  return p >= start && p < start + sizeof log_state.ring;
}

/* logfmt has no standard; this is what its readers agree on: bare unless it has a space, a quote, '=' or an escape. */
static bool needs_quotes(const char *text, size_t n) {
  if (n == 0) return true;
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7F) return true;
  }
  return false;
}

static void put_value(struct buf *out, const char *value) {
  if (is_number(value)) {
    buf_puts(out, value);
    return;
  }
  struct buf *quoted = &log_state.value;
  buf_clear(quoted);
  /* A JSON string is also what logfmt readers unquote. */
  bool whole = json_write_string_lossy(quoted, value, strnlen(value, LOG_VALUE_MAX + 1), LOG_VALUE_MAX);
  if (!whole) {
    buf_truncate(quoted, quoted->len - 1);
    buf_puts(quoted, "…\"");
  }
  if (log_state.format == LOG_JSON || needs_quotes(quoted->data + 1, quoted->len - 2)) {
    buf_append(out, quoted->data, quoted->len);
  } else {
    buf_append(out, quoted->data + 1, quoted->len - 2);
  }
}

static void put_pair(struct buf *line, const char *key, const char *value) {
  if (value == NULL) return;
  bool json = log_state.format == LOG_JSON;
  if (line->len > 0) buf_putc(line, json ? ',' : ' ');
  if (json) {
    buf_printf(line, "%s\"%s\":", line->len == 0 ? "{" : "", key);
  } else {
    buf_printf(line, "%s=", key);
  }
  put_value(line, value);
}

/* What must still fit behind the pairs: the mark of a shortened line, '}' and the newline. */
#define TRUNCATED_LOGFMT " truncated=true"
#define TRUNCATED_JSON ",\"truncated\":true"
enum { TAIL = sizeof TRUNCATED_JSON + 2 };

static bool put_pairs(struct buf *line, const struct log_pair *pairs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    size_t before = line->len;
    put_pair(line, pairs[i].key, pairs[i].value);
    if (line->len + TAIL > LOG_LINE_MAX) {
      buf_truncate(line, before);
      return false;
    }
  }
  return true;
}

static void put_time(char out[32]) {
  struct timespec now;
  struct tm tm;
  clock_gettime(CLOCK_REALTIME, &now);
  gmtime_r(&now.tv_sec, &tm);
  size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
  snprintf(out + n, 32 - n, ".%03ldZ", now.tv_nsec / 1000000);
}

void log_pairs(enum log_level level, const char *event, const struct log_pair *pairs, size_t n) {
  if (!log_enabled(level)) return;
  int saved = errno;
  char ts[32];
  put_time(ts);
  const struct log_pair head[] = {{"ts", ts}, {"level", log_level_name(level)}, {"event", event}};
  struct buf *line = &log_state.line;
  buf_clear(line);
  bool whole = put_pairs(line, head, 3) && put_pairs(line, log_state.common, log_state.ncommon) &&
               put_pairs(line, pairs, n);
  bool json = log_state.format == LOG_JSON;
  if (!whole) buf_puts(line, json ? TRUNCATED_JSON : TRUNCATED_LOGFMT);
  buf_puts(line, json ? "}\n" : "\n");
  ssize_t wrote;
  do {
    wrote = write(log_state.fd, line->data, line->len);
  } while (wrote < 0 && errno == EINTR);
  if (wrote != (ssize_t)line->len) log_state.dropped++;
  errno = saved;
}

static size_t collect(struct log_pair *pairs, size_t max, va_list ap) {
  size_t n = 0;
  for (;;) {
    const char *key = va_arg(ap, const char *);
    if (key == NULL) return n;
    if (n == max) bug("log_kv: more than %zu pairs", max);
    pairs[n].key = key;
    pairs[n++].value = va_arg(ap, const char *);
  }
}

void log_kv(enum log_level level, const char *event, ...) {
  if (!log_enabled(level)) return;
  struct log_pair pairs[PAIRS_MAX];
  va_list ap;
  va_start(ap, event);
  size_t n = collect(pairs, PAIRS_MAX, ap);
  va_end(ap);
  log_pairs(level, event, pairs, n);
}

void log_err(enum log_level level, const char *event, const struct err *e, ...) {
  if (!log_enabled(level)) return;
  struct log_pair pairs[PAIRS_MAX + 4];
  va_list ap;
  va_start(ap, e);
  size_t n = collect(pairs, PAIRS_MAX, ap);
  va_end(ap);
  if (err_is_set(e)) {
    pairs[n++] = (struct log_pair){"class", err_class_name(e->class)};
    pairs[n++] = (struct log_pair){"code", e->code};
    pairs[n++] = (struct log_pair){"sqlstate", e->sqlstate[0] != '\0' ? e->sqlstate : NULL};
    pairs[n++] = (struct log_pair){"message", e->message};
  }
  log_pairs(level, event, pairs, n);
}
