#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "core/ledger_internal.h"

void params_text(struct params *p, const char *s) {
  p->value[p->n++] = s;
}

void params_int(struct params *p, int64_t v) {
  snprintf(p->number[p->n], sizeof p->number[0], "%" PRId64, v);
  p->value[p->n] = p->number[p->n];
  p->n++;
}

void params_bool(struct params *p, bool v) {
  params_text(p, v ? "t" : "f");
}

void params_digest(struct params *p, const char *hex) {
  char *out = p->bytes[p->nbytes++];

  snprintf(out, sizeof p->bytes[0], "\\x%s", hex);
  params_text(p, out);
}

void params_tenant(struct params *p, const struct run *r) {
  if (r->has_tenant)
    params_int(p, r->tenant_id);
  else
    params_text(p, NULL);
}

void params_failure(struct params *p, const struct run *r) {
  params_bool(p, r->permanent);
  params_text(p, r->outcome);
  params_text(p, r->failure);
  params_int(p, r->task->retention_ms);
  params_int(p, r->delay_ms);
  params_bool(p, r->task->history);
}

void params_fail_run(struct params *p, const struct run *r) {
  params_text(p, r->run_id);
  params_tenant(p, r);
  params_digest(p, r->key_hex);
  params_int(p, r->ledger_id);
  params_int(p, r->attempt);
  params_failure(p, r);
}

/* ---- arrays as PostgreSQL reads them ---- */

static void begin_array(struct buf *b) {
  buf_init(b);
  buf_putc(b, '{');
}

static void next_item(struct buf *b) {
  if (b->len > 1) buf_putc(b, ',');
}

static const char *end_array(struct buf *b) {
  buf_putc(b, '}');
  return buf_cstr(b);
}

static void add_quoted(struct buf *b, const char *s) {
  buf_putc(b, '"');
  for (; *s; s++) {
    if (*s == '"' || *s == '\\') buf_putc(b, '\\');
    buf_putc(b, *s);
  }
  buf_putc(b, '"');
}

static void add_digest(struct buf *b, const char *hex) {
  buf_puts(b, "\"\\\\x");
  buf_puts(b, hex);
  buf_putc(b, '"');
}

static void add_item(struct buf *b, enum params_column what, const struct run *r) {
  next_item(b);
  switch (what) {
    case OF_RUN_IDS:
      buf_puts(b, r->run_id);
      return;
    case OF_TENANTS:
      if (r->has_tenant)
        buf_printf(b, "%" PRId64, r->tenant_id);
      else
        buf_puts(b, "NULL");
      return;
    case OF_KEYS:
      add_digest(b, r->key_hex);
      return;
    case OF_FINGERPRINTS:
      add_digest(b, r->fingerprint_hex);
      return;
    case OF_LEDGER_IDS:
      buf_printf(b, "%" PRId64, r->ledger_id);
      return;
    case OF_OUTCOMES:
      add_quoted(b, r->outcome);
      return;
  }
  bug("there is no column %d", what);
}

void params_array(struct params *p, struct buf *b, enum params_column what, struct run *const *runs, int n) {
  begin_array(b);
  for (int i = 0; i < n; i++) add_item(b, what, runs[i]);
  params_text(p, end_array(b));
}
