/* The strict reader. Grammar: RFC 8259; UTF-8: RFC 3629 section 4. */
#include "base/json_reader.h"

#include <string.h>

void json_reader_init(struct json_reader *r, const char *text, size_t len, bool allow_nul) {
  memset(r, 0, offsetof(struct json_reader, scratch));
  r->text = text;
  r->len = len;
  r->expect = JSON_EXPECT_VALUE;
  r->allow_nul = allow_nul;
  buf_init(&r->scratch);
  r->start = r->end = 0;
  r->data = NULL;
  r->data_len = 0;
}

void json_reader_fini(struct json_reader *r) { buf_fini(&r->scratch); }

static int fail_at(const char *code, size_t offset, const char *what, struct err *e) {
  return err_set(e, ERR_INPUT, code, "%s at offset %zu", what, offset);
}

static int syntax(const struct json_reader *r, const char *expected, struct err *e) {
  if (r->pos >= r->len) {
    return err_set(e, ERR_INPUT, "json_syntax", "the text ends where %s should be, at offset %zu", expected, r->pos);
  }
  unsigned char c = (unsigned char)r->text[r->pos];
  if (c > ' ' && c < 0x7F) {
    return err_set(e, ERR_INPUT, "json_syntax", "expected %s, found '%c' at offset %zu", expected, c, r->pos);
  }
  return err_set(e, ERR_INPUT, "json_syntax", "expected %s, found octet 0x%02X at offset %zu", expected, c, r->pos);
}

size_t json_utf8_char(const unsigned char *p, size_t n) {
  unsigned char c = p[0], low = 0x80, high = 0xBF;
  size_t size;
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) {
    size = 2;
  } else if (c >= 0xE0 && c <= 0xEF) {
    size = 3;
    if (c == 0xE0) low = 0xA0;  /* overlong */
    if (c == 0xED) high = 0x9F; /* surrogates */
  } else if (c >= 0xF0 && c <= 0xF4) {
    size = 4;
    if (c == 0xF0) low = 0x90;  /* overlong */
    if (c == 0xF4) high = 0x8F; /* above U+10FFFF */
  } else {
    return 0;
  }
  if (n < size || p[1] < low || p[1] > high) return 0;
  for (size_t i = 2; i < size; i++) {
    if ((p[i] & 0xC0) != 0x80) return 0;
  }
  return size;
}

