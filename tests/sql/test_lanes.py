"""Limits across all workers, tenants in turn, weights: what umavez.take_runs gives then.

The same with workers at work, and with faults: tests/e2e/test_limits.py.
"""
import collections
import json
import uuid

import psycopg2
import pytest

BIG, SMALL = 1, 2


def declare(sql, *declared):
    """("task", "t.a", 2), ("queue", "bank", 3), ("queue", "bank", None, True)"""
    sql.declare_limits(json.dumps([dict(zip(("kind", "name", "limit", "fair"), d)) for d in declared]))


def fill(sql, n, task="t.a", queue="default", tenant=None, **more):
    sql.enqueue_many(json.dumps([{"task": task, "queue": queue, "tenant_id": tenant, **more}] * n))


def taken(rows):
    return [r for r in rows if r.run_id]


def again(rows):
    return len(taken(rows)) < len(rows)


def by(rows, column):
    return dict(collections.Counter(getattr(r, column) for r in taken(rows)))


def end(sql, rows):
    for r in taken(rows):
        sql.end_run(r.run_id, "completed", "{}", None)


def take(sql, limit=100, queues=("default",), weights=None, skip=None, worker=None):
    return sql.q("SELECT t.*, r.queue, r.lane FROM umavez.take_runs(%s::uuid, %s, %s, '{}', 30000, 'infinity', %s::text[], %s::int[]) t LEFT JOIN umavez.runs r USING (run_id)",
                 worker or str(uuid.uuid4()), list(queues), limit, skip, weights)


# --- weights ----------------------------------------------------------------------------------------------------------------------------

THREE = ("payments", "mail", "default")


def test_queues_share_a_take_as_their_weights_say(sql):
    for queue in THREE:
        fill(sql, 100, queue=queue)
    rows = take(sql, 100, THREE, [6, 3, 1])
    got = by(rows, "queue")
    assert sum(got.values()) == 100 and abs(got["payments"] - 60) <= 1 and abs(got["mail"] - 30) <= 1 and abs(got["default"] - 10) <= 1
    assert {r.limited for r in rows} == {False}


def test_small_takes_share_as_well_on_average_and_none_starves(sql):
    for queue in THREE:
        fill(sql, 700, queue=queue)
    got = collections.Counter()
    for _ in range(600):
        got.update(by(take(sql, 1, THREE, [6, 3, 1]), "queue"))
    assert sum(got.values()) == 600
    # Binomial, and five standard deviations: one run in a million or so fails for nothing.
    assert abs(got["payments"] - 360) < 60 and abs(got["mail"] - 180) < 57 and abs(got["default"] - 60) < 37


def test_what_a_queue_leaves_the_others_get(sql):
    fill(sql, 2, queue="payments")
    fill(sql, 100, queue="default")
    rows = take(sql, 50, THREE, [6, 3, 1])
    assert by(rows, "queue") == {"payments": 2, "default": 48} and not again(rows)
    assert len(taken(take(sql, 100, THREE, [6, 3, 1]))) == 52
    assert take(sql, 100, THREE, [6, 3, 1]) == []


def test_priorities_stay_within_a_queue(sql):
    for priority in (4, 1, 3, 2):
        fill(sql, 5, queue="payments", priority=priority, args={"p": priority})
        fill(sql, 5, queue="mail", priority=priority, args={"p": priority})
    rows = take(sql, 20, ("payments", "mail"), [3, 1])
    for queue in ("payments", "mail"):
        seen = [json.loads(r.args)["p"] for r in rows if r.queue == queue]
        assert seen == sorted(seen) and len(seen) == {"payments": 15, "mail": 5}[queue]


def test_strict_order(sql):
    for queue, n in zip(THREE, (3, 4, 50)):
        fill(sql, n, queue=queue, priority=4)
    fill(sql, 1, queue="default", priority=1)
    assert by(take(sql, 5, THREE, [0, 0, 0]), "queue") == {"payments": 3, "mail": 2}
    rows = take(sql, 5, THREE, [0, 0, 0])
    assert [r.queue for r in rows] == ["mail", "mail", "default", "default", "default"]


