#include "core/door_ui.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/log.h"
#include "core/door_text.h"
#include "core/door_ui_internal.h"
#include "core/ui_params.h"

static const char json_type[] = "application/json";

/* ---- answers ---- */

size_t ui_headers(struct http_header *to) {
  static const struct http_header all[] = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
       "base-uri 'none'; form-action 'self'; require-trusted-types-for 'script'; trusted-types 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Permissions-Policy", "camera=(), geolocation=(), microphone=()"},
  };

  memcpy(to, all, sizeof all);
  return sizeof all / sizeof *all;
}

/* extra: a header more, or NULL. */
static void answer(struct exchange *x, int status, const char *type, const char *cache, const struct http_header *extra,
                   const char *body, size_t len) {
  struct http_header headers[UI_HEADERS + 4];
  size_t n = ui_headers(headers);

  headers[n++] = (struct http_header){"Content-Type", type};
  headers[n++] = (struct http_header){"Cache-Control", cache};
  if (extra) headers[n++] = *extra;
  struct http_answer a = {status, headers, n, body, len};
  door_answer(x, &a);
  door_maybe_end(x);
}

void ui_answer(struct exchange *x, int status, const char *body, size_t len) {
  answer(x, status, json_type, "no-store", NULL, body, len);
}

static void refuse(struct exchange *x, enum door_problem p, const char *detail, const struct http_header *extra) {
  struct buf body = BUF_INIT;

  door_problem_body(p, detail, NULL, &body);
  answer(x, door_problem_status(p), "application/problem+json", "no-store", extra, body.data, body.len);
  buf_fini(&body);
}

void ui_refuse(struct exchange *x, enum door_problem p, const char *detail, int retry_after_s) {
  char seconds[16];
  struct http_header again = {"Retry-After", seconds};

  snprintf(seconds, sizeof seconds, "%d", retry_after_s);
  refuse(x, p, detail, retry_after_s >= 0 ? &again : NULL);
}

static void refuse_method(struct exchange *x, const char *allow) {
  refuse(x, PROBLEM_METHOD_NOT_ALLOWED, NULL, &(struct http_header){"Allow", allow});
}

/* ---- files ---- */

static void send_file(struct exchange *x, const char *name) {
  const struct ui_file *f = ui_files_find(x->door->ui->files, *name ? name : "index.html");
  const char *method = http_method(x->q), *known = http_header(x->q, "If-None-Match", 0);

  if (!f)
    ui_refuse(x, PROBLEM_NOT_FOUND, NULL, -1);
  else if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
    refuse_method(x, "GET, HEAD");
  else if (known && strcmp(known, f->etag) == 0)
    answer(x, 304, f->type, "no-cache", &(struct http_header){"ETag", f->etag}, NULL, 0);
  else
    answer(x, 200, f->type, "no-cache", &(struct http_header){"ETag", f->etag}, f->body.data, f->body.len);
}

/* ---- sessions ---- */

static void set_cookie(struct exchange *x, const char *value, int64_t seconds, const char *body, size_t len) {
  char text[UI_COOKIE_MAX + 128];

  snprintf(text, sizeof text, UI_COOKIE "=%s; Path=/ui; Max-Age=%" PRId64 "; HttpOnly; SameSite=Strict%s", value, seconds,
           x->door->ui->secure ? "; Secure" : "");
  answer(x, 200, json_type, "no-store", &(struct http_header){"Set-Cookie", text}, body, len);
}

static bool may_act(const struct exchange *x) {
  return x->door->ui->mode == DOOR_UI_WRITE && x->visit->token.may_write;
}

static void describe_session(const struct exchange *x, struct buf *b) {
  const struct ui_visit *v = x->visit;
  char csrf[DIGEST_HEX_SIZE];

  ui_csrf(&v->cookie, v->token.signing, csrf);
  buf_printf(b, "{\"token_id\":%" PRId64 ",\"name\":", v->token.id);
  json_write_string_lossy(b, v->token.name, strlen(v->token.name), 1024);
  buf_printf(b, ",\"mode\":\"%s\",\"may_act\":%s,\"ends_at_s\":%" PRId64 ",\"csrf\":\"%s\"}",
             x->door->ui->mode == DOOR_UI_WRITE ? "write" : "read", may_act(x) ? "true" : "false", v->cookie.end_s, csrf);
}

