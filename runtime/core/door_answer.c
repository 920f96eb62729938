#include "core/door_answer.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

static const char *const allowed[] = {"Location", "ETag", "Link", "Content-Type", "Content-Language"};

struct reading {
  struct door_answer *answer;
  bool failed;
  struct json_value body; /* the member "body" */
  struct buf rest;        /* the members that are left, as they are in the text */
  struct buf code;
};

/* Failures that the runtime names itself are faults of the application, not of the request. */
static bool is_fault(const char *code) {
  static const char *const faults[] = {"outcome_invalid", "outcome_too_large", "timeout", "sql",
                                       "error",           "worker_lost"};

  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    if (strcmp(code, faults[i]) == 0) return true;
  return false;
}

static int status_of(const struct json_value *v, int otherwise) {
  double d;

  if (v->type != JSON_NUMBER || json_number_classify(v->text, v->len, &d, NULL) != JSON_DOUBLE) return otherwise;
  return d >= 200 && d <= 599 && d == (int)d ? (int)d : otherwise;
}

/* A header's value: text without control characters, or it is dropped. */
static bool clean(const struct buf *value) {
  for (size_t i = 0; i < value->len; i++)
    if ((unsigned char)value->data[i] < 0x20 || value->data[i] == 0x7f) return false;
  return true;
}

static int add_header(void *arg, const char *name, size_t name_len, const struct json_value *v) {
  struct door_answer *a = arg;
  struct buf value = BUF_INIT;
  const char *known = NULL;

  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
    if (strcasecmp(allowed[i], name) == 0) known = allowed[i];
  for (int i = 0; i < a->nheaders; i++)
    if (a->header[i].name == known) known = NULL; /* two spellings of one name: the first stands */
  if (!known || v->type != JSON_STRING || json_value_string(v, &value, NULL) < 0 || !clean(&value)) {
    buf_fini(&value);
    return 0;
  }
  a->header[a->nheaders].name = known;
  a->header[a->nheaders++].value = value;
  return 0;
}

static void set_content_type(struct door_answer *a, const char *type) {
  for (int i = 0; i < a->nheaders; i++)
    if (strcmp(a->header[i].name, "Content-Type") == 0) return;
  a->header[a->nheaders].name = "Content-Type";
  buf_init(&a->header[a->nheaders].value);
  buf_puts(&a->header[a->nheaders++].value, type);
}

static void add_member(struct buf *out, const char *key, size_t key_len, const struct json_value *v) {
  if (out->len > 0) buf_putc(out, ',');
  if (json_write_string(out, key, key_len, NULL) < 0) bug("a key of the ledger's JSON cannot be written");
  buf_putc(out, ':');
  buf_append(out, v->text, v->len);
}

static bool is(const char *key, size_t len, const char *name) {
  return len == strlen(name) && memcmp(key, name, len) == 0;
}

static int read_member(void *arg, const char *key, size_t key_len, const struct json_value *v) {
  struct reading *rd = arg;

  if (is(key, key_len, "status") && (v->type == JSON_NUMBER || rd->failed)) {
    rd->answer->status = status_of(v, 0);
  } else if (is(key, key_len, "headers") && v->type == JSON_OBJECT && !rd->failed) {
    return json_each_member(v->text, v->len, add_header, rd->answer, NULL);
  } else if (is(key, key_len, "body") && !rd->failed) {
    rd->body = *v;
  } else if (is(key, key_len, "message") && rd->failed) {
    add_member(&rd->rest, "detail", 6, v);
  } else if (rd->failed && (is(key, key_len, "type") || is(key, key_len, "title") || is(key, key_len, "detail"))) {
    return 0; /* ours in a problem */
  } else {
    if (is(key, key_len, "code") && v->type == JSON_STRING && json_value_string(v, &rd->code, NULL) < 0) return -1;
    add_member(&rd->rest, key, key_len, v);
  }
  return 0;
}

static void write_body(struct reading *rd) {
  struct door_answer *a = rd->answer;

  if (rd->failed) {
    buf_puts(&a->body, "{\"type\":\"urn:umavez:failure:");
    for (size_t i = 0; i < rd->code.len;
         i++) { /* a code is the application's text: what a URN does not take is encoded */
      unsigned char c = (unsigned char)rd->code.data[i];
      if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("-._~", c)))
        buf_putc(&a->body, (char)c);
      else
        buf_printf(&a->body, "%%%02X", c);
    }
    buf_printf(&a->body, "\",\"title\":\"The request was refused\",\"status\":%d%s", a->status,
               rd->rest.len ? "," : "");
    buf_append(&a->body, rd->rest.data, rd->rest.len);
    buf_putc(&a->body, '}');
  } else if (rd->body.type != JSON_ABSENT) {
    buf_append(&a->body, rd->body.text, rd->body.len);
  } else {
    buf_putc(&a->body, '{');
    buf_append(&a->body, rd->rest.data, rd->rest.len);
    buf_putc(&a->body, '}');
  }
}

int door_answer_init(struct door_answer *a, const char *outcome, size_t len, bool failed, struct err *e) {
  struct reading rd = {.answer = a, .failed = failed, .rest = BUF_INIT, .code = BUF_INIT};
  int rc;

  memset(a, 0, sizeof *a);
  buf_init(&a->body);
  rc = json_each_member(outcome, len, read_member, &rd, e);
  if (rc == 0) {
    if (a->status == 0) a->status = !failed ? 200 : is_fault(buf_cstr(&rd.code)) ? 500 : 422;
    if (a->status == 204 || a->status == 304)
      buf_clear(&a->body);
    else
      write_body(&rd);
    set_content_type(a, failed ? "application/problem+json" : "application/json");
  } else {
    door_answer_fini(a);
  }
  buf_fini(&rd.rest);
  buf_fini(&rd.code);
  return rc == 0 ? 0 : -1;
}

void door_answer_fini(struct door_answer *a) {
  for (int i = 0; i < a->nheaders; i++)
    buf_fini(&a->header[i].value);
  a->nheaders = 0;
  buf_fini(&a->body);
}
