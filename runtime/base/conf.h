/* conf: the settings of a process, from one table.
 *
 * Order of precedence is the order of the calls, later ones win: conf_init (defaults), conf_set for umavez.lua,
 * conf_load_env, conf_set for flags. To add an option: a line below; the struct's member, the environment variable,
 * the messages and the docs follow from it (docs/configuration.md is checked against it).
 *
 * A struct conf owns its strings and lists from conf_init to conf_fini; readers borrow them. Set options only at
 * start-up.
 */
#ifndef UMAVEZ_BASE_CONF_H
#define UMAVEZ_BASE_CONF_H

#include "base/buf.h"
#include "base/err.h"

/* X(TYPE, name, default, limit, environment variable or NULL for UMAVEZ_<NAME>, doc)
 *   STRING    char *name;                limit: name of a check in conf.c
 *   INT       int64_t name;              limit: (least, greatest)
 *   DURATION  int64_t name_ms;           limit: (least, greatest) in milliseconds
 *   BOOL      bool name;                 limit: none
 *   LIST      struct conf_list name;     text: items parted by commas; limit: the check of each item
 *   ENUM      int name;                  text and limit: "a|b|c", the value is the index */
#define CONF_OPTIONS(X) \
  X(STRING, database_url, "", database_url, "DATABASE_URL", \
    "PostgreSQL: URL or key=value string; what it leaves open comes from libpq's PG* variables") \
  X(STRING, valkey_url, "", valkey_url, "VALKEY_URL", \
    "Valkey: redis://[:password@]host[:port][/db] or unix:///path[?db=n]; empty: no gate") \
  X(STRING, valkey_prefix, "umavez", valkey_prefix, NULL, "first part of every key in Valkey") \
  X(STRING, tenants_table, "public.tenants", table, NULL, "the application's table of tenants, primary key id bigint") \
  X(STRING, tasks_dir, "tasks", not_empty, NULL, "folder of the manifests and handlers") \
  X(BOOL, supervise, "true", none, NULL, \
    "run the worker as a supervisor and its children; false: as this one process, without reload and replacement") \
  X(BOOL, watch_tasks, "false", none, NULL, \
    "reload when a Lua file below tasks_dir has changed; for development, with supervise") \
  X(INT, workers, "0", (0, 512), NULL, "children of the supervisor; 0: as many as there are cores to run on") \
  X(INT, max_runs, "0", (0, 1000000000000), NULL, \
    "a child that has ended so many runs is replaced by a new one; 0: never") \
  X(INT, max_memory, "0", (0, 1048576), NULL, \
    "megabytes of resident memory beyond which a child is replaced by a new one, without haste; 0: never") \
  X(LIST, queues, "", queue, NULL, \
    "queues to work on, each perhaps with its weight (payments:6,mail:3,default; 1 where others have one): its share of what is " \
    "taken while all have work; empty: default and all that the manifests name") \
  X(ENUM, queue_order, "shared", "shared|strict", NULL, \
    "shared: as the weights say; without weights priority 1 of all queues goes first; strict: a queue is taken from only while those " \
    "named before it in queues are empty") \
  X(INT, pool_size, "16", (1, 1000), NULL, \
    "PostgreSQL connections of a process, and so the runs in their transactions at one time") \
  X(INT, prefetch, "500", (1, 10000), NULL, "runs taken from the queue in one go, and held, beyond those at work") \
  X(BOOL, prepare, "true", none, NULL, "use prepared statements; false behind a pooler that cannot keep them") \
  X(DURATION, poll_interval, "1s", (10, 3600000), NULL, \
    "how often an idle worker asks the queue without a notification") \
  X(DURATION, lease, "30s", (1000, 86400000), NULL, "how long a run of a task that no manifest knows is held") \
  X(DURATION, stall, "5s", (100, 3600000), NULL, \
    "how long a child's loop may be busy before its supervisor tells of it, and kills it when its time-outs are over") \
  X(DURATION, load_timeout, "20s", (100, 3600000), NULL, \
    "how long one file (a handler with what it requires, a manifest, the settings) may take to load before its child is killed") \
  X(DURATION, drain_timeout, "25s", (0, 86400000), NULL, "how long runs may go on after SIGTERM") \
  X(DURATION, connect_timeout, "5s", (100, 600000), NULL, "how long a connection to PostgreSQL may take to come up") \
  X(DURATION, gate_timeout, "100ms", (1, 60000), NULL, \
    "how long an answer of Valkey may take before the gate is passed by") \
  X(DURATION, replay_cache, "1h", (0, 31536000000), NULL, "how long Valkey keeps an outcome, at most") \
  X(DURATION, identity_interval, "3s", (100, 60000), NULL, "how often the database's identity is read again") \
  X(BOOL, queue, "true", none, NULL, "take runs from the queue; false: serve only the HTTP door") \
  X(BOOL, schedules, "true", none, NULL, "enqueue what the tasks' schedules say; false: leave it to other workers") \
  X(DURATION, keep_runs, "30d", (86400000, 315360000000), NULL, \
    "how long maintenance.purge, which comes with umavez, keeps finished runs; in whole days") \
  X(DURATION, keep_audit, "400d", (7776000000, 315360000000), NULL, \
    "how long it keeps what operators have done (umavez audit); in whole days") \
  X(STRING, http_listen, "", listen, NULL, "HTTP door: address:port, [v6 address]:port, or a port on 127.0.0.1; empty: no door") \
  X(STRING, http_tls_cert, "", any, NULL, "HTTP door: file with the certificate chain (PEM); with http_tls_key") \
  X(STRING, http_tls_key, "", any, NULL, "HTTP door: file with the private key (PEM)") \
  X(INT, http_max_connections, "1024", (1, 100000), NULL, "HTTP door: connections at one time") \
  X(INT, http_max_connections_per_address, "1024", (1, 100000), NULL, "HTTP door: of them from one address") \
  X(INT, http_max_requests, "1000", (1, 100000), NULL, "HTTP door: requests at work or waiting; more are refused with 503") \
  X(INT, http_max_header_bytes, "16384", (1024, 1048576), NULL, "HTTP door: size of a request's head") \
  X(INT, http_max_body_bytes, "1048576", (1, 67108864), NULL, "HTTP door: size of a request's body") \
  X(DURATION, http_header_timeout, "10s", (100, 600000), NULL, "HTTP door: how long a request's head may take to arrive") \
  X(DURATION, http_body_timeout, "30s", (100, 600000), NULL, "HTTP door: how long a request's body may take to arrive") \
  X(DURATION, http_idle_timeout, "60s", (100, 3600000), NULL, "HTTP door: how long a connection may lie idle between requests") \
  X(ENUM, metrics, "token", "token|open|off", NULL, \
    "HTTP door: who may read /metrics: the holders of a token (metrics_token, or one of the platform with the scope metrics), all, " \
    "or nobody") \
  X(STRING, metrics_token, "", metrics_token, NULL, \
    "HTTP door: a bearer token for /metrics that needs no database to be checked; empty: none") \
  X(ENUM, ui, "off", "off|read|write", NULL, \
    "HTTP door: the dashboard at /ui: off; read: to look at; write: acts too (retry, cancel, discard, pause), for tokens with the scope " \
    "ui:write") \
  X(STRING, ui_database_url, "", database_url, NULL, \
    "HTTP door: PostgreSQL for the dashboard, by a role that is an umavez_operator; empty: database_url, whose role must be one then") \
  X(STRING, ui_origin, "", origin, NULL, \
    "HTTP door: where browsers find the dashboard, like https://jobs.example.org, when a proxy stands before it; empty: what the request's " \
    "Host says") \
  X(DURATION, ui_session, "8h", (60000, 604800000), NULL, "HTTP door: how long one stays logged in to the dashboard") \
  X(ENUM, log_level, "info", "debug|info|warn|error", NULL, "least level of what is logged") \
  X(ENUM, log_format, "logfmt", "logfmt|json", NULL, "form of the log's lines") \
  X(STRING, log_file, "", any, NULL, "file that the log is appended to, opened anew on SIGUSR1; empty: standard error")

