"""enqueue, take, renew, give back, reap; wake-ups; the vacuum horizon.

Rows of the cases here: E03, E05, E06, E07, E08, E09.
"""
import json
import threading
import time
import uuid

import psycopg2
import pytest

from conftest import TENANT, digest

SLEEPING, NOTIFYING = "1970102646, 1", "1970102646, 2"


def uid():
    return str(uuid.uuid4())


def ids(rows):
    return [r.run_id for r in rows]


# --- enqueue

def test_enqueue_defaults(sql):
    run = sql.enqueue("t.a")
    live = sql.q("SELECT *, run_at <= clock_timestamp() AS due FROM umavez.runs")[0]
    assert (live.run_id, live.task, live.tenant_id, live.args, live.queue, live.priority, live.state, live.deliveries, live.due) == \
        (run, "t.a", None, {}, "default", 2, "available", 0, True)


def test_enqueue_finds_the_tasks_queue(sql):
    sql.register_tasks('[{"task": "t.a", "owner": "tenant", "queue": "q1"}, {"task": "t.b", "owner": "platform"}]')
    for task, queue in (("t.a", None), ("t.a", "own"), ("t.b", None)):
        sql.enqueue(task=task, queue=queue)
    sql.enqueue_many('[{"task": "t.a"}, {"task": "t.a", "queue": "own"}, {"task": "t.c"}]')
    assert [r[0] for r in sql.q("SELECT queue FROM umavez.runs ORDER BY run_at")] == ["q1", "own", "default", "q1", "own", "default"]


def test_register_tasks_writes_only_changes(sql):
    tasks = '[{"task": "t.a", "owner": "tenant", "queue": "q1"}, {"task": "t.b", "owner": "platform"}]'
    sql.register_tasks(tasks)
    before = sql.q("SELECT xmin::text, * FROM umavez.tasks ORDER BY name")
    sql.register_tasks(tasks)
    assert sql.q("SELECT xmin::text, * FROM umavez.tasks ORDER BY name") == before
    sql.register_tasks('[{"task": "t.a", "owner": "tenant", "queue": "q2"}]')
    assert [r.queue for r in sql.q("SELECT queue FROM umavez.tasks ORDER BY name")] == ["q2", "default"]


def test_E05_enqueue_is_part_of_the_callers_transaction(connect, sql):
    one = connect(autocommit=False)
    one.enqueue("t.a")
    one.enqueue_many('[{"task": "t.a"}]')
    one.rollback()
    assert sql.q("SELECT 1 FROM umavez.runs") == []


def test_E05_a_run_id_is_one_run(connect, background, sql):
    run = uid()
    one = connect(autocommit=False)
    assert [one.enqueue("t.a", '{"x": 1}', TENANT, run) for _ in range(2)] == [run, run]
    other = background(lambda: connect().enqueue("t.a", '{"x": 1.0}', TENANT, run))    # waits for the first, equal as jsonb
    assert not other.error
    one.commit()
    assert other.result() == run
    assert sql.enqueue_many(json.dumps([{"task": "t.a", "args": {"x": 1}, "tenant_id": 1, "run_id": run}] * 2)) == 0
    assert len(sql.q("SELECT 1 FROM umavez.runs")) == 1


@pytest.mark.parametrize("other", [dict(args='{"x": 2}'), dict(task="t.b"), dict(tenant_id=2), dict(tenant_id=None)])
@pytest.mark.parametrize("ended", [False, True])
def test_E05_a_run_id_with_other_content_is_an_error(sql, other, ended):
    same = {"task": "t.a", "args": '{"x": 1}', "tenant_id": 1, "run_id": uid()}
    run = sql.enqueue(**same)
    if ended:
        sql.end_run(run, "failed_permanent", "{}", None)
    before = sql.q("SELECT * FROM umavez.runs") + sql.q("SELECT * FROM umavez.finished_runs")
    changed = {**same, **other}
    for call in (lambda: sql.enqueue(**changed), lambda: sql.enqueue_many(json.dumps([{**changed, "args": json.loads(changed["args"])}]))):
        with pytest.raises(psycopg2.Error) as caught:
            call()
        assert caught.value.pgcode == "UV003"
    assert sql.q("SELECT * FROM umavez.runs") + sql.q("SELECT * FROM umavez.finished_runs") == before


