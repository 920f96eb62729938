/* support_http: an HTTP server of io/httpd and raw clients in one process. The test steps the loop, so nothing sleeps and
 * nothing races. Include it once in a test; each test of a group gets setup and teardown by T(name). */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/log.h"
#include "cm.h"
#include "io/httpd.h"

enum { MAX_HELD = 2048, PATIENCE_MS = 10000, BODY_LIMIT = 2000, HEAD_LIMIT = 4096 };

#define HELPER static __attribute__((unused))
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static struct loop *l;
static struct httpd *h;
static struct httpd_options options;
static struct {
  bool hold; /* keep requests instead of echoing them */
  struct http_request *held[MAX_HELD];
  int nheld, requests, gone, refused; /* refused: the last status asked for */
  struct buf last;                    /* the echo of the last request */
} app;

/* ── the application ── */

HELPER void respond(struct http_request *q, int status, const char *body, size_t len) {
  struct http_header headers[] = {{"Content-Type", "text/x-echo"}, {"X-Twice", "1"}, {"X-Twice", "2"}};
  struct http_answer a = {status, headers, 3, body, len};
  http_respond(q, &a);
}

HELPER void echo(struct http_request *q) {
  size_t len;
  const char *body = http_body(q, &len);
  buf_clear(&app.last);
  buf_printf(&app.last, "%s %s ?%s ", http_method(q), http_path(q), http_query(q) ? http_query(q) : "-");
  buf_append(&app.last, body, len);
  respond(q, 200, app.last.data, app.last.len);
}

HELPER void on_request(void *arg, struct http_request *q) {
  (void)arg;
  app.requests++;
  assert_null(http_data(q));
  http_set_data(q, &app);
  if (app.hold)
    app.held[app.nheld++] = q;
  else
    echo(q);
}

HELPER void on_gone(void *arg, struct http_request *q) {
  (void)arg;
  assert_ptr_equal(http_data(q), &app);
  app.gone++;
}

HELPER void refuse(void *arg, int status, const char *why, struct http_answer *a) {
  (void)arg;
  static const struct http_header headers[] = {{"Content-Type", "application/problem+json"}};
  static char text[256];
  app.refused = status;
  snprintf(text, sizeof text, "{\"status\":%d,\"detail\":\"%s\"}", status, why);
  *a = (struct http_answer){status, headers, 1, text, strlen(text)};
}

HELPER void serve(void) {
  struct err e = ERR_INIT;
  h = httpd_new(l, &options, &e);
  if (h == NULL) fail_msg("%s", e.message);
}

HELPER int setup(void **state) {
  (void)state;
  l = loop_new();
  memset(&app, 0, sizeof app);
  options = (struct httpd_options){.address = "127.0.0.1",
                                   .listen_fd = -1,
                                   .max_header_bytes = HEAD_LIMIT,
                                   .max_body_bytes = BODY_LIMIT,
                                   .max_connections = 100,
                                   .max_connections_per_address = 100,
                                   .header_timeout_ms = 60000,
                                   .body_timeout_ms = 60000,
                                   .idle_timeout_ms = 60000,
                                   .on_request = on_request,
                                   .on_gone = on_gone,
                                   .refuse = refuse};
  return 0;
}

HELPER int teardown(void **state) {
  (void)state;
  httpd_free(h);
  h = NULL;
  loop_free(l);
  buf_fini(&app.last);
  return 0;
}

/* ── the client ── */

struct client {
  int fd;
  bool ended;    /* the server has closed */
  struct buf in; /* not consumed yet */
};

struct answer {
  int status;
  bool close;
  char type[64];
  struct buf head, body;
};

HELPER int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#define UNTIL(condition)                                                        \
  for (int64_t until_ = now_ms() + PATIENCE_MS; !(condition); loop_step(l, 20)) \
    if (now_ms() > until_) fail_msg("line %d: waited in vain for " #condition, __LINE__)

HELPER void dial(struct client *c) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)httpd_port(h))};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  *c = (struct client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  assert_int_equal(connect(c->fd, (struct sockaddr *)&a, sizeof a), 0);
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  int one = 1;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* each piece travels on its own, at once */
}