/* Columns: id, name, may_write, signing. No row: no such token, or none for here. */
static bool read_token(struct pgresult *r, struct ui_token *t) {
  memset(t, 0, sizeof *t);
  if (pgresult_rows(r) == 0) return false;
  t->id = strtoll(pgresult_value(r, 0, 0), NULL, 10);
  err_copy_text(t->name, sizeof t->name, pgresult_value(r, 0, 1));
  t->may_write = pgresult_value(r, 0, 2)[0] == 't';
  t->valid = hex_decode(pgresult_value(r, 0, 3), (size_t)pgresult_length(r, 0, 3), t->signing, DIGEST_BYTES);
  return t->valid;
}

static void on_login(struct exchange *x, struct pgresult *r) {
  struct ui *ui = x->door->ui;
  struct ui_visit *v = x->visit;
  struct buf body = BUF_INIT;

  if (!pgresult_ok(r)) {
    ui_ask_failed(x, r);
  } else if (!read_token(r, &v->token)) {
    if (x->q) ui_throttle_failed(&ui->throttle, http_remote(x->q), loop_now_ms(ui->door->loop));
    if (x->q) log_kv(LOG_WARN_, "ui_login_refused", "address", http_remote(x->q), NULL);
    ui_refuse(x, PROBLEM_UNAUTHENTICATED, "expected a valid token of the platform with the scope ui or ui:write", -1);
  } else {
    ui_cookie_make(v->token.signing, v->token.id, (dbclock_latest_ms(ui->door->clock) + ui->session_ms) / 1000, &v->cookie);
    if (x->q)
      log_kv(LOG_INFO_, "ui_login", "token", log_i64(v->token.id), "name", v->token.name, "address", http_remote(x->q), NULL);
    describe_session(x, &body);
    set_cookie(x, v->cookie.text, ui->session_ms / 1000, body.data, body.len);
  }
  buf_fini(&body);
}

static void log_in(struct exchange *x) {
  struct ui *ui = x->door->ui;
  int64_t wait_ms = ui_throttle_wait_ms(&ui->throttle, http_remote(x->q), loop_now_ms(ui->door->loop));
  struct buf token = BUF_INIT;
  struct json_value value;
  uint8_t digest[DIGEST_BYTES];
  char hex[2 + DIGEST_HEX_SIZE] = "\\x";
  const char *values[1] = {hex}, *body;
  size_t len;

  body = http_body(x->q, &len);
  if (wait_ms > 0) {
    ui_refuse(x, PROBLEM_TOO_MANY_TRIES, NULL, (int)((wait_ms + 999) / 1000));
  } else if (json_find(body, len, "token", &value) < 0 || json_value_string(&value, &token, NULL) < 0 || token.len > 512) {
    ui_refuse(x, PROBLEM_BAD_REQUEST, "expected {\"token\": \"…\"}", -1);
  } else {
    digest_sha256(token.data ? token.data : "", token.len, digest);
    hex_encode(digest, sizeof digest, hex + 2);
    ui_ask(x, "SELECT id, name, may_write, signing FROM umavez.ui_token(NULL, $1::bytea)", 1, values, on_login);
  }
  buf_fini(&token);
}

/* ---- what a session may ask for ---- */

/* One JSON value, or NULL. */
static void on_json(struct exchange *x, struct pgresult *r) {
  const struct ui_visit *v = x->visit;

  if (!pgresult_ok(r)) {
    ui_ask_failed(x, r);
  } else if (pgresult_rows(r) == 0 || pgresult_null(r, 0, 0)) {
    ui_refuse(x, PROBLEM_NOT_FOUND, v->what == UI_PAGE ? "there is no such page, or no such run (any more)" : NULL, -1);
  } else {
    if (v->what == UI_ACT)
      log_kv(LOG_INFO_, "ui_act", "token", log_i64(v->token.id), "name", v->token.name, "result", pgresult_value(r, 0, 0), NULL);
    ui_answer(x, 200, pgresult_value(r, 0, 0), (size_t)pgresult_length(r, 0, 0));
  }
}

static void read_page(struct exchange *x) {
  struct buf params = BUF_INIT;

  if (ui_params_json(http_query(x->q), &params) < 0) {
    ui_refuse(x, PROBLEM_BAD_REQUEST, "the query cannot be read", -1);
  } else {
    const char *values[2] = {x->visit->page, buf_cstr(&params)};
    ui_ask(x, "SELECT umavez.ui_read($1, $2::jsonb)", 2, values, on_json);
  }
  buf_fini(&params);
}

