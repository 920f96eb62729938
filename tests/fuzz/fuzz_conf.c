/* fuzz_conf: any text as a setting's name and value, as a duration, as a URL to be shown, as a path of a key into a document.
 *
 * Invariants: a duration that is read is written and read back as the same; a setting that takes a value gives a text back that it
 * takes again and gives back unchanged; one that refuses names a reason and keeps what it had; a shown URL holds no password; what a
 * path finds lies in the document and is JSON itself, and a path that cannot be found finds nothing.
 *
 * The input: the first line is the name, the path; what follows is the value, the document.
 */
// fuzz-sources: runtime/base/*.c
// fuzz-libs: -lcrypto -lm
#include "base/conf.h"

#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) \
  do { \
    if (!(condition)) bug("broken: %s", #condition); \
  } while (0)

static void duration(const char *text) {
  int64_t ms = -1, again = -1;
  struct err e = ERR_INIT;
  char form[32];

  if (duration_parse(text, &ms, &e) < 0) {
    MUST(ms == -1 && strcmp(e.code, "duration") == 0 && e.message[0]);
    return;
  }
  MUST(ms >= 0);
  duration_format(ms, form);
  MUST(duration_parse(form, &again, &e) == 0 && again == ms);
}

struct setting {
  struct conf *conf;
  const char *text;
};

static int set_one(const struct conf_option *o, void *arg) {
  struct setting *s = arg;
  struct buf before = BUF_INIT, after = BUF_INIT;
  struct err e = ERR_INIT;

  conf_get(s->conf, o, &before);
  int rc = conf_set(s->conf, o->name, s->text, "fuzz", &e);
  conf_get(s->conf, o, &after);
  if (rc < 0) {
    MUST(e.message[0] && strcmp(buf_cstr(&before), buf_cstr(&after)) == 0);
  } else {
    buf_clear(&before);
    MUST(conf_set(s->conf, o->name, buf_cstr(&after), "fuzz", &e) == 0);
    conf_get(s->conf, o, &before);
    MUST(strcmp(buf_cstr(&before), buf_cstr(&after)) == 0);
  }
  buf_fini(&before);
  buf_fini(&after);
  return 0;
}

static void shown_url(const char *text) {
  struct buf url = BUF_INIT, shown = BUF_INIT;

  conf_redact_url(text, &shown);
  buf_clear(&shown);
  if (!strpbrk(text, "@/:?#") && !strstr(text, "s3cret")) {
    buf_printf(&url, "postgres://%s:s3cretpassw0rd@host/db?x=%s", text, text);
    conf_redact_url(buf_cstr(&url), &shown);
    MUST(!strstr(buf_cstr(&shown), "s3cretpassw0rd"));
  }
  buf_fini(&url);
  buf_fini(&shown);
}

static void key_path(const char *path, const char *doc, size_t len) {
  struct json_value v, whole;
  int readable = json_find(doc, len, "", &whole);

  MUST(json_find(doc, len, path, &v) == readable);
  if (readable < 0 || v.type == JSON_ABSENT) return;
  MUST(v.text >= doc && v.text + v.len <= doc + len && json_find(v.text, v.len, "", &whole) == 0 && whole.type == v.type);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *name = xstrndup((const char *)data, size), *value = strchr(name, '\n');
  struct conf conf;
  struct err e = ERR_INIT;

  value = value ? value + 1 : name + strlen(name);
  if (value > name && value[-1] == '\n') value[-1] = 0;
  duration(name);
  duration(value);
  conf_init(&conf);
  if (conf_set(&conf, name, value, "fuzz", &e) < 0) MUST(e.message[0] && (conf_find(name) || strcmp(e.code, "unknown_option") == 0));
  conf_nearest(name);
  conf_each(set_one, &(struct setting){&conf, value});
  conf_fini(&conf);
  shown_url(value);
  key_path(name, value, strlen(value));
  free(name);
  return 0;
}
