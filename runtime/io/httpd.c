/* A connection's phases, each with its own limit of time:
 *
 *   FRESH ─► HEAD ─► BODY ─► WORK ─► ANSWER ─► IDLE ─► HEAD …
 *
 *   FRESH   connected, no request line yet         header_timeout, which goes on into HEAD
 *   HEAD    the request line is there              header_timeout
 *   BODY    the head is there, a body comes        body_timeout
 *   WORK    handed over: suspended in the library  none; a descriptor of ours (hangup) looks for the peer's end
 *   ANSWER  http_respond was called                body_timeout for the client to take it
 *   STREAM  http_stream was called                 none; what the client does not take is bounded (STREAM_BYTES)
 *   IDLE    answered, kept alive                   idle_timeout, until the next request line is there
 *
 * The library closes connections only by itself; when a limit passes, the socket is shut down, and the library, which
 * watches it in every phase but WORK, finds the end of the stream.
 *
 * MHD_run is only called in the task `run`, at the safe point; its callbacks queue what is for the application, which the
 * task `deliver` hands over. So the application never runs inside the library. */
#include "io/httpd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "io/httpd_head.h"
#include "io/httpd_listen.h"

enum {
  SWALLOW_BYTES = 1 << 20, /* so much of a too large body is read and dropped, so that the sender sees the 413 */
  HANGUPS = 64,            /* events read at one time */
  FLUSH_ROUNDS = 50,       /* of FLUSH_WAIT_MS at most, for the last answers */
  FLUSH_WAIT_MS = 10,
  EAGER_RUNS = 16, /* so often the library may ask for the next run at once, with nothing having come in */
  STREAM_BYTES = 1 << 20, /* a stream whose client has not taken so much is cut */
  STREAM_BLOCK = 4096,
  LAZY_MS = 10     /* then it waits so long: 0.9.75 asks without end while a TLS handshake waits for its peer */
};

enum phase { PHASE_FRESH, PHASE_HEAD, PHASE_BODY, PHASE_WORK, PHASE_ANSWER, PHASE_STREAM, PHASE_IDLE };

struct conn {
  struct httpd *httpd;
  struct MHD_Connection *mhd;
  int fd;
  enum phase phase;
  bool timed_out;
  struct loop_timer timer;
  struct http_request *request; /* the one that is being read, worked on, or answered */
  char remote[INET6_ADDRSTRLEN];
};

struct http_request {
  struct conn *conn; /* NULL: the connection is gone */
  struct list node;  /* in ready or lent; alone before and after */
  struct list gone_node;
  struct httpd_head head;
  struct buf body;
  bool head_seen; /* the library's first call was there */
  bool gone;      /* the peer has left */
  bool sent;      /* answered past the library, which must only close now */
  int refused;    /* the status that is owed once the body has been swallowed */
  size_t swallowed;
  int status;
  struct MHD_Response *response;
  struct httpd_stream *stream; /* NULL: answered whole */
  void *data;
};

struct httpd_stream {
  struct httpd *httpd;
  struct buf out;   /* not taken by the library yet */
  bool asleep;      /* suspended in the library until there is more to send */
  bool ended;       /* by the application: it does not know the request any more */
  bool closed;      /* the library has ended the request, and the application has not */
};

struct httpd {
  struct loop *loop;
  struct httpd_options o; /* its texts are not ours: NULL */
  struct MHD_Daemon *daemon;
  struct loop_io io, hangup_io;
  struct loop_timer timeout;
  struct loop_task run, deliver;
  struct list ready; /* complete, not handed over yet */
  struct list lent;  /* handed over, not answered */
  struct list gone;  /* their peers have left: on_gone is due */
  int hangup;        /* epoll: EPOLLRDHUP of the connections in WORK */
  int port, connections, answering;
  int eager; /* runs since something came from outside */
  bool tls, draining, freeing;
  char said[256]; /* the library's last words while it starts */
};

/* ── answers ── */