def test_paused_queues_have_no_share(sql):
    for queue in THREE:
        fill(sql, 50, queue=queue)
    sql.pause_queue("payments")
    assert by(take(sql, 40, THREE, [6, 3, 1]), "queue") == {"mail": 30, "default": 10}
    sql.pause_queue("mail")
    sql.pause_queue("default")
    assert take(sql, 40, THREE, [6, 3, 1]) == []


# --- limits -----------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind,name", [("task", "t.a"), ("queue", "default")])
@pytest.mark.parametrize("declared", ["before", "after"])
def test_a_limit_is_kept_over_all_workers(sql, kind, name, declared):
    if declared == "before":
        declare(sql, (kind, name, 3))
    fill(sql, 10)
    if declared == "after":
        declare(sql, (kind, name, 3))
    first = take(sql, 2)
    second = take(sql, 5)
    assert (len(first), len(second)) == (2, 1) and all(r.limited for r in first + second)
    assert take(sql, 5) == []                                      # full, and no reason to look again: whoever ends one tells
    end(sql, first[:1])
    assert len(take(sql, 5)) == 1
    # Given back, put off, its lease over: a place is free the moment the run is not held.
    worker = str(first[1].run_id)
    sql.q("UPDATE umavez.runs SET lease_until = clock_timestamp() - interval '1 second' WHERE run_id = %s", worker)
    assert sql.reap_runs(10) == 1
    assert len(take(sql, 5)) == 1
    assert [(r.kind, r.name, r.places, r.used) for r in sql.q("SELECT * FROM umavez.list_limits()")] == [(kind, name, 3, 3)]


@pytest.mark.parametrize("kind,name", [("task", "t.a"), ("queue", "default")])
def test_what_was_at_work_before_a_limit_counts(sql, kind, name):
    fill(sql, 10)
    before = take(sql, 3)
    declare(sql, (kind, name, 4))
    assert len(taken(take(sql, 5))) == 1
    assert [(r.run_id, r.deliveries) for r in take(sql, 5)] == [(None, 2)]       # any run's end may free a place
    end(sql, before[:2])
    second = take(sql, 5)
    assert len(taken(second)) == 2
    end(sql, before[2:] + second)
    sql.q("UPDATE umavez.limits SET changed_at = now() - interval '1 minute'")
    assert len(take(sql, 5)) == 3                                  # nobody is left of those: not looked for again
    assert sql.val("SELECT count(*) FROM umavez.marks WHERE name = %s", f"counted:{kind} {name}") == 1
    declare(sql, (kind, name, None))
    assert sql.val("SELECT count(*) FROM umavez.marks WHERE name LIKE 'counted:%%'", ) == 0


