#include "core/control.h"

#include <stdlib.h>

#include "base/log.h"

struct control {
	char *name;
	struct pgpool *pool;           /* of one */
	struct pgconn *conn;           /* lent to us while up */
	struct pgwait wait;
	bool waiting;
	bool closing;
	struct loop_task lost;         /* on_down is told at the safe point, after the answers of the pending statements */
	struct loop *loop;
	int64_t answer_timeout_ms;
	struct control_hooks hooks;
};

static void ask(struct control *c);

static void on_lost(void *arg)
{
	struct control *c = arg;

	if (!c->conn)
		return;
	pgpool_discard(c->pool, c->conn);
	c->conn = NULL;
	c->hooks.on_down(c->hooks.arg);
	ask(c);
}

static void on_conn_closed(void *arg, const struct err *e)
{
	struct control *c = arg;

	log_kv(LOG_DEBUG_, "control_lost", "connection", c->name, "error", e ? e->message : "", NULL);
	loop_defer(c->loop, &c->lost);
}

static void on_notify(void *arg, const char *channel, const char *payload)
{
	struct control *c = arg;

	if (c->hooks.on_notify)
		c->hooks.on_notify(c->hooks.arg, channel, payload);
}

static void on_got(void *arg, struct pgconn *conn, const struct err *e)
{
	struct control *c = arg;

	c->waiting = false;
	if (!conn)
		return;
	c->conn = conn;
	pgconn_watch(conn, on_conn_closed, on_notify, c);
	pgconn_set_answer_timeout(conn, c->answer_timeout_ms);
	c->hooks.on_up(c->hooks.arg);
}

static void ask(struct control *c)
{
	if (c->waiting || c->closing)
		return;
	c->waiting = true;
	c->wait.got = on_got;
	c->wait.arg = c;
	pgpool_acquire(c->pool, &c->wait);
}

struct control *control_new(struct loop *loop, const char *name, const struct pgpool_options *options, int64_t answer_timeout_ms,
                            const struct control_hooks *hooks)
{
	struct control *c = xcalloc(1, sizeof *c);
	struct pgpool_options own = *options;

	own.size = 1;
	c->name = xstrdup(name);
	c->loop = loop;
	c->hooks = *hooks;
	c->answer_timeout_ms = answer_timeout_ms;
	loop_task_init(&c->lost, on_lost, c);
	c->pool = pgpool_new(loop, &own);
	ask(c);
	return c;
}

void control_free(struct control *c)
{
	if (!c)
		return;
	c->closing = true;
	loop_task_cancel(&c->lost);
	if (c->waiting)
		pgpool_cancel_wait(c->pool, &c->wait);
	if (c->conn) {
		pgconn_watch(c->conn, NULL, NULL, NULL);
		pgpool_discard(c->pool, c->conn);
	}
	pgpool_free(c->pool);
	free(c->name);
	free(c);
}

bool control_up(const struct control *c)
{
	return c->conn != NULL;
}

bool control_query(struct control *c, const struct pgquery *q)
{
	if (!c->conn)
		return false;
	pgconn_query(c->conn, q);
	pgconn_sync(c->conn);
	return true;
}