static void add_headers(struct MHD_Response *r, const struct http_answer *a, bool close) {
  for (size_t i = 0; i < a->nheaders; i++) {
    const struct http_header *x = &a->headers[i];
    if (strcasecmp(x->name, "Content-Length") == 0 || strcasecmp(x->name, "Transfer-Encoding") == 0 ||
        strcasecmp(x->name, "Connection") == 0)
      continue;
    if (MHD_add_response_header(r, x->name, x->value) != MHD_YES)
      log_kv(LOG_WARN_, "http_header_dropped", "name", x->name, NULL);
  }
  if (close && MHD_add_response_header(r, "Connection", "close") != MHD_YES)
    bug("libmicrohttpd refuses Connection: close");
}

static struct MHD_Response *make_response(const struct http_answer *a, bool close) {
  struct MHD_Response *r =
      MHD_create_response_from_buffer(a->body_len, (void *)(a->body ? a->body : ""), MHD_RESPMEM_MUST_COPY);
  if (r == NULL) bug("libmicrohttpd: no memory for an answer");
  add_headers(r, a, close);
  return r;
}

static void make_refusal(struct httpd *h, int status, const char *why, struct http_answer *a) {
  static const struct http_header headers[] = {{"Content-Type", "text/plain; charset=utf-8"}};
  *a = (struct http_answer){status, headers, 1, why, strlen(why)};
  if (h->o.refuse) h->o.refuse(h->o.arg, status, why, a);
}

/* Answers at once, from inside one of the library's calls, and lets the connection end. */
static enum MHD_Result refuse_now(struct httpd *h, struct MHD_Connection *c, int status, const char *why) {
  struct http_answer a;
  make_refusal(h, status, why, &a);
  struct MHD_Response *r = make_response(&a, true);
  enum MHD_Result ok = MHD_queue_response(c, (unsigned)a.status, r);
  MHD_destroy_response(r);
  return ok;
}

/* For moments in which the library takes no answer: writes one past it. The connection must end now. Best effort: what the
 * socket does not take at once is lost, and over TLS nothing is sent. */
static void send_raw(struct conn *c, const struct http_answer *a, bool is_head) {
  struct buf out = BUF_INIT;
  if (c->httpd->tls) return;
  buf_printf(&out, "HTTP/1.1 %d %s\r\nConnection: close\r\n", a->status,
             MHD_get_reason_phrase_for((unsigned)a->status));
  if (a->status != 204 && a->status != 304) buf_printf(&out, "Content-Length: %zu\r\n", a->body_len);
  for (size_t i = 0; i < a->nheaders; i++)
    buf_printf(&out, "%s: %s\r\n", a->headers[i].name, a->headers[i].value);
  buf_puts(&out, "\r\n");
  if (!is_head && a->body_len > 0) buf_append(&out, a->body, a->body_len);
  ssize_t sent = send(c->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
  (void)sent;
  buf_fini(&out);
}

static void refuse_raw(struct conn *c, int status, const char *why) {
  struct http_answer a;
  make_refusal(c->httpd, status, why, &a);
  send_raw(c, &a, false);
}

/* ── connections ── */

static void set_phase(struct conn *c, enum phase phase) {
  const struct httpd_options *o = &c->httpd->o;
  int64_t ms[] = {[PHASE_FRESH] = o->header_timeout_ms, [PHASE_HEAD] = o->header_timeout_ms,
                  [PHASE_BODY] = o->body_timeout_ms,    [PHASE_WORK] = 0,
                  [PHASE_ANSWER] = o->body_timeout_ms,  [PHASE_STREAM] = 0,
                  [PHASE_IDLE] = o->idle_timeout_ms};
  bool goes_on = c->phase == PHASE_FRESH && phase == PHASE_HEAD;
  if (c->phase == PHASE_ANSWER) c->httpd->answering--;
  if (phase == PHASE_ANSWER) c->httpd->answering++;
  c->phase = phase;
  if (goes_on) return;
  if (ms[phase] > 0)
    loop_timer_start(c->httpd->loop, &c->timer, ms[phase]);
  else
    loop_timer_stop(&c->timer);
}

static void on_late(void *arg) {
  struct conn *c = arg;
  c->timed_out = true;
  if (c->phase == PHASE_HEAD || c->phase == PHASE_BODY)
    refuse_raw(c, 408, "the request took too long to arrive");
  shutdown(c->fd, SHUT_RDWR);
}

static void remote_text(const struct sockaddr *a, char out[INET6_ADDRSTRLEN]) {
  out[0] = '\0';
  if (a == NULL) return;
  if (a->sa_family == AF_INET) {
    inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a)->sin_addr, out, INET6_ADDRSTRLEN);
  } else if (a->sa_family == AF_INET6) {
    const struct in6_addr *ip = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(ip))
      inet_ntop(AF_INET, &ip->s6_addr[12], out, INET6_ADDRSTRLEN);
    else
      inet_ntop(AF_INET6, ip, out, INET6_ADDRSTRLEN);
  }
}