@pytest.mark.parametrize("beside", [[{"task": "t.b"}] * 3, [{"task": "t.b", "run_id": uid()}]], ids=["without ids", "with ids"])
@pytest.mark.parametrize("twice", [False, True], ids=["live", "in the same call"])
def test_E05_other_content_is_found_beside_new_runs(sql, beside, twice):
    same = {"task": "t.a", "args": {"x": 1}, "tenant_id": 1, "run_id": uid()}
    if not twice:
        sql.enqueue_many(json.dumps([same]))
    before = sql.q("SELECT * FROM umavez.runs")
    with pytest.raises(psycopg2.Error) as caught:
        sql.enqueue_many(json.dumps([same] * twice + [{**same, "args": {"x": 2}}] + beside))
    assert caught.value.pgcode == "UV003" and sql.q("SELECT * FROM umavez.runs") == before
    assert sql.enqueue_many(json.dumps([same] + beside)) == len(beside) + twice


def test_E05_a_finished_run_is_not_enqueued_again(sql):
    run = uid()
    sql.enqueue("t.a", '{"x": 1}', 1, run)
    sql.end_run(run, "completed", "{}", None)
    assert sql.enqueue("t.a", '{"x": 1}', 1, run) == run
    assert sql.enqueue_many(json.dumps([{"task": "t.a", "args": {"x": 1}, "tenant_id": 1, "run_id": run}, {"task": "t.b"}])) == 1
    assert [r.task for r in sql.q("SELECT task FROM umavez.runs")] == ["t.b"]


def test_E05_enqueue_meets_the_runs_end(connect, background, sql):
    """A run_id is enqueued again while a transaction ends its run: never both live and finished."""
    run = uid()
    sql.enqueue("t.a", "{}", 1, run)
    one = connect(autocommit=False)
    one.end_run(run, "failed_permanent", "{}", None)
    again = background(lambda: connect().enqueue("t.a", "{}", 1, run))
    time.sleep(0.2)
    one.commit()
    assert again.result() == run
    assert sql.q("SELECT 1 FROM umavez.runs") == []


def test_E06_large_args_and_many_in_one_transaction(connect, sql):
    one = connect(autocommit=False)
    sleeper = connect()
    sleeper.sleep_begin()
    big = "x" * 1_000_000
    one.enqueue("t.big", json.dumps({"big": big}))
    one.q("SELECT count(umavez.enqueue('t.a', jsonb_build_object('x', g))) FROM generate_series(1, 10000) g")
    one.commit()
    taken = []
    while True:
        rows = sql.take(1000)
        if not rows:
            break
        taken += rows
    assert len({r.run_id for r in taken}) == len(taken) == 10_001
    assert max(len(r.args) for r in taken) > 1_000_000


@pytest.mark.parametrize("bad", ['[{"args": {}}]', '[1]', '[{"task": "t.a", "tenant": 1}]', '[{"task": null}]', '{"task": "t.a"}'])
def test_enqueue_many_refuses_what_it_does_not_know(sql, bad):
    with pytest.raises(psycopg2.errors.DataError):
        sql.enqueue_many(bad)


def test_enqueue_many_keeps_the_arrays_order(sql):
    assert sql.enqueue_many(json.dumps([{"task": "t.a", "args": {"n": n}} for n in range(500)])) == 500
    assert sql.val("SELECT count(DISTINCT run_at) FROM umavez.runs") == 500
    assert [json.loads(r.args)["n"] for r in sql.take(500)] == list(range(500))
    assert sql.enqueue_many("[]") == 0


def test_E09_an_unknown_tenant_is_refused_at_once(sql):
    for call in (lambda: sql.enqueue("t.a", "{}", 999999), lambda: sql.enqueue_many('[{"task": "t.a", "tenant_id": 999999}]')):
        with pytest.raises(psycopg2.errors.ForeignKeyViolation):
            call()


# --- take

def test_take_gives_what_a_worker_needs(sql):
    run = sql.enqueue(task="t.a", args='{"n": 9007199254740993}', tenant_id=1, traceparent="00-a-b-01")
    worker = uid()
    taken = sql.take(worker=worker, leases='{"t.a": 5000}')[0]
    assert (taken.run_id, taken.task, taken.tenant_id, taken.args, taken.deliveries, taken.traceparent) == \
        (run, "t.a", 1, '{"n": 9007199254740993}', 1, "00-a-b-01")
    live = sql.q("SELECT *, lease_until - clock_timestamp() AS lease FROM umavez.runs")[0]
    assert (live.state, live.worker_id, live.deliveries) == ("running", worker, 1) and 3 < live.lease.total_seconds() <= 5
    assert sql.take() == []


