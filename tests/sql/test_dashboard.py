"""What the dashboard asks: the pages' data are right, and as cheap with a million ended runs as with a hundred; its acts are audited."""
import hashlib
import json
import uuid

import psycopg2
import pytest

BLOCKS = 4000       # what one answer may look at, catalogs included; a million ended runs have some 13,000 blocks


def read(sql, page, **params):
    return sql.val("SELECT umavez.ui_read(%s, %s::jsonb)", page, json.dumps(params))


def act(sql, action, target, reason="because", actor="maria@ui"):
    return sql.val("SELECT umavez.ui_act(%s::jsonb, %s)", json.dumps({"action": action, "target": str(target), "reason": reason}), actor)["result"]


def finish(sql, count, *, task="t.a", status="completed", tenant=None, queue="default", ago="interval '0'", key=None, discarded=False):
    """Ended runs, in the order of their ends."""
    return [row[0] for row in sql.q(f"""
        INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, args, deliveries, attempt,
                                          idempotency_key, enqueued_at, finished_at, discarded_at)
        SELECT gen_random_uuid(), %s, %s, %s, 2, %s, false, CASE WHEN %s = 'completed' THEN '{{}}' ELSE '{{"code": "no"}}' END::jsonb,
               CASE WHEN %s = 'completed' THEN NULL ELSE '{{"n": 1}}' END::jsonb, 1, 1, %s::bytea,
               clock_timestamp() - {ago} - interval '1 second', clock_timestamp() - {ago} + g * interval '1 microsecond',
               CASE WHEN %s THEN clock_timestamp() END
          FROM generate_series(1, %s) g RETURNING run_id::text""", task, tenant, queue, status, status, status, key, discarded, count)]


def enqueue(sql, task="t.a", **named):
    return str(sql.enqueue(task, "{}", **named))


def ids(answer):
    return [row["run_id"] for row in answer["rows"]]


def walk(sql, **params):
    """All pages of a list."""
    found, cursor = [], None
    while True:
        page = read(sql, "runs", **params, **({"cursor": cursor} if cursor else {}))
        found += ids(page)
        cursor = page["next"]
        if cursor is None:
            return found


def test_ended_runs_are_listed_from_the_newest_each_once(sql):
    done = finish(sql, 700) + finish(sql, 30, task="t.b", queue="q2")
    assert read(sql, "runs")["rows"][0]["task"] == "t.b"
    assert sorted(walk(sql)) == sorted(done) and len(ids(read(sql, "runs"))) < 300
    assert set(walk(sql, task="t.b")) == set(walk(sql, queue="q2")) == set(done[700:])
    assert walk(sql, task="t.c") == []
    assert set(walk(sql, state="completed", tenant="platform")) == set(done)


def test_ended_runs_of_other_days_follow(sql):
    old = finish(sql, 5, ago="interval '40 days'")             # of no day's partition: the default one
    new = finish(sql, 3)
    assert set(ids(read(sql, "runs"))) == {*old, *new} and walk(sql)[:3] == list(reversed(new))


def test_failures_and_what_was_discarded(sql):
    sql.q("INSERT INTO tenants (id) VALUES (1), (2) ON CONFLICT DO NOTHING")
    finish(sql, 20)
    mine = [run for n in range(130) for run in finish(sql, 1, task=f"t.f{n % 3}", status="failed_permanent", tenant=1 + n % 2)]
    gone = finish(sql, 4, task="t.f1", status="failed_permanent", discarded=True)
    assert walk(sql, state="failed_permanent") == list(reversed(mine)) and set(walk(sql, state="discarded")) == set(gone)
    assert len(walk(sql, state="failed_permanent", tenant="1")) == 65
    assert len(walk(sql, state="failed_permanent", task="t.f2")) == 43
    assert read(sql, "runs", state="failed_permanent")["rows"][0]["code"] == "no"


def test_live_runs(sql):
    a = enqueue(sql)
    b = enqueue(sql, queue="slow", priority=1)
    sql.take(limit=1, queues=["slow"])
    assert ids(read(sql, "runs", state="available")) == [a] and ids(read(sql, "runs", state="running")) == [b]
    assert ids(read(sql, "runs", state="available", queue="slow")) == [] == ids(read(sql, "runs", state="running", task="t.b"))


def test_runs_of_limited_queues(sql):
    """They stand in lanes of their own, each of which is looked into."""
    sql.set_limit("queue", "narrow", 2, "why", "maria")
    runs = {enqueue(sql, queue=queue) for queue in ("narrow", "narrow", "other", "narrower")}
    assert set(ids(read(sql, "runs", state="available"))) == runs
    assert len(ids(read(sql, "runs", state="available", queue="narrow"))) == 2
    assert len(ids(read(sql, "runs", state="available", queue="narrower"))) == 1 and ids(read(sql, "runs", state="available", queue="na")) == []
    row = [q for q in read(sql, "queues")["rows"] if q["queue"] == "narrow"][0]
    assert (row["places"], row["used"], row["due"]) == (2, 0, 2)