static void on_connection(void *arg, struct MHD_Connection *m, void **context,
                          enum MHD_ConnectionNotificationCode code) {
  struct httpd *h = arg;
  struct conn *c = *context;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    c = xcalloc(1, sizeof *c);
    c->httpd = h;
    c->mhd = m;
    c->phase = PHASE_IDLE;
    loop_timer_init(&c->timer, on_late, c);
    /* What one call gives is overwritten by the next. */
    c->fd = MHD_get_connection_info(m, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    const union MHD_ConnectionInfo *address = MHD_get_connection_info(m, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    remote_text(address ? address->client_addr : NULL, c->remote);
    set_phase(c, PHASE_FRESH);
    h->connections++;
    *context = c;
    return;
  }
  if (c == NULL) return;
  if (c->phase == PHASE_ANSWER) h->answering--;
  if (c->request) c->request->conn = NULL;
  loop_timer_stop(&c->timer);
  h->connections--;
  *context = NULL;
  free(c);
}

static enum MHD_Result on_accept(void *arg, const struct sockaddr *a, socklen_t len) {
  (void)a, (void)len;
  struct httpd *h = arg;
  return h->connections < h->o.max_connections ? MHD_YES : MHD_NO;
}

static void on_hangup(void *arg, int events) {
  (void)events;
  struct httpd *h = arg;
  struct epoll_event e[HANGUPS];
  int n = epoll_wait(h->hangup, e, HANGUPS, 0);
  for (int i = 0; i < n; i++) {
    struct http_request *q = ((struct conn *)e[i].data.ptr)->request;
    if (!q || q->gone) continue;
    q->gone = true;
    list_push_back(&h->gone, &q->gone_node);
  }
  loop_defer(h->loop, &h->deliver);
}

/* One shot: only the peer's end counts, whatever octets of further requests wait before it. */
static void watch_hangup(struct conn *c) {
  struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
  if (epoll_ctl(c->httpd->hangup, EPOLL_CTL_ADD, c->fd, &e) < 0)
    log_kv(LOG_WARN_, "http_watch_failed", "reason", strerror(errno), NULL);
}

static void unwatch_hangup(struct conn *c) {
  epoll_ctl(c->httpd->hangup, EPOLL_CTL_DEL, c->fd, NULL);
}

/* ── requests ── */

static void request_free(struct http_request *q) {
  if (q->conn && q->conn->request == q) q->conn->request = NULL;
  list_remove(&q->node);
  list_remove(&q->gone_node);
  if (q->response) MHD_destroy_response(q->response);
  if (q->stream) buf_fini(&q->stream->out);
  free(q->stream);
  httpd_head_fini(&q->head);
  buf_fini(&q->body);
  free(q);
}

static struct conn *conn_of(struct MHD_Connection *m) {
  return MHD_get_connection_info(m, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* The request line is there. What it gives comes back as the request's context. */
static void *on_target(void *arg, const char *target, struct MHD_Connection *m) {
  (void)arg;
  struct conn *c = conn_of(m);
  struct http_request *q = xcalloc(1, sizeof *q);
  if (c->request) c->request->conn = NULL;
  q->conn = c;
  c->request = q;
  list_init(&q->node);
  list_init(&q->gone_node);
  httpd_head_init(&q->head, target ? target : "");
  set_phase(c, PHASE_HEAD);
  return q;
}

static enum MHD_Result on_head(struct httpd *h, struct http_request *q, const char *method, const char *version) {
  struct conn *c = q->conn;
  const char *why = NULL;
  int status = httpd_head_check(&q->head, c->mhd, method, version, h->o.max_header_bytes, &why);
  if (status == 0 && q->head.length > h->o.max_body_bytes) {
    if (q->head.expects || q->head.length - h->o.max_body_bytes > SWALLOW_BYTES) {
      status = 413;
      why = "the request's body is too large";
    }
    q->refused = 413;
  }
  if (q->head.has_body || status > 0) set_phase(c, PHASE_BODY);
  if (status > 0) {
    set_phase(c, PHASE_ANSWER);
    return refuse_now(h, c->mhd, status, why);
  }
  return MHD_YES;
}

static enum MHD_Result on_body(struct httpd *h, struct http_request *q, const char *data, size_t len) {
  if (!q->refused && len > h->o.max_body_bytes - q->body.len) q->refused = 413;
  if (!q->refused) {
    buf_append(&q->body, data, len);
    return MHD_YES;
  }
  q->swallowed += q->body.len + len;
  buf_fini(&q->body);
  if (q->swallowed <= h->o.max_body_bytes + SWALLOW_BYTES) return MHD_YES;
  refuse_raw(q->conn, 413, "the request's body is too large");
  return MHD_NO;
}

static enum MHD_Result on_access(void *arg, struct MHD_Connection *m, const char *url, const char *method,
                                 const char *version, const char *data, size_t *len, void **context) {
  (void)url;
  struct httpd *h = arg;
  struct http_request *q = *context;
  if (q == NULL || q->conn == NULL || q->sent) return MHD_NO;
  if (!q->head_seen) {
    q->head_seen = true;
    return on_head(h, q, method, version);
  }
  if (*len > 0) {
    size_t n = *len;
    *len = 0;
    return on_body(h, q, data, n);
  }
  if (q->response) return MHD_queue_response(m, (unsigned)q->status, q->response);
  if (list_linked(&q->node)) return MHD_YES; /* not answered yet */
  if (q->refused || h->freeing) {
    set_phase(q->conn, PHASE_ANSWER);
    return q->refused ? refuse_now(h, m, q->refused, "the request's body is too large")
                      : refuse_now(h, m, 503, "the server ends");
  }
  set_phase(q->conn, PHASE_WORK);
  MHD_suspend_connection(m);
  watch_hangup(q->conn);
  list_push_back(&h->ready, &q->node);
  loop_defer(h->loop, &h->deliver);
  return MHD_YES;
}

/* The client of a stream is gone, and the application does not know yet: the request stays until it has ended it. */
static void stream_closed(struct http_request *q) {
  struct httpd *h = q->stream->httpd;
  if (q->conn && q->conn->request == q) q->conn->request = NULL;
  q->conn = NULL;
  q->stream->closed = true;
  if (q->gone) return;
  q->gone = true;
  list_push_back(&h->gone, &q->gone_node);
  loop_defer(h->loop, &h->deliver);
}

/* A request has ended in the library, in whatever way. */
static void on_completed(void *arg, struct MHD_Connection *m, void **context, enum MHD_RequestTerminationCode code) {
  (void)arg, (void)code;
  struct http_request *q = *context;
  *context = NULL;
  if (q == NULL) return;
  if (list_linked(&q->node)) bug("a suspended connection has ended");
  struct conn *c = conn_of(m);
  if (c) set_phase(c, PHASE_IDLE);
  if (q->stream && c) unwatch_hangup(c);
  if (q->stream && !q->stream->ended) {
    stream_closed(q);
    return;
  }
  request_free(q);
}

static void deliver(void *arg) {
  struct httpd *h = arg;
  struct http_request *q;
  while ((q = list_first(&h->ready, struct http_request, node)) != NULL) {
    list_remove(&q->node);
    list_push_back(&h->lent, &q->node);
    h->o.on_request(h->o.arg, q);
  }
  while ((q = list_pop_front(&h->gone, struct http_request, gone_node)) != NULL)
    if (h->o.on_gone) h->o.on_gone(h->o.arg, q);
}

/* The library reads before it sends, and where the peer has closed its sending side it then closes without sending. */
static bool peer_has_closed(const struct http_request *q) {
  struct pollfd p = {.fd = q->conn->fd, .events = POLLRDHUP};
  return q->gone || (poll(&p, 1, 0) > 0 && p.revents);
}

void http_respond(struct http_request *q, const struct http_answer *a) {
  if (q->response || !list_linked(&q->node)) bug("a request is answered twice");
  struct conn *c = q->conn;
  struct httpd *h = c->httpd;
  list_remove(&q->node);
  list_remove(&q->gone_node);
  q->status = a->status;
  q->response = make_response(a, h->draining || h->freeing);
  unwatch_hangup(c);
  if (peer_has_closed(q)) {
    send_raw(c, a, strcmp(q->head.method, "HEAD") == 0);
    q->sent = true;
  }
  set_phase(c, PHASE_ANSWER);
  MHD_resume_connection(c->mhd);
  h->eager = 0;
  loop_defer(h->loop, &h->run);
}

/* ── streams ── */

/* The library asks for more to send. */
static ssize_t on_stream_read(void *arg, uint64_t pos, char *to, size_t max) {
  (void)pos;
  struct http_request *q = arg;
  struct httpd_stream *s = q->stream;
  size_t n = s->out.len < max ? s->out.len : max;
  if (n == 0 && s->ended) return MHD_CONTENT_READER_END_OF_STREAM;
  if (n == 0) {
    s->asleep = true;
    MHD_suspend_connection(q->conn->mhd);
    return 0;
  }
  memcpy(to, s->out.data, n);
  memmove(s->out.data, s->out.data + n, s->out.len - n);
  buf_truncate(&s->out, s->out.len - n);
  return (ssize_t)n;
}

static void stream_wake(struct http_request *q) {
  struct httpd *h = q->stream->httpd;
  if (q->stream->asleep) MHD_resume_connection(q->conn->mhd);
  q->stream->asleep = false;
  h->eager = 0;
  loop_defer(h->loop, &h->run);
}

void http_stream(struct http_request *q, const struct http_answer *a) {
  if (q->response || !list_linked(&q->node)) bug("a request is answered twice");
  struct conn *c = q->conn;
  struct httpd *h = c->httpd;
  list_remove(&q->node);
  q->stream = xcalloc(1, sizeof *q->stream);
  q->stream->httpd = h;
  q->status = a->status;
  q->response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, on_stream_read, q, NULL);
  if (q->response == NULL) bug("libmicrohttpd: no memory for a stream");
  add_headers(q->response, a, true);
  if (a->body_len > 0) buf_append(&q->stream->out, a->body, a->body_len);
  set_phase(c, PHASE_STREAM);
  MHD_resume_connection(c->mhd);
  h->eager = 0;
  loop_defer(h->loop, &h->run);
}

void http_stream_send(struct http_request *q, const char *data, size_t len) {
  struct httpd_stream *s = q->stream;
  if (s->closed || q->gone) return;
  if (s->out.len + len > STREAM_BYTES) {
    shutdown(q->conn->fd, SHUT_RDWR);
    return;
  }
  buf_append(&s->out, data, len);
  stream_wake(q);
}

void http_stream_end(struct http_request *q) {
  struct httpd_stream *s = q->stream;
  list_remove(&q->gone_node);
  s->ended = true;
  if (s->closed) {
    request_free(q);
    return;
  }
  set_phase(q->conn, PHASE_ANSWER);
  stream_wake(q);
}

const char *http_method(const struct http_request *q) {
  return q->head.method;
}

const char *http_path(const struct http_request *q) {
  return q->head.path;
}

const char *http_query(const struct http_request *q) {
  return q->head.query;
}

const char *http_body(const struct http_request *q, size_t *len) {
  *len = q->body.len;
  return q->body.data ? q->body.data : "";
}

const char *http_remote(const struct http_request *q) {
  return q->conn->remote;
}

const char *http_header(const struct http_request *q, const char *name, int nth) {
  return httpd_head_value(&q->head, name, nth);
}

void *http_data(const struct http_request *q) {
  return q->data;
}

void http_set_data(struct http_request *q, void *data) {
  q->data = data;
}

/* ── the library in the loop ── */

static void run(void *arg) {
  struct httpd *h = arg;
  MHD_UNSIGNED_LONG_LONG ms;
  if (MHD_run(h->daemon) != MHD_YES) bug("libmicrohttpd does not run");
  if (MHD_get_timeout(h->daemon, &ms) == MHD_YES) {
    if (ms == 0 && ++h->eager > EAGER_RUNS) ms = LAZY_MS;
    loop_timer_start(h->loop, &h->timeout, ms > INT32_MAX ? INT32_MAX : (int64_t)ms);
  } else {
    loop_timer_stop(&h->timeout);
  }
}

static void on_io(void *arg, int events) {
  (void)events;
  struct httpd *h = arg;
  h->eager = 0;
  loop_defer(h->loop, &h->run);
}

static void on_timeout(void *arg) {
  struct httpd *h = arg;
  loop_defer(h->loop, &h->run);
}

static void on_library_log(void *arg, const char *fmt, va_list ap) PRINTF_LIKE(2, 0);

static void on_library_log(void *arg, const char *fmt, va_list ap) {
  struct httpd *h = arg;
  struct buf text = BUF_INIT;
  if (h->daemon && !log_enabled(LOG_DEBUG_)) return;
  buf_vprintf(&text, fmt, ap);
  while (text.len > 0 && text.data[text.len - 1] == '\n')
    buf_truncate(&text, text.len - 1);
  if (h->daemon == NULL) err_copy_text(h->said, sizeof h->said, buf_cstr(&text));
  log_kv(LOG_DEBUG_, "http_library", "text", buf_cstr(&text), NULL);
  buf_fini(&text);
}

/* ── life ── */

static int start(struct httpd *h, int fd, const struct httpd_options *o, struct err *e) {
  unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG;
  struct MHD_OptionItem tls[] = {
      {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)o->tls_cert},
      {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)o->tls_key},
      {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)"NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
      {MHD_OPTION_END, 0, NULL},
  };
  if (h->tls) flags |= MHD_USE_TLS;
  if (httpd_listen_is_ipv6(fd)) flags |= MHD_USE_IPv6;
  h->daemon = MHD_start_daemon(
      flags, 0, on_accept, h, on_access, h, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, h, MHD_OPTION_LISTEN_SOCKET, fd,
#if MHD_VERSION >= 0x00097701
      MHD_OPTION_CLIENT_DISCIPLINE_LVL, 2, /* at 3 the library lets blanks into chunk sizes */
#else
      MHD_OPTION_STRICT_FOR_CLIENT, 1,
#endif
      MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT, 2 * o->max_header_bytes + 16384,
      MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
      (size_t)4096, /* on_accept judges, so that the excess is closed and does not wait: */
      MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->max_connections + 64, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
      (unsigned)o->max_connections_per_address, MHD_OPTION_CONNECTION_TIMEOUT, 0U, MHD_OPTION_URI_LOG_CALLBACK,
      on_target, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
      MHD_OPTION_ARRAY, h->tls ? tls : &tls[3], MHD_OPTION_END);
  if (h->daemon == NULL && h->tls)
    return err_set(e, ERR_INPUT, "tls",
                   "the certificate or its key cannot be used (%s): both must be PEM, and belong together", h->said);
  if (h->daemon == NULL) return err_set(e, ERR_ENV, "listen_failed", "libmicrohttpd cannot start: %s", h->said);
  return 0;
}

