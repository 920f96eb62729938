/* The size of a document as PostgreSQL prints it after a cast to jsonb: JsonbToCString, numeric_in/numeric_out and
 * escape_json of PostgreSQL 13 to 18 (src/backend/utils/adt/jsonb.c, numeric.c, json.c). */
#include "base/json_members.h"
#include "base/json_number.h"
#include "base/json_reader.h"

/* Of numeric.c: 32768 base-10000 digits before the point; NUMERIC_DSCALE_MASK behind it. */
enum { NUMERIC_INTEGER_DIGITS = 131072, NUMERIC_SCALE = 16383 };

struct frame {
  size_t octets; /* of an array's elements so far */
  size_t count;  /* of an array's elements so far */
  size_t first;  /* height of the member stack */
  bool object;
};

struct size {
  size_t octets; /* of the document, at the end */
  struct json_members members; /* at: the size of the member's value */
  int depth;
  struct frame frames[JSON_DEPTH_MAX + 1];
  struct err *e;
};

static int value(struct size *s, size_t octets) {
  struct frame *f = &s->frames[s->depth];
  if (s->depth == 0) {
    s->octets = octets;
  } else if (f->object) {
    s->members.items[s->members.n - 1].at = octets;
  } else {
    f->octets += octets;
    f->count++;
  }
  return 0;
}

static int on_null(void *arg) { return value(arg, 4); }

static int on_boolean(void *arg, bool b) { return value(arg, b ? 4 : 5); }

static int on_number(void *arg, const char *lexeme, size_t len) {
  struct size *s = arg;
  struct decimal x;
  decimal_init(&x, lexeme, len); /* a saturated exponent is beyond both limits below */
  int64_t scale = x.fraction_digits - x.exponent;
  if (scale < 0) scale = 0;
  int64_t before = x.n > 0 ? x.n : 1;
  bool zero = x.k == 0;
  decimal_fini(&x);
  if (scale > NUMERIC_SCALE || before > NUMERIC_INTEGER_DIGITS) {
    return err_set(s->e, ERR_INPUT, "json_number", "%lld digits before a point and %lld after it: beyond numeric's range",
                   (long long)before, (long long)scale);
  }
  size_t octets = (size_t)before + (scale > 0 ? 1 + (size_t)scale : 0);
  return value(s, octets + (x.negative && !zero ? 1 : 0));
}

static int on_string(void *arg, const char *utf8, size_t n) { return value(arg, 2 + json_string_size(utf8, n)); }

static int on_key(void *arg, const char *utf8, size_t n) {
  struct size *s = arg;
  json_members_push(&s->members, utf8, n, 0);
  return 0;
}

static int begin(struct size *s, bool object) {
  s->frames[++s->depth] = (struct frame){.first = s->members.n, .object = object};
  return 0;
}

static int on_begin_object(void *arg) { return begin(arg, true); }

static int on_begin_array(void *arg) { return begin(arg, false); }

static size_t separators(size_t count) { return count > 1 ? 2 * (count - 1) : 0; }

static int on_end_array(void *arg) {
  struct size *s = arg;
  const struct frame *f = &s->frames[s->depth--];
  return value(s, 2 + f->octets + separators(f->count));
}

static int on_end_object(void *arg) {
  struct size *s = arg;
  const struct frame *f = &s->frames[s->depth--];
  size_t octets = 2, count = 0;
  json_members_sort(&s->members, f->first);
  for (size_t i = f->first; i < s->members.n; i++) {
    const struct json_member *m = &s->members.items[i];
    if (i + 1 < s->members.n && json_member_same_key(m, m + 1)) continue; /* the last one stays */
    octets += 2 + json_string_size(m->key, m->key_len) + 2 + m->at;
    count++;
  }
  json_members_drop(&s->members, f->first);
  return value(s, octets + separators(count));
}

int json_jsonb_size(const char *text, size_t len, size_t *octets, struct err *e) {
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
  struct size s = {.members = JSON_MEMBERS_INIT, .e = e};
  int result = json_read(text, len, &events, &s, e);
  json_members_fini(&s.members);
  if (result != 0) return -1;
  *octets = s.octets;
  return 0;
}
