/* fuzz_head: any octets as a request's head through io/httpd_head alone. A stand-in for libmicrohttpd 0.9.75 lays the head out as that
 * version does: each word where it was sent, NULs in place of what ends it, a value cut at a NUL, a folded line taken for a header's.
 *
 * Invariants: what is let through has one Host at most, one length at most and not beside a coding, names that are tokens, no control
 * character, a path that begins with '/' (or is *); its head has no NUL, no bare LF, no folded line, no blank before a colon. What is
 * refused has a status that door_problem knows, and a reason.
 */
// fuzz-sources: runtime/io/httpd_head.c runtime/base/*.c
// fuzz-libs: -lcrypto -lm
#include "io/httpd_head.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) \
  do { \
    if (!(condition)) bug("broken: %s", #condition); \
  } while (0)

enum { HEADERS = 64, LIMIT = 1024 };

struct MHD_Connection {
  struct {
    char *name, *value;
    size_t name_len, value_len;
  } header[HEADERS];
  int n;
  union MHD_ConnectionInfo size;
};

int MHD_get_connection_values_n(struct MHD_Connection *c, enum MHD_ValueKind kind, MHD_KeyValueIteratorN iterator, void *cls) {
  for (int i = 0; i < c->n; i++)
    if (iterator(cls, kind, c->header[i].name, c->header[i].name_len, c->header[i].value, c->header[i].value_len) != MHD_YES) return i + 1;
  return c->n;
}

const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *c, enum MHD_ConnectionInfoType type, ...) {
  MUST(type == MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  return &c->size;
}

/* Cuts text (len octets and a NUL) in place. False: 0.9.75 would answer by itself. */
static bool lay_out(char *text, size_t len, struct MHD_Connection *c, char **method, char **target, char **version) {
  char *end = memmem(text, len, "\r\n\r\n", 4), *line, *next;

  if (!end) return false;
  c->size.header_size = (size_t)(end + 4 - text);
  end[2] = '\0';
  line = memmem(text, len, "\r\n", 2);
  *line = '\0';
  *method = text;
  *target = strchr(text, ' ');
  if (!*target || strlen(text) != (size_t)(line - text)) return false;
  *(*target)++ = '\0';
  *version = strrchr(*target, ' ');
  if (!*version) return false;
  *(*version)++ = '\0';
  for (line += 2; line < end && c->n < HEADERS; line = next + 2) {
    next = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
    if (!next) next = end;
    *next = '\0';
    char *colon = memchr(line, ':', (size_t)(next - line));
    if (!colon) return false;
    *colon = '\0';
    char *value = colon + 1;
    while (*value == ' ' || *value == '\t')
      value++;
    c->header[c->n].name = line;
    c->header[c->n].name_len = strlen(line);
    c->header[c->n].value = value;
    c->header[c->n++].value_len = strlen(value);
  }
  return line >= end;
}

/* What no reader may see in two ways, looked for in the octets as sent (up to the blank line). */
static bool ambiguous(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++) {
    if (text[i] == '\0' || (text[i] == '\n' && (i == 0 || text[i - 1] != '\r'))) return true;
    if (text[i] == '\n' && i + 1 < len && (text[i + 1] == ' ' || text[i + 1] == '\t')) return true;
  }
  for (const char *line = memmem(text, len, "\r\n", 2); line && line + 2 < text + len; line = memmem(line, len - (size_t)(line - text), "\r\n", 2)) {
    line += 2;
    const char *colon = memchr(line, ':', len - (size_t)(line - text));
    if (colon && colon > line && (colon[-1] == ' ' || colon[-1] == '\t')) return true;
  }
  return false;
}

static void check_passed(const struct httpd_head *head) {
  const char *path = head->path, *encoding = httpd_head_value(head, "transfer-encoding", 0), *length = httpd_head_value(head, "CONTENT-LENGTH", 0);

  MUST(path[0] == '/' || strcmp(path, "*") == 0);
  for (const char *p = path; *p; p++)
    MUST(*p > ' ' && *p < 0x7f && *p != '#' && *p != '\\' && *p != '?');
  for (const char *p = head->query ? head->query : ""; *p; p++)
    MUST(*p > ' ' && *p < 0x7f);
  MUST(!httpd_head_value(head, "Host", 1) && !httpd_head_value(head, "Content-Length", 1) && !httpd_head_value(head, "Transfer-Encoding", 1));
  MUST(!(encoding && length) && (!encoding || strcasecmp(encoding, "chunked") == 0));
  MUST(head->has_body == (encoding != NULL || head->length > 0));
  MUST(!length || (length[0] && strspn(length, "0123456789") == strlen(length)));
  size_t named = 0;
  for (const char *p = head->text.data; named < head->nheaders; named++) {
    MUST(p[0] && !strpbrk(p, " \t:,;\"(){}[]<>@?=/\\\r\n\x7f"));
    p += strlen(p) + 1;
    size_t n = strlen(p);
    MUST(n == 0 || (p[0] != ' ' && p[0] != '\t' && p[n - 1] != ' ' && p[n - 1] != '\t'));
    for (; *p; p++)
      MUST(((unsigned char)*p >= ' ' || *p == '\t') && *p != 0x7f);
    p++;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct MHD_Connection c;
  char *sent = xmalloc(size + 1), *text, *method, *target, *version;
  struct httpd_head head;
  const char *why = NULL;

  memcpy(sent, data, size);
  sent[size] = 0;
  text = xmemdup(sent, size + 1);
  memset(&c, 0, sizeof c);
  if (lay_out(text, size, &c, &method, &target, &version)) {
    httpd_head_init(&head, target);
    int status = httpd_head_check(&head, &c, method, version, LIMIT, &why);
    if (status == 0) {
      if (MHD_VERSION < 0x00097701) MUST(!ambiguous(sent, c.size.header_size));
      MUST(c.size.header_size <= LIMIT);
      check_passed(&head);
    } else {
      MUST((status == 400 || status == 414 || status == 431 || status == 501) && why && why[0]);
    }
    httpd_head_fini(&head);
  }
  free(text);
  free(sent);
  return 0;
}
