/* Two lives that end at different times: the breaker with its commands (struct valkey), and one connection (struct link).
 * Opening the breaker answers every command at once, marks the link dead and drops it in a deferred task, never inside one
 * of hiredis' callbacks. A dead link's callbacks are ignored; so late replies reach nobody, and command memory is ours alone.
 *
 * A command moves: inflight (hiredis has it) → ready (answered) → done. hiredis answers in order, so one timer for the
 * oldest command is enough. */
#include "io/valkey.h"

#include <hiredis/async.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/digest.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/stats.h"
#include "io/backoff.h"
#include "io/valkey_url.h"

enum { BACKOFF_BASE_MS = 100, BACKOFF_CAP_MS = 2000, PROBE_MS = 2000, STABLE_MS = 10000, DRAIN_READS = 4096, MAX_DEADLINES = 4 };
#define REPLY_MAX_BYTES (4u << 20) /* of one string: a server that sends more is not waited for */

enum command_kind { COMMAND_USER, COMMAND_LOGIN, COMMAND_PROBE };
enum breaker { BREAKER_OPEN, BREAKER_PROBING, BREAKER_CLOSED };

struct args {
  int n;
  const char **argv; /* one allocation with the struct */
  size_t *lens;
};

struct command {
  struct list node;
  enum command_kind kind;
  int64_t sent_ms, due_ms;      /* 0: not handed to the socket yet */
  valkey_done *done;
  void *arg;
  struct valkey_reply *reply;   /* owned; NULL: unavailable */
  struct args *eval;            /* sent as EVALSHA: what to send when the server doesn't know the script */
};

struct link {
  struct valkey *v;
  redisAsyncContext *ac; /* NULL once hiredis has freed it */
  struct loop_io io;
  struct loop_task flush, drop;
  int want;
  int64_t heard_ms; /* when octets last came */
  bool connected, dead, in_write;
};

struct valkey {
  struct loop *loop;
  struct valkey_url url;
  char *prefix;
  int64_t timeout_ms;
  enum breaker breaker;
  struct link *link; /* the live one; NULL while waiting for the next try */
  struct list inflight, ready;
  struct loop_timer deadline, retry;
  struct loop_task deliver;
  struct backoff backoff;
  int64_t closed_since_ms, probe_until_ms;
  bool reported_down, reported_login; /* this time down has its line */
  bool hook_due, freed, freeing;
  char why[256];
  void (*on_state)(void *, bool, const char *);
  void *on_state_arg;
  struct valkey_stats stats;
};

static void breaker_open(struct valkey *v, const char *why, size_t len);
static void probe(struct valkey *v);

/* ── replies ── */

static void reply_fini(struct valkey_reply *r) {
  for (size_t i = 0; i < r->elements; i++) reply_fini((struct valkey_reply *)&r->element[i]);
  free((void *)r->element);
  free((void *)r->str);
}

static void reply_free(struct valkey_reply *r) {
  if (r == NULL) return;
  reply_fini(r);
  free(r);
}

/* Depth is bounded by hiredis' reader. */
static void reply_fill(struct valkey_reply *r, const redisReply *from) {
  switch (from->type) {
    case REDIS_REPLY_INTEGER:
      r->type = V_INT;
      r->integer = from->integer;
      return;
    case REDIS_REPLY_ARRAY:
      r->type = V_ARRAY;
      r->elements = from->elements;
      if (r->elements > 0) {
        struct valkey_reply *elements = xcalloc(r->elements, sizeof *elements);
        for (size_t i = 0; i < r->elements; i++) reply_fill(&elements[i], from->element[i]);
        r->element = elements;
      }
      return;
    case REDIS_REPLY_STRING: r->type = V_STRING; break;
    case REDIS_REPLY_STATUS: r->type = V_STATUS; break;
    case REDIS_REPLY_ERROR: r->type = V_ERROR; break;
    default: r->type = V_NIL; return;
  }
  char *text = xmalloc((size_t)from->len + 1);
  memcpy(text, from->str, (size_t)from->len);
  text[from->len] = '\0';
  r->str = text;
  r->len = (size_t)from->len;
}

static bool starts_with(const char *s, size_t len, const char *prefix) {
  size_t n = strlen(prefix);
  return len >= n && memcmp(s, prefix, n) == 0;
}