static void put_utf8(struct buf *out, uint32_t c) {
  if (c < 0x80) {
    buf_putc(out, (char)c);
  } else if (c < 0x800) {
    buf_putc(out, (char)(0xC0 | c >> 6));
    buf_putc(out, (char)(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    buf_putc(out, (char)(0xE0 | c >> 12));
    buf_putc(out, (char)(0x80 | (c >> 6 & 0x3F)));
    buf_putc(out, (char)(0x80 | (c & 0x3F)));
  } else {
    buf_putc(out, (char)(0xF0 | c >> 18));
    buf_putc(out, (char)(0x80 | (c >> 12 & 0x3F)));
    buf_putc(out, (char)(0x80 | (c >> 6 & 0x3F)));
    buf_putc(out, (char)(0x80 | (c & 0x3F)));
  }
}

/* Four hex digits at `pos`; -1 when they are not. */
static int32_t hex4(const struct json_reader *r, size_t pos) {
  if (r->len - pos < 4) return -1;
  int32_t value = 0;
  for (size_t i = 0; i < 4; i++) {
    char c = r->text[pos + i];
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      value = value * 16 + ((c | 0x20) - 'a' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

/* pos is behind "\u". */
static int read_unicode_escape(struct json_reader *r, struct err *e) {
  size_t escape = r->pos - 2;
  int32_t c = hex4(r, r->pos);
  if (c < 0) return fail_at("json_syntax", escape, "\\u without four hex digits", e);
  r->pos += 4;
  if (c == 0 && !r->allow_nul) return fail_at("json_nul", escape, "\\u0000 is not allowed", e);
  if (c >= 0xDC00 && c <= 0xDFFF) return fail_at("json_surrogate", escape, "low surrogate without a high one", e);
  if (c >= 0xD800 && c <= 0xDBFF) {
    int32_t low = -1;
    if (r->len - r->pos >= 6 && r->text[r->pos] == '\\' && r->text[r->pos + 1] == 'u') low = hex4(r, r->pos + 2);
    if (low < 0xDC00 || low > 0xDFFF) return fail_at("json_surrogate", escape, "high surrogate without a low one", e);
    r->pos += 6;
    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
  }
  put_utf8(&r->scratch, (uint32_t)c);
  return 0;
}

/* pos is at the backslash. */
static int read_escape(struct json_reader *r, struct err *e) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (r->pos + 1 >= r->len) {
    r->pos = r->len;
    return syntax(r, "an escape's letter", e);
  }
  char c = r->text[r->pos + 1];
  if (c == 'u') {
    r->pos += 2;
    return read_unicode_escape(r, e);
  }
  const char *known = c != '\0' ? strchr(from, c) : NULL;
  if (known == NULL) return fail_at("json_syntax", r->pos, "unknown escape", e);
  buf_putc(&r->scratch, to[known - from]);
  r->pos += 2;
  return 0;
}

/* pos moves behind the octets that stand for themselves. */
static int skip_plain(struct json_reader *r, struct err *e) {
  const unsigned char *p = (const unsigned char *)r->text;
  size_t i = r->pos;
  while (i < r->len && p[i] != '"' && p[i] != '\\') {
    if (p[i] >= 0x20 && p[i] < 0x80) {
      i++;
      continue;
    }
    if (p[i] < 0x20) return fail_at("json_syntax", i, "control character inside a string", e);
    size_t size = json_utf8_char(p + i, r->len - i);
    if (size == 0) return fail_at("json_utf8", i, "invalid UTF-8", e);
    i += size;
  }
  r->pos = i;
  if (i == r->len) return syntax(r, "the closing quote", e);
  return 0;
}

/* pos is at the opening quote; fills data. */
static int read_string(struct json_reader *r, struct err *e) {
  r->pos++;
  size_t first = r->pos;
  if (skip_plain(r, e) != 0) return -1;
  r->data = r->text + first;
  r->data_len = r->pos - first;
  if (r->text[r->pos] == '\\') {
    buf_clear(&r->scratch);
    buf_append(&r->scratch, r->data, r->data_len);
    while (r->text[r->pos] == '\\') {
      if (read_escape(r, e) != 0) return -1;
      size_t plain = r->pos;
      if (skip_plain(r, e) != 0) return -1;
      buf_append(&r->scratch, r->text + plain, r->pos - plain);
    }
    r->data = buf_cstr(&r->scratch);
    r->data_len = r->scratch.len;
  }
  r->pos++;
  r->end = r->pos;
  return 0;
}

static size_t digits(const char *s, size_t i, size_t n) {
  while (i < n && s[i] >= '0' && s[i] <= '9') i++;
  return i;
}

/* The offset behind the number that begins at i; *ok false: the offset is that of the fault. */
static size_t scan_number(const char *s, size_t i, size_t n, bool *ok) {
  *ok = false;
  if (i < n && s[i] == '-') i++;
  if (i >= n || s[i] < '0' || s[i] > '9') return i;
  i = s[i] == '0' ? i + 1 : digits(s, i, n);
  if (i < n && s[i] == '.') {
    size_t first = i + 1;
    i = digits(s, first, n);
    if (i == first) return i;
  }
  if (i < n && (s[i] == 'e' || s[i] == 'E')) {
    i++;
    if (i < n && (s[i] == '+' || s[i] == '-')) i++;
    size_t first = i;
    i = digits(s, first, n);
    if (i == first) return i;
  }
  *ok = true;
  return i;
}

bool json_number_valid(const char *lexeme, size_t n) {
  bool ok;
  return scan_number(lexeme, 0, n, &ok) == n && ok;
}

static int read_number(struct json_reader *r, struct err *e) {
  bool ok;
  size_t end = scan_number(r->text, r->pos, r->len, &ok);
  r->data = r->text + r->pos;
  r->data_len = end - r->pos;
  r->pos = end;
  if (!ok) return syntax(r, "a digit", e);
  if (end < r->len && r->text[end] >= '0' && r->text[end] <= '9') {
    return fail_at("json_syntax", end, "a number with a leading zero", e);
  }
  r->end = end;
  return JSON_TOKEN_NUMBER;
}

static int read_word(struct json_reader *r, const char *word, int token, struct err *e) {
  size_t n = strlen(word);
  if (r->len - r->pos < n || memcmp(r->text + r->pos, word, n) != 0) return syntax(r, "a value", e);
  r->pos += n;
  r->end = r->pos;
  return token;
}

static void skip_space(struct json_reader *r) {
  while (r->pos < r->len) {
    char c = r->text[r->pos];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    r->pos++;
  }
}

static void value_ended(struct json_reader *r) { r->expect = r->depth > 0 ? JSON_EXPECT_SEPARATOR : JSON_EXPECT_END; }

static int open_container(struct json_reader *r, bool object, struct err *e) {
  if (r->depth == JSON_DEPTH_MAX) {
    return err_set(e, ERR_INPUT, "json_depth", "more than %d levels at offset %zu", JSON_DEPTH_MAX, r->pos);
  }
  r->is_object[r->depth++] = object;
  r->end = ++r->pos;
  r->expect = object ? JSON_EXPECT_FIRST_KEY : JSON_EXPECT_FIRST_ELEMENT;
  return object ? JSON_TOKEN_BEGIN_OBJECT : JSON_TOKEN_BEGIN_ARRAY;
}

static int close_container(struct json_reader *r) {
  r->end = ++r->pos;
  bool object = r->is_object[--r->depth];
  value_ended(r);
  return object ? JSON_TOKEN_END_OBJECT : JSON_TOKEN_END_ARRAY;
}

static int read_key(struct json_reader *r, struct err *e) {
  if (r->pos >= r->len || r->text[r->pos] != '"') return syntax(r, "a key", e);
  if (read_string(r, e) != 0) return -1;
  skip_space(r);
  if (r->pos >= r->len || r->text[r->pos] != ':') return syntax(r, "':'", e);
  r->pos++;
  r->expect = JSON_EXPECT_VALUE;
  return JSON_TOKEN_KEY;
}

static int read_value(struct json_reader *r, struct err *e) {
  if (r->pos >= r->len) return syntax(r, "a value", e);
  char c = r->text[r->pos];
  if (c == '{' || c == '[') return open_container(r, c == '{', e);
  int token;
  if (c == '"') {
    token = read_string(r, e) == 0 ? JSON_TOKEN_STRING : -1;
  } else if (c == '-' || (c >= '0' && c <= '9')) {
    token = read_number(r, e);
  } else if (c == 't') {
    token = read_word(r, "true", JSON_TOKEN_TRUE, e);
  } else if (c == 'f') {
    token = read_word(r, "false", JSON_TOKEN_FALSE, e);
  } else if (c == 'n') {
    token = read_word(r, "null", JSON_TOKEN_NULL, e);
  } else {
    return syntax(r, "a value", e);
  }
  if (token >= 0) value_ended(r);
  return token;
}

int json_reader_next(struct json_reader *r, struct err *e) {
  skip_space(r);
  char c = r->pos < r->len ? r->text[r->pos] : '\0';
  if (r->expect == JSON_EXPECT_END) return r->pos == r->len ? JSON_TOKEN_END : syntax(r, "the end of the text", e);
  if (r->expect == JSON_EXPECT_SEPARATOR) {
    bool object = r->is_object[r->depth - 1];
    r->start = r->pos;
    if (c == (object ? '}' : ']')) return close_container(r);
    if (c != ',') return syntax(r, object ? "',' or '}'" : "',' or ']'", e);
    r->pos++;
    r->expect = object ? JSON_EXPECT_KEY : JSON_EXPECT_VALUE;
    skip_space(r);
  }
  r->start = r->pos;
  switch (r->expect) {
    case JSON_EXPECT_FIRST_KEY:
      return c == '}' ? close_container(r) : read_key(r, e);
    case JSON_EXPECT_KEY:
      return read_key(r, e);
    case JSON_EXPECT_FIRST_ELEMENT:
      return c == ']' ? close_container(r) : read_value(r, e);
    default:
      return read_value(r, e);
  }
}

#define CALL(event, ...) (ev->event != NULL ? ev->event(__VA_ARGS__) : 0)

static int deliver(const struct json_reader *r, int token, const struct json_events *ev, void *arg) {
  switch (token) {
    case JSON_TOKEN_NULL: return CALL(null, arg);
    case JSON_TOKEN_TRUE: return CALL(boolean, arg, true);
    case JSON_TOKEN_FALSE: return CALL(boolean, arg, false);
    case JSON_TOKEN_NUMBER: return CALL(number, arg, r->data, r->data_len);
    case JSON_TOKEN_STRING: return CALL(string, arg, r->data, r->data_len);
    case JSON_TOKEN_KEY: return CALL(key, arg, r->data, r->data_len);
    case JSON_TOKEN_BEGIN_OBJECT: return CALL(begin_object, arg);
    case JSON_TOKEN_END_OBJECT: return CALL(end_object, arg);
    case JSON_TOKEN_BEGIN_ARRAY: return CALL(begin_array, arg);
    case JSON_TOKEN_END_ARRAY: return CALL(end_array, arg);
    default: bug("json_read: token %d", token);
  }
}

#undef CALL

int json_read(const char *text, size_t len, const struct json_events *events, void *arg, struct err *e) {
  struct json_reader r;
  json_reader_init(&r, text, len, events->allow_nul);
  int result, token;
  do {
    token = json_reader_next(&r, e);
    result = token > JSON_TOKEN_END ? deliver(&r, token, events, arg) : token;
  } while (token > JSON_TOKEN_END && result == 0);
  json_reader_fini(&r);
  return result;
}
