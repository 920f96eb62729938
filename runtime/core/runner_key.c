/* runner_key: what makes two runs the same operation. Key digest and request fingerprint are computed from the args
 * as they were
 * delivered, before any handler code can touch them. The framing is documented in docs/keys.md. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "core/runner_internal.h"

static int missing(struct err *e, const char *path, const char *found) {
  return err_set(e, ERR_INPUT, "key_missing",
                 "the key's path %s is %s: expected a string that is not empty, a number or a boolean", path, found);
}

static int add_string_part(struct key_digest *d, const struct json_value *v, const char *path, struct err *e) {
  struct buf text;

  buf_init(&text);
  if (json_value_string(v, &text, e) < 0) {
    buf_fini(&text);
    return -1;
  }
  if (text.len == 0) {
    buf_fini(&text);
    return missing(e, path, "an empty string");
  }
  key_digest_part(d, 's', text.data, text.len);
  buf_fini(&text);
  return 0;
}

static int add_path_part(struct key_digest *d, const struct run *r, const char *path, struct err *e) {
  struct json_value v;
  struct buf number;

  if (json_find(r->args, r->args_len, path, &v) < 0 || v.type == JSON_ABSENT) return missing(e, path, "absent");
  switch (v.type) {
    case JSON_STRING:
      return add_string_part(d, &v, path, e);
    case JSON_NUMBER:
      buf_init(&number);
      if (json_number_canonical(v.text, v.len, &number) < 0) bug("jsonb holds the number %.*s", (int)v.len, v.text);
      key_digest_part(d, 'n', number.data, number.len);
      buf_fini(&number);
      return 0;
    case JSON_TRUE:
    case JSON_FALSE:
      key_digest_part(d, 'b', v.text, v.len);
      return 0;
    case JSON_NULL:
      return missing(e, path, "null");
    case JSON_OBJECT:
      return missing(e, path, "an object");
    default:
      return missing(e, path, "an array");
  }
}

static int key_from_function(struct runner *rn, struct run *r, struct key_digest *d, struct err *e) {
  char *text = NULL;
  size_t len = 0;

  if (rn->ops->key(r, &text, &len, e) < 0) return -1;
  if (len == 0) {
    free(text);
    return err_set(e, ERR_INPUT, "key_missing", "the key function returned an empty string");
  }
  key_digest_part(d, 'f', text, len);
  free(text);
  return 0;
}

static int compute_key(struct runner *rn, struct run *r, struct err *e) {
  struct key_digest d;
  int rc = 0;

  key_digest_begin(&d, r->task_name);
  switch (r->task->key) {
    case TASK_KEY_RUN_ID:
      key_digest_part(&d, 'r', r->run_id, strlen(r->run_id));
      break;
    case TASK_KEY_PATHS:
      for (int i = 0; i < r->task->nkey_paths && rc == 0; i++)
        rc = add_path_part(&d, r, r->task->key_paths[i], e);
      break;
    case TASK_KEY_FUNCTION:
      rc = key_from_function(rn, r, &d, e);
      break;
  }
  key_digest_end(&d, r->key);
  return rc;
}

/* The args, or an object of the members that the task names: { "path": value, … }, absent ones left out. */
static int compute_fingerprint(struct run *r, struct err *e) {
  struct buf narrowed, canonical;
  int rc;

  buf_init(&narrowed);
  buf_init(&canonical);
  if (r->task->nfingerprint_paths == 0) {
    buf_append(&narrowed, r->args, r->args_len);
  } else {
    buf_putc(&narrowed, '{');
    for (int i = 0; i < r->task->nfingerprint_paths; i++) {
      const char *path = r->task->fingerprint_paths[i];
      struct json_value v;
      if (json_find(r->args, r->args_len, path, &v) < 0 || v.type == JSON_ABSENT) continue;
      if (narrowed.len > 1) buf_putc(&narrowed, ',');
      json_write_string_lossy(&narrowed, path, strlen(path), 1024);
      buf_putc(&narrowed, ':');
      buf_append(&narrowed, v.text, v.len);
    }
    buf_putc(&narrowed, '}');
  }
  rc = json_canonical(narrowed.data, narrowed.len, &canonical, e);
  if (rc == 0) digest_fingerprint(r->task_name, canonical.data, canonical.len, r->fingerprint);
  buf_fini(&narrowed);
  buf_fini(&canonical);
  return rc;
}

int runner_digests(struct runner *rn, struct run *r, struct err *e) {
  if (compute_key(rn, r, e) < 0) return -1;
  if (compute_fingerprint(r, e) < 0) { /* args deeper than the reader goes: a code of the interface, whatever the reader calls it */
    err_copy_text(e->code, sizeof e->code, "key_error");
    return -1;
  }
  hex_encode(r->key, sizeof r->key, r->key_hex);
  hex_encode(r->fingerprint, sizeof r->fingerprint, r->fingerprint_hex);
  return 0;
}

char *runner_args_fault(struct run *r) {
  const struct handler_ops *ops = r->runner->ops;

  return ops->args_fault ? ops->args_fault(r) : NULL;
}
