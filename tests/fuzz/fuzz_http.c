/* Octets from a client against io/httpd: no crash, no hang, and no request whose head or body breaks a promise of httpd.h.
 * The first octet says how the rest is cut into pieces. Each input has a connection of its own, over loopback. */
// fuzz-sources: runtime/io/httpd*.c runtime/io/loop.c runtime/base/*.c
// fuzz-libs: -lmicrohttpd -lev -lcrypto -lm
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/httpd.h"

enum { BODY_LIMIT = 200, STEPS = 2000 };

static struct loop *l;
static struct httpd *h;

static void check(bool good) {
  if (!good) abort();
}

static void on_request(void *arg, struct http_request *q) {
  (void)arg;
  size_t len;
  const char *body = http_body(q, &len), *path = http_path(q), *length = http_header(q, "Content-Length", 0);
  check(len <= BODY_LIMIT && body && (path[0] == '/' || strcmp(path, "*") == 0));
  for (const char *p = path; *p; p++)
    check(*p > ' ' && *p < 0x7f);
  check(!http_header(q, "Content-Length", 1) && !http_header(q, "Host", 1) && !http_header(q, "Transfer-Encoding", 1));
  check(!length || (!http_header(q, "Transfer-Encoding", 0) && strtoull(length, NULL, 10) == len));
  check(len == 0 || length || http_header(q, "Transfer-Encoding", 0));
  struct http_answer a = {200, NULL, 0, body, len};
  http_respond(q, &a);
}

static void start(void) {
  struct err e = ERR_INIT;
  struct httpd_options o = {.address = "127.0.0.1",
                            .listen_fd = -1,
                            .max_header_bytes = 1024,
                            .max_body_bytes = BODY_LIMIT,
                            .max_connections = 10,
                            .max_connections_per_address = 10,
                            .header_timeout_ms = 60000,
                            .body_timeout_ms = 60000,
                            .idle_timeout_ms = 60000,
                            .on_request = on_request};
  l = loop_new();
  h = httpd_new(l, &o, &e);
  if (h == NULL) die("%s", e.message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct sockaddr_in a = {.sin_family = AF_INET};
  struct linger reset = {1, 0};
  char drop[4096];
  int one = 1;
  if (h == NULL) start();
  if (size < 2) return 0;
  size_t piece = data[0] ? data[0] : size;
  a.sin_port = htons((uint16_t)httpd_port(h));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0) die("no connection");
  fcntl(fd, F_SETFL, O_NONBLOCK);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); /* no TIME_WAIT: the ports must last */
  for (size_t at = 1; at < size; at += piece) {
    if (send(fd, data + at, size - at < piece ? size - at : piece, MSG_NOSIGNAL) < 0) break;
    for (int i = 0; i < 3; i++)
      loop_step(l, 0);
  }
  shutdown(fd, SHUT_WR);
  ssize_t n = -1;
  for (int i = 0; i < STEPS && n != 0; i++) {
    while ((n = recv(fd, drop, sizeof drop, 0)) > 0)
      continue;
    if (n < 0 && i > 20 && httpd_connections(h) == 0) break;
    if (n < 0) loop_step(l, i < 5 ? 0 : 1);
  }
  close(fd);
  for (int i = 0; i < STEPS && httpd_connections(h) > 0; i++)
    loop_step(l, 1);
  check(httpd_connections(h) == 0 && httpd_requests(h) == 0);
  return 0;
}
