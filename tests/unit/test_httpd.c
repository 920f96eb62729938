/* Requests, answers, clients that leave, and the server's beginning and end. */
#include "support_http.c"

/* ── bodies ── */

static void test_answers_and_keeps_the_connection(void **state) {
  (void)state;
  struct client c;
  struct answer a = {0};
  serve();
  dial(&c);
  put(&c, "GET /a%2Fb/c?x=1&y=%20 HTTP/1.1\r\nHost: h\r\n\r\n");
  assert_int_equal(get(&c, false, &a), 200);
  assert_string_equal(buf_cstr(&a.body), "GET /a%2Fb/c ?x=1&y=%20 ");
  assert_string_equal(a.type, "text/x-echo");
  assert_non_null(strstr(buf_cstr(&a.head), "X-Twice: 1\r\nX-Twice: 2\r\n"));
  assert_non_null(header_of(buf_cstr(&a.head), "Date"));
  assert_false(a.close);
  put(&c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
  expect(&c, 200, "POST / ?- abc");
  put(&c, "PROPFIND /? HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
  expect(&c, 200, "PROPFIND / ? ");
  put(&c, "GET http://other.example/p?q HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&c, 200, "GET /p ?q ");
  put(&c, "GET https://other.example HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&c, 200, "GET / ?- ");
  put(&c, "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&c, 200, "OPTIONS * ?- ");
  assert_int_equal(httpd_connections(h), 1);
  put(&c, "GET /bye HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  expect(&c, 200, "GET /bye ?- ");
  expect_closed(&c);
  UNTIL(httpd_connections(h) == 0);
  hang_up(&c);
  dial(&c);
  put(&c, "GET /old HTTP/1.0\r\n\r\n");
  expect(&c, 200, "GET /old ?- ");
  expect_closed(&c);
  hang_up(&c);
  answer_fini(&a);
}

static void test_headers_and_remote(void **state) {
  (void)state;
  struct client c;
  app.hold = true;
  serve();
  dial(&c);
  put(&c,
      "POST /x HTTP/1.1\r\nHost: h\r\nIdempotency-Key: \t one \t\r\nidempotency-key:two\r\nX-Empty:\r\nX-\xC3\xA9: "
      "1\r\n\r\n");
  expect(&c, 400, NULL); /* a name that is no token */
  hang_up(&c);
  dial(&c);
  put(&c,
      "POST /x HTTP/1.1\r\nHost: h\r\nIdempotency-Key: \t one \t\r\nidempotency-key:two\r\nX-Empty:\r\nX-U: "
      "\xC3\xA9\r\n\r\n");
  UNTIL(app.nheld == 1);
  struct http_request *q = app.held[0];
  size_t len = 9;
  assert_string_equal(http_header(q, "IDEMPOTENCY-KEY", 0), "one");
  assert_string_equal(http_header(q, "Idempotency-Key", 1), "two");
  assert_null(http_header(q, "Idempotency-Key", 2));
  assert_string_equal(http_header(q, "X-Empty", 0), "");
  assert_string_equal(http_header(q, "X-U", 0), "\xC3\xA9");
  assert_null(http_header(q, "X-None", 0));
  assert_string_equal(http_remote(q), "127.0.0.1");
  assert_string_equal(http_body(q, &len), "");
  assert_int_equal(len, 0);
  assert_int_equal(httpd_requests(h), 1);
  respond(q, 204, "", 0);
  assert_int_equal(httpd_requests(h), 0);
  expect(&c, 204, "");
  hang_up(&c);
}

/* Sends text in two pieces, cut at each octet, over one kept connection. */
static void split_everywhere(const char *text, const char *body) {
  struct client c;
  dial(&c);
  size_t len = strlen(text);
  for (size_t cut = 0; cut <= len; cut++) {
    put_n(&c, text, cut);
    settle();
    put_n(&c, text + cut, len - cut);
    expect(&c, 200, body);
  }
  for (size_t i = 0; i < len; i++) {
    put_n(&c, text + i, 1);
    loop_step(l, 0);
  }
  expect(&c, 200, body);
  hang_up(&c);
}

static void test_bodies_split_at_every_octet(void **state) {
  (void)state;
  serve();
  split_everywhere("POST /p?q HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\nhello\r\nbody",
                   "POST /p ?q hello\r\nbody");
  split_everywhere(
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nhello\r\n00a\r\n0123456789\r\n1\r\n!\r\n0\r\nX-Trailer: t\r\n\r\n",
      "POST /c ?- hello0123456789!");
}

/* libmicrohttpd 1.0.1 takes the line's end for data, finds the chunk too long, and refuses. */
static void test_chunk_extensions_are_skipped_or_refused(void **state) {
  (void)state;
  struct client c;
  struct answer a = {0};
  serve();
  dial(&c);
  put(&c,
      "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;name=\"1\"\r\nabc\r\n0;last\r\n\r\n");
  if (get(&c, false, &a) == 200) {
    assert_string_equal(buf_cstr(&a.body), "POST /x ?- abc");
  } else {
    assert_int_equal(a.status, 400);
    assert_int_equal(app.requests, 0);
    expect_closed(&c);
  }
  hang_up(&c);
  answer_fini(&a);
}

static void test_chunked_pieces_of_every_size(void **state) {
  (void)state;
  struct client c;
  struct buf body = BUF_INIT, text = BUF_INIT, echoed = BUF_INIT;
  serve();
  dial(&c);
  for (int i = 0; i < BODY_LIMIT; i++)
    buf_putc(&body, (char)('a' + i % 23));
  for (size_t size = 1; size <= BODY_LIMIT; size = size * 3 + 1) {
    buf_clear(&text);
    buf_puts(&text, "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n");
    for (size_t at = 0; at < body.len; at += size) {
      size_t n = body.len - at < size ? body.len - at : size;
      buf_printf(&text, "%zX\r\n", n);
      buf_append(&text, body.data + at, n);
      buf_puts(&text, "\r\n");
    }
    buf_puts(&text, "0\r\n\r\n");
    put_n(&c, text.data, text.len);
    buf_clear(&echoed);
    buf_printf(&echoed, "PUT / ?- %s", buf_cstr(&body));
    expect(&c, 200, buf_cstr(&echoed));
  }
  hang_up(&c);
  buf_fini(&body);
  buf_fini(&text);
  buf_fini(&echoed);
}

static void test_expect_100_continue(void **state) {
  (void)state;
  struct client c;
  serve();
  dial(&c);
  put(&c, "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  expect(&c, 100, "");
  assert_int_equal(app.requests, 0);
  put(&c, "ok");
  expect(&c, 200, "POST /e ?- ok");
  put(&c, "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 2001\r\nExpect: 100-continue\r\n\r\n");
  expect(&c, 413, NULL); /* and no 100 before it */
  expect_closed(&c);
  assert_int_equal(app.requests, 1);
  hang_up(&c);
}

static void test_head_has_no_body(void **state) {
  (void)state;
  struct client c;
  struct answer a = {0};
  serve();
  dial(&c);
  for (int i = 0; i < 2; i++) {
    put(&c, "HEAD /h HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_int_equal(get(&c, true, &a), 200);
    assert_int_equal(atoi(header_of(buf_cstr(&a.head), "Content-Length")), strlen("HEAD /h ?- "));
    settle();
    pull(&c);
    assert_int_equal(c.in.len, 0);
  }
  hang_up(&c);
  answer_fini(&a);
}

static void test_pipelined_requests_are_answered_in_order(void **state) {
  (void)state;
  struct client c;
  serve();
  dial(&c);
  struct buf text = BUF_INIT;
  for (int i = 0; i < 40; i++)
    buf_printf(&text, "POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nGET ", i);
  put_n(&c, text.data, text.len);
  for (int i = 0; i < 40; i++) {
    char body[64];
    snprintf(body, sizeof body, "POST /%d ?- GET ", i);
    expect(&c, 200, body);
  }
  hang_up(&c);
  buf_fini(&text);
}

static void test_answers_in_another_order(void **state) {
  (void)state;
  enum { N = 50 };
  static struct client c[N];
  char text[100];
  app.hold = true;
  serve();
  for (int i = 0; i < N; i++) {
    dial(&c[i]);
    snprintf(text, sizeof text, "GET /%d HTTP/1.1\r\nHost: h\r\n\r\nGET /again%d HTTP/1.1\r\nHost: h\r\n\r\n", i, i);
    put(&c[i], text);
    UNTIL(app.nheld == i + 1);
  }
  assert_int_equal(httpd_requests(h), N);
  for (int i = N - 1; i >= 0; i--) {
    snprintf(text, sizeof text, "GET /%d ?- ", i);
    echo(app.held[i]);
    expect(&c[i], 200, text);
  }
  UNTIL(app.nheld == 2 * N); /* the second of each was not read before the first was answered */
  for (int i = 0; i < N; i++)
    echo(app.held[N + i]);
  for (int i = 0; i < N; i++) {
    snprintf(text, sizeof text, "GET /again%d ?- ", i);
    expect(&c[i], 200, text);
    hang_up(&c[i]);
  }
}

static void test_large_answers(void **state) {
  (void)state;
  struct client c;
  struct answer a = {0};
  size_t len = 3 << 20;
  char *big = xmalloc(len);
  memset(big, 'x', len);
  app.hold = true;
  serve();
  dial(&c);
  for (int i = 0; i < 2; i++) {
    put(&c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL(app.nheld == i + 1);
    respond(app.held[i], 200, big, len);
    assert_int_equal(get(&c, false, &a), 200);
    assert_int_equal(a.body.len, len);
    assert_memory_equal(a.body.data, big, len);
  }
  hang_up(&c);
  answer_fini(&a);
  free(big);
}

/* ── clients that leave ── */

static void test_gone_clients(void **state) {
  (void)state;
  struct client c;
  app.hold = true;
  serve();
  for (int i = 0; i < 3; i++) {
    dial(&c);
    put(&c, "POST /g HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx");
    if (i == 2) put(&c, "GET /next HTTP/1.1\r\nHost: h\r\n\r\n"); /* octets that wait before the end hide nothing */
    UNTIL(app.nheld == i + 1);
    if (i == 1) {
      struct linger reset = {1, 0};
      setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    assert_int_equal(app.gone, i);
    hang_up(&c);
    UNTIL(app.gone == i + 1);
  }
  assert_int_equal(httpd_requests(h), 3);
  for (int i = 0; i < 3; i++)
    respond(app.held[i], 200, "late", 4);
  app.hold = false;
  UNTIL(httpd_connections(h) == 0);
  assert_int_equal(app.gone, 3);
}

static void test_half_closed_clients_get_their_answer(void **state) {
  (void)state;
  static const char *const requests[] = {
      "GET /half HTTP/1.1\r\nHost: h\r\n\r\n", "POST /half HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
      "POST /half HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"};
  struct client c, older;
  app.hold = true;
  serve();
  dial(&older); /* the library favours its oldest connection */
  settle();
  /* when the end comes: with the request; while it is at work; unseen, just before the answer */
  for (int n = 0; n < 9; n++) {
    int gone = app.gone;
    dial(&c);
    put(&c, requests[n % 3]);
    if (n / 3 == 0) shutdown(c.fd, SHUT_WR);
    UNTIL(app.nheld == n + 1);
    if (n / 3 != 0) shutdown(c.fd, SHUT_WR);
    if (n / 3 < 2) UNTIL(app.gone == gone + 1);
    respond(app.held[n], 200, "all the same", 12);
    expect(&c, 200, "all the same");
    expect_closed(&c);
    hang_up(&c);
  }
  UNTIL(httpd_connections(h) == 1);
  dial(&c);
  put(&c, "HEAD /half HTTP/1.1\r\nHost: h\r\n\r\n");
  shutdown(c.fd, SHUT_WR);
  UNTIL(app.nheld == 10);
  respond(app.held[9], 200, "all the same", 12);
  struct answer a = {0};
  assert_int_equal(get(&c, true, &a), 200);
  expect_closed(&c); /* without the body */
  answer_fini(&a);
  hang_up(&c);
  hang_up(&older);
}

static void test_clients_that_leave_in_the_middle(void **state) {
  (void)state;
  static const char text[] = "POST /m HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  serve();
  for (size_t cut = 0; cut < sizeof text - 1; cut++) {
    struct client c;
    dial(&c);
    put_n(&c, text, cut);
    settle();
    hang_up(&c);
    UNTIL(httpd_connections(h) == 0);
  }
  assert_int_equal(app.requests, 0);
}

static void test_an_answer_inside_the_callbacks(void **state) {
  (void)state;
  struct client c;
  serve(); /* echo answers inside on_request */
  dial(&c);
  put(&c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  hang_up(&c);
  UNTIL(app.requests == 1);
  UNTIL(httpd_connections(h) == 0);
}

/* ── the end ── */

static void test_stop_accepting(void **state) {
  (void)state;
  struct client c, late;
  struct answer a = {0};
  struct sockaddr_in addr = {.sin_family = AF_INET};
  app.hold = true;
  serve();
  addr.sin_port = htons((uint16_t)httpd_port(h));
  addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  dial(&c);
  put(&c, "GET /drain HTTP/1.1\r\nHost: h\r\n\r\n");
  UNTIL(app.nheld == 1);
  httpd_stop_accepting(h);
  httpd_stop_accepting(h);
  late.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(late.fd, (struct sockaddr *)&addr, sizeof addr), -1);
  close(late.fd);
  echo(app.held[0]);
  assert_int_equal(get(&c, false, &a), 200);
  assert_true(a.close);
  expect_closed(&c);
  hang_up(&c);
  answer_fini(&a);
}

static void test_free_with_requests_open(void **state) {
  (void)state;
  struct client lent, answered, idle, head, body, fresh, gone;
  app.hold = true;
  serve();
  dial(&lent);
  put(&lent, "GET /lent HTTP/1.1\r\nHost: h\r\n\r\n");
  UNTIL(app.nheld == 1);
  dial(&gone);
  put(&gone, "GET /gone HTTP/1.1\r\nHost: h\r\n\r\n");
  UNTIL(app.nheld == 2);
  dial(&answered);
  put(&answered, "GET /answered HTTP/1.1\r\nHost: h\r\n\r\n");
  UNTIL(app.nheld == 3);
  app.hold = false;
  dial(&idle);
  put(&idle, "GET /idle HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&idle, 200, NULL);
  dial(&head);
  put(&head, "GET /idle HTTP/1.1\r\nHo");
  dial(&body);
  put(&body, "POST /idle HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\na");
  settle();
  dial(&fresh);
  hang_up(&gone);
  echo(app.held[2]);
  httpd_free(h); /* nothing of the answer is on its way yet */
  h = NULL;
  loop_step(l, 0);
  expect(&lent, 503, NULL);
  expect_closed(&lent);
  expect(&answered, 200, "GET /answered ?- ");
  expect_closed(&answered);
  expect_closed(&idle);
  expect_closed(&head);
  expect_closed(&body);
  expect_closed(&fresh);
  hang_up(&lent);
  hang_up(&answered);
  hang_up(&idle);
  hang_up(&head);
  hang_up(&body);
  hang_up(&fresh);
}

static void test_listen_errors(void **state) {
  (void)state;
  struct err e = ERR_INIT;
  serve();
  options.port = httpd_port(h);
  assert_null(httpd_new(l, &options, &e));
  assert_int_equal(e.class, ERR_ENV);
  assert_string_equal(e.code, "listen_failed");
  assert_non_null(strstr(e.message, "127.0.0.1"));
  assert_non_null(strstr(e.message, "another program"));
  options.address = "localhost";
  assert_null(httpd_new(l, &options, &e));
  assert_string_equal(e.code, "address");
  options.address = "127.0.0.1";
  options.port = 70000;
  assert_null(httpd_new(l, &options, &e));
  options.address = "127.0.0.1";
  options.port = 0;
  options.tls_cert = "no certificate";
  assert_null(httpd_new(l, &options, &e));
  assert_string_equal(e.code, "tls");
  assert_non_null(strstr(e.message, "only the certificate"));
  options.tls_key = "no key";
  assert_null(httpd_new(l, &options, &e));
  assert_int_equal(e.class, ERR_INPUT);
  assert_string_equal(e.code, "tls");
  options.tls_cert = options.tls_key = NULL;
  options.address = "192.0.2.1";
  assert_null(httpd_new(l, &options, &e));
  assert_non_null(strstr(e.message, "192.0.2.1"));
}

static void test_an_inherited_descriptor(void **state) {
  (void)state;
  struct client c;
  struct sockaddr_in a = {.sin_family = AF_INET};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  options.listen_fd =
      socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* blocking: whoever made it may have known no better */
  assert_int_equal(bind(options.listen_fd, (struct sockaddr *)&a, sizeof a), 0);
  assert_int_equal(listen(options.listen_fd, 8), 0);
  options.address = NULL;
  serve();
  dial(&c);
  put(&c, "GET /fd HTTP/1.1\r\nHost: h\r\n\r\n");
  expect(&c, 200, "GET /fd ?- ");
  hang_up(&c);
}

static void test_ipv6(void **state) {
  (void)state;
  struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  struct err e = ERR_INIT;
  options.address = "::1";
  app.hold = true;
  h = httpd_new(l, &options, &e);
  if (h == NULL && (strstr(e.message, "address family") || strstr(e.message, "does not have"))) skip();
  assert_non_null(h);
  a.sin6_port = htons((uint16_t)httpd_port(h));
  struct client c = {.fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  assert_int_equal(connect(c.fd, (struct sockaddr *)&a, sizeof a), 0);
  fcntl(c.fd, F_SETFL, O_NONBLOCK);
  put(&c, "GET /six HTTP/1.1\r\nHost: h\r\n\r\n");
  UNTIL(app.nheld == 1);
  assert_string_equal(http_remote(app.held[0]), "::1");
  echo(app.held[0]);
  expect(&c, 200, "GET /six ?- ");
  hang_up(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      T(test_answers_and_keeps_the_connection),
      T(test_headers_and_remote),
      T(test_bodies_split_at_every_octet),
      T(test_chunk_extensions_are_skipped_or_refused),
      T(test_chunked_pieces_of_every_size),
      T(test_expect_100_continue),
      T(test_head_has_no_body),
      T(test_pipelined_requests_are_answered_in_order),
      T(test_answers_in_another_order),
      T(test_large_answers),
      T(test_gone_clients),
      T(test_half_closed_clients_get_their_answer),
      T(test_clients_that_leave_in_the_middle),
      T(test_an_answer_inside_the_callbacks),
      T(test_stop_accepting),
      T(test_free_with_requests_open),
      T(test_listen_errors),
      T(test_an_inherited_descriptor),
      T(test_ipv6),
  };
  return RUN(tests);
}
