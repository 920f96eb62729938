#include <inttypes.h>
#include <stdio.h>

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
