/* RFC 8785 (JSON Canonicalization Scheme), with exact numbers where a double would lose digits (json.h). */
#include "base/json_members.h"
#include "base/json_number.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

struct frame {
  size_t start; /* offset of '{' or '[' in out */
  size_t first; /* height of the member stack */
  size_t count; /* values so far */
  bool object;
};

struct canonical {
  struct buf *out;
  struct buf sorted; /* scratch: one object's members in order */
  struct json_members members;
  int depth;
  struct frame frames[JSON_DEPTH_MAX + 1];
  struct err *e;
};

/* A comma, unless this is an array's first element or stands behind a key, which has its comma already. */
static void before_value(struct canonical *c) {
  struct frame *f = &c->frames[c->depth];
  if (c->depth > 0 && !f->object && f->count++ > 0) buf_putc(c->out, ',');
}

static int on_null(void *arg) {
  struct canonical *c = arg;
  before_value(c);
  buf_puts(c->out, "null");
  return 0;
}

static int on_boolean(void *arg, bool value) {
  struct canonical *c = arg;
  before_value(c);
  buf_puts(c->out, value ? "true" : "false");
  return 0;
}

/* Is the fraction read as a double? RFC 8785 says always; we do where no more than 17 significant digits were
 * written, which is what writers of doubles emit, and the number lies below 10^9, where a double resolves 10^-7: the
 * RFC's own example, 333333333.33333329, is such a one. So amounts with up to six decimals keep apart at every size.
 * Up to DBL_DIG digits the exact form and the double's are the same, except for subnormals. */
static bool stands_for_double(const struct decimal *x) {
  if (decimal_is_integer(x) || x->k > DBL_DECIMAL_DIG || x->n > 9) return false;
  return x->k > DBL_DIG || x->n <= DBL_MIN_10_EXP;
}

static int on_number(void *arg, const char *lexeme, size_t len) {
  struct canonical *c = arg;
  struct decimal x;
  before_value(c);
  if (decimal_init(&x, lexeme, len) != 0) {
    decimal_fini(&x);
    return err_set(c->e, ERR_INPUT, "json_number", "the exponent of %.*s is out of range", len < 40 ? (int)len : 40,
                   lexeme);
  }
  double d = stands_for_double(&x) ? decimal_to_double(&x) : 0;
  if (d != 0) {
    json_write_double(c->out, d);
  } else {
    decimal_write(c->out, x.negative, x.digits, x.k, x.n);
  }
  decimal_fini(&x);
  return 0;
}

static int on_string(void *arg, const char *utf8, size_t n) {
  struct canonical *c = arg;
  before_value(c);
  return json_write_string(c->out, utf8, n, c->e);
}

static int on_key(void *arg, const char *utf8, size_t n) {
  struct canonical *c = arg;
  if (c->frames[c->depth].count++ > 0) buf_putc(c->out, ',');
  json_members_push(&c->members, utf8, n, c->out->len);
  if (json_write_string(c->out, utf8, n, c->e) != 0) return -1;
  buf_putc(c->out, ':');
  return 0;
}

static void begin(struct canonical *c, bool object) {
  before_value(c);
  c->frames[++c->depth] = (struct frame){.start = c->out->len, .first = c->members.n, .object = object};
  buf_putc(c->out, object ? '{' : '[');
}

static int on_begin_object(void *arg) {
  begin(arg, true);
  return 0;
}

static int on_begin_array(void *arg) {
  begin(arg, false);
  return 0;
}

static int on_end_array(void *arg) {
  struct canonical *c = arg;
  buf_putc(c->out, ']');
  c->depth--;
  return 0;
}

/* Rewrites the members that lie between f->start and the end of out in the order of the sorted stack. */
static void reorder(struct canonical *c, const struct frame *f) {
  struct json_member *items = c->members.items + f->first;
  size_t n = c->members.n - f->first;
  /* A member ends one comma before the one that was written after it. */
  size_t *ends = xmalloc(n * sizeof *ends);
  for (size_t i = 0; i < n; i++) {
    size_t order = items[i].order - f->first;
    if (order > 0) ends[order - 1] = items[i].at - 1;
  }
  ends[n - 1] = c->out->len;
  buf_clear(&c->sorted);
  for (size_t i = 0; i < n; i++) {
    if (i > 0) buf_putc(&c->sorted, ',');
    buf_append(&c->sorted, c->out->data + items[i].at, ends[items[i].order - f->first] - items[i].at);
  }
  memcpy(c->out->data + f->start + 1, c->sorted.data, c->sorted.len);
  free(ends);
}

static int on_end_object(void *arg) {
  struct canonical *c = arg;
  const struct frame *f = &c->frames[c->depth];
  bool sorted = json_members_sort(&c->members, f->first);
  for (size_t i = f->first + 1; i < c->members.n; i++) {
    const struct json_member *m = &c->members.items[i];
    if (!json_member_same_key(m - 1, m)) continue;
    struct buf name = BUF_INIT;
    json_write_string_lossy(&name, m->key, m->key_len, 80);
    err_set(c->e, ERR_INPUT, "json_duplicate_key", "the key %s stands twice in one object", buf_cstr(&name));
    buf_fini(&name);
    return -1;
  }
  if (!sorted) reorder(c, f);
  buf_putc(c->out, '}');
  json_members_drop(&c->members, f->first);
  c->depth--;
  return 0;
}

int json_canonical(const char *text, size_t len, struct buf *out, struct err *e) {
  static const struct json_events events = {
      .null = on_null,
      .boolean = on_boolean,
      .number = on_number,
      .string = on_string,
      .key = on_key,
      .begin_object = on_begin_object,
      .end_object = on_end_object,
      .begin_array = on_begin_array,
      .end_array = on_end_array,
  };
  struct canonical c = {.out = out, .sorted = BUF_INIT, .members = JSON_MEMBERS_INIT, .e = e};
  size_t before = out->len;
  int result = json_read(text, len, &events, &c, e);
  if (result != 0) buf_truncate(out, before);
  buf_fini(&c.sorted);
  json_members_fini(&c.members);
  return result;
}