def test_a_runs_page(sql):
    run = enqueue(sql)
    page = read(sql, "run", id=run)
    assert page["run"]["state"] == "available" and page["args"] is None and page["ledger"] is None and page["run"]["args_kept"]
    assert read(sql, "run", id=run, args="1")["args"] == {}
    assert act(sql, "cancel", run) == "cancelled"
    page = read(sql, "run", id=run)
    assert page["run"]["state"] == "failed_permanent" and page["run"]["outcome"]["code"] == "cancelled"
    assert [(h["action"], h["who"], h["reason"]) for h in page["history"]] == [("cancel", "maria@ui", "because")]
    assert act(sql, "discard", run) == "changed" and act(sql, "discard", run) == "unchanged"
    assert act(sql, "retry", run, "again") == "changed" and act(sql, "retry", run) == "unchanged"
    assert [h["action"] for h in read(sql, "run", id=run)["history"]] == ["cancel", "discard", "retry"]
    assert read(sql, "run", id=str(uuid.uuid4())) is None and act(sql, "cancel", uuid.uuid4()) == "unknown"


def test_queues_are_paused_and_audited(sql):
    enqueue(sql, queue="slow")
    assert act(sql, "pause", "slow") == "changed" and act(sql, "pause", "slow") == "unchanged"
    paused = [row for row in read(sql, "queues")["rows"] if row["queue"] == "slow"][0]
    assert (paused["paused_by"], paused["reason"], paused["due"]) == ("maria@ui", "because", 1)
    assert act(sql, "resume", "slow", "done") == "changed"
    assert [(row["action"], row["target"], row["os_user"]) for row in read(sql, "audit")["rows"]] == [
        ("resume", "slow", "maria@ui"), ("pause", "slow", "maria@ui")]
    assert read(sql, "audit", action="resume")["rows"][0]["reason"] == "done" and read(sql, "audit", target="other")["rows"] == []


def test_the_audit_in_pages(sql):
    for n in range(60):
        act(sql, "pause", f"q{n}")
    first = read(sql, "audit")
    second = read(sql, "audit", cursor=first["next"])
    assert [row["target"] for row in first["rows"] + second["rows"]] == [f"q{n}" for n in reversed(range(60))] and second["next"] is None


@pytest.mark.parametrize("action, target, reason", [
    ("pause", "", "why"), ("pause", "q", ""), ("pause", "q", "  "), ("pause", "q", "x" * 501), ("drop", "q", "why"), ("cancel", "no-uuid", "why"),
    ("forget", "q", "why"), ("retry", "'; DROP TABLE umavez.runs; --", "why")])
def test_acts_that_are_none(sql, action, target, reason):
    with pytest.raises(psycopg2.DataError):
        act(sql, action, target, reason)
    assert read(sql, "audit")["rows"] == []


@pytest.mark.parametrize("params", [{"state": "x"}, {"key": "12"}, {"key": "z" * 64}, {"tenant": "1; SELECT"}, {"cursor": "pg_class:1"},
                                    {"cursor": "finished_runs_default:1:2"}, {"state": "failed_permanent", "cursor": "finished_runs_default:7"}])
def test_lists_that_are_none(sql, params):
    with pytest.raises(psycopg2.DataError):
        read(sql, "runs", **params)


def test_a_cursor_of_a_partition_that_is_gone_ends_the_list(sql):
    finish(sql, 3)
    assert read(sql, "runs", cursor="finished_runs_20010101:7") == {"rows": [], "next": None, "back_to": None}


def part(kind, text):
    return kind + len(text.encode()).to_bytes(4, "big") + text.encode()


def key_digest(task, *parts):
    return hashlib.sha256(b"umavez.key.v1\0" + len(task).to_bytes(4, "big") + task.encode() + b"".join(part(*p) for p in parts)).digest()


@pytest.mark.parametrize("text, parts", [("E-1 'ü'", [(b"s", "E-1 'ü'")]), ("42", [(b"n", "42")]), ("42", [(b"s", "42")]), ("k", [(b"f", "k")]),
                                         ('["a", 7, true]', [(b"s", "a"), (b"n", "7"), (b"b", "true")]), ('["a', [(b"s", '["a')])])
def test_a_key_is_found_as_the_args_have_it(sql, owner, text, parts):
    sql.register_tasks(json.dumps([{"task": "t.a", "owner": "platform", "queue": "default"}, {"task": "t.b", "owner": "platform", "queue": "default"}]))
    digest = key_digest("t.b", *parts)
    sql.claim(owner, digest, digest, 60_000)
    run = finish(sql, 1, task="t.b", tenant=owner, key=psycopg2.Binary(digest))
    tenant = None if owner is None else str(owner)
    for found in (read(sql, "find", q=text), read(sql, "find", q=digest.hex()), read(sql, "find", q=f" {text} ", task="t.b")):
        assert [(k["digest"], k["tenant"], k["status"]) for k in found["keys"]] == [(digest.hex(), tenant, "processing")]
    assert read(sql, "find", q=text, task="t.a")["keys"] == [] == read(sql, "find", q="nothing")["keys"]
    assert walk(sql, key=digest.hex()) == run
    assert read(sql, "run", id=run[0])["ledger"]["status"] == "processing"
    assert read(sql, "find", q=run[0])["run"]["task"] == "t.b"


