/* Requests that two readers could take in two ways: each is refused, and what follows it is never read as a request. */
#include "support_http.c"

struct raw {
  const char *what;
  const char *text;
  size_t len; /* 0: strlen */
  int status; /* 0: closed without an answer; -1: refused in either way */
};

#define H "Host: h\r\n"
#define RAW(what, text, status) \
  { what, text, sizeof(text) - 1, status }

static const struct raw raws[] = {
    RAW("both lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400),
    RAW("both lengths, the other way",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    RAW("two equal lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    RAW("two unequal lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 0\r\nContent-Length: 3\r\n\r\nabc", 400),
    RAW("a list of lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 3, 3\r\n\r\nabc", 400),
    RAW("a signed length", "POST / HTTP/1.1\r\n" H "Content-Length: +3\r\n\r\nabc", 400),
    RAW("a negative length", "POST / HTTP/1.1\r\n" H "Content-Length: -3\r\n\r\nabc", 400),
    RAW("an empty length", "POST / HTTP/1.1\r\n" H "Content-Length: \r\n\r\nabc", 400),
    RAW("a hexadecimal length", "POST / HTTP/1.1\r\n" H "Content-Length: 0x3\r\n\r\nabc", 400),
    RAW("a length with a blank inside", "POST / HTTP/1.1\r\n" H "Content-Length: 1 1\r\n\r\nabc", 400),
    RAW("a length of 2^64", "POST / HTTP/1.1\r\n" H "Content-Length: 18446744073709551616\r\n\r\nabc", 413),
    RAW("a length of 2^64 - 1", "POST / HTTP/1.1\r\n" H "Content-Length: 18446744073709551615\r\n\r\nabc", 413),
    RAW("an unknown encoding", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n", -1),
    RAW("two encodings", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", -1),
    RAW("chunked twice",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    RAW("chunked and identity",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400),
    RAW("xchunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", -1),
    RAW("quoted chunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", -1),
    RAW("chunked with a vertical tab", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", -1),
    RAW("an empty encoding", "POST / HTTP/1.1\r\n" H "Transfer-Encoding:\r\n\r\n0\r\n\r\n", -1),
    RAW("an encoding in 1.0", "POST / HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    RAW("a fold", "POST / HTTP/1.1\r\n" H "X-A: b\r\n c\r\n\r\n", 400),
    RAW("a fold with a tab", "POST / HTTP/1.1\r\n" H "X-A: b\r\n\tc\r\n\r\n", 400),
    RAW("a fold of blanks", "POST / HTTP/1.1\r\n" H "X-A: b\r\n  \r\nX-B: c\r\n\r\n", 400),
    RAW("a fold of blanks at the end", "POST / HTTP/1.1\r\n" H "X-A: b\r\n \r\n\r\n", 400),
    RAW("a fold that makes a length", "POST / HTTP/1.1\r\n" H "Content-Leng: 5\r\n th\r\n\r\nabcde", 400),
    RAW("a fold that hides a length", "POST / HTTP/1.1\r\n" H "X: b\r\n Content-Length: 5\r\n\r\nabcde", 400),
    RAW("a fold in an encoding", "POST / HTTP/1.1\r\n" H "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    RAW("a fold as the first header", "POST / HTTP/1.1\r\n X: y\r\n" H "\r\n", 400),
    RAW("a blank before the colon", "POST / HTTP/1.1\r\n" H "Content-Length : 3\r\n\r\nabc", 400),
    RAW("a tab before the colon", "POST / HTTP/1.1\r\n" H "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 400),
    RAW("a name with a blank", "POST / HTTP/1.1\r\n" H "X Y: 3\r\n\r\n", 400),
    RAW("a line without a colon", "POST / HTTP/1.1\r\n" H "Content-Length\r\n\r\n", 400),
    RAW("no name", "POST / HTTP/1.1\r\n" H ": v\r\n\r\n", 400),
    RAW("a NUL in a name", "POST / HTTP/1.1\r\n" H "X\0Y: 3\r\n\r\n", 400),
    RAW("a NUL in a value", "POST / HTTP/1.1\r\n" H "X: a\0b\r\n\r\n", 400),
    RAW("a NUL at a value's end", "POST / HTTP/1.1\r\n" H "X: a\0\r\n\r\n", 400),
    RAW("a NUL in a length", "POST / HTTP/1.1\r\n" H "Content-Length: 3\0\r\n\r\nabc", 400),
    RAW("a NUL in the target", "GET /a\0b HTTP/1.1\r\n" H "\r\n", -1),
    RAW("a NUL in the query", "GET /a?b\0c HTTP/1.1\r\n" H "\r\n", -1),
    RAW("a NUL in the method", "GE\0T / HTTP/1.1\r\n" H "\r\n", -1),
    RAW("a NUL in the version", "GET / HTTP/1.1\0\r\n" H "\r\n", -1),
    RAW("a bare CR in a value", "GET / HTTP/1.1\r\n" H "X: a\rContent-Length: 5\r\n\r\n", 400),
    RAW("a bare CR before the colon", "GET / HTTP/1.1\r\n" H "X\r: a\r\n\r\n", 400),
    RAW("CR CR LF", "GET / HTTP/1.1\r\n" H "X: a\r\r\n\r\n", 400),
    RAW("a bare CR in the target", "GET /a\rb HTTP/1.1\r\n" H "\r\n", -1),
    RAW("a bare LF behind a header", "GET / HTTP/1.1\r\n" H "X: a\nY: b\r\n\r\n", 400),
    RAW("a bare LF behind the request line", "GET / HTTP/1.1\n" H "\r\n", -1),
    RAW("a bare LF as the last line", "GET / HTTP/1.1\r\n" H "\n", 400),
    RAW("bare LFs", "GET / HTTP/1.1\nHost: h\n\n", -1),
    RAW("a form feed in a value", "GET / HTTP/1.1\r\n" H "X: a\fb\r\n\r\n", 400),
    RAW("DEL in a value", "GET / HTTP/1.1\r\n" H "X: a\x7f\r\n\r\n", 400),
    RAW("no Host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", 400),
    RAW("no header", "GET / HTTP/1.1\r\n\r\n", 400),
    RAW("two Hosts", "GET / HTTP/1.1\r\n" H H "\r\n", 400),
    RAW("two blanks", "GET  / HTTP/1.1\r\n" H "\r\n", -1),
    RAW("two blanks before the version", "GET /  HTTP/1.1\r\n" H "\r\n", -1),
    RAW("a blank behind the version", "GET / HTTP/1.1 \r\n" H "\r\n", -1),
    RAW("a tab for a blank", "GET\t/\tHTTP/1.1\r\n" H "\r\n", -1),
    RAW("a blank in the target", "GET /a b HTTP/1.1\r\n" H "\r\n", -1),
    RAW("a blank first", " GET / HTTP/1.1\r\n" H "\r\n", -1),
    RAW("no target", "GET HTTP/1.1\r\n" H "\r\n", -1),
    RAW("no version", "GET /\r\n" H "\r\n", -1),
    RAW("HTTP/0.9", "GET /\r\n\r\n", -1),
    RAW("HTTP/2.0", "GET / HTTP/2.0\r\n" H "\r\n", 505),
    RAW("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", -1),
    RAW("http/1.1", "GET / http/1.1\r\n" H "\r\n", -1),
    RAW("HTTP/1.10", "GET / HTTP/1.10\r\n" H "\r\n", -1),
    RAW("HTTP/01.1", "GET / HTTP/01.1\r\n" H "\r\n", -1),
    RAW("a method that is no token", "G(T / HTTP/1.1\r\n" H "\r\n", 400),
    RAW("CONNECT", "CONNECT h:80 HTTP/1.1\r\n" H "\r\n", 400),
    RAW("an authority as the target", "GET h:80 HTTP/1.1\r\n" H "\r\n", 400),
    RAW("a target without a slash", "GET a/b HTTP/1.1\r\n" H "\r\n", 400),
    RAW("GET *", "GET * HTTP/1.1\r\n" H "\r\n", 400),
    RAW("another scheme", "GET file:///etc/passwd HTTP/1.1\r\n" H "\r\n", 400),
    RAW("a URI without a host", "GET http:///p HTTP/1.1\r\n" H "\r\n", 400),
    RAW("a URI with a user", "GET http://u@h/p HTTP/1.1\r\n" H "\r\n", 400),
    RAW("a fragment", "GET /a#b HTTP/1.1\r\n" H "\r\n", 400),
    RAW("a raw octet in the target", "GET /\xC3\xA9 HTTP/1.1\r\n" H "\r\n", 400),
    RAW("TLS to a server without it", "\x16\x03\x01\x00\x05hello\r\n\r\n", -1),
    RAW("a chunk size of no digits", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n\r\n0\r\n\r\n", -1),
    RAW("a chunk size that is no number", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nxyz\r\n0\r\n\r\n",
        -1),
    RAW("a chunk size with 0x", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", -1),
    RAW("a signed chunk size", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", -1),
    RAW("a negative chunk size", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n", -1),
    RAW("a blank before a chunk size", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n 1\r\na\r\n0\r\n\r\n",
        -1),
    RAW("a blank behind a chunk size", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n",
        -1),
    RAW("a chunk size above 2^64",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n", -1),
    RAW("a chunk longer than its size",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", -1),
    RAW("a NUL in a chunk size", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\0\r\na\r\n0\r\n\r\n", -1),
};

static void try_raw(const struct raw *r, bool octets) {
  static const char next[] = "GET /smuggled HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  struct client c;
  struct answer a = {0};
  dial(&c);
  app.requests = app.refused = 0;
  for (size_t i = 0; octets && i < r->len; i++) {
    put_n(&c, r->text + i, 1);
    loop_step(l, 0);
  }
  if (!octets) put_n(&c, r->text, r->len);
  put_n(&c, next, sizeof next - 1);
  shutdown(c.fd, SHUT_WR);
  int status = get(&c, false, &a);
  bool good = r->status == -1 ? status == 0 || status >= 400 : status == r->status;
  if (octets) good = good || status == 0; /* refused early, a later octet may have reset the connection */
  if (!good) print_error("%s: status %d: %s\n", r->what, status, buf_cstr(&a.body));
  if (app.requests) print_error("%s: reached the application: %s\n", r->what, buf_cstr(&app.last));
  assert_true(good && app.requests == 0);
  hang_up(&c);
  answer_fini(&a);
}

static void test_shapes_of_smuggling_are_refused(void **state) {
  (void)state;
  serve();
  for (size_t i = 0; i < COUNT(raws); i++) {
    try_raw(&raws[i], false);
    try_raw(&raws[i], true);
  }
  UNTIL(httpd_connections(h) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      T(test_shapes_of_smuggling_are_refused),
  };
  return RUN(tests);
}
