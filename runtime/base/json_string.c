/* Writing strings. The escapes are those of PostgreSQL's escape_json() and of RFC 8785 section 3.2.2.2, which agree. */
#include "base/json_reader.h"

#include <string.h>

/* The letter of a two-character escape, or 0. */
static char short_escape(unsigned char c) {
  switch (c) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
  }
}

static bool is_plain(unsigned char c) { return c >= 0x20 && c != '"' && c != '\\'; }

static size_t escaped_size(unsigned char c) { return is_plain(c) ? 1 : short_escape(c) != 0 ? 2 : 6; }

static void put_escaped(struct buf *out, unsigned char c) {
  static const char hex[] = "0123456789abcdef";
  char letter = short_escape(c);
  if (letter != 0) {
    const char text[] = {'\\', letter};
    buf_append(out, text, sizeof text);
  } else {
    const char text[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
    buf_append(out, text, sizeof text);
  }
}

size_t json_string_size(const char *s, size_t n) {
  size_t size = n;
  for (size_t i = 0; i < n; i++) size += escaped_size((unsigned char)s[i]) - 1;
  return size;
}

size_t json_utf8_span(const char *s, size_t n) {
  const unsigned char *p = (const unsigned char *)s;
  size_t i = 0;
  while (i < n) {
    size_t size = p[i] < 0x80 ? 1 : json_utf8_char(p + i, n - i);
    if (size == 0) break;
    i += size;
  }
  return i;
}

int json_write_string(struct buf *out, const char *s, size_t n, struct err *e) {
  size_t valid = json_utf8_span(s, n);
  if (valid < n) return err_set(e, ERR_INPUT, "json_utf8", "invalid UTF-8 at offset %zu of a string", valid);
  const char *nul = n > 0 ? memchr(s, '\0', n) : NULL;
  if (nul != NULL) return err_set(e, ERR_INPUT, "json_nul", "NUL at offset %zu of a string", (size_t)(nul - s));
  buf_reserve(out, n + 2);
  buf_putc(out, '"');
  size_t i = 0;
  while (i < n) {
    size_t first = i;
    while (i < n && is_plain((unsigned char)s[i])) i++;
    buf_append(out, s + first, i - first);
    if (i < n) put_escaped(out, (unsigned char)s[i++]);
  }
  buf_putc(out, '"');
  return 0;
}

bool json_write_string_lossy(struct buf *out, const char *s, size_t n, size_t max_bytes) {
  static const char replacement[] = "\xEF\xBF\xBD";
  const unsigned char *p = (const unsigned char *)s;
  if (max_bytes < 2) bug("json_write_string_lossy: max_bytes %zu", max_bytes);
  size_t room = max_bytes - 2, i = 0;
  buf_putc(out, '"');
  while (i < n) {
    size_t size = p[i] == '\0' ? 0 : json_utf8_char(p + i, n - i);
    size_t need = size == 0 ? 3 : size == 1 ? escaped_size(p[i]) : size;
    if (need > room) break;
    room -= need;
    if (size == 0) {
      buf_append(out, replacement, 3);
    } else if (size == 1 && !is_plain(p[i])) {
      put_escaped(out, p[i]);
    } else {
      buf_append(out, s + i, size);
    }
    i += size == 0 ? 1 : size;
  }
  buf_putc(out, '"');
  return i == n;
}
