/* fuzz_door: any octets through what the door reads of a request, and through what it makes of an outcome.
 *
 * Invariants: a key that is read has 1 to 255 printable characters, and its quoted form names the same key; a path's
 * parameters are members of a JSON object; an outcome that is an object has an answer whose headers have no control
 * character, whose status is 200 to 599, and which is the same each time; a bearer token is one token68; a signature is
 * right in one spelling but for the letters' case; wait= is a number from 0 to 60; a traceparent is what a text column takes.
 */
// fuzz-sources: runtime/base/*.c runtime/core/door_key.c runtime/core/door_route.c runtime/core/door_answer.c
// fuzz-sources: runtime/core/door_auth.c runtime/core/door_problem.c runtime/core/door_text.c runtime/core/task.c
// fuzz-libs: -lcrypto -lm
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "core/door_answer.h"
#include "core/door_auth.h"
#include "core/door_key.h"
#include "core/door_problem.h"
#include "core/door_route.h"
#include "core/door_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) \
  do { \
    if (!(condition)) bug("broken: %s", #condition); \
  } while (0)

/* What door_auth needs of the layers below and is not called here. */
int64_t loop_now_ms(const struct loop *l) { return l ? 1 : 0; }
bool control_query(struct control *c, const struct pgquery *q) { return c && q; }
bool pgresult_ok(const struct pgresult *r) { return r != NULL; }
const struct err *pgresult_err(const struct pgresult *r) { return (const void *)r; }
int pgresult_rows(const struct pgresult *r) { return r != NULL; }
const char *pgresult_value(const struct pgresult *r, int row, int column) { return r && row + column ? "" : NULL; }
bool pgresult_null(const struct pgresult *r, int row, int column) { return r && row + column; }
void pgresult_free(struct pgresult *r) { free(r); }

static void read_key(const char *value) {
  struct buf key = BUF_INIT, quoted = BUF_INIT, again = BUF_INIT;

  for (int uuid = 0; uuid < 2; uuid++) {
    struct err e = ERR_INIT;
    buf_clear(&key);
    if (door_key_parse(value, uuid, &key, &e) < 0) {
      MUST(e.message[0]);
      continue;
    }
    MUST(key.len >= 1 && key.len <= DOOR_KEY_MAX);
    buf_clear(&quoted);
    buf_clear(&again);
    buf_putc(&quoted, '"');
    for (size_t i = 0; i < key.len; i++) {
      MUST(key.data[i] >= 0x20 && key.data[i] <= 0x7e);
      if (key.data[i] == '"' || key.data[i] == '\\') buf_putc(&quoted, '\\');
      buf_putc(&quoted, key.data[i]);
    }
    buf_putc(&quoted, '"');
    MUST(door_key_parse(buf_cstr(&quoted), uuid, &again, &e) == 0);
    MUST(again.len == key.len && memcmp(again.data, key.data, key.len) == 0);
  }
  buf_fini(&key);
  buf_fini(&quoted);
  buf_fini(&again);
}

static void add_route(const char *name, const char *method, const char *path) {
  struct task *t = task_new(name);

  t->http = xcalloc(1, sizeof *t->http);
  t->http->method = xstrdup(method);
  t->http->path = xstrdup(path);
  MUST(task_register(t, NULL) == 0);
}

static struct door_routes *routes(void) {
  static struct door_routes *made;

  if (made) return made;
  add_route("a", "POST", "/orders/{order_id}/refunds");
  add_route("b", "POST", "/orders/all/refunds");
  add_route("c", "PUT", "/{x}/{y}/{z}");
  add_route("d", "GET", "/orders/{order_id}");
  made = door_routes_new(NULL);
  MUST(made);
  return made;
}

static void match(const char *path) {
  struct buf params = BUF_INIT, allow = BUF_INIT, object = BUF_INIT;
  struct task *t = NULL;
  struct json_value v;
  enum door_match m = door_routes_match(routes(), "POST", path, &t, &params, &allow);

  MUST((m == DOOR_MATCH) == (t != NULL) && (m == DOOR_NO_METHOD) == (allow.len > 0));
  buf_printf(&object, "{%s}", buf_cstr(&params));
  MUST(json_find(object.data, object.len, "order_id", &v) == 0);
  MUST(m != DOOR_MATCH || t->name[0] == 'b' || v.type == JSON_STRING);
  buf_fini(&params);
  buf_fini(&allow);
  buf_fini(&object);
}

static void answer(const char *outcome, size_t len, bool failed) {
  struct door_answer a, b;
  struct err e = ERR_INIT;
  struct buf canonical = BUF_INIT;

  /* the ledger holds valid JSON without repeated members */
  if (json_canonical(outcome, len, &canonical, &e) == 0 && door_answer_init(&a, canonical.data, canonical.len, failed, &e) == 0) {
    MUST(door_answer_init(&b, canonical.data, canonical.len, failed, &e) == 0);
    MUST(a.status >= 200 && a.status <= 599 && a.nheaders >= 1 && a.nheaders <= DOOR_ANSWER_HEADERS);
    MUST(a.status == b.status && a.body.len == b.body.len && (a.body.len == 0 || memcmp(a.body.data, b.body.data, a.body.len) == 0));
    for (int i = 0; i < a.nheaders; i++)
      for (size_t k = 0; k < a.header[i].value.len; k++)
        MUST((unsigned char)a.header[i].value.data[k] >= 0x20 && a.header[i].value.data[k] != 0x7f);
    if (a.body.len > 0) {
      struct buf again = BUF_INIT;
      MUST(json_canonical(a.body.data, a.body.len, &again, &e) == 0);
      buf_fini(&again);
    }
    door_answer_fini(&a);
    door_answer_fini(&b);
  }
  buf_fini(&canonical);
}

static void single_values(const char *text) {
  char printed[32];
  size_t n = strlen(text);
  int wait = door_text_wait_s(text);

  MUST(wait >= -1 && wait <= DOOR_WAIT_MAX_S);
  if (wait > 0) {
    const char *digits = text + 5 + strspn(text + 5, "0");
    snprintf(printed, sizeof printed, "%d", wait);
    MUST(strncmp(text, "wait=", 5) == 0 && strcmp(digits, printed) == 0);
  }
  if (door_text_is_traceparent(text)) MUST(n == 55 && strspn(text, "0123456789abcdef-") == n);
  if (door_text_is_json(text)) MUST(n >= 16 && strncasecmp(text, "application/", 12) == 0);

  const char *token = door_auth_bearer(text);
  if (token) {
    static const char token68[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/";
    size_t body = strspn(token, token68);
    MUST(token > text && token + strlen(token) == text + n && n - (size_t)(token - text) <= 512);
    MUST(body + strspn(token + body, "=") == strlen(token));
  }
}

/* The input as a signature of "x", alone and laid over the right one from an offset on. */
static void signature(const char *text, size_t size) {
  static const struct task_http signed_by = {.signature_prefix = (char *)"sha256=", .signature_env = (char *)"UMAVEZ_FUZZ"};
  uint8_t mac[DIGEST_BYTES];
  char good[7 + 2 * DIGEST_BYTES + 1] = "sha256=", other[sizeof good + 8] = "";

  setenv("UMAVEZ_FUZZ", "secret", 1);
  digest_hmac("secret", 6, "x", 1, mac);
  hex_encode(mac, sizeof mac, good + 7);
  MUST(door_auth_signed(&signed_by, good, "x", 1) && !door_auth_signed(&signed_by, good, "y", 1));
  MUST(!door_auth_signed(&signed_by, text, "x", 1) || strcasecmp(text, good) == 0);
  if (size < 1) return;
  strcpy(other, good);
  size_t at = (uint8_t)text[0] % sizeof good, room = sizeof other - 1 - at;
  memcpy(other + at, text + 1, size - 1 < room ? size - 1 : room);
  MUST(!door_auth_signed(&signed_by, other, "x", 1) || strcasecmp(other, good) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = xmalloc(size + 1);
  struct buf problem = BUF_INIT;

  memcpy(text, data, size);
  text[size] = 0;
  read_key(text);
  match(text);
  answer(text, size, false);
  answer(text, size, true);
  single_values(text);
  signature(text, size);
  door_auth_allows(text, "a");
  door_problem_body(PROBLEM_BAD_REQUEST, text, NULL, &problem);
  MUST(json_read(problem.data, problem.len, &(struct json_events){0}, NULL, NULL) == 0);
  buf_fini(&problem);
  free(text);
  return 0;
}