def test_take_order_limit_and_filters(sql):
    sql.q("SELECT umavez.enqueue('t.a', jsonb_build_object('n', p * 10 + i), priority => p) FROM generate_series(3, 1, -1) p, generate_series(1, 3) i")
    sql.enqueue(task="t.a", queue="other")
    later = sql.q("SELECT umavez.enqueue('t.a', run_at => now() + interval '1 hour')")[0][0]
    sql.enqueue(task="t.skip", priority=1)
    got = [json.loads(r.args)["n"] for r in sql.take(4, skip=["t.skip"])] + [json.loads(r.args)["n"] for r in sql.take(9, skip=["t.skip"])]
    assert got == [11, 12, 13, 21, 22, 23, 31, 32, 33]
    assert [r.task for r in sql.take()] == ["t.skip"]
    assert later not in ids(sql.take(queues=["default", "other", "none"]))
    assert sql.val("SELECT count(*) FROM umavez.runs WHERE state = 'available'") == 1


def test_several_queues_share(sql):
    for queue in ("a", "b"):
        sql.q("SELECT umavez.enqueue('t.a', queue => %s) FROM generate_series(1, 200)", queue)
    taken = [sql.take(1, ["a", "b"])[0].run_id for _ in range(100)]
    shares = sql.q("SELECT count(*) FILTER (WHERE queue = 'a') FROM umavez.runs WHERE run_id = ANY (%s::uuid[])", taken)[0][0]
    assert 20 < shares < 80


def test_no_run_goes_to_two_takers(connect, background, sql):
    sql.enqueue_many(json.dumps([{"task": "t.a", "priority": 1 + n % 4} for n in range(3000)]))

    def taker():
        one, got = connect(), []
        while True:
            rows = one.take(7)
            if not rows:
                return got
            got += ids(rows)
    takers = [background(taker) for _ in range(4)]
    got = [run for t in takers for run in t.result()]
    assert len(got) == len(set(got)) == 3000
    assert sql.val("SELECT max(deliveries) FROM umavez.runs") == 1


MARK = """INSERT INTO umavez.marks VALUES ('take:default', array_fill(clock_timestamp(), ARRAY[4]), now(), now() + interval '1 second')
          ON CONFLICT (name) DO UPDATE SET since = excluded.since, full_at = excluded.full_at"""


def test_marks_never_hide_a_run_for_long(connect, sql):
    """What lies before a mark: an enqueue that commits late, one dated back, a low priority behind a high one."""
    late = connect(autocommit=False)
    hidden = {late.enqueue("t.a")}
    late.commit()
    hidden.add(sql.q("SELECT umavez.enqueue('t.a', run_at => now() - interval '1 day')")[0][0])
    hidden.add(sql.q("SELECT umavez.enqueue('t.a', run_at => now() - interval '1 hour', priority => 4)")[0][0])
    sql.q(MARK)
    assert sql.take() == []
    found, deadline = set(), time.monotonic() + 20
    while found != hidden and time.monotonic() < deadline:
        found |= set(ids(sql.take(1)))
        time.sleep(0.05)
    assert found == hidden


def test_take_since(sql):
    old = sql.q("SELECT umavez.enqueue('t.a', run_at => now() - interval '1 day')")[0][0]
    older = sql.q("SELECT umavez.enqueue('t.a', run_at => now() - interval '2 days')")[0][0]
    sql.q(MARK)
    assert sql.take(since="infinity") == []
    yesterday = sql.val("SELECT now() - interval '36 hours'")
    assert ids(sql.take(since=yesterday)) == [old]
    assert ids(sql.take(since="-infinity")) == [older]


def test_nothing_is_remembered_while_taking_is_quick(sql):
    for _ in range(5):
        sql.enqueue("t.a")
        sql.q("SELECT * FROM umavez.take_runs(gen_random_uuid(), '{default}', 1, '{}', 30000)")
    full_at = sql.q("SELECT full_at <= now() + interval '30 seconds' FROM umavez.marks")
    assert full_at in ([], [(True,)])                              # a busy machine may have been slow once, and marked it