static void act(struct exchange *x) {
  const struct ui_visit *v = x->visit;
  struct json_value whole;
  char actor[256];
  size_t len;
  const char *body = http_body(x->q, &len), *values[2] = {body, actor};

  snprintf(actor, sizeof actor, "%s%sui token %" PRId64 "%s", v->token.name, v->token.name[0] ? " (" : "", v->token.id,
           v->token.name[0] ? ")" : "");
  if (x->door->ui->mode != DOOR_UI_WRITE)
    ui_refuse(x, PROBLEM_FORBIDDEN, "this dashboard is to look at only (the setting ui is read)", -1);
  else if (!v->token.may_write)
    ui_refuse(x, PROBLEM_FORBIDDEN, "this token may look only: its scopes do not name ui:write", -1);
  else if (json_find(body, len, "", &whole) < 0 || whole.type != JSON_OBJECT)
    ui_refuse(x, PROBLEM_BODY_INVALID, NULL, -1);
  else
    ui_ask(x, "SELECT umavez.ui_act($1::jsonb, $2)", 2, values, on_json);
}

static bool csrf_fits(const struct exchange *x) {
  const char *given = http_header(x->q, "X-CSRF-Token", 0);
  char expected[DIGEST_HEX_SIZE];

  ui_csrf(&x->visit->cookie, x->visit->token.signing, expected);
  return given && strlen(given) == strlen(expected) && digest_equal(given, expected, strlen(expected));
}

static void welcome(struct exchange *x) {
  struct buf body = BUF_INIT;

  if ((x->visit->what == UI_ACT || x->visit->what == UI_LOGOUT) && !csrf_fits(x)) {
    ui_refuse(x, PROBLEM_FORBIDDEN, "expected the session's X-CSRF-Token", -1);
    return;
  }
  switch (x->visit->what) {
    case UI_SESSION:
      describe_session(x, &body);
      ui_answer(x, 200, body.data, body.len);
      buf_fini(&body);
      return;
    case UI_LOGOUT:
      set_cookie(x, "", 0, "{}", 2);
      return;
    case UI_ACT:
      act(x);
      return;
    case UI_STREAM:
      ui_stream_begin(x);
      return;
    case UI_LOGIN:
    case UI_PAGE:
      read_page(x);
      return;
  }
}

/* ---- who ---- */

static void judge(struct exchange *x, const struct ui_token *t) {
  struct ui_visit *v = x->visit;

  if (!x->q) return;
  v->token = *t;
  if (t->valid && ui_cookie_valid(&v->cookie, t->signing, dbclock_latest_ms(x->door->clock) / 1000))
    welcome(x);
  else
    ui_refuse(x, PROBLEM_UNAUTHENTICATED, "the session has ended; log in again", -1);
}

static void on_token(struct exchange *x, struct pgresult *r) {
  struct ui *ui = x->door->ui;
  struct ui_token *t = &ui->known[x->visit->cookie.token_id % UI_KNOWN];

  if (!pgresult_ok(r)) {
    ui_ask_failed(x, r);
    return;
  }
  if (!read_token(r, t)) t->id = x->visit->cookie.token_id;
  t->until_ms = loop_now_ms(ui->door->loop) + UI_KNOWN_MS;
  judge(x, t);
}

static void recognise(struct exchange *x) {
  struct ui *ui = x->door->ui;
  struct ui_visit *v = x->visit;
  const char *header = http_header(x->q, "Cookie", 0);
  char id[24];
  const char *values[1] = {id};

  if (!header || http_header(x->q, "Cookie", 1) || !ui_cookie_find(header, &v->cookie)) {
    ui_refuse(x, PROBLEM_UNAUTHENTICATED, "log in first", -1);
    return;
  }
  const struct ui_token *t = &ui->known[v->cookie.token_id % UI_KNOWN];
  if (t->id == v->cookie.token_id && t->until_ms > loop_now_ms(ui->door->loop)) {
    judge(x, t);
    return;
  }
  snprintf(id, sizeof id, "%" PRId64, v->cookie.token_id);
  ui_ask(x, "SELECT id, name, may_write, signing FROM umavez.ui_token($1::bigint, NULL)", 1, values, on_token);
}

/* ---- what ---- */

/* Sent by our own page: a browser tells the truth here, whatever the page that made it send. */
static bool is_from_us(const struct exchange *x, bool changes) {
  const char *site = http_header(x->q, "Sec-Fetch-Site", 0), *origin = http_header(x->q, "Origin", 0),
             *host = http_header(x->q, "Host", 0), *own = x->door->ui->origin;

  if (site && strcmp(site, "same-origin") != 0 && (changes || strcmp(site, "none") != 0)) return false;
  if (!origin) return !changes;
  if (http_header(x->q, "Origin", 1)) return false;
  if (own[0]) return strcmp(origin, own) == 0;
  origin += strncmp(origin, "https://", 8) == 0 ? 8 : strncmp(origin, "http://", 7) == 0 ? 7 : 0;
  return host && strcasecmp(origin, host) == 0;
}

