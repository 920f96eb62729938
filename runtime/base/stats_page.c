#include "base/stats_page.h"

#include <inttypes.h>
#include <stdio.h>

static const char *type_name(enum stats_type t) {
  static const char *const names[] = {"counter", "gauge", "histogram"};
  return names[t];
}

/* Octets that the format has a meaning for. */
static void put_escaped(struct buf *out, const char *s, bool quotes) {
  for (; *s; s++) {
    if (*s == '\\')
      buf_puts(out, "\\\\");
    else if (*s == '\n')
      buf_puts(out, "\\n");
    else if (*s == '"' && quotes)
      buf_puts(out, "\\\"");
    else
      buf_putc(out, *s);
  }
}

/* Up to three labels; one with an empty name, or without value, is left out. */
struct label {
  const char *name, *value;
};

static void put_series(struct buf *out, const char *name, const char *suffix, const struct label labels[3],
                       const char *number) {
  int n = 0;

  buf_puts(out, name);
  buf_puts(out, suffix);
  for (int i = 0; i < 3; i++) {
    if (!labels[i].name || !labels[i].name[0] || !labels[i].value) continue;
    buf_printf(out, "%s%s=\"", n++ ? "," : "{", labels[i].name);
    put_escaped(out, labels[i].value, true);
    buf_putc(out, '"');
  }
  buf_printf(out, "%s %s\n", n ? "}" : "", number);
}

void stats_page_line(struct buf *out, const struct stats_metric *m, const char *label_value, const char *number) {
  struct label labels[3] = {{m->label, label_value}};
  put_series(out, m->name, "", labels, number);
}

static void put_integer(struct buf *out, const char *name, const char *suffix, const struct label labels[3],
                        uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRIu64, value);
  put_series(out, name, suffix, labels, text);
}

static void put_histogram(struct buf *out, const struct stats_metric *m, const char *task, const uint64_t *cells) {
  struct label labels[3] = {{"task", task}, {"le", NULL}};
  char text[40];
  uint64_t seen = 0, sum = cells[m->nbounds + 1];

  for (int i = 0; i < m->nbounds; i++) {
    seen += cells[i];
    snprintf(text, sizeof text, "%.10g", (double)m->bounds[i] / (m->in_seconds ? 1e6 : 1));
    labels[1].value = text;
    put_integer(out, m->name, "_bucket", labels, seen);
  }
  seen += cells[m->nbounds];
  labels[1].value = "+Inf";
  put_integer(out, m->name, "_bucket", labels, seen);
  labels[1].value = NULL;
  if (m->in_seconds)
    snprintf(text, sizeof text, "%" PRIu64 ".%06" PRIu64, sum / 1000000, sum % 1000000);
  else
    snprintf(text, sizeof text, "%" PRIu64, sum);
  put_series(out, m->name, "_sum", labels, text);
  put_integer(out, m->name, "_count", labels, seen);
}

static void put_cells(struct buf *out, const struct stats_metric *m, const char *task, const uint64_t *cells) {
  struct label labels[3] = {{"task", task}, {m->label, NULL}};

  if (m->type == STATS_HISTOGRAM) {
    put_histogram(out, m, task, cells);
    return;
  }
  for (int i = 0; i < m->size; i++) {
    if (m->values) labels[1].value = m->values[i];
    put_integer(out, m->name, "", labels, cells[i]);
  }
}

static bool is_zero(const uint64_t *cells, int n) {
  for (int i = 0; i < n; i++)
    if (cells[i]) return false;
  return true;
}

/* Row 0 is that of tasks which no manifest knows; mostly there are none. */
static void put_tasks(struct buf *out, const struct stats_metric *m, const struct stats_sum *sum) {
  for (int r = 0; r < sum->rows; r++) {
    const uint64_t *cells = &sum->task[r][m->cell];
    if (r > 0 || !is_zero(cells, m->size)) put_cells(out, m, sum->names[r], cells);
  }
}

void stats_page(struct buf *out, void (*sample)(void *arg, const struct stats_metric *m, struct buf *out), void *arg) {
  struct stats_sum sum;

  stats_sum(&sum);
  for (int i = 0; i < stats_metrics(); i++) {
    const struct stats_metric *m = stats_metric_at(i);
    size_t begun = out->len, head;
    buf_printf(out, "# HELP %s ", m->name);
    put_escaped(out, m->help, false);
    buf_printf(out, "\n# TYPE %s %s\n", m->name, type_name(m->type));
    head = out->len;
    if (m->sampled >= 0)
      sample(arg, m, out);
    else if (m->by_task)
      put_tasks(out, m, &sum);
    else
      put_cells(out, m, NULL, &sum.worker[m->cell]);
    if (out->len == head) buf_truncate(out, begun);
  }
  stats_sum_fini(&sum);
}
