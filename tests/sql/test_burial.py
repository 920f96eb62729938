"""bury_worker, renew_worker: what a supervisor does about a dead child and about a busy one.

Rows of the cases here: E01, E02.
"""
import json
import uuid

import pytest

from conftest import digest

LOST = json.dumps({"code": "worker_lost", "message": "it died"})


def uid():
    return str(uuid.uuid4())


def live(sql, run):
    return sql.q("SELECT *, run_at <= clock_timestamp() AS due, extract(epoch FROM run_at - clock_timestamp()) AS due_in,"
                 " extract(epoch FROM lease_until - clock_timestamp()) AS lease_left FROM umavez.runs WHERE run_id = %s::uuid", run)[0]


def bury(sql, worker, charged=(), failure=LOST):
    return tuple(sql.q("SELECT * FROM umavez.bury_worker(%s::uuid, %s::uuid[], %s::jsonb)", worker, list(charged), failure)[0])


def test_E02_only_the_culprit_is_charged(sql):
    worker, other = uid(), uid()
    runs = [sql.enqueue("t.a") for _ in range(4)]
    sql.take(worker=worker)
    foreign = sql.enqueue("t.a")
    sql.take(worker=other)
    assert bury(sql, worker, [runs[0], foreign]) == (3, 1, 0)
    culprit = live(sql, runs[0])
    assert (culprit.state, culprit.deliveries, culprit.crashes, culprit.failure, culprit.due, culprit.worker_id, culprit.lease_until) == \
        ("available", 1, 1, json.loads(LOST), True, None, None)
    for run in runs[1:]:
        row = live(sql, run)
        assert (row.state, row.deliveries, row.crashes, row.failure, row.due) == ("available", 0, 0, None, True)
    left = live(sql, foreign)                      # another worker holds it: named or not, it is left alone
    assert (left.state, left.deliveries, left.crashes) == ("running", 1, 0)
    assert bury(sql, worker, [runs[0]]) == (0, 0, 0)    # a death is charged once
    assert live(sql, runs[0]).crashes == 1


def test_E01_the_waits_after_each_crash_and_what_a_take_tells(sql):
    run = sql.enqueue("t.a")
    for crashes, (least, greatest) in enumerate([(-60, 0), (0.75, 1), (3, 4), (12, 16), (48, 64), (48, 64)], 1):
        sql.q("UPDATE umavez.runs SET run_at = clock_timestamp()")
        worker = uid()
        taken, = sql.take(worker=worker)
        assert (taken.deliveries, taken.crashes) == (crashes, crashes - 1)
        sql.q("BEGIN")                              # what is measured must not depend on how fast this machine is
        assert bury(sql, worker, [run]) == (0, 1, 0)
        row = sql.q("SELECT deliveries, crashes, extract(epoch FROM run_at - now()) AS due_in FROM umavez.runs")[0]
        sql.q("COMMIT")
        assert (row.deliveries, row.crashes) == (crashes, crashes)
        assert least <= row.due_in <= greatest + 30, row      # now() is when the transaction began
    code, message, failure = sql.last_failure(run)
    assert (code, message, json.loads(failure)) == ("worker_lost", "it died", json.loads(LOST))
    assert tuple(sql.last_failure(uid())) == (None, None, None)


def test_a_crash_that_is_not_recorded_leaves_the_failure(sql):
    worker, run = uid(), sql.enqueue("t.a")
    sql.take(worker=worker)
    sql.q("UPDATE umavez.runs SET failure = '{\"code\": \"error\"}'")
    assert bury(sql, worker) == (1, 0, 0)
    assert live(sql, run).failure == {"code": "error"}


def test_what_a_transaction_is_ending_is_left_to_the_next_call(connect, sql):
    worker, other = uid(), connect(autocommit=False)
    first, second, third = [sql.enqueue("t.a") for _ in range(3)]
    sql.take(worker=worker)
    other.end_run(first, "failed_permanent", "{}", None)
    other.q("SELECT 1 FROM umavez.runs WHERE run_id = %s::uuid FOR UPDATE", second)
    assert bury(sql, worker, [second]) == (1, 0, 2)     # nobody waits
    other.commit()
    assert bury(sql, worker, [second]) == (0, 1, 0)
    assert (live(sql, second).crashes, live(sql, third).crashes) == (1, 0)
    assert sql.q("SELECT run_id FROM umavez.runs WHERE run_id = %s::uuid", first) == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_completion_that_was_under_way_when_its_worker_was_buried_was_a_delivery(connect, sql, owner, shared):
    worker, run, late, key = uid(), sql.enqueue("t.a", "{}", owner), connect(autocommit=False), digest("k")
    sql.take(worker=worker)
    claim = late.claim_key(owner)
    assert bury(sql, worker) == (1, 0, 0)
    if shared:
        late.q("SELECT umavez.complete_runs(%s::uuid[], %s::bigint[], %s::bytea[], %s::bigint[], ARRAY['{}']::jsonb[], 60000, true)",
               [run], [owner], [key], [claim.id])
    else:
        late.complete_run(run, owner, key, claim.id, claim.attempt, "{}", 60_000, True)
    late.commit()
    assert [r.deliveries for r in sql.q("SELECT deliveries FROM umavez.finished_runs")] == [1]