bool valkey_reply_unavailable(const char *error, size_t len) {
  static const char *const codes[] = {"OOM ", "READONLY ", "LOADING ", "NOAUTH ", "WRONGPASS ", "NOPERM ", "BUSY ", "MISCONF ",
                                      "MASTERDOWN ", "NOREPLICAS ", "CLUSTERDOWN ", "MOVED ", "ASK ", "TRYAGAIN ",
                                      "ERR max number of clients", "ERR operation not permitted"};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    if (starts_with(error, len, codes[i])) return true;
  }
  /* Servers before 7 wrap what a command in a script answered. */
  if (!starts_with(error, len, "ERR Error running script")) return false;
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    char inner[32];
    int n = snprintf(inner, sizeof inner, " -%s", codes[i]);
    if (memmem(error, len, inner, (size_t)n) != NULL) return true;
  }
  return false;
}

/* ── commands ── */

static void command_free(struct command *c) {
  reply_free(c->reply);
  free(c->eval);
  free(c);
}

static void command_ready(struct valkey *v, struct command *c) {
  list_remove(&c->node);
  list_push_back(&v->ready, &c->node);
  loop_defer(v->loop, &v->deliver);
}

static struct args *args_copy(int n, const char *const *argv, const size_t *lens) {
  size_t size = sizeof(struct args) + (size_t)n * (sizeof(char *) + sizeof(size_t));
  for (int i = 0; i < n; i++) size += (lens ? lens[i] : strlen(argv[i])) + 1;
  struct args *a = xmalloc(size);
  a->n = n;
  a->argv = (const char **)(a + 1);
  a->lens = (size_t *)(a->argv + n);
  char *p = (char *)(a->lens + n);
  for (int i = 0; i < n; i++) {
    a->lens[i] = lens ? lens[i] : strlen(argv[i]);
    memcpy(p, argv[i], a->lens[i]);
    p[a->lens[i]] = '\0';
    a->argv[i] = p;
    p += a->lens[i] + 1;
  }
  return a;
}

static void on_reply(redisAsyncContext *ac, void *reply, void *privdata);

static void command_send(struct valkey *v, struct command *c, int argc, const char *const *argv, const size_t *lens) {
  struct link *l = v->link;
  c->due_ms = 0;
  list_push_back(&v->inflight, &c->node);
  if (redisAsyncCommandArgv(l->ac, on_reply, c, argc, (const char **)argv, lens) != REDIS_OK) {
    static const char why[] = "hiredis refuses the command";
    breaker_open(v, why, sizeof why - 1);
  }
}

static struct command *command_new(enum command_kind kind, valkey_done *done, void *arg) {
  struct command *c = xcalloc(1, sizeof *c);
  list_init(&c->node);
  c->kind = kind;
  c->done = done;
  c->arg = arg;
  return c;
}

/* Commands get their deadline when they are handed to the socket. */
static void stamp(struct valkey *v) {
  loop_update(v->loop);
  int64_t now = loop_now_ms(v->loop);
  for (struct list *n = v->inflight.prev; n != &v->inflight; n = n->prev) {
    struct command *c = container_of(n, struct command, node);
    if (c->due_ms != 0) break;
    c->sent_ms = now;
    c->due_ms = v->breaker == BREAKER_CLOSED ? now + v->timeout_ms : v->probe_until_ms;
  }
  struct command *first = list_first(&v->inflight, struct command, node);
  if (first != NULL && !loop_timer_active(&v->deadline)) loop_timer_start(v->loop, &v->deadline, first->due_ms - now);
}

/* ── the link: hiredis' event hooks ── */

static void link_watch(struct link *l, int want) {
  l->want = want;
  if (!l->dead) loop_io_start(l->v->loop, &l->io, l->ac->c.fd, want);
}

static void link_add_read(void *p) {
  struct link *l = p;
  link_watch(l, l->want | LOOP_READ);
}

static void link_del_read(void *p) {
  struct link *l = p;
  link_watch(l, l->want & ~LOOP_READ);
}

/* What this tick's commands have queued is written once, in a deferred task; the socket is watched when it is full. Before
 * the connection is made, only the socket can tell. */
static void link_add_write(void *p) {
  struct link *l = p;
  if (l->connected && !l->in_write) loop_defer(l->v->loop, &l->flush);
  else link_watch(l, l->want | LOOP_WRITE);
}

