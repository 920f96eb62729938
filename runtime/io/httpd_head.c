/* What is refused here, and why it is here: 0.9.75 joins a folded line to the header's *name*, cuts values at a NUL, takes a
 * bare LF for a line's end, a blank before the colon into the name, and the first of several Content-Lengths; each version
 * leaves repeated headers and the form of the target to the application. */
#include "io/httpd_head.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_TARGET_SHARE = 2 /* the target may take 1/2 of the head */ };

static const char *const MALFORMED = "the request's head is malformed";

/* Walks over the head as it lies in the library's buffer. */
struct walk {
  struct httpd_head *head;
  uintptr_t at; /* where the next header's name must begin */
  bool exact;   /* everything so far lies where it lies when the lines are well-formed */
  const char *why;
};

void httpd_head_init(struct httpd_head *head, const char *target) {
  *head = (struct httpd_head){.target = xstrdup(target), .raw = target, .raw_len = strlen(target)};
}

void httpd_head_fini(struct httpd_head *head) {
  free(head->target);
  free(head->method);
  buf_fini(&head->text);
  *head = (struct httpd_head){0};
}

const char *httpd_head_value(const struct httpd_head *head, const char *name, int nth) {
  const char *p = head->text.data;
  for (size_t i = 0; i < head->nheaders; i++) {
    const char *value = p + strlen(p) + 1;
    if (strcasecmp(p, name) == 0 && nth-- == 0) return value;
    p = value + strlen(value) + 1;
  }
  return NULL;
}

static bool is_token(const char *s, size_t n) {
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s[i];
    if (c <= ' ' || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c)) return false;
  }
  return n > 0;
}

static bool has_control(const char *s, size_t n) {
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s[i];
    if ((c < ' ' && c != '\t') || c == 0x7f) return true;
  }
  return false;
}

static bool blank(char c) {
  return c == ' ' || c == '\t';
}

static enum MHD_Result on_header(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                 const char *value, size_t value_len) {
  (void)kind;
  struct walk *w = arg;
  if (!is_token(name, name_len)) {
    w->why = "a header's name is malformed";
    return MHD_NO;
  }
  if (value == NULL) value = "", value_len = 0;
  if (has_control(value, value_len)) {
    w->why = "a header's value has a control character";
    return MHD_NO;
  }
  if ((uintptr_t)name != w->at || (uintptr_t)value < (uintptr_t)name + name_len + 1)
    w->exact = false;
  else
    for (const char *p = name + name_len + 1; w->exact && p < value; p++)
      w->exact = blank(*p);
  w->at = (uintptr_t)value + value_len + 2;

  while (value_len > 0 && blank(value[value_len - 1]))
    value_len--;
  struct buf *text = &w->head->text;
  buf_append(text, name, name_len);
  buf_putc(text, '\0');
  buf_append(text, value, value_len);
  buf_putc(text, '\0');
  w->head->nheaders++;
  return MHD_YES;
}

/* origin-form, asterisk-form, or http(s)://authority/path; cuts the target into path and query. */
static const char *check_target(struct httpd_head *head) {
  char *t = head->target;
  for (const char *p = t; *p; p++)
    if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || *p == '#' || *p == '\\')
      return "the request's target has a character that must be percent-encoded";
  if (strcmp(head->method, "CONNECT") == 0) return "CONNECT is for proxies";
  size_t scheme = strncasecmp(t, "http://", 7) == 0 ? 7 : strncasecmp(t, "https://", 8) == 0 ? 8 : 0;
  if (scheme > 0) {
    size_t authority = strcspn(t + scheme, "/?");
    if (authority == 0 || memchr(t + scheme, '@', authority)) return "the request's target has no usable host";
    head->path = t + scheme + authority;
  } else if (t[0] == '/' || (strcmp(t, "*") == 0 && strcmp(head->method, "OPTIONS") == 0)) {
    head->path = t;
  } else {
    return "the request's target is neither a path nor an http URI";
  }
  char *mark = strchr(head->path, '?');
  if (mark) {
    *mark = '\0';
    head->query = mark + 1;
  }
  if (head->path[0] == '\0') head->path = "/";
  return NULL;
}

static int check_framing(struct httpd_head *head, bool http11, const char **why) {
  const char *encoding = httpd_head_value(head, "Transfer-Encoding", 0);
  const char *length = httpd_head_value(head, "Content-Length", 0);
  if (encoding && length) {
    *why = "Content-Length and Transfer-Encoding exclude each other";
    return 400;
  }
  if (encoding) {
    if (!http11 || httpd_head_value(head, "Transfer-Encoding", 1)) {
      *why = http11 ? "Transfer-Encoding is there more than once" : "HTTP/1.0 has no Transfer-Encoding";
      return 400;
    }
    if (strcasecmp(encoding, "chunked") != 0) {
      *why = "the only Transfer-Encoding known here is chunked";
      return 501;
    }
    head->has_body = true;
  }
  if (length) {
    size_t n = strlen(length);
    if (httpd_head_value(head, "Content-Length", 1)) {
      *why = "Content-Length is there more than once";
      return 400;
    }
    if (n == 0 || strspn(length, "0123456789") != n) {
      *why = "Content-Length is no number";
      return 400;
    }
    head->length = n > 18 ? UINT64_MAX : strtoull(length, NULL, 10);
    head->has_body = head->length > 0;
  }
  return 0;
}

int httpd_head_check(struct httpd_head *head, struct MHD_Connection *c, const char *method, const char *version,
                     size_t max_bytes, const char **why) {
  const union MHD_ConnectionInfo *size = MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  size_t method_len = strlen(method);
  struct walk w = {.head = head, .exact = true, .at = (uintptr_t)version + strlen(version) + 2};
  head->method = xstrdup(method);
  if (!is_token(method, method_len)) {
    *why = "the request's method is malformed";
    return 400;
  }
  if (head->raw_len > max_bytes / MAX_TARGET_SHARE) {
    *why = "the request's target is too long";
    return 414;
  }
  if (size == NULL || size->header_size > max_bytes) {
    *why = "the request's head is too large";
    return 431;
  }
  /* Equal addresses say that nothing was hidden between the words. */
  w.exact = head->raw == method + method_len + 1 && version == head->raw + head->raw_len + 1;
  MHD_get_connection_values_n(c, MHD_HEADER_KIND, on_header, &w);
  if (w.why == NULL && MHD_VERSION < 0x00097701 && (!w.exact || w.at + 2 != (uintptr_t)method + size->header_size))
    w.why = MALFORMED; /* a fold, a NUL, a bare LF, a second blank: what the library hides shows in where things lie */
  if (w.why == NULL && (strncmp(version, "HTTP/1.", 7) != 0 || version[7] < '0' || version[7] > '9' || version[8]))
    w.why = MALFORMED;
  if (w.why == NULL) w.why = check_target(head);
  bool http11 = strcmp(version, "HTTP/1.0") != 0;
  if (w.why == NULL && http11 && httpd_head_value(head, "Host", 0) == NULL) w.why = "the header Host is missing";
  if (w.why == NULL && httpd_head_value(head, "Host", 1)) w.why = "the header Host is there more than once";
  if (w.why) {
    *why = w.why;
    return 400;
  }
  const char *expect = httpd_head_value(head, "Expect", 0);
  head->expects = http11 && expect && strcasecmp(expect, "100-continue") == 0;
  return check_framing(head, http11, why);
}