struct httpd *httpd_new(struct loop *l, const struct httpd_options *o, struct err *e) {
  int fd = o->listen_fd;
  bool tls = o->tls_cert || o->tls_key;
  if (fd < 0 && (fd = httpd_listen(o->address, o->port, e)) < 0) return NULL;
  if (tls && (!o->tls_cert || !o->tls_key)) {
    err_set(e, ERR_INPUT, "tls", "TLS needs a certificate and its key; only the %s is set",
            o->tls_cert ? "certificate" : "key");
    goto fail;
  }
  if (tls && MHD_is_feature_supported(MHD_FEATURE_SSL) != MHD_YES) {
    err_set(e, ERR_INPUT, "tls", "libmicrohttpd %s on this machine was built without TLS", MHD_get_version());
    goto fail;
  }
  struct httpd *h = xcalloc(1, sizeof *h);
  h->loop = l;
  h->o = *o;
  h->o.address = h->o.tls_cert = h->o.tls_key = NULL;
  h->o.listen_fd = -1;
  h->tls = tls;
  list_init(&h->ready);
  list_init(&h->lent);
  list_init(&h->gone);
  loop_io_init(&h->io, on_io, h);
  loop_io_init(&h->hangup_io, on_hangup, h);
  loop_timer_init(&h->timeout, on_timeout, h);
  loop_task_init(&h->run, run, h);
  loop_task_init(&h->deliver, deliver, h);
  if (start(h, fd, o, e) < 0) {
    free(h);
    goto fail;
  }
  h->port = httpd_listen_port(fd);
  h->hangup = epoll_create1(EPOLL_CLOEXEC);
  if (h->hangup < 0) bug("epoll_create1: %s", strerror(errno));
  loop_io_start(l, &h->hangup_io, h->hangup, LOOP_READ);
  if (!o->paused) httpd_resume(h);
  return h;

fail:
  close(fd);
  return NULL;
}