static void link_del_write(void *p) {
  struct link *l = p;
  loop_task_cancel(&l->flush);
  link_watch(l, l->want & ~LOOP_WRITE);
}

static void link_cleanup(void *p) {
  struct link *l = p;
  loop_io_stop(&l->io);
  loop_task_cancel(&l->flush);
  l->ac = NULL;
}

static void link_write(struct link *l) {
  struct valkey *v = l->v;
  l->in_write = true;
  redisAsyncHandleWrite(l->ac);
  l->in_write = false;
  if (!l->dead) stamp(v);
}

/* hiredis aborts the process on a reply that nobody has asked for. So what comes while nothing is asked is not given to it
 * (an end of the connection is), and what follows the last answer is caught in on_reply. */
static const char unasked[] = "the server sent what nobody had asked for";

static void link_read(struct link *l) {
  static const char endless[] = "the server's reply is too long";
  int waiting = 0;
  l->heard_ms = loop_now_ms(l->v->loop);
  if (l->connected && l->ac->replies.head == NULL && ioctl(l->ac->c.fd, FIONREAD, &waiting) == 0 && waiting > 0) {
    breaker_open(l->v, unasked, sizeof unasked - 1);
    return;
  }
  redisAsyncHandleRead(l->ac);
  if (!l->dead && l->ac != NULL && l->ac->c.reader->len > REPLY_MAX_BYTES) breaker_open(l->v, endless, sizeof endless - 1);
}

static void on_flush(void *arg) {
  struct link *l = arg;
  if (!l->dead && l->ac != NULL) link_write(l);
}

static void on_io(void *arg, int events) {
  struct link *l = arg;
  if (events & LOOP_READ) link_read(l);
  if ((events & LOOP_WRITE) && !l->dead && l->ac != NULL) link_write(l);
}

static void on_drop(void *arg) {
  struct link *l = arg;
  if (l->ac != NULL) redisAsyncFree(l->ac); /* calls link_cleanup */
  free(l);
}

static void link_drop(struct valkey *v) {
  struct link *l = v->link;
  if (l == NULL) return;
  v->link = NULL;
  l->dead = true;
  FAILPOINT_VALKEY(-1);
  loop_io_stop(&l->io);
  loop_task_cancel(&l->flush);
  loop_defer(v->loop, &l->drop);
}

static void link_lost(struct link *l, const redisAsyncContext *ac) {
  const char *text = ac->errstr != NULL && *ac->errstr ? ac->errstr : "connection closed";
  breaker_open(l->v, text, strlen(text));
}

static void on_connect(const redisAsyncContext *ac, int status) {
  struct link *l = ac->data;
  if (l->dead) return;
  if (status != REDIS_OK) link_lost(l, ac);
  else l->connected = true;
  FAILPOINT_VALKEY(status == REDIS_OK ? l->ac->c.fd : -1);
}

static void on_disconnect(const redisAsyncContext *ac, int status) {
  struct link *l = ac->data;
  (void)status;
  if (!l->dead) link_lost(l, ac);
}

/* ── the breaker ── */

static void breaker_close(struct valkey *v) {
  v->breaker = BREAKER_CLOSED;
  stats_set(STAT_BREAKER_OPEN, 0, 0);
  v->closed_since_ms = loop_now_ms(v->loop);
  loop_timer_stop(&v->deadline); /* the probe's */
  v->reported_down = v->reported_login = false;
  v->hook_due = true;
  loop_defer(v->loop, &v->deliver);
  log_kv(LOG_INFO_, "valkey_up", "server", v->url.shown, NULL);
}

static void report_down(struct valkey *v) {
  static const char login[] = "check the user and password in VALKEY_URL and the user's rights";
  size_t n = strlen(v->why);
  bool refused = starts_with(v->why, n, "NOAUTH") || starts_with(v->why, n, "WRONGPASS") || starts_with(v->why, n, "NOPERM") ||
                 starts_with(v->why, n, "ERR AUTH") || starts_with(v->why, n, "ERR invalid password");
  if (v->reported_down && (!refused || v->reported_login)) return;
  if (!v->reported_down) v->hook_due = true;
  v->reported_down = true;
  v->reported_login = refused;
  log_kv(refused ? LOG_ERROR_ : LOG_WARN_, "valkey_down", "server", v->url.shown, "why", v->why, "hint",
         refused ? login : "runs go on with PostgreSQL alone; trying again", NULL);
}