def test_a_limit_needs_fresh_snapshots(connect, sql):
    fill(sql, 2)
    one = connect(autocommit=False)
    one.q("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert len(take(one, 1)) == 1
    one.rollback()
    declare(sql, ("task", "t.a", 1))
    one.q("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(psycopg2.errors.FeatureNotSupported):
        take(one, 1)


def test_what_is_not_limited_goes_on(sql):
    declare(sql, ("task", "t.a", 2))
    fill(sql, 50, "t.a")
    fill(sql, 50, "t.b")
    got = by(take(sql, 40), "task")
    assert got == {"t.a": 2, "t.b": 38}
    assert by(take(sql, 40), "task") == {"t.b": 12}


def test_a_task_is_counted_in_all_its_queues_and_both_limits_hold(sql):
    declare(sql, ("task", "t.a", 3), ("queue", "bank", 4))
    for queue in ("bank", "default"):
        fill(sql, 10, "t.a", queue)
        fill(sql, 10, "t.b", queue)
    rows = take(sql, 100, ("bank", "default"))
    assert by(rows, "task")["t.a"] == 3 and by(rows, "queue")["bank"] == 4
    assert by(rows, "task")["t.b"] >= 10
    end(sql, rows)
    for _ in range(30):
        rows = take(sql, 100, ("bank", "default"))
        assert by(rows, "task").get("t.a", 0) <= 3 and by(rows, "queue").get("bank", 0) <= 4
        end(sql, rows)
    assert sql.val("SELECT count(*) FROM umavez.runs") == 0


def test_two_takers_never_count_the_same_place(connect, sql):
    declare(sql, ("task", "t.a", 2))
    fill(sql, 10)
    fill(sql, 3, "t.b")
    one = connect(autocommit=False)
    assert by(take(one, 1), "task")                                 # its transaction is open
    rows = take(sql, 10)
    assert "t.a" not in by(rows, "task") and again(rows), rows      # others go on; the limited ones are looked at again
    one.commit()
    assert by(take(sql, 10), "task").get("t.a", 0) in (1, 2)
    assert sql.val("SELECT count(*) FROM umavez.runs WHERE task = 't.a' AND state = 'running'") == 2


def test_a_taker_that_is_rolled_back_has_taken_no_place(connect, sql):
    declare(sql, ("task", "t.a", 2))
    fill(sql, 10)
    one = connect(autocommit=False)
    assert len(take(one, 5)) == 2
    one.rollback()
    assert len(take(sql, 5)) == 2


def test_racing_takers_never_exceed_a_limit(connect, background, sql):
    """Eight sessions for the last places, hundreds of times; each holds what it took for a moment. At no commit are there more than 3."""
    declare(sql, ("task", "t.a", 3))
    fill(sql, 400)
    sql.q("CREATE TABLE public.seen (n bigint)")

    def taker():
        one, done = connect(), 0
        while one.val("SELECT count(*) FROM umavez.runs") > 0:
            rows = take(one, 2)
            one.q("INSERT INTO public.seen SELECT count(*) FROM umavez.runs WHERE task = 't.a' AND state = 'running'")
            end(one, rows)
            done += len(taken(rows))
        return done
    assert sum(t.result(120) for t in [background(taker) for _ in range(8)]) == 400
    assert sql.val("SELECT max(n) FROM public.seen") in (2, 3)
    assert sql.val("SELECT max(n) FROM public.seen") == 3, "the race did not happen"


def test_declarations(sql):
    declare(sql, ("task", "t.a", 2), ("task", "t.b", None), ("queue", "bank", None, True))
    assert [(r.kind, r.name, r.places, r.fair) for r in sql.q("SELECT * FROM umavez.limits ORDER BY 1, 2")] == \
        [("queue", "bank", None, True), ("task", "t.a", 2, False)]
    declare(sql, ("task", "t.b", None))                            # says nothing of t.a
    assert sql.val("SELECT places FROM umavez.limits WHERE name = 't.a'") == 2
    assert sql.set_limit("task", "t.a", 1, "INC-1", "ana@host") == 2
    declare(sql, ("task", "t.a", 5))
    assert sql.val("SELECT places FROM umavez.limits WHERE name = 't.a'") == 1
    assert sql.set_limit("task", "t.a", None, None, None) == 1
    assert sql.val("SELECT places FROM umavez.limits WHERE name = 't.a'") == 5
    assert [(a.action, a.target, a.reason, a.detail) for a in sql.q("SELECT * FROM umavez.audit ORDER BY id")] == \
        [("limit", "task t.a", "INC-1", {"limit": 1, "before": 2}), ("limit", "task t.a", None, {"limit": None, "before": 1})]


def test_lanes_are_served_after_their_declaration_has_gone(sql):
    declare(sql, ("task", "t.a", 1), ("queue", "bank", None, True))
    fill(sql, 5)
    fill(sql, 5, "t.b", "bank", SMALL)
    declare(sql, ("task", "t.a", None), ("queue", "bank", None, False))
    sql.q("UPDATE umavez.limits SET changed_at = now() - interval '2 days'")
    assert sql.forget_limits() == 0                                # the lanes are not empty
    rows = take(sql, 7, ("default", "bank"))
    assert len(taken(rows)) == 7 and not any(r.limited for r in rows)
    assert sql.forget_limits() == 0
    rows += take(sql, 7, ("default", "bank"))
    assert sql.forget_limits() == 0                                # held ones may come back
    end(sql, rows)
    assert sql.forget_limits() == 2 and sql.q("SELECT * FROM umavez.limits") == []


def test_cancel_retry_and_pause_beside_a_limit(sql):
    declare(sql, ("task", "t.a", 1))
    fill(sql, 3)
    held = take(sql, 5)
    assert sql.cancel_run(held[0].run_id) == "asked" and take(sql, 5) == []
    sql.q("SELECT umavez.release_runs(worker_id, ARRAY[run_id], '{0}', '{back}') FROM umavez.runs WHERE state = 'running'")
    second = take(sql, 5)                                          # ends the cancelled one first
    assert len(second) == 1 and second[0].run_id != held[0].run_id
    assert sql.val("SELECT outcome->>'code' FROM umavez.finished_runs") == "cancelled"
    assert sql.q("SELECT umavez.retry_runs(%s::uuid[], 'one')", [held[0].run_id])[0][0] == 1            # into no lane: the take that meets it puts it there
    sql.pause_queue("default")
    end(sql, second)
    assert take(sql, 5) == []
    sql.resume_queue("default")
    for _ in range(2):
        rows = take(sql, 5)
        assert len(rows) == 1
        end(sql, rows)
    assert take(sql, 5) == []


# --- tenants in turn ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("declared", ["before", "after"])
def test_a_big_tenant_does_not_starve_a_small_one(sql, declared, limited):
    """1000 runs of one tenant before ten of another: the ten are among the first 21."""
    sort = [("queue", "default", None, True)] + ([("task", "t.a", 2)] if limited else [])
    if declared == "before":
        declare(sql, *sort)
    fill(sql, 1000, tenant=BIG, priority=1)
    if declared == "after":                                        # the flood stands in no lane; what comes now does
        declare(sql, *sort)
    fill(sql, 10, tenant=SMALL)
    order = []
    while len(order) < 21:
        rows = taken(take(sql, 2))
        assert 0 < len(rows) <= 2
        order += [r.tenant_id for r in rows]
        end(sql, rows)
    assert order[:21].count(SMALL) == 10, order


def test_one_take_serves_all_tenants(sql):
    declare(sql, ("queue", "default", None, True))
    sql.q("INSERT INTO public.tenants (id) SELECT g FROM generate_series(100, 130) g ON CONFLICT DO NOTHING")
    fill(sql, 500, tenant=BIG)
    for tenant in range(100, 131):
        fill(sql, 3, tenant=tenant)
    fill(sql, 2, "t.platform")
    got = by(take(sql, 64), "tenant_id")
    assert len(got) == 33 and sum(got.values()) == 64 and all(got[t] in (1, 2, 3) for t in range(100, 131)), got


def test_more_tenants_than_a_take_asks_for_have_the_same_chance(sql):
    declare(sql, ("queue", "default", None, True))
    sql.q("INSERT INTO public.tenants (id) SELECT g FROM generate_series(100, 139) g ON CONFLICT DO NOTHING")
    for tenant in range(100, 140):
        fill(sql, 40, tenant=tenant)
    got = collections.Counter()
    for _ in range(200):
        got.update(by(take(sql, 4), "tenant_id"))
    assert len(got) == 40 and sum(got.values()) == 800 and max(got.values()) <= 40, got


def test_delayed_runs_do_not_hide_a_lane(sql):
    declare(sql, ("queue", "default", None, True))
    fill(sql, 5, tenant=BIG, run_at="2999-01-01")
    fill(sql, 5, tenant=SMALL)
    assert by(take(sql, 4), "tenant_id") == {SMALL: 4}


def test_more_lanes_than_a_take_looks_at(sql):
    """What is due in one of them is found, by chance; that not all were seen is told, as something to look at ever later."""
    declare(sql, ("queue", "default", None, True))
    sql.q("INSERT INTO public.tenants (id) SELECT g FROM generate_series(1001, 2500) g ON CONFLICT DO NOTHING")
    for priority in (1, 2, 4):
        sql.enqueue_many(json.dumps([{"task": "t.a", "tenant_id": t, "run_at": "2999-01-01", "priority": priority} for t in range(1001, 2501)]))
    assert [r.deliveries for r in take(sql, 20)] == [3]
    fill(sql, 1, tenant=1700, priority=3)
    looks = [by(take(sql, 20), "tenant_id") for _ in range(30)]
    assert [look for look in looks if look] == [{1700: 1}]


# --- what it costs ------------------------------------------------------------------------------------------------------------------------

TAKE = "SELECT * FROM umavez.take_runs(gen_random_uuid(), '{default}', 20, '{}', 30000, 'infinity')"


def crowd(sql, n, tenant=BIG):
    sql.q("""INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, lane, priority, run_at)
             SELECT gen_random_uuid(), 't.a', %s, '{}', 'default', umavez.lane_of('default', 't.a', %s), 2, now() - interval '1 hour'
               FROM generate_series(1, %s)""", tenant, tenant, n)
    sql.q("VACUUM ANALYZE umavez.runs")


@pytest.mark.parametrize("sort", [("task", "t.a", 2), ("queue", "default", 2), ("queue", "default", None, True)], ids=["task", "queue", "fair"])
def test_a_backlog_that_may_not_be_taken_is_not_read(sql, sort):
    """40,000 runs of a full limit, or of a big tenant: a take beside them reads some hundreds of blocks."""
    declare(sql, sort)
    crowd(sql, 40_000)
    take(sql, 2)
    fill(sql, 5, "t.b", tenant=SMALL)
    assert sql.blocks(TAKE) < 1000


def test_enqueueing_pays_nothing_either(sql):
    """With a queue and without: three blocks at most for the look into umavez.limits, and one lookup that was there before."""
    calls = ["SELECT umavez.enqueue('t.a') FROM generate_series(1, 50)", "SELECT umavez.enqueue('t.a', queue => 'default') FROM generate_series(1, 50)"]
    with_limits = [min(sql.blocks(call) for _ in range(5)) for call in calls]
    sql.q("DROP TABLE umavez.limits")
    sql.q("CREATE VIEW umavez.limits AS SELECT NULL::text AS kind WHERE false")
    without = [min(sql.blocks(call) for _ in range(5)) for call in calls]
    assert [a <= b + 50 * 2 + 20 for a, b in zip(with_limits, without)] == [True, True], (with_limits, without)


def test_who_declares_nothing_pays_nothing(sql):
    """The plain take beside another with as many runs: the look into umavez.limits costs two blocks at most."""
    crowd(sql, 2000)
    plain = [sql.blocks(TAKE) for _ in range(5)]
    sql.q("DROP TABLE umavez.limits")
    sql.q("CREATE VIEW umavez.limits AS SELECT NULL::text AS kind WHERE false")
    without = [sql.blocks(TAKE) for _ in range(5)]
    assert min(plain) <= min(without) + 2, (plain, without)


# --- what is shown --------------------------------------------------------------------------------------------------------------------------

def test_lanes_are_counted_with_their_queue(sql):
    declare(sql, ("task", "t.a", 2), ("queue", "bank", 5, True))
    fill(sql, 3, "t.b", "bank", BIG, run_at="2020-01-01")
    fill(sql, 4, "t.a", "bank", SMALL)
    fill(sql, 2, "t.b", "bank", SMALL, run_at="2999-01-01")
    fill(sql, 6, "t.b")
    take(sql, 1, ["bank"])
    shown = {r.queue: r for r in sql.q("SELECT * FROM umavez.list_queues(1000)")}
    assert (shown["bank"].due, shown["bank"].later, shown["bank"].running, shown["bank"].places, shown["bank"].used, shown["bank"].fair) == (6, 2, 1, 5, 1, True)
    assert shown["bank"].oldest_s > 86400 * 365 and shown["default"].oldest_s < 600
    assert (shown["default"].due, shown["default"].places, shown["default"].used, shown["default"].fair) == (6, None, None, False)
    assert [r.due for r in sql.q("SELECT * FROM umavez.queue_depths('{bank}', 4) WHERE queue = 'bank'")] == [4]


@pytest.mark.parametrize("weights", [[1], [0]], ids=["weights", "strict"])
def test_weights_stay_cheap_under_a_held_horizon(connect, sql, weights):
    """As test_E08_taking_stays_fast_under_a_held_horizon: 16,000 runs come and go while a snapshot is held."""
    holder = connect(autocommit=False)
    holder.q("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.q("SELECT count(*) FROM umavez.runs")
    sql.q("ALTER TABLE umavez.runs SET (autovacuum_enabled = off)")

    def one(n=20):
        sql.q("SELECT umavez.enqueue('t.a') FROM generate_series(1, %s)", n)
        blocks = sql.blocks(f"SELECT * FROM umavez.take_runs(gen_random_uuid(), '{{default}}', {n}, '{{}}', 30000, 'infinity', NULL, '{{{weights[0]}}}')")
        assert sql.q("DELETE FROM umavez.runs WHERE state = 'running' RETURNING 1") == [(1,)] * n
        return blocks
    for _ in range(8):
        one(2000)
    sql.q("""INSERT INTO umavez.marks VALUES ('take:default', array_fill(clock_timestamp(), ARRAY[4]), clock_timestamp(), 'infinity')
             ON CONFLICT (name) DO UPDATE SET since = excluded.since, moved_at = excluded.moved_at, full_at = excluded.full_at""")
    with_marks = [one() for _ in range(5)]
    assert max(with_marks) < 1500, with_marks
    sql.q("UPDATE umavez.marks SET full_at = '-infinity'")
    assert one() > max(with_marks) + 200


def test_slow_takes_by_weight_keep_marks_too(connect, sql):
    """A take that was slow leaves marks, for the queues it found empty and up to where it has read the others."""
    for queue in ("payments", "mail"):
        fill(sql, 4, queue=queue)
    lock = connect(autocommit=False)
    sql.q("CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END'")
    sql.q("CREATE TRIGGER slow BEFORE UPDATE ON umavez.runs FOR EACH ROW EXECUTE FUNCTION public.slow()")
    assert by(take(sql, 6, ("payments", "mail"), [0, 0]), "queue") == {"payments": 4, "mail": 2}
    marks = {r.name: r for r in sql.q("SELECT name, clock_timestamp() - since[2] AS behind, isfinite(since[4]) AS later FROM umavez.marks")}
    assert set(marks) == {"take:payments", "take:mail"}
    assert marks["take:payments"].later and not marks["take:mail"].later
    assert 2 <= marks["take:mail"].behind.total_seconds() < 60
    lock.rollback()
    assert by(take(sql, 6, ("payments", "mail"), [0, 0]), "queue") == {"mail": 2}


def test_strict_order_over_many_queues(sql):
    queues = [f"q{n}" for n in range(40)]
    fill(sql, 3, queue="q39")
    assert by(take(sql, 5, queues, [0] * 40), "queue") == {"q39": 3}