def test_marks_of_priorities_are_their_own(sql):
    """A backlog of priority 4 is not stepped over because newer runs of priority 1 are taken."""
    sql.q(MARK)
    sql.q("UPDATE umavez.marks SET since = array_fill('-infinity'::timestamptz, ARRAY[4])")
    sql.q("SELECT umavez.enqueue('t.low', run_at => now() - interval '1 minute', priority => 4) FROM generate_series(1, 50)")
    for _ in range(20):
        sql.enqueue(task="t.high", priority=1)
        sql.q("UPDATE umavez.marks SET moved_at = now() - interval '1 hour', full_at = now() + interval '1 hour'")
        assert [r.task for r in sql.take(1)] == ["t.high"]
    assert sql.val("SELECT since[1] > now() - interval '10 seconds' AND since[4] = '-infinity' FROM umavez.marks")
    assert [r.task for r in sql.take(100)] == ["t.low"] * 50
    sql.q("UPDATE umavez.marks SET moved_at = now() - interval '1 hour'")
    sql.enqueue("t.a")
    assert len(sql.take(100)) == 1
    assert sql.val("SELECT min(s) > now() - interval '5 seconds' FROM umavez.marks, unnest(since) s")


def test_skipped_tasks_are_not_stepped_over(sql):
    sql.q("SELECT umavez.enqueue('t.skip', run_at => now() - interval '1 minute') FROM generate_series(1, 5)")
    sql.q(MARK)
    sql.q("UPDATE umavez.marks SET since = array_fill('-infinity'::timestamptz, ARRAY[4])")
    for _ in range(3):
        sql.enqueue("t.a")
        sql.q("UPDATE umavez.marks SET moved_at = now() - interval '1 hour', full_at = now() + interval '1 hour'")
        assert [r.task for r in sql.take(skip=["t.skip"])] == ["t.a"]
    assert len(sql.take()) == 5