/* May be called from anywhere, hiredis' callbacks too. why may point into a reply. */
static void breaker_open(struct valkey *v, const char *why, size_t len) {
  struct command *c;
  if (v->breaker == BREAKER_CLOSED) {
    v->stats.opened++;
    stats_inc(STAT_BREAKER_OPENED);
    if (loop_now_ms(v->loop) - v->closed_since_ms >= STABLE_MS) backoff_reset(&v->backoff);
  }
  char *text = xstrndup(why, len);
  err_copy_text(v->why, sizeof v->why, text);
  free(text);
  v->breaker = BREAKER_OPEN;
  stats_set(STAT_BREAKER_OPEN, 0, 1);
  loop_timer_stop(&v->deadline);
  link_drop(v);
  while ((c = list_first(&v->inflight, struct command, node)) != NULL) command_ready(v, c);
  loop_defer(v->loop, &v->deliver);
  if (v->freed) return;
  report_down(v);
  loop_timer_start(v->loop, &v->retry, backoff_next_ms(&v->backoff));
}

/* Replies to the commands of our own. */
static void own_reply(struct valkey *v, struct command *c, const redisReply *r) {
  int64_t took = loop_now_ms(v->loop) - c->sent_ms;
  list_remove(&c->node);
  if (r->type == REDIS_REPLY_ERROR) {
    breaker_open(v, r->str, (size_t)r->len);
  } else if (c->kind == COMMAND_PROBE) {
    if (took <= v->timeout_ms) breaker_close(v);
    else probe(v); /* it works, but too slowly: a server that has just gone on after a stop */
  }
  command_free(c);
}

static void on_reply(redisAsyncContext *ac, void *reply, void *privdata) {
  struct link *l = ac->data;
  struct valkey *v = l->v;
  struct command *c = privdata;
  if (reply != NULL && ac->replies.head == NULL && ac->c.reader->pos < ac->c.reader->len) {
    if (!l->dead) breaker_open(v, unasked, sizeof unasked - 1);
    redisAsyncFree(ac); /* inside a callback hiredis only notes it, and reads no further */
    return;
  }
  if (l->dead) return; /* privdata is gone */
  const redisReply *r = reply;
  if (r == NULL) {
    link_lost(l, ac);
    return;
  }
  if (c->kind != COMMAND_USER) {
    own_reply(v, c, r);
    return;
  }
  if (r->type == REDIS_REPLY_ERROR && valkey_reply_unavailable(r->str, (size_t)r->len)) {
    breaker_open(v, r->str, (size_t)r->len);
    return;
  }
  if (r->type == REDIS_REPLY_ERROR && c->eval != NULL && starts_with(r->str, (size_t)r->len, "NOSCRIPT")) {
    struct args *a = c->eval;
    c->eval = NULL;
    list_remove(&c->node);
    command_send(v, c, a->n, a->argv, a->lens);
    free(a);
    return;
  }
  c->reply = xcalloc(1, sizeof *c->reply);
  reply_fill(c->reply, r);
  command_ready(v, c);
}

/* When the oldest command is to be given up: a server that is at work on a long reply gets MAX_DEADLINES of them, a silent
 * one gets one. */
static int64_t patience_ends_ms(const struct valkey *v, const struct command *c, int64_t now) {
  if (v->breaker != BREAKER_CLOSED) return v->probe_until_ms;
  if (c->due_ms == 0) return now + v->timeout_ms;
  int64_t due = v->link->heard_ms + v->timeout_ms, last = c->sent_ms + MAX_DEADLINES * v->timeout_ms;
  if (due > last) due = last;
  return due > c->due_ms ? due : c->due_ms;
}

