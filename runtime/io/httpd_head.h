/* httpd_head: a request's head: our own copy of it, and the checks that libmicrohttpd leaves to us.
 *
 * Owns copies of everything it tells, so nothing here points into the library's memory. Life: httpd_head_init when the
 * request line is known, httpd_head_check once when the head is complete, httpd_head_fini. Private to io/httpd*.c.
 *
 * Why checks of our own: whoever stands in front of us (a proxy, a load balancer) must agree with us where a request ends,
 * so each spelling that two readers could take in two ways is refused, in every version of the library. */
#ifndef UMAVEZ_IO_HTTPD_HEAD_H
#define UMAVEZ_IO_HTTPD_HEAD_H

#include "base/buf.h"

struct MHD_Connection;

struct httpd_head {
  char *target;      /* the request line's second word, as sent; cut in two at the first '?' by the check */
  const char *path;  /* inside target; behind the authority when the target is an absolute URI */
  const char *query; /* inside target, or NULL */
  char *method;
  struct buf text; /* name NUL value NUL …, values trimmed */
  size_t nheaders;
  const char *raw; /* where the library had the target; only compared, never read */
  size_t raw_len;
  bool has_body;   /* chunked, or a Content-Length above 0 */
  bool expects;    /* `Expect: 100-continue` */
  uint64_t length; /* Content-Length; 0 when there is none */
};

void httpd_head_init(struct httpd_head *head, const char *target); /* borrows: the library's own octets of the target */
void httpd_head_fini(struct httpd_head *head);

/* Reads the headers of c. Gives 0, or the status to refuse with and *why (static text). */
int httpd_head_check(struct httpd_head *head, struct MHD_Connection *c, const char *method, const char *version,
                     size_t max_bytes, const char **why);

/* The nth value of a header, from 0; NULL when there are no more. */
const char *httpd_head_value(const struct httpd_head *head, const char *name, int nth);

#endif
