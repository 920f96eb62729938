#include "core/ui_params.h"

#include <string.h>

#include "base/digest.h"
#include "base/json.h"

static int decode(const char *s, size_t n, struct buf *out) {
  for (size_t i = 0; i < n; i++) {
    uint8_t octet = (uint8_t)s[i];

    if (s[i] == '%') {
      if (n - i < 3 || !hex_decode(s + i + 1, 2, &octet, 1)) return -1;
      i += 2;
    } else if (s[i] == '+') {
      octet = ' ';
    }
    buf_putc(out, (char)octet);
  }
  return 0;
}

static int add(const char *pair, size_t n, struct buf *out, int *count) {
  const char *equals = memchr(pair, '=', n);
  size_t name = equals ? (size_t)(equals - pair) : n;
  struct buf value = BUF_INIT;
  int rc = -1;

  if (name == 0 || strspn(pair, "abcdefghijklmnopqrstuvwxyz_") < name || n > UI_PARAM_BYTES) return -1;
  if (!equals || name + 1 == n) return 0;
  if (++*count > UI_PARAMS_MAX) return -1;
  if (decode(equals + 1, n - name - 1, &value) == 0) {
    buf_printf(out, "%s\"%.*s\":", out->len > 1 ? "," : "", (int)name, pair);
    rc = json_write_string(out, value.data, value.len, NULL);
  }
  buf_fini(&value);
  return rc;
}

int ui_params_json(const char *query, struct buf *out) {
  int count = 0;

  buf_putc(out, '{');
  for (const char *p = query ? query : ""; *p;) {
    size_t n = strcspn(p, "&");

    if (n > 0 && add(p, n, out, &count) < 0) return -1;
    p += n + (p[n] == '&');
  }
  buf_putc(out, '}');
  return 0;
}