static void on_deadline(void *arg) {
  struct valkey *v = arg;
  struct command *c;
  for (int i = 0; (c = list_first(&v->inflight, struct command, node)) != NULL; i++) {
    int64_t now = loop_now_ms(v->loop), until = patience_ends_ms(v, c, now);
    int waiting = 0;
    if (until > now) {
      loop_timer_start(v->loop, &v->deadline, until - now);
      return;
    }
    /* hiredis reads 16 KB an event: read all that has arrived before judging. */
    if (i >= DRAIN_READS || ioctl(v->link->ac->c.fd, FIONREAD, &waiting) != 0 || waiting == 0) break;
    redisAsyncHandleRead(v->link->ac);
  }
  if (c == NULL) return;
  char why[64];
  int n = snprintf(why, sizeof why, "no answer within %lld ms",
                   (long long)(v->breaker == BREAKER_CLOSED ? v->timeout_ms : PROBE_MS));
  v->stats.timeouts++;
  breaker_open(v, why, (size_t)n);
}

/* ── connecting ── */

static void probe(struct valkey *v) {
  uint8_t random[8];
  char hex[2 * sizeof random + 1], key[160];
  random_bytes(random, sizeof random);
  hex_encode(random, sizeof random, hex);
  snprintf(key, sizeof key, "%.100s:probe:%s", v->prefix, hex);
  command_send(v, command_new(COMMAND_PROBE, NULL, NULL), 5, (const char *const[]){"SET", key, "1", "PX", "1000"}, NULL);
}

static void login(struct valkey *v) {
  const struct valkey_url *u = &v->url;
  if (u->password != NULL && u->user != NULL) {
    command_send(v, command_new(COMMAND_LOGIN, NULL, NULL), 3, (const char *const[]){"AUTH", u->user, u->password}, NULL);
  } else if (u->password != NULL) {
    command_send(v, command_new(COMMAND_LOGIN, NULL, NULL), 2, (const char *const[]){"AUTH", u->password}, NULL);
  }
  if (u->db > 0 && v->link != NULL) {
    char db[16];
    snprintf(db, sizeof db, "%d", u->db);
    command_send(v, command_new(COMMAND_LOGIN, NULL, NULL), 2, (const char *const[]){"SELECT", db}, NULL);
  }
  if (v->link != NULL) probe(v);
}

static void on_retry(void *arg) {
  struct valkey *v = arg;
  v->stats.probes++;
  redisAsyncContext *ac = v->url.path ? redisAsyncConnectUnix(v->url.path) : redisAsyncConnect(v->url.host, v->url.port);
  if (ac == NULL) bug("hiredis is out of memory");
  if (ac->err) {
    breaker_open(v, ac->errstr, strlen(ac->errstr));
    redisAsyncFree(ac);
    return;
  }
  struct link *l = xcalloc(1, sizeof *l);
  l->v = v;
  l->ac = ac;
  loop_io_init(&l->io, on_io, l);
  loop_task_init(&l->flush, on_flush, l);
  loop_task_init(&l->drop, on_drop, l);
  ac->data = l;
  ac->ev.data = l;
  ac->ev.addRead = link_add_read;
  ac->ev.delRead = link_del_read;
  ac->ev.addWrite = link_add_write;
  ac->ev.delWrite = link_del_write;
  ac->ev.cleanup = link_cleanup;
  redisAsyncSetConnectCallback(ac, on_connect);
  redisAsyncSetDisconnectCallback(ac, on_disconnect);
  v->link = l;
  v->breaker = BREAKER_PROBING;
  loop_update(v->loop);
  v->probe_until_ms = loop_now_ms(v->loop) + PROBE_MS;
  loop_timer_start(v->loop, &v->deadline, PROBE_MS);
  login(v);
}

/* ── delivery ── */

static void valkey_destroy(void *p) {
  struct valkey *v = p;
  loop_task_cancel(&v->deliver);
  valkey_url_fini(&v->url);
  free(v->prefix);
  free(v);
}

static void deliver(void *arg) {
  struct valkey *v = arg;
  if (v->freeing) return;
  struct list batch = LIST_INIT(batch);
  list_splice_back(&batch, &v->ready);
  struct command *c;
  while ((c = list_pop_front(&batch, struct command, node)) != NULL) {
    if (c->kind == COMMAND_USER && c->reply == NULL) v->stats.unavailable++;
    if (c->done != NULL) c->done(c->arg, c->reply);
    command_free(c);
  }
  if (v->hook_due && !v->freed) {
    v->hook_due = false;
    bool up = v->breaker == BREAKER_CLOSED;
    if (v->on_state != NULL) v->on_state(v->on_state_arg, up, up ? NULL : v->why);
  }
  if (!v->freed || !list_empty(&v->ready)) return;
  v->freeing = true;
  loop_free_later(v->loop, valkey_destroy, v);
}