@pytest.mark.parametrize("statistics", [None, "ANALYZE", "VACUUM"], ids=["never-analysed", "analysed", "vacuumed"])
def test_E08_taking_stays_fast_under_a_held_horizon(connect, sql, statistics):
    """20,000 runs come and go while a snapshot is held: a take reads a few hundred blocks then, not those of all the dead entries,
    when the table's statistics say that it is empty, too. Blocks are counted, not time. The other functions: test_plans.py."""
    holder = connect(autocommit=False)
    holder.q("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.q("SELECT count(*) FROM umavez.runs")
    sql.q("ALTER TABLE umavez.runs SET (autovacuum_enabled = off)")

    def one(n=20, since="infinity"):
        sql.q("SELECT umavez.enqueue('t.a') FROM generate_series(1, %s)", n)
        blocks = sql.blocks(f"SELECT * FROM umavez.take_runs(gen_random_uuid(), '{{default}}', {n}, '{{}}', 30000, '{since}')")
        assert sql.q("DELETE FROM umavez.runs WHERE state = 'running' RETURNING 1") == [(1,)] * n
        assert sql.q("SELECT 1 FROM umavez.runs") == []
        return blocks
    for _ in range(10):
        one(2000)
    if statistics:
        sql.q(f"{statistics} umavez.runs")
    sql.q(MARK)
    sql.q("UPDATE umavez.marks SET full_at = 'infinity'")          # as a slow take would have left it, for longer
    with_marks = [one() for _ in range(10)]
    assert one(since="-infinity") > max(with_marks) + 200          # all the dead entries, of which many lie in one block
    assert max(with_marks) < 1000, with_marks


# --- giving back

def test_renew_tells_what_is_lost(sql):
    worker, other = uid(), uid()
    runs = [sql.enqueue("t.a") for _ in range(3)]
    sql.take(2, worker=worker, lease_ms=1000)
    sql.take(1, worker=other)
    gone = uid()
    lost = {r[0] for r in sql.q("SELECT * FROM umavez.renew_runs(%s, %s::uuid[], %s::int[])", worker, runs + [gone], [60_000] * 4)}
    assert lost == {runs[2], gone}
    assert sql.val("SELECT count(*) FROM umavez.runs WHERE lease_until > clock_timestamp() + interval '50 seconds'") == 2


def test_renewing_does_not_wait_for_a_standby(connect):
    one = connect(autocommit=False)
    one.q("SELECT * FROM umavez.renew_runs(gen_random_uuid(), '{}', '{}')")
    assert one.val("SHOW synchronous_commit") == "local"
    one.rollback()
    assert one.val("SHOW synchronous_commit") == "on"


def release(sql, worker, run, delay, reason):
    sql.q("SELECT umavez.release_runs(%s, %s::uuid[], %s::bigint[], %s)", worker, [run], [delay], [reason])
    return sql.q("SELECT *, extract(epoch FROM run_at - clock_timestamp()) * 1000 AS wait FROM umavez.runs WHERE run_id = %s", run)[0]


def test_E03_busy_is_not_counted_and_backs_off(sql):
    worker, run = uid(), sql.enqueue("t.a")
    for n in range(9):
        sql.q("UPDATE umavez.runs SET run_at = now()")
        assert ids(sql.take(worker=worker)) == [run]
        live = release(sql, worker, run, 1_000_000, "busy")
        assert (live.state, live.deliveries, live.busy, live.lease_until, live.worker_id) == ("available", 0, n + 1, None, None)
        longest = 100 * 2 ** min(n, 6)
        assert 0.75 * longest - 50 <= live.wait <= longest
    sql.q("UPDATE umavez.runs SET run_at = now()")
    sql.take(worker=worker)
    assert release(sql, worker, run, 10, "busy").wait <= 10        # the key is free sooner
    sql.q("UPDATE umavez.runs SET run_at = now()")
    sql.take(worker=worker)
    assert release(sql, worker, run, None, "busy").wait <= 6400    # nobody knows when


def test_back_and_counted(sql):
    worker, run = uid(), sql.enqueue("t.a")
    sql.take(worker=worker)
    live = release(sql, worker, run, 0, "back")
    assert (live.deliveries, live.busy) == (0, 0) and live.wait <= 0
    assert ids(sql.take(worker=worker)) == [run]
    live = release(sql, worker, run, 5000, "counted")
    assert live.deliveries == 1 and 3000 < live.wait <= 5000
    with pytest.raises(psycopg2.errors.InvalidParameterValue):
        release(sql, worker, run, 0, "whatever")


def test_only_its_holder_gives_a_run_back(sql):
    worker, run = uid(), sql.enqueue("t.a")
    sql.take(worker=worker)
    assert release(sql, uid(), run, 0, "back").state == "running"
    assert release(sql, worker, run, 0, "back").state == "available"
    assert release(sql, worker, run, 0, "busy").busy == 0          # given back already: nothing


def test_reap_gives_back_what_is_over(sql):
    dead, alive = sql.enqueue("t.a"), sql.enqueue("t.a")
    worker = uid()
    assert ids(sql.take(1, worker=worker, lease_ms=0)) == [dead]
    assert ids(sql.take(1, worker=worker)) == [alive]
    assert sql.reap_runs(100) == 1
    live = sql.q("SELECT * FROM umavez.runs WHERE state = 'available'")
    assert [(r.run_id, r.deliveries, r.worker_id) for r in live] == [(dead, 1, None)]
    assert sql.take(worker=worker)[0].deliveries == 2
    assert sql.reap_runs(100) == 0
    sql.q("UPDATE umavez.runs SET lease_until = clock_timestamp()")
    assert [sql.reap_runs(1), sql.reap_runs(5)] == [1, 1]


def test_release_orphans(sql):
    worker, runs = uid(), [sql.enqueue("t.a") for _ in range(3)]
    sql.take(2, worker=worker)
    sql.take(1, worker=uid())
    assert sql.q("SELECT umavez.release_orphans(%s, %s::uuid[])", worker, [runs[0]])[0][0] == 1
    live = {r.run_id: (r.state, r.deliveries) for r in sql.q("SELECT * FROM umavez.runs")}
    assert [live[r] for r in runs] == [("running", 1), ("available", 0), ("running", 1)]


# --- wake-ups

def test_one_enqueue_wakes_a_sleeper_at_once(connect, sql):
    listener = connect()
    listener.q("LISTEN umavez_runs")

    def told():
        listener.q("SELECT 1")
        seen, listener.connection.notifies[:] = len(listener.connection.notifies), []
        return seen
    sql.enqueue("t.a")
    assert told() == 0                                             # nobody sleeps: no NOTIFY
    listener.sleep_begin()
    for call in (lambda: sql.enqueue("t.a"), lambda: sql.enqueue_many('[{"task": "t.a"}, {"task": "t.a"}]')):
        call()
        assert told() == 1
    sql.q("SELECT umavez.enqueue('t.a', run_at => now() + interval '1 hour')")
    assert told() == 0                                             # not due
    listener.sleep_end()
    sql.enqueue("t.a")
    assert told() == 0
    second = connect()
    second.sleep_begin()
    listener.sleep_begin()
    listener.sleep_end()
    sql.enqueue("t.a")
    assert told() == 1                                             # another one sleeps still
    second.connection.close()
    for _ in range(200):
        if sql.val("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0:
            break
        time.sleep(0.02)
    told()
    sql.enqueue("t.a")
    assert told() == 0                                             # died: does not sleep any more
    assert sql.val("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_E07_nobody_waits_for_a_notification(connect, background, sql):
    """A transaction that has notified stays open: others enqueue and commit beside it, without a second NOTIFY."""
    sleeper, first, second = connect(), connect(autocommit=False), connect()
    sleeper.sleep_begin()
    first.enqueue("t.a")
    second.q("SET statement_timeout = '5s'")
    for _ in range(20):
        second.enqueue("t.a")
    first.commit()
    assert sql.val("SELECT count(*) FROM umavez.runs") == 21


def test_E07_many_sessions_never_wait_for_the_notify_lock(connect, background, sql):
    """20 sessions for 3 s, beside workers that fall asleep and wake up: the database-wide lock is never waited for."""
    until, waits = time.monotonic() + 3, []
    sleeper = connect()
    sleeper.q("LISTEN umavez_runs")

    def enqueuer():
        one, n = connect(), 0
        while time.monotonic() < until:
            one.q("SELECT umavez.enqueue('t.a')")
            n += 1
        return n

    def worker():
        while time.monotonic() < until:
            sleeper.sleep_begin()
            time.sleep(0.002)
            sleeper.sleep_end()
    threads = [background(enqueuer) for _ in range(20)] + [background(worker)]
    while time.monotonic() < until:
        waits += sql.q("""SELECT wait_event FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'
                          UNION ALL SELECT mode FROM pg_locks WHERE NOT granted AND locktype = 'object' AND classid = 1262""")
        time.sleep(0.005)
    done = [t.result() for t in threads]
    assert waits == [] and sum(n for n in done if n) == sql.val("SELECT count(*) FROM umavez.runs") > 100


def test_putting_off_a_task_that_somebody_serves_does_not_end_it(sql):
    """Two services on one queue: the worker that does not know the task ended its runs, though another worker served it."""
    sql.q("SELECT umavez.register_tasks('[{\"task\": \"t.theirs\", \"owner\": \"platform\", \"queue\": \"default\"}]')")
    worker, run = uid(), sql.enqueue("t.theirs")
    for times in range(1, 13):
        sql.q("UPDATE umavez.runs SET run_at = clock_timestamp()")
        assert [r.deliveries for r in sql.take(worker=worker)] == [1]
        assert sql.put_off_run(run, '{"code": "unknown_task"}', 4) == 1000 * 2 ** min(times - 1, 5)
    assert [r.state for r in sql.q("SELECT state FROM umavez.runs")] == ["available"]


def test_putting_off_is_not_counted(sql):
    """A run whose task one worker does not know used up its attempts there: with max_attempts = 1 it died without a start."""
    worker, run = uid(), sql.enqueue("t.new")
    for times in (1, 2, 3):
        sql.q("UPDATE umavez.runs SET run_at = clock_timestamp()")
        assert [r.deliveries for r in sql.take(worker=worker)] == [1]
        assert sql.put_off_run(run, '{"code": "unknown_task"}', 4) == 1000 * 2 ** (times - 1)
        live = sql.q("SELECT *, run_at - clock_timestamp() AS wait FROM umavez.runs")[0]
        assert (live.state, live.deliveries, live.lease_until, live.worker_id) == ("available", 0, None, None)
        assert live.failure == {"code": "unknown_task", "put_off": times}
        assert times - 1 < live.wait.total_seconds() <= 2 ** (times - 1)
    assert sql.put_off_run(run, '{"code": "unknown_task"}', 4) is None
    ended = sql.q("SELECT * FROM umavez.finished_runs")[0]
    assert (ended.status, ended.outcome, ended.args) == ("failed_permanent", {"code": "unknown_task", "put_off": 4}, {})
    with pytest.raises(psycopg2.Error) as caught:
        sql.put_off_run(run, '{"code": "unknown_task"}', 4)
    assert caught.value.pgcode == "UV002"


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("args", ['[%s]' % ",".join(["1e131071"] * 150), '"%s"' % ("x" * 17_000_000)], ids=["numbers", "text"])
def test_args_that_no_batch_can_carry_are_refused(sql, args, many):
    """Ten thousand numbers of ten octets each were a text above 1 GB: every take of the queue failed from then on."""
    text = '{"a": %s}' % args
    with pytest.raises(psycopg2.errors.ProgramLimitExceeded):
        if many:
            sql.q("SELECT umavez.enqueue_many(jsonb_build_array(jsonb_build_object('task', 't.a', 'args', %s::jsonb)))", text)
        else:
            sql.enqueue("t.a", text)
    assert sql.take() == []
