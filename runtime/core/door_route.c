#include "core/door_route.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { SEGMENTS_MAX = 32 };

struct segment {
  char *text; /* literal, or a parameter's name */
  bool param;
};

struct route {
  struct task *task;
  struct segment segment[SEGMENTS_MAX];
  int nsegments;
};

struct door_routes {
  struct route *route;
  int n;
};

/* ---- making ---- */

static void split_template(struct route *r) {
  const char *p = r->task->http->path;

  while (*p == '/' && r->nsegments < SEGMENTS_MAX) {
    size_t n = strcspn(++p, "/");
    struct segment *s = &r->segment[r->nsegments++];
    s->param = n > 2 && p[0] == '{' && p[n - 1] == '}';
    s->text = s->param ? xmemdup(p + 1, n - 1) : xmemdup(p, n + 1);
    s->text[s->param ? n - 2 : n] = 0;
    p += n;
  }
}

static void add_route(void *arg, struct task *t) {
  struct door_routes *rs = arg;

  if (!t->http) return;
  rs->route = xrealloc(rs->route, (size_t)(rs->n + 1) * sizeof *rs->route);
  memset(&rs->route[rs->n], 0, sizeof *rs->route);
  rs->route[rs->n].task = t;
  split_template(&rs->route[rs->n++]);
}

/* Order of trial: literals first, at the earliest segment where they differ. 0: no request can tell them apart. */
static int compare_shape(const struct route *a, const struct route *b) {
  if (a->nsegments != b->nsegments) return a->nsegments - b->nsegments;
  for (int i = 0; i < a->nsegments; i++) {
    if (a->segment[i].param != b->segment[i].param) return a->segment[i].param - b->segment[i].param;
    if (!a->segment[i].param && strcmp(a->segment[i].text, b->segment[i].text) != 0)
      return strcmp(a->segment[i].text, b->segment[i].text);
  }
  return 0;
}

static int compare_routes(const void *a, const void *b) {
  const struct route *ra = a, *rb = b;
  int order = compare_shape(ra, rb);

  return order ? order : strcmp(ra->task->http->method, rb->task->http->method);
}

struct door_routes *door_routes_new(struct err *e) {
  struct door_routes *rs = xcalloc(1, sizeof *rs);

  task_each(add_route, rs);
  if (rs->n > 0) qsort(rs->route, (size_t)rs->n, sizeof *rs->route, compare_routes);
  for (int i = 1; i < rs->n; i++) {
    if (compare_routes(&rs->route[i - 1], &rs->route[i]) != 0) continue;
    err_set(e, ERR_INPUT, "route_conflict", "tasks %s and %s have the same door: %s %s", rs->route[i - 1].task->name,
            rs->route[i].task->name, rs->route[i].task->http->method, rs->route[i].task->http->path);
    door_routes_free(rs);
    return NULL;
  }
  return rs;
}

void door_routes_free(struct door_routes *rs) {
  if (!rs) return;
  for (int i = 0; i < rs->n; i++)
    for (int k = 0; k < rs->route[i].nsegments; k++)
      free(rs->route[i].segment[k].text);
  free(rs->route);
  free(rs);
}

/* ---- matching ---- */

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* Percent-decodes n octets. False: a broken escape, a NUL, or no UTF-8. */
static bool decode(const char *p, size_t n, struct buf *out) {
  buf_clear(out);
  for (size_t i = 0; i < n; i++) {
    int c = (unsigned char)p[i];
    if (c == '%') {
      if (i + 2 >= n || hex_digit(p[i + 1]) < 0 || hex_digit(p[i + 2]) < 0) return false;
      c = hex_digit(p[i + 1]) * 16 + hex_digit(p[i + 2]);
      i += 2;
    }
    if (c == 0) return false;
    buf_putc(out, (char)c);
  }
  return json_utf8_span(out->data, out->len) == out->len;
}

struct path {
  struct buf segment[SEGMENTS_MAX];
  int n; /* -1: too many */
};

static void path_fini(struct path *p) {
  for (int i = 0; i < SEGMENTS_MAX; i++)
    buf_fini(&p->segment[i]);
}

static bool path_split(const char *text, struct path *p) {
  p->n = 0;
  for (int i = 0; i < SEGMENTS_MAX; i++)
    buf_init(&p->segment[i]);
  while (*text == '/') {
    size_t n = strcspn(++text, "/");
    if (p->n == SEGMENTS_MAX) {
      p->n = -1;
      return true;
    }
    if (!decode(text, n, &p->segment[p->n++])) return false;
    text += n;
  }
  return true;
}

static bool fits(const struct route *r, const struct path *p) {
  if (r->nsegments != p->n) return false;
  for (int i = 0; i < p->n; i++) {
    const struct segment *s = &r->segment[i];
    const struct buf *given = &p->segment[i];
    if (s->param ? given->len == 0 : given->len != strlen(s->text) || memcmp(given->data, s->text, given->len) != 0)
      return false;
  }
  return true;
}

static void add_params(const struct route *r, const struct path *p, struct buf *out) {
  for (int i = 0; i < r->nsegments; i++) {
    if (!r->segment[i].param) continue;
    if (out->len > 0) buf_putc(out, ',');
    json_write_string_lossy(out, r->segment[i].text, strlen(r->segment[i].text), 1024);
    buf_putc(out, ':');
    if (json_write_string(out, p->segment[i].data, p->segment[i].len, NULL) < 0) bug("a decoded path is no UTF-8");
  }
}

static enum door_match match(const struct door_routes *rs, const char *method, const struct path *p, struct task **task,
                             struct buf *params, struct buf *allow) {
  for (int i = 0; i < rs->n; i++) {
    const struct route *r = &rs->route[i];
    if (!fits(r, p)) continue;
    if (strcmp(r->task->http->method, method) == 0) {
      *task = r->task;
      add_params(r, p, params);
      return DOOR_MATCH;
    }
    buf_printf(allow, allow->len ? ", %s" : "%s", r->task->http->method);
  }
  return allow->len ? DOOR_NO_METHOD : DOOR_NO_PATH;
}

enum door_match door_routes_match(const struct door_routes *rs, const char *method, const char *path,
                                  struct task **task, struct buf *params, struct buf *allow) {
  struct path p;
  enum door_match m = path_split(path, &p) ? match(rs, method, &p, task, params, allow) : DOOR_BAD_PATH;

  path_fini(&p);
  return m;
}
