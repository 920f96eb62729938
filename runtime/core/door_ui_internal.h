/* door_ui_internal: what door_ui.c (requests, answers), door_ui_ask.c (the database) and door_ui_stream.c (events) share. */
#ifndef UMAVEZ_CORE_DOOR_UI_INTERNAL_H
#define UMAVEZ_CORE_DOOR_UI_INTERNAL_H

#include "core/door_internal.h"
#include "core/ui_files.h"
#include "core/ui_session.h"

enum { UI_KNOWN = 32, UI_KNOWN_MS = 2000 };

/* A token as umavez.ui_token has told of it, believed for UI_KNOWN_MS. */
struct ui_token {
  int64_t id; /* 0: an empty place */
  bool valid, may_write;
  char name[128];
  uint8_t signing[DIGEST_BYTES];
  int64_t until_ms;
};

struct ui {
  struct door *door;
  enum door_ui_mode mode;
  char *origin;
  bool secure;
  int64_t session_ms;
  struct ui_files *files;
  struct control *db;
  struct list asks;
  int nasks;
  struct ui_token known[UI_KNOWN]; /* by id modulo UI_KNOWN */
  struct ui_throttle throttle;
  struct list streams;
  int nstreams;
  struct loop_timer tick;
  bool feeding;       /* the overview is being asked for */
  struct buf event;   /* the last one */
};

enum ui_what { UI_PAGE, UI_SESSION, UI_LOGIN, UI_LOGOUT, UI_ACT, UI_STREAM };

/* A request's part of the dashboard; x->visit. */
struct ui_visit {
  struct exchange *x;
  enum ui_what what;
  char page[24];
  struct ui_cookie cookie;
  struct ui_token token; /* a copy: who it is, once known */
  struct ui_ask *ask;    /* under way; or NULL */
  struct list stream;    /* in ui.streams */
  int64_t until_ms;      /* of a stream */
};

/* ---- door_ui.c ---- */
/* type NULL: JSON. Ends the exchange. */
void ui_answer(struct exchange *x, int status, const char *body, size_t len);
void ui_refuse(struct exchange *x, enum door_problem p, const char *detail, int retry_after_s);
/* The headers that every answer of the dashboard has; gives their number. */
size_t ui_headers(struct http_header *to);
enum { UI_HEADERS = 8 };

/* ---- door_ui_ask.c ---- */
void ui_ask_connect(struct ui *ui, const struct door_ui_options *o);
/* Asks; done(x, r) comes once, borrows r, unless x ends before. Refuses x itself when that cannot be. */
void ui_ask(struct exchange *x, const char *sql, int nparams, const char *const *values,
            void (*done)(struct exchange *x, struct pgresult *r));
/* The same for nobody in particular; false: not now. */
bool ui_ask_for(struct ui *ui, const char *sql, void (*done)(struct ui *ui, struct pgresult *r)) MUST_CHECK;
void ui_ask_forget(struct ui_ask *a); /* no answer comes */
void ui_ask_end(struct ui *ui);       /* after the connection has gone */
/* Answers x for a statement that has failed. */
void ui_ask_failed(struct exchange *x, struct pgresult *r);

/* ---- door_ui_stream.c ---- */
void ui_stream_init(struct ui *ui);
void ui_stream_begin(struct exchange *x);
void ui_stream_end(struct exchange *x);
void ui_stream_end_all(struct ui *ui);

#endif