/* ── interface ── */

struct valkey *valkey_new(struct loop *l, const char *url, int64_t timeout_ms, const char *prefix, struct err *e) {
  struct valkey_url parsed;
  if (valkey_url_parse(url, &parsed, e) != 0) return NULL;
  struct valkey *v = xcalloc(1, sizeof *v);
  v->loop = l;
  v->url = parsed;
  v->prefix = xstrdup(prefix);
  v->timeout_ms = timeout_ms > 0 ? timeout_ms : 1;
  v->backoff = (struct backoff)BACKOFF_INIT(BACKOFF_BASE_MS, BACKOFF_CAP_MS);
  err_copy_text(v->why, sizeof v->why, "not connected yet");
  list_init(&v->inflight);
  list_init(&v->ready);
  loop_timer_init(&v->deadline, on_deadline, v);
  loop_timer_init(&v->retry, on_retry, v);
  loop_task_init(&v->deliver, deliver, v);
  loop_timer_start(l, &v->retry, 0);
  stats_set(STAT_BREAKER_OPEN, 0, 1);
  return v;
}

void valkey_free(struct valkey *v) {
  if (v == NULL) return;
  if (v->freed) bug("valkey_free twice");
  v->freed = true;
  static const char why[] = "closed by its owner";
  breaker_open(v, why, sizeof why - 1);
  loop_timer_stop(&v->retry);
}

static struct command *user_command(struct valkey *v, valkey_done *done, void *arg) {
  if (v->freed) bug("a command after valkey_free");
  v->stats.commands++;
  struct command *c = command_new(COMMAND_USER, done, arg);
  if (v->breaker != BREAKER_CLOSED) command_ready(v, c);
  return c;
}

void valkey_command(struct valkey *v, int argc, const char *const *argv, const size_t *lens, valkey_done *done, void *arg) {
  struct command *c = user_command(v, done, arg);
  if (v->breaker == BREAKER_CLOSED) command_send(v, c, argc, argv, lens);
}

/* The hash is made here: a server's word for it could name another script. */
static void script_name(struct valkey_script *s) {
  uint8_t sha[20];
  if (s->sha[0] != '\0') return;
  digest_sha1(s->text, strlen(s->text), sha);
  hex_encode(sha, sizeof sha, s->sha);
}

void valkey_eval(struct valkey *v, struct valkey_script *s, int nkeys, int n, const char *const *keys_and_args,
                 const size_t *lens, valkey_done *done, void *arg) {
  struct command *c = user_command(v, done, arg);
  if (v->breaker != BREAKER_CLOSED) return;
  char count[16];
  snprintf(count, sizeof count, "%d", nkeys);
  const char **argv = xmalloc((size_t)(n + 3) * sizeof *argv);
  size_t *sizes = xmalloc((size_t)(n + 3) * sizeof *sizes);
  argv[0] = "EVAL";
  argv[1] = s->text;
  argv[2] = count;
  for (int i = 0; i < 3; i++) sizes[i] = strlen(argv[i]);
  for (int i = 0; i < n; i++) {
    argv[i + 3] = keys_and_args[i];
    sizes[i + 3] = lens ? lens[i] : strlen(keys_and_args[i]);
  }
  c->eval = args_copy(n + 3, argv, sizes);
  script_name(s);
  argv[0] = "EVALSHA";
  argv[1] = s->sha;
  sizes[0] = strlen(argv[0]);
  sizes[1] = strlen(argv[1]);
  command_send(v, c, n + 3, argv, sizes);
  free(argv);
  free(sizes);
}

bool valkey_up(const struct valkey *v) { return v->breaker == BREAKER_CLOSED; }

void valkey_on_state(struct valkey *v, void (*cb)(void *, bool, const char *), void *arg) {
  v->on_state = cb;
  v->on_state_arg = arg;
}

struct valkey_stats valkey_stats(const struct valkey *v) { return v->stats; }

#ifdef UMAVEZ_FAILPOINTS
int valkey_flush(struct valkey *v) {
  if (v->link != NULL && v->link->connected) link_write(v->link);
  return -1;
}
#endif