def test_overview_history_tasks(sql):
    sql.register_tasks(json.dumps([{"task": "t.a", "owner": "platform", "queue": "default"}]))
    finish(sql, 30)
    finish(sql, 3, status="failed_permanent")
    enqueue(sql)
    seen = read(sql, "overview")
    assert seen["rates"]["ended_per_s"] > 3 and seen["rates"]["failed_per_s"] > 0 and seen["rates"]["p95_ms"] >= 1000
    assert seen["dead_last_hour"] == 3 and [q["queue"] for q in seen["queues"]] == ["default"] and seen["queues"][0]["due"] == 1
    assert read(sql, "tasks")["rows"][0]["dead"] == 3
    history = read(sql, "history")
    assert sum(float(s["ended_per_s"]) * 5 for s in history["slices"]) == 33
    assert read(sql, "schedules")["rows"] == [] == read(sql, "workers")["rows"] and read(sql, "nonsense") is None


def test_who_may_log_in(sql):
    def token(scopes, tenant=None, expires=None):
        digest = hashlib.sha256(str(uuid.uuid4()).encode()).digest()
        made = sql.token_create(psycopg2.Binary(digest), "t", tenant, scopes, expires)
        return made, sql.q("SELECT id, may_write, signing FROM umavez.ui_token(NULL, %s)", psycopg2.Binary(digest))
    number, reader = token(["ui"])
    assert [(row[0], row[1]) for row in reader] == [(number, False)]
    _, writer = token(["x.y", "ui:write"])
    assert writer[0][1] is True and writer[0][2] != reader[0][2] and len(writer[0][2]) == 64
    assert token(["*"])[1] == [] == token(["metrics"])[1] == token(["ui"], 1)[1] == token(["ui"], None, "2001-01-01")[1]
    assert len(sql.q("SELECT id FROM umavez.ui_token(%s, NULL)", number)) == 1
    sql.token_revoke(number)
    assert sql.q("SELECT id FROM umavez.ui_token(%s, NULL)", number) == []


def test_a_worker_is_no_operator(connect):
    worker = connect("app_worker")
    for call in ("ui_read('overview', '{}')", "ui_act('{}', 'x')", "ui_token(1, NULL)", "list_audit(NULL, NULL, NULL, 1)"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            worker.q(f"SELECT umavez.{call}")


def test_hundreds_of_thousands_that_wait(connect, sql):
    """The list of those that wait looks at a bounded part of each queue, whatever the filter."""
    sql.q("""INSERT INTO umavez.runs (run_id, task, args, queue, priority, run_at)
             SELECT gen_random_uuid(), 't.a', '{}', 'default', 1 + g % 4, clock_timestamp() + g * interval '1 microsecond' FROM generate_series(1, 300000) g""")
    for statistics in ("never analysed", "analysed"):
        for params in ({}, {"task": "t.none"}, {"queue": "default"}, {"tenant": "7"}):
            blocks = connect().blocks("SELECT umavez.ui_read('runs', %s::jsonb)", (json.dumps({"state": "available", **params}),))
            assert blocks < 1.2 * 4 * 5000, (statistics, params, blocks)
        sql.q("ANALYZE umavez.runs")
    assert len(ids(read(sql, "runs", state="available"))) == 100 and read(sql, "runs", state="available")["more"] is True


def test_a_million_ended_runs(connect, sql):
    """Blocks are counted: each answer looks at a bounded part, whatever the filter, with statistics and without. A filter that nothing fits
    comes back with where to go on."""
    finish(sql, 1_000_000)
    failed = finish(sql, 2000, task="t.dead", status="failed_permanent")
    pages = sql.val("SELECT sum(pg_relation_size(c.oid)) / 8192 FROM pg_class c WHERE c.relname LIKE 'finished_runs_2%%' AND c.relkind = 'r'")
    assert pages > 3 * BLOCKS
    for statistics in ("never analysed", "analysed"):
        one = connect()
        for page, params in (("runs", {}), ("runs", {"task": "t.none"}), ("runs", {"state": "completed"}), ("runs", {"key": "0" * 64}),
                             ("runs", {"state": "failed_permanent"}), ("runs", {"state": "failed_permanent", "tenant": "9"}),
                             ("run", {"id": failed[7]}), ("find", {"q": failed[7]}), ("find", {"q": "0" * 64}), ("overview", {}), ("history", {}),
                             ("tasks", {}), ("queues", {}), ("audit", {})):
            blocks = one.blocks("SELECT umavez.ui_read(%s, %s::jsonb)", (page, json.dumps(params)))
            assert blocks < BLOCKS, (statistics, page, params, blocks)
        sql.q("ANALYZE umavez.finished_runs")
    nothing = read(sql, "runs", task="t.none")
    assert nothing["rows"] == [] and nothing["next"] and nothing["back_to"]
    assert len(walk(sql, state="failed_permanent")) == 2000