def test_a_replay_that_was_under_way_when_its_worker_was_buried_was_a_delivery(sql, owner):
    worker, run = uid(), sql.enqueue("t.a", "{}", owner)
    claim = sql.claim_key(owner)
    sql.complete(owner, claim.id, claim.attempt, "{}", 60_000)
    sql.take(worker=worker)
    assert bury(sql, worker) == (1, 0, 0)
    sql.ack_replay(run, owner, digest("k"), digest("f"), True)
    assert [(r.deliveries, r.replay) for r in sql.q("SELECT * FROM umavez.finished_runs")] == [(1, True)]


def test_a_burial_wakes_a_sleeper(connect, sql):
    listener, worker = connect(), uid()
    sql.enqueue("t.a")
    sql.take(worker=worker)
    listener.q("LISTEN umavez_runs")
    listener.sleep_begin()
    bury(sql, worker)
    listener.q("SELECT 1")
    assert len(listener.connection.notifies) == 1


def test_a_retried_run_begins_without_crashes(sql):
    worker, run = uid(), sql.enqueue("t.a")
    sql.take(worker=worker)
    bury(sql, worker, [run])
    sql.end_run(run, "failed_permanent", LOST, LOST)
    sql.retry_run(run)
    assert (live(sql, run).deliveries, live(sql, run).crashes) == (0, 0)


def test_a_busy_worker_is_renewed_and_never_shortened(connect, sql):
    worker, other = uid(), connect(autocommit=False)
    brief, long, locked = [sql.enqueue(task) for task in ("t.brief", "t.long", "t.brief")]
    sql.take(worker=worker, leases='{"t.brief": 1000, "t.long": 3600000}')
    other.q("SELECT 1 FROM umavez.runs WHERE run_id = %s::uuid FOR UPDATE", locked)
    foreign = sql.enqueue("t.brief")
    sql.take(worker=uid(), lease_ms=1000)
    assert sql.renew_worker(worker, 600_000) == 2
    assert 500 < live(sql, brief).lease_left <= 600 and live(sql, long).lease_left > 3500
    assert live(sql, locked).lease_left < 2 and live(sql, foreign).lease_left < 2
    other.rollback()
    assert sql.renew_worker(uid(), 600_000) == 0


@pytest.mark.parametrize("call", ["SELECT umavez.bury_worker(gen_random_uuid(), '{}', NULL)", "SELECT umavez.renew_worker(gen_random_uuid(), 1000)",
                                  "SELECT umavez.last_failure(gen_random_uuid())"])
def test_the_workers_role_may(connect, call):
    assert len(connect("app_worker").q(call)) == 1


@pytest.mark.parametrize("call", ["SELECT umavez.bury_worker(gen_random_uuid(), '{}', NULL)", "SELECT umavez.renew_worker(gen_random_uuid(), 1000)"])
@pytest.mark.parametrize("rows", [0, 5000])
def test_the_plans_do_not_follow_the_statistics(sql, call, rows):
    """Whatever the statistics say: what the worker holds is found by the leases' index, from the reaper's mark on, and changed by its key."""
    sql.q("SELECT umavez.enqueue('t.a') FROM generate_series(1, 5000)")
    sql.take(5000)
    if not rows:
        sql.q("DELETE FROM umavez.runs")
    sql.q("VACUUM ANALYZE umavez.runs" if not rows else "ANALYZE umavez.runs")
    sql.q("LOAD 'auto_explain'")
    sql.q("SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET client_min_messages = log")
    del sql.connection.notices[:]
    sql.q(call)
    plans = "\n".join(sql.connection.notices)
    assert "runs_leased" in plans and "runs_pkey" in plans, plans
    for scan in plans.split("Scan using ")[1:]:
        name, rest = scan.split(" ", 1)
        condition = rest.split("->")[0]
        assert "Index Cond" in condition, plans
        assert ("lease_until >=" if name == "runs_leased" else "run_id = ANY" if name == "runs_pkey" else "worker_id" if name == "workers_pkey" else "name") in condition, plans
    assert "Seq Scan on runs" not in plans and "Bitmap" not in plans, plans