HELPER void hang_up(struct client *c) {
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  buf_fini(&c->in);
}

HELPER void pull(struct client *c) {
  char piece[4096];
  ssize_t n;
  while (!c->ended && (n = recv(c->fd, piece, sizeof piece, 0)) != -1) {
    if (n == 0)
      c->ended = true;
    else
      buf_append(&c->in, piece, (size_t)n);
  }
  if (!c->ended && errno != EAGAIN) c->ended = true;
}

/* Sends; the server may close meanwhile. */
HELPER void put_n(struct client *c, const char *data, size_t len) {
  int64_t until = now_ms() + PATIENCE_MS;
  while (len > 0) {
    ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return;
    if (n > 0) {
      data += n;
      len -= (size_t)n;
    } else {
      if (now_ms() > until) fail_msg("the server reads nothing");
      loop_step(l, 5);
    }
  }
}

HELPER void put(struct client *c, const char *text) {
  put_n(c, text, strlen(text));
}

/* Lets the loop take everything that is on its way: a tick that waits for nothing finds nothing any more. */
HELPER void settle(void) {
  for (int i = 0; i < 6; i++)
    loop_step(l, 0);
}

HELPER const char *header_of(const char *head, const char *name) {
  for (const char *p = strstr(head, "\r\n"); p && p[2]; p = strstr(p + 2, "\r\n"))
    if (strncasecmp(p + 2, name, strlen(name)) == 0 && p[2 + strlen(name)] == ':') return p + 3 + strlen(name) + 1;
  return NULL;
}

/* Consumes one answer; false when it is not whole yet. */
HELPER bool parse(struct client *c, bool head_only, struct answer *a) {
  char *text = buf_cstr(&c->in);
  char *end = strstr(text, "\r\n\r\n");
  if (!end) return false;
  size_t head_len = (size_t)(end - text) + 4;
  buf_clear(&a->head);
  buf_append(&a->head, text, head_len);
  const char *head = buf_cstr(&a->head), *length = header_of(head, "Content-Length");
  a->status = atoi(text + 9);
  size_t len = length && !head_only && a->status >= 200 ? (size_t)atol(length) : 0;
  if (c->in.len < head_len + len) return false;
  const char *close = header_of(head, "Connection"), *type = header_of(head, "Content-Type");
  a->close = close && strncasecmp(close, "close", 5) == 0;
  snprintf(a->type, sizeof a->type, "%.*s", type ? (int)strcspn(type, "\r") : 0, type ? type : "");
  buf_clear(&a->body);
  buf_append(&a->body, text + head_len, len);
  memmove(c->in.data, c->in.data + head_len + len, c->in.len - head_len - len);
  buf_truncate(&c->in, c->in.len - head_len - len);
  return true;
}

HELPER void answer_fini(struct answer *a) {
  buf_fini(&a->head);
  buf_fini(&a->body);
}

/* Waits for an answer; status 0: the server has closed without one. */
HELPER int get(struct client *c, bool head_only, struct answer *a) {
  a->status = 0;
  bool whole = false;
  UNTIL((pull(c), (whole = parse(c, head_only, a)) || c->ended));
  return whole ? a->status : 0;
}

HELPER void expect(struct client *c, int status, const char *body) {
  struct answer a = {0};
  int got = get(c, false, &a);
  if (got != status) fail_msg("status %d instead of %d: %s", got, status, buf_cstr(&a.body));
  if (body) assert_string_equal(buf_cstr(&a.body), body);
  answer_fini(&a);
}

HELPER void expect_closed(struct client *c) {
  UNTIL((pull(c), c->ended));
  assert_int_equal(c->in.len, 0);
}