static enum ui_what what_of(const char *name, bool *post) {
  static const struct {
    const char *name;
    enum ui_what what;
    bool post;
  } named[] = {{"session", UI_SESSION, false},
               {"login", UI_LOGIN, true},
               {"logout", UI_LOGOUT, true},
               {"act", UI_ACT, true},
               {"stream", UI_STREAM, false}};

  *post = false;
  for (size_t i = 0; i < sizeof named / sizeof *named; i++)
    if (strcmp(named[i].name, name) == 0) {
      *post = named[i].post;
      return named[i].what;
    }
  return UI_PAGE;
}

static void serve(struct exchange *x, const char *name) {
  struct ui_visit *v = x->visit = xcalloc(1, sizeof *v);
  bool post;
  size_t len;

  v->x = x;
  v->what = what_of(name, &post);
  list_init(&v->stream);
  http_body(x->q, &len);
  if (strspn(name, "abcdefghijklmnopqrstuvwxyz") != strlen(name) || strlen(name) >= sizeof v->page) {
    ui_refuse(x, PROBLEM_NOT_FOUND, NULL, -1);
    return;
  }
  strcpy(v->page, name);
  if (strcmp(http_method(x->q), post ? "POST" : "GET") != 0)
    refuse_method(x, post ? "POST" : "GET");
  else if (!is_from_us(x, post))
    ui_refuse(x, PROBLEM_FORBIDDEN, "the request was not sent by this dashboard's own page (behind a proxy: the setting ui_origin)", -1);
  else if (len > UI_BODY_BYTES)
    ui_refuse(x, PROBLEM_BODY_TOO_LARGE, NULL, -1);
  else if (post && !door_text_is_json(http_header(x->q, "Content-Type", 0)))
    ui_refuse(x, PROBLEM_MEDIA_TYPE, NULL, -1);
  else if (x->door->draining || !x->door->clock->known)
    ui_refuse(x, x->door->draining ? PROBLEM_DRAINING : PROBLEM_UNAVAILABLE, NULL, 1);
  else if (v->what == UI_LOGIN)
    log_in(x);
  else
    recognise(x);
}

bool door_ui_is(const struct door *d, const char *path) {
  return d->ui && strncmp(path, "/ui", 3) == 0 && (path[3] == 0 || path[3] == '/');
}

void door_ui_begin(struct exchange *x) {
  static const char api[] = "/ui/api/";
  const char *path = http_path(x->q);

  if (path[3] == 0)
    answer(x, 308, "text/plain", "no-cache", &(struct http_header){"Location", "/ui/"}, NULL, 0);
  else if (strncmp(path, api, sizeof api - 1) == 0)
    serve(x, path + sizeof api - 1);
  else
    send_file(x, path + sizeof "/ui/" - 1);
}

/* ---- life ---- */

void door_ui_gone(struct exchange *x) {
  if (list_linked(&x->visit->stream)) ui_stream_end(x);
}

void door_ui_forget(struct exchange *x) {
  if (x->visit && x->visit->ask) ui_ask_forget(x->visit->ask);
}

int door_ui_new(struct door *d, const struct door_ui_options *o, struct err *e) {
  struct ui *ui;

  if (o->mode == DOOR_UI_OFF) return 0;
  ui = d->ui = xcalloc(1, sizeof *ui);
  ui->door = d;
  ui->mode = o->mode;
  ui->origin = xstrdup(o->origin);
  ui->secure = o->tls || strncmp(o->origin, "https://", 8) == 0;
  ui->session_ms = o->session_ms;
  list_init(&ui->asks);
  ui_stream_init(ui);
  if (!(ui->files = ui_files_new(o->dir, e))) return -1;
  ui_ask_connect(ui, o);
  return 0;
}

void door_ui_stop(struct door *d) {
  if (d->ui) ui_stream_end_all(d->ui);
}

void door_ui_free(struct door *d) {
  struct ui *ui = d->ui;

  if (!ui) return;
  loop_timer_stop(&ui->tick);
  control_free(ui->db);
  ui_ask_end(ui);
  ui_files_free(ui->files);
  buf_fini(&ui->event);
  free(ui->origin);
  free(ui);
  d->ui = NULL;
}