enum conf_type { CONF_STRING, CONF_INT, CONF_DURATION, CONF_BOOL, CONF_LIST, CONF_ENUM };

struct conf_list {
  char **items;
  int n;
};

#define CONF_MEMBER_STRING(name) char *name;
#define CONF_MEMBER_INT(name) int64_t name;
#define CONF_MEMBER_DURATION(name) int64_t name##_ms;
#define CONF_MEMBER_BOOL(name) bool name;
#define CONF_MEMBER_LIST(name) struct conf_list name;
#define CONF_MEMBER_ENUM(name) int name;

enum conf_id {
#define X(type, name, def, limit, env, doc) CONF_ID_##name,
  CONF_OPTIONS(X)
#undef X
  CONF_ID_COUNT
};

struct conf {
#define X(type, name, def, limit, env, doc) CONF_MEMBER_##type(name)
  CONF_OPTIONS(X)
#undef X
  char *source_[CONF_ID_COUNT]; /* where each value came from; NULL: the default */
};

/* One row of the table, for help, docs and checks; static. */
struct conf_option {
  enum conf_id id;
  const char *name;
  enum conf_type type;
  const char *def;    /* the default, as text */
  const char *env;    /* its environment variable */
  const char *values; /* ENUM: "a|b|c"; else NULL */
  int64_t min, max;   /* INT, DURATION (ms); else 0 */
  const char *doc;
  int (*check)(const char *text, const char **expected); /* STRING; private */
  size_t offset;                                         /* private */
};

void conf_init(struct conf *c); /* every option at its default */
void conf_fini(struct conf *c);

/* Sets one option from text. `source` names the place for messages: "umavez.lua", "environment", "--pool-size". A
 * name's hyphens count as underscores. -1, nothing changed: ERR_INPUT "unknown_option" (names the nearest known one)
 * or "bad_option". */
MUST_CHECK int conf_set(struct conf *c, const char *name, const char *text, const char *source, struct err *e);

/* Takes every option's variable from the environment; an empty one counts as unset. UMAVEZ_DATABASE_URL and
 * UMAVEZ_VALKEY_URL win over the variables without prefix. Refuses an unknown UMAVEZ_… variable, except those that are
 * no settings (UMAVEZ_CONFIG, UMAVEZ_LUA_DIR, UMAVEZ_TEST_… and the like). */
MUST_CHECK int conf_load_env(struct conf *c, struct err *e);

const struct conf_option *conf_find(const char *name); /* NULL when unknown */
const struct conf_option *conf_nearest(const char *name); /* by edit distance; NULL when nothing is near */

/* Calls fn for each option in the table's order until it returns something else than 0, and returns that. */
int conf_each(int (*fn)(const struct conf_option *o, void *arg), void *arg);

const char *conf_type_name(enum conf_type t);
/* Appends the value as text that conf_set reads; secrets included. */
void conf_get(const struct conf *c, const struct conf_option *o, struct buf *out);
const char *conf_source(const struct conf *c, const struct conf_option *o); /* borrows; "default" when it was not set */

/* Appends a URL or key=value string with its password replaced by "***": the only form that may be logged. */
void conf_redact_url(const char *url, struct buf *out);

#endif
