/* What bounds a client: octets, time, connections. */
#include "support_http.c"

static void test_body_limit(void **state) {
  (void)state;
  struct client c;
  struct answer a = {0};
  struct buf text = BUF_INIT;
  serve();
  for (int chunked = 0; chunked < 2; chunked++)
    for (int over = 0; over < 2; over++) {
      int len = BODY_LIMIT + over;
      buf_clear(&text);
      if (chunked)
        buf_printf(&text, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%*s\r\n0\r\n\r\n", len,
                   len, "");
      else
        buf_printf(&text, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%*s", len, len, "");
      dial(&c);
      put_n(&c, text.data, text.len);
      assert_int_equal(get(&c, false, &a), over ? 413 : 200);
      if (over) assert_string_equal(a.type, "application/problem+json");
      if (over) expect_closed(&c);
      hang_up(&c);
    }
  assert_int_equal(app.requests, 2);
  /* Far too large: refused before it is read; without an announced length, after a bounded part. */
  dial(&c);
  put(&c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999999\r\n\r\n");
  expect(&c, 413, NULL);
  hang_up(&c);
  dial(&c);
  put(&c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\n");
  expect(&c, 413, NULL);
  expect_closed(&c);
  hang_up(&c);
  dial(&c);
  put(&c, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  buf_clear(&text);
  buf_printf(&text, "10000\r\n%65536s\r\n", "");
  for (int i = 0; i < 40 && !c.ended; i++) {
    put_n(&c, text.data, text.len);
    settle();
    pull(&c);
  }
  UNTIL((pull(&c), c.ended));
  assert_int_equal(app.requests, 2);
  hang_up(&c);
  answer_fini(&a);
  buf_fini(&text);
}

static int head_of(size_t target, size_t header, int headers) {
  struct client c;
  struct answer a = {0};
  struct buf text = BUF_INIT;
  dial(&c);
  buf_puts(&text, "GET /");
  for (size_t i = 0; i < target; i++)
    buf_putc(&text, 'u');
  buf_puts(&text, " HTTP/1.1\r\nHost: h\r\n");
  for (int i = 0; i < headers; i++) {
    buf_printf(&text, "X-%d: ", i);
    for (size_t k = 0; k < header; k++)
      buf_putc(&text, 'v');
    buf_puts(&text, "\r\n");
  }
  buf_puts(&text, "\r\n");
  put_n(&c, text.data, text.len);
  int status = get(&c, false, &a);
  if (status != 200 && status != 0) {
    assert_true(a.close);
    expect_closed(&c);
  }
  hang_up(&c);
  answer_fini(&a);
  buf_fini(&text);
  return status;
}

static void test_head_limits(void **state) {
  (void)state;
  serve();
  assert_int_equal(head_of(10, 10, 30), 200);
  assert_int_equal(head_of(10, 3900, 1), 200);
  assert_int_equal(head_of(10, 4096, 1), 431);
  assert_int_equal(app.refused, 431);
  assert_int_equal(head_of(10, 10, 400), 431);
  assert_int_equal(head_of(10, 100000, 1), 431);
  assert_int_equal(head_of(10, 1, 20000), 431);
  assert_int_equal(head_of(2000, 1, 1), 200);
  assert_int_equal(head_of(2048, 1, 1), 414);
  assert_int_equal(app.refused, 414);
  int status = head_of(200000, 1, 1); /* more than the library's whole memory for a connection */
  assert_true(status == 414 || status == 0);
  assert_int_equal(app.requests, 3);
}

static void test_connection_limits(void **state) {
  (void)state;
  struct client c[8];
  options.max_connections = 4;
  serve();
  for (int i = 0; i < 4; i++) {
    dial(&c[i]);
    put(&c[i], "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    expect(&c[i], 200, NULL);
  }
  dial(&c[4]);
  expect_closed(&c[4]);
  hang_up(&c[0]);
  UNTIL(httpd_connections(h) == 3);
  dial(&c[5]);
  put(&c[5], "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&c[5], 200, NULL);
  for (int i = 1; i < 6; i++)
    hang_up(&c[i]);
  httpd_free(h);

  options.max_connections = 100;
  options.max_connections_per_address = 2;
  serve();
  for (int i = 0; i < 2; i++) {
    dial(&c[i]);
    put(&c[i], "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    expect(&c[i], 200, NULL);
  }
  dial(&c[2]);
  expect_closed(&c[2]);
  for (int i = 0; i < 3; i++)
    hang_up(&c[i]);
}

static void test_slow_senders(void **state) {
  (void)state;
  struct client silent, line, head, body, kept;
  struct answer a = {0};
  options.header_timeout_ms = 60;
  options.body_timeout_ms = 120;
  serve();
  dial(&silent);
  dial(&line);
  dial(&head);
  dial(&body);
  dial(&kept);
  put(&line, "GET / HT");
  put(&head, "GET / HTTP/1.1\r\nHost: ");
  put(&body, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n123");
  put(&kept, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&kept, 200, NULL);
  expect_closed(&silent);
  expect_closed(&line);
  assert_int_equal(get(&head, false, &a), 408);
  assert_string_equal(a.type, "application/problem+json");
  expect_closed(&head);
  expect(&body, 408, NULL);
  expect_closed(&body);
  UNTIL(httpd_connections(h) == 1); /* the one between two requests has more time */
  put(&kept, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&kept, 200, NULL);
  hang_up(&silent);
  hang_up(&line);
  hang_up(&head);
  hang_up(&body);
  hang_up(&kept);
  answer_fini(&a);
}

static void test_idle_connections(void **state) {
  (void)state;
  struct client c;
  options.idle_timeout_ms = 50;
  serve();
  dial(&c);
  put(&c, "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HT");
  expect(&c, 200, NULL);
  expect_closed(&c);
  UNTIL(httpd_connections(h) == 0);
  hang_up(&c);
}

/* An octet now and then does not buy time. */
static void test_trickling_senders(void **state) {
  (void)state;
  struct client c;
  struct answer a = {0};
  options.body_timeout_ms = 100;
  serve();
  dial(&c);
  put(&c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n");
  int64_t begin = now_ms();
  while (!c.ended && now_ms() - begin < PATIENCE_MS) {
    put(&c, "x");
    loop_step(l, 5);
    pull(&c);
  }
  assert_true(c.ended && now_ms() - begin >= 90);
  hang_up(&c);
  answer_fini(&a);
}

static void test_a_reader_that_does_not_read(void **state) {
  (void)state;
  struct client c;
  size_t len = 8 << 20;
  char *big = xcalloc(1, len);
  options.body_timeout_ms = 80;
  app.hold = true;
  serve();
  dial(&c);
  put(&c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  UNTIL(app.nheld == 1);
  respond(app.held[0], 200, big, len);
  UNTIL(httpd_connections(h) == 0);
  hang_up(&c);
  free(big);
}

static void test_a_thousand_kept_connections(void **state) {
  (void)state;
  enum { N = 1000, ROUNDS = 3 };
  static struct client c[N];
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
  setrlimit(RLIMIT_NOFILE, &files);
  int n = files.rlim_cur >= 2 * N + 50 ? N : (int)(files.rlim_cur / 2) - 50;
  options.max_connections = options.max_connections_per_address = n;
  serve();
  for (int i = 0; i < n; i++) {
    dial(&c[i]);
    if (i % 50 == 0) settle();
  }
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < n; i++)
      put(&c[i], "POST /k HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nk");
    for (int i = 0; i < n; i++)
      expect(&c[i], 200, "POST /k ?- k");
  }
  assert_int_equal(app.requests, n * ROUNDS);
  assert_int_equal(httpd_connections(h), n);
  for (int i = 0; i < n; i++)
    hang_up(&c[i]);
  UNTIL(httpd_connections(h) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      T(test_body_limit),
      T(test_head_limits),
      T(test_connection_limits),
      T(test_slow_senders),
      T(test_idle_connections),
      T(test_trickling_senders),
      T(test_a_reader_that_does_not_read),
      T(test_a_thousand_kept_connections),
  };
  return RUN(tests);
}
