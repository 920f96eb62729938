/* The dashboard's server-sent events. Every UI_TICK_MS, while somebody looks, the overview is asked for once and sent to all:
 *
 *   event: overview   data: {"db": what umavez.ui_read('overview') gives, "worker": what this worker has counted}
 *   event: away       PostgreSQL does not answer
 *   : beat            the last question is not answered yet
 *
 * A stream ends after UI_STREAM_MS, and the browser asks for another by itself: so who may look is checked again and again. */
#include <inttypes.h>
#include <string.h>

#include "base/stats.h"
#include "core/door_ui_internal.h"

static void on_tick(void *arg);

void ui_stream_init(struct ui *ui) {
  list_init(&ui->streams);
  buf_init(&ui->event);
  loop_timer_init(&ui->tick, on_tick, ui);
}

static void add_counts(struct buf *b, const char *name, const char *const *names, const uint64_t *counts, int n) {
  buf_printf(b, ",\"%s\":{", name);
  for (int i = 0; i < n; i++)
    buf_printf(b, "%s\"%s\":%" PRIu64, i ? "," : "", names[i], counts[i]);
  buf_putc(b, '}');
}

/* Counts since the worker's start, of all of its processes. */
static void add_worker(struct buf *b) {
#define NAME(id, text) text,
  static const char *const gate[] = {STATS_GATE_RESULTS(NAME)}, *const claims[] = {STATS_VERDICTS(NAME)},
                           *const results[] = {STATS_RESULTS(NAME)};
#undef NAME
  uint64_t ended[STATS_SIZE_RESULT] = {0};
  struct stats_sum s;

  stats_sum(&s);
  for (int row = 0; row < s.rows; row++)
    for (int i = 0; i < STATS_SIZE_RESULT; i++)
      ended[i] += s.task[row][STAT_TASK_RUNS + i];
  buf_printf(b, "{\"since_ms\":%" PRId64 ",\"held\":%" PRIu64, stats_start_ms(), s.worker[STAT_RUNS_HELD]);
  add_counts(b, "gate", gate, &s.worker[STAT_GATE], STATS_SIZE_GATE);
  add_counts(b, "claims", claims, &s.worker[STAT_CLAIMS], STATS_SIZE_VERDICT);
  add_counts(b, "results", results, ended, STATS_SIZE_RESULT);
  buf_putc(b, '}');
  stats_sum_fini(&s);
}

static void send_all(struct ui *ui, const char *data, size_t len) {
  struct ui_visit *v;

  list_for_each(v, &ui->streams, stream) http_stream_send(v->x->q, data, len);
}

static void on_overview(struct ui *ui, struct pgresult *r) {
  ui->feeding = false;
  buf_clear(&ui->event);
  if (pgresult_ok(r) && pgresult_rows(r) == 1) {
    buf_puts(&ui->event, "event: overview\ndata: {\"db\":"); /* jsonb's text has no line's end in it */
    buf_append(&ui->event, pgresult_value(r, 0, 0), (size_t)pgresult_length(r, 0, 0));
    buf_puts(&ui->event, ",\"worker\":");
    add_worker(&ui->event);
    buf_puts(&ui->event, "}\n\n");
  } else {
    buf_puts(&ui->event, "event: away\ndata: {}\n\n");
  }
  send_all(ui, ui->event.data, ui->event.len);
}

static void feed(struct ui *ui) {
  static const char beat[] = ": beat\n\n", away[] = "event: away\ndata: {}\n\n";

  if (ui->feeding) {
    send_all(ui, beat, sizeof beat - 1);
    return;
  }
  ui->feeding = ui_ask_for(ui, "SELECT umavez.ui_read('overview', '{}')", on_overview);
  if (!ui->feeding) send_all(ui, away, sizeof away - 1);
}

static void on_tick(void *arg) {
  struct ui *ui = arg;
  struct list *n, *next;
  int64_t now = loop_now_ms(ui->door->loop);

  for (n = ui->streams.next; n != &ui->streams; n = next) {
    struct ui_visit *v = container_of(n, struct ui_visit, stream);
    next = n->next;
    if (now >= v->until_ms) ui_stream_end(v->x);
  }
  if (ui->nstreams == 0) return;
  feed(ui);
  loop_timer_start(ui->door->loop, &ui->tick, UI_TICK_MS);
}

void ui_stream_begin(struct exchange *x) {
  static const char begin[] = "retry: 1000\n\n";
  struct ui *ui = x->door->ui;
  struct http_header headers[UI_HEADERS + 3];
  size_t n = ui_headers(headers);

  if (ui->nstreams >= UI_STREAMS || x->gone) {
    ui_refuse(x, PROBLEM_OVERLOADED, "too many dashboards look at this process already", 5);
    return;
  }
  headers[n++] = (struct http_header){"Content-Type", "text/event-stream"};
  headers[n++] = (struct http_header){"Cache-Control", "no-store"};
  headers[n++] = (struct http_header){"X-Accel-Buffering", "no"}; /* nginx would wait for more */
  struct http_answer a = {200, headers, n, begin, sizeof begin - 1};
  stats_add(STAT_ANSWERS, STATS_ANSWER_2XX, 1);
  http_stream(x->q, &a);
  x->visit->until_ms = loop_now_ms(ui->door->loop) + UI_STREAM_MS;
  list_push_back(&ui->streams, &x->visit->stream);
  if (ui->nstreams++ == 0 || !loop_timer_active(&ui->tick)) loop_timer_start(ui->door->loop, &ui->tick, 0);
  else if (ui->event.len > 0) http_stream_send(x->q, ui->event.data, ui->event.len);
}

void ui_stream_end(struct exchange *x) {
  struct ui *ui = x->door->ui;

  list_remove(&x->visit->stream);
  ui->nstreams--;
  http_stream_end(x->q);
  x->q = NULL;
  door_maybe_end(x);
}

void ui_stream_end_all(struct ui *ui) {
  while (!list_empty(&ui->streams))
    ui_stream_end(container_of(ui->streams.next, struct ui_visit, stream)->x);
  loop_timer_stop(&ui->tick);
}