/* The library accepts when it runs, and it runs when its descriptor is watched. */
void httpd_resume(struct httpd *h) {
  int fd = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  loop_io_start(h->loop, &h->io, fd, LOOP_READ);
  loop_defer(h->loop, &h->run);
}

int httpd_port(const struct httpd *h) {
  return h->port;
}

int httpd_requests(const struct httpd *h) {
  return (int)(list_length(&h->ready) + list_length(&h->lent));
}

int httpd_connections(const struct httpd *h) {
  return h->connections;
}

void httpd_stop_accepting(struct httpd *h) {
  if (h->draining) return;
  h->draining = true;
  int fd = MHD_quiesce_daemon(h->daemon);
  if (fd >= 0) close(fd);
}

static void answer_rest(struct httpd *h, struct list *requests) {
  struct http_request *q;
  while ((q = list_first(requests, struct http_request, node)) != NULL) {
    struct http_answer a;
    make_refusal(h, 503, "the server ends", &a);
    http_respond(q, &a);
  }
}

void httpd_free(struct httpd *h) {
  if (h == NULL) return;
  h->freeing = true;
  httpd_stop_accepting(h);
  answer_rest(h, &h->ready);
  answer_rest(h, &h->lent);
  struct pollfd p = {.fd = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, .events = POLLIN};
  for (int i = 0; i < FLUSH_ROUNDS && h->answering > 0; i++) {
    MHD_run(h->daemon);
    if (h->answering > 0) poll(&p, 1, FLUSH_WAIT_MS);
  }
  loop_io_stop(&h->io);
  loop_io_stop(&h->hangup_io);
  MHD_stop_daemon(h->daemon);
  loop_timer_stop(&h->timeout);
  loop_task_cancel(&h->run);
  loop_task_cancel(&h->deliver);
  close(h->hangup);
  free(h);
}
