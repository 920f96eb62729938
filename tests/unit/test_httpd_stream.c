/* Streams: answers that are sent piece by piece, whose clients leave, and whose reader is slow. */
#include "support_http.c"

static const struct http_header headers[] = {{"Content-Type", "text/event-stream"}};

/* Dials, asks, and begins the stream; gives its request. */
static struct http_request *begin(struct client *c, const char *first) {
  struct http_answer a = {200, headers, 1, first, strlen(first)};
  int n = app.nheld;

  dial(c);
  put(c, "GET /s HTTP/1.1\r\nHost: h\r\n\r\n");
  UNTIL(app.nheld == n + 1);
  http_stream(app.held[n], &a);
  return app.held[n];
}

static bool has(struct client *c, const char *text) {
  pull(c);
  return strstr(buf_cstr(&c->in), text) != NULL;
}

static void pieces_come_as_they_are_sent(void **state) {
  struct client c;
  app.hold = true;
  serve();
  struct http_request *q = begin(&c, "one\n");
  UNTIL(has(&c, "one\n"));
  assert_true(has(&c, "Transfer-Encoding: chunked") && has(&c, "Connection: close"));
  assert_string_equal(http_path(q), "/s");
  for (int i = 0; i < 20; i++) {
    char piece[32];
    snprintf(piece, sizeof piece, "piece %d\n", i);
    http_stream_send(q, piece, strlen(piece));
    UNTIL(has(&c, piece));
  }
  http_stream_send(q, "last\n", 5);
  http_stream_end(q);
  UNTIL(has(&c, "last\n") && has(&c, "\r\n0\r\n"));
  UNTIL((pull(&c), c.ended) && httpd_connections(h) == 0);
  assert_int_equal(app.gone, 0);
  hang_up(&c);
}

static void a_client_that_leaves_is_told(void **state) {
  struct client c;
  app.hold = true;
  serve();
  struct http_request *q = begin(&c, "one\n");
  UNTIL(has(&c, "one\n"));
  hang_up(&c);
  UNTIL(app.gone == 1);
  http_stream_send(q, "too late", 8);
  settle();
  http_stream_end(q);
  UNTIL(httpd_connections(h) == 0);
  assert_int_equal(app.gone, 1);
}

/* It leaves with something on its way: the library finds out before we do. */
static void a_client_that_is_cut_off_while_written_to(void **state) {
  struct client c;
  app.hold = true;
  serve();
  struct http_request *q = begin(&c, "one\n");
  UNTIL(has(&c, "one\n"));
  struct linger reset = {1, 0};
  setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  char *much = xcalloc(1, 100000);
  http_stream_send(q, much, 100000);
  hang_up(&c);
  UNTIL(app.gone == 1);
  http_stream_end(q);
  UNTIL(httpd_connections(h) == 0);
  free(much);
}

static void a_client_that_reads_nothing_is_cut_off(void **state) {
  struct client c;
  app.hold = true;
  serve();
  struct http_request *q = begin(&c, "");
  char *much = xcalloc(1, 100000);
  for (int64_t until = now_ms() + PATIENCE_MS; app.gone == 0; loop_step(l, 1)) {
    if (now_ms() > until) fail_msg("never cut off");
    http_stream_send(q, much, 100000);
  }
  http_stream_end(q);
  UNTIL(httpd_connections(h) == 0);
  hang_up(&c);
  free(much);
}

static void many_at_once_and_a_stop(void **state) {
  enum { N = 20 };
  struct client c[N];
  app.hold = true;
  serve();
  for (int i = 0; i < N; i++)
    begin(&c[i], "x");
  httpd_stop_accepting(h);
  for (int i = 0; i < N; i++) {
    http_stream_send(app.held[i], "y", 1);
    http_stream_end(app.held[i]);
  }
  UNTIL(httpd_connections(h) == 0);
  for (int i = 0; i < N; i++) {
    assert_true(has(&c[i], "\r\n0\r\n"));
    hang_up(&c[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      T(pieces_come_as_they_are_sent),
      T(a_client_that_leaves_is_told),
      T(a_client_that_is_cut_off_while_written_to),
      T(a_client_that_reads_nothing_is_cut_off),
      T(many_at_once_and_a_stop),
  };
  return RUN(tests);
}
