/* httpd: an HTTP/1.1 server inside the loop; the only module that uses libmicrohttpd.
 *
 * What it is    libmicrohttpd with its own epoll descriptor, which the loop watches; no threads, no parser of ours. A request
 *               is handed over whole, headers and body, and stays suspended until it is answered.
 * Life          httpd_new ─► on_request … http_respond … ─► httpd_stop_accepting ─► httpd_free (answers what is left
 *               with 503, and gives those answers half a second to leave)
 *
 *   a request:  on_request ─► http_respond (exactly once, then or later) ─► gone from us
 *                         └─► on_gone: the client has left; http_respond must still be called once
 *
 *   a stream:   on_request ─► http_stream ─► http_stream_send … ─► http_stream_end (exactly once, after on_gone too)
 *
 * on_gone cannot tell a client that is away from one that has only closed its sending side, so the answer is sent all the
 * same: harmless to the first, right for the second (not over TLS; and requests pipelined behind it go unanswered).
 *
 * Callbacks come at the safe point of a tick. What the library or the limits refuse never reaches on_request: the server
 * answers it (400, 408, 413, 414, 431, 501, 503) with `refuse`, so that even those answers have the application's form, and
 * closes. A few refusals are the library's own and have its form, a page of HTML: a head that it cannot read at all, one far
 * above max_header_bytes, a version that it does not know (505), broken chunks. Over TLS, a late sender gets no 408.
 *
 * Limits: see the options. Over the limit of connections a new one is closed at once. A sender that is slower than
 * header_timeout or body_timeout is closed: they bound the whole head and the whole body, not the gaps; a reader gets
 * body_timeout for an answer. A body that is announced as too large is refused before it is read when the client waits
 * (`Expect`) or it is 1 MiB above the limit; else it is read and dropped first, so that the client sees the 413.
 *
 * Refused are both Content-Length and Transfer-Encoding, several Content-Lengths, a coding other than chunked, folded lines,
 * a name or a method that is no token, control characters, NULs and bare LFs in the head, no Host or two, and a target that
 * is neither a path nor http(s)://host/path (`*` goes with OPTIONS only). What is let through: an empty line before a
 * request and bare LFs between chunks (0.9.75). */
#ifndef UMAVEZ_IO_HTTPD_H
#define UMAVEZ_IO_HTTPD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"

struct httpd;
struct http_request;

struct http_header {
  const char *name, *value;
};

struct http_answer {
  int status;
  const struct http_header *headers; /* borrows for the call */
  size_t nheaders;
  const char *body; /* borrows for the call; Content-Length follows from body_len; for HEAD only the headers go out */
  size_t body_len;
};

struct httpd_options {
  const char *address;            /* "127.0.0.1" or "::1" or "0.0.0.0" */
  int port;                       /* 0: a free one, see httpd_port */
  int listen_fd;                  /* an inherited listening socket, or -1; takes */
  bool paused;                    /* accepts nothing before httpd_resume: others do, who share the socket */
  const char *tls_cert, *tls_key; /* PEM text, or NULL */
  size_t max_header_bytes;        /* of a request's head */
  size_t max_body_bytes;
  int max_connections, max_connections_per_address;
  int64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms;
  void (*on_request)(void *arg, struct http_request *q); /* lends q until it is answered */
  void (*on_gone)(void *arg, struct http_request *q);
  /* How a request that the server itself refuses is answered: fills *a, whose texts must live until the next call. */
  void (*refuse)(void *arg, int status, const char *why, struct http_answer *a);
  void *arg;
};

/* Listens. NULL with *e (ERR_ENV listen_failed, ERR_INPUT tls) otherwise. Copies options. */
struct httpd *httpd_new(struct loop *l, const struct httpd_options *options, struct err *e) MUST_CHECK;
int httpd_port(const struct httpd *h);
void httpd_resume(struct httpd *h); /* idempotent */
void httpd_stop_accepting(struct httpd *h); /* drain: no new connection, keep-alive ends with the next answer */
int httpd_requests(const struct httpd *h);  /* handed over and not answered */
int httpd_connections(const struct httpd *h);
void httpd_free(struct httpd *h);

/* All borrow from the request, until it is answered. */
const char *http_method(const struct http_request *q); /* "POST" */
const char *http_path(const struct http_request *q);   /* as sent, undecoded, without query: "/orders/a%2Fb" */
const char *http_query(const struct http_request *q);  /* as sent, without '?'; NULL: there was none */
const char *http_body(const struct http_request *q, size_t *len);
const char *http_remote(const struct http_request *q); /* the peer's address, without port */
/* The nth (from 0) value of a header, case-insensitive name; NULL when there are no more. */
const char *http_header(const struct http_request *q, const char *name, int nth);

void *http_data(const struct http_request *q); /* the application's own */
void http_set_data(struct http_request *q, void *data);

/* Answers, once. Copies. Takes the request: no accessor afterwards. */
void http_respond(struct http_request *q, const struct http_answer *a);

/* Begins an answer that has no length and ends when it is ended (server-sent events); its connection ends with it. Copies; the body is its
 * beginning. Afterwards the accessors still serve until http_stream_end, but for http_remote. */
void http_stream(struct http_request *q, const struct http_answer *a);
/* Copies. A client that leaves too much untaken is cut off: on_gone. Does nothing after that. */
void http_stream_send(struct http_request *q, const char *data, size_t len);
void http_stream_end(struct http_request *q); /* takes the request */

#endif
