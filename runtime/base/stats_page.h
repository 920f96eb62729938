/* stats_page: the metrics as Prometheus text (exposition format 0.0.4), the whole worker's. */
#ifndef UMAVEZ_BASE_STATS_PAGE_H
#define UMAVEZ_BASE_STATS_PAGE_H

#include "base/buf.h"
#include "base/stats.h"

#define STATS_PAGE_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Appends the page. sample appends the lines of a metric of STATS_SAMPLED by stats_page_line; one that gets none is left
 * out. */
void stats_page(struct buf *out, void (*sample)(void *arg, const struct stats_metric *m, struct buf *out), void *arg);

/* Appends a line: m's name, its label with this value (NULL: none), and the number's text. */
void stats_page_line(struct buf *out, const struct stats_metric *m, const char *label_value, const char *number);

#endif
