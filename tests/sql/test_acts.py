"""Operator's acts: pausing, cancelling, discarding, retrying, forgetting; what is audited; who is there."""
import json
import uuid

import psycopg2
import pytest

from conftest import HOUR, digest


def dead(sql, owner=1, task="t.a", key=None, claim=None, outcome='{"code": "declined"}', queue=None):
    run = sql.enqueue(task, "{}", owner, queue=queue)
    sql.end_run(run, "failed_permanent", outcome, outcome, key, claim)
    return run


def of(runs):
    """Run ids as an array for PostgreSQL."""
    return "{" + ",".join(runs) + "}"


def acts(sql):
    return [(row.action, row.target, row.reason, row.os_user) for row in sql.q("SELECT * FROM umavez.audit ORDER BY id")]


# --- queues -----------------------------------------------------------------------------------------------------------------------------

def test_nothing_is_taken_from_a_paused_queue(sql, owner):
    here, there = sql.enqueue("t.a", "{}", owner, queue="here"), sql.enqueue("t.a", "{}", owner, queue="there")
    assert sql.pause_queue("here", "why", "me@box") is True
    assert [r.run_id for r in sql.take(queues=["here", "there"])] == [there]
    assert sql.take(queues=["here"]) == []
    assert sql.resume_queue("here", None, "you@box") is True
    assert [r.run_id for r in sql.take(queues=["here", "there"])] == [here]
    assert acts(sql) == [("pause", "here", "why", "me@box"), ("resume", "here", None, "you@box")]
    assert sql.val("SELECT detail->>'reason' FROM umavez.audit WHERE action = 'resume'") == "why"
    assert sql.val("SELECT db_user FROM umavez.audit LIMIT 1") == "postgres"


def test_pausing_and_resuming_twice_leaves_one_row(sql):
    assert [sql.pause_queue("q", None, "a"), sql.pause_queue("q", "later", "b")] == [True, False]
    assert sql.val("SELECT paused_by FROM umavez.paused_queues") == "a"
    assert [sql.resume_queue("q"), sql.resume_queue("q")] == [True, False]
    assert len(acts(sql)) == 2


def test_a_paused_queues_marks_stay(sql):
    """A mark that moved while its queue was not looked at would step over what was enqueued meanwhile."""
    for queue in ("a", "b"):
        sql.q("INSERT INTO umavez.marks VALUES (%s, array_fill('2020-01-01'::timestamptz, ARRAY[4]), '2020-01-01', now() + '1 hour')", "take:" + queue)
    sql.pause_queue("a")
    run = sql.enqueue("t.a", "{}", 1, queue="a")
    sql.take(queues=["a", "b"])
    assert sql.val("SELECT since[2] = '2020-01-01' FROM umavez.marks WHERE name = 'take:a'")
    sql.resume_queue("a")
    assert [r.run_id for r in sql.take(queues=["a", "b"])] == [run]


def test_list_queues(sql, owner):
    sql.register_tasks('[{"task": "t.idle", "owner": "tenant", "queue": "idle"}]')
    for _ in range(5):
        sql.enqueue("t.a", "{}", owner, queue="full")
    sql.q("SELECT umavez.enqueue('t.a', '{}', %s, run_at => now() + interval '1 hour', queue => 'full', priority => 1)", owner)
    sql.take(2, queues=["full"])
    sql.pause_queue("stopped", "why", "me@box")
    rows = {row.queue: row for row in sql.q("SELECT * FROM umavez.list_queues(100)")}
    assert set(rows) == {"full", "idle", "stopped"}
    assert (rows["full"].due, rows["full"].later, rows["full"].running) == (3, 1, 2) and rows["full"].oldest_s is not None
    assert (rows["idle"].due, rows["idle"].oldest_s, rows["idle"].paused_at) == (0, None, None)
    assert (rows["stopped"].paused_by, rows["stopped"].reason) == ("me@box", "why")
    assert sql.q("SELECT due FROM umavez.list_queues(2) WHERE queue = 'full'")[0].due == 2


def test_list_queues_does_not_read_more_than_its_limit(sql):
    sql.q("SELECT umavez.enqueue_many((SELECT jsonb_agg(jsonb_build_object('task', 't.a')) FROM generate_series(1, 20000)))")
    sql.q("VACUUM ANALYZE umavez.runs")
    sql.q("SELECT * FROM umavez.list_queues(1)")                # what is read once in a session
    few, many = (sql.blocks("SELECT * FROM umavez.list_queues(%s)", (n,)) for n in (10, 20000))
    assert few < 100 and few * 3 < many


# --- cancelling -------------------------------------------------------------------------------------------------------------------------

def test_cancelling_a_run_that_waits(sql, owner):
    run = sql.enqueue("t.a", '{"x": 1}', owner)
    assert sql.cancel_run(run, "wrong", "me@box") == "cancelled"
    row = sql.q("SELECT * FROM umavez.finished_runs WHERE run_id = %s", run)[0]
    assert (row.status, row.outcome["code"], row.args, row.attempt) == ("failed_permanent", "cancelled", {"x": 1}, None)
    assert row.outcome["message"] == "cancelled by me@box: wrong" == row.failure["message"]
    assert sql.take() == [] and sql.val("SELECT count(*) FROM umavez.cancellations") == 0
    assert acts(sql) == [("cancel", run, "wrong", "me@box")]
    assert sql.cancel_run(run) == "failed_permanent"
    assert sql.cancel_run(str(uuid.uuid4())) == "unknown"
    assert len(acts(sql)) == 1


def test_cancelling_a_run_that_is_held(sql, owner):
    run = sql.enqueue("t.a", "{}", owner)
    worker = str(uuid.uuid4())
    sql.take(worker=worker)
    assert [sql.cancel_run(run, "wrong", "me@box"), sql.cancel_run(run)] == ["asked", "asked"]
    assert sql.held_orders(of([run])).what == "cancel" and "me@box: wrong" in sql.held_orders(of([run])).message
    assert sql.held_orders(of([str(uuid.uuid4())])) is None
    sql.q("SELECT umavez.release_runs(%s, %s::uuid[], '{0}', '{counted}')", worker, [run])
    assert sql.take() == []                                      # it ended instead of being taken
    row = sql.q("SELECT * FROM umavez.finished_runs WHERE run_id = %s", run)[0]
    assert (row.status, row.outcome["message"]) == ("failed_permanent", "cancelled by me@box: wrong")
    assert sql.val("SELECT count(*) FROM umavez.cancellations") == 0


def test_cancelling_does_not_wait_for_a_run_that_is_just_ending(sql, connect, owner):
    run = sql.enqueue("t.a", "{}", owner)
    sql.take()
    other = connect(autocommit=False)
    other.end_run(run, "completed", "{}", None)
    sql.q("SET statement_timeout = '20s'")
    assert sql.cancel_run(run) == "asked"
    other.commit()
    sql.take()
    assert sql.val("SELECT status FROM umavez.finished_runs") == "completed"
    assert sql.val("SELECT count(*) FROM umavez.cancellations") == 0


def test_a_run_that_is_retried_is_not_cancelled_by_an_old_wish(sql):
    run = sql.enqueue("t.a", "{}", 1)
    sql.take()
    sql.cancel_run(run)
    sql.end_run(run, "failed_permanent", "{}", None)
    sql.retry_run(run)
    assert [r.run_id for r in sql.take()] == [run]


def test_held_runs_of_a_paused_queue_go_back(sql):
    mine, other = sql.enqueue("t.a", "{}", 1, queue="q"), sql.enqueue("t.a", "{}", 1, queue="r")
    sql.take(queues=["q", "r"])
    assert sql.held_orders(of([mine, other])) is None
    sql.pause_queue("q")
    assert [(r.run_id, r.what) for r in sql.q("SELECT * FROM umavez.held_orders(%s::uuid[])", [mine, other])] == [(mine, "return")]


# --- failed runs ------------------------------------------------------------------------------------------------------------------------

def test_discarding(sql, owner):
    run, live = dead(sql, owner), sql.enqueue("t.a", "{}", owner)
    assert sql.discard_runs(of([run, live, str(uuid.uuid4())]), "refunded", "me@box") == run
    assert sql.discard_runs(of([run])) is None
    assert acts(sql) == [("discard", run, "refunded", "me@box")]
    assert sql.q("SELECT * FROM umavez.failed_runs(NULL, '-infinity', NULL, 'infinity', 10)") == []
    sql.retry_run(run)                                           # by name it can still be retried
    assert sql.val("SELECT count(*) FROM umavez.runs WHERE run_id = %s", run) == 1


def test_only_failures_are_discarded(sql):
    run = sql.enqueue("t.a", "{}", 1)
    sql.end_run(run, "completed", "{}", None)
    with pytest.raises(psycopg2.errors.CheckViolation):
        sql.q("UPDATE umavez.finished_runs SET discarded_at = now()")


def test_failed_runs_in_pages(sql):
    runs = [dead(sql, task=f"t.{n % 2}") for n in range(7)]
    seen, since, after = [], "-infinity", None
    while True:
        page = sql.q("SELECT * FROM umavez.failed_runs(NULL, %s, %s, 'infinity', 3)", since, after)
        if not page:
            break
        seen += [row.run_id for row in page]
        since, after = page[-1].finished_at, page[-1].run_id
    assert seen == runs
    assert len(sql.q("SELECT * FROM umavez.failed_runs('t.1', '-infinity', NULL, 'infinity', NULL)")) == 3


def test_retrying_many(sql, owner):
    runs = [dead(sql, owner) for _ in range(3)]
    assert sql.retry_runs(of(runs + runs + [str(uuid.uuid4())]), "failed runs", "again", "me@box") == 3
    assert sql.val("SELECT count(*) FROM umavez.runs") == 3
    assert sql.retry_runs(of(runs), "failed runs") == 0
    assert acts(sql) == [("retry", "failed runs", "again", "me@box")]
    assert set(sql.val("SELECT detail->'runs' FROM umavez.audit")) == set(runs)


# --- keys -------------------------------------------------------------------------------------------------------------------------------

def test_forgetting_a_settled_key(sql, owner, table):
    claim = sql.claim_key(owner)
    sql.complete(owner, claim.id, 1, '{"secret": 1}', HOUR)
    assert sql.claim_key(owner).verdict == "replay"
    other = sql.claim_key(owner, "other")
    sql.complete(owner, other.id, 1, "{}", HOUR)
    assert sql.forget_key(owner, digest("k"), "INC-1", "me@box") == "forgotten"
    assert sql.forget_key(owner, digest("k"), "INC-1") == "absent"
    assert sql.claim_key(owner, "other").verdict == "replay"
    assert sql.claim_key(owner, "k", "another request").verdict == "claimed"
    assert acts(sql) == [("forget", digest("k").hex(), "INC-1", "me@box")]
    detail = sql.val("SELECT detail FROM umavez.audit")
    assert (detail["status"], detail["attempt"]) == ("completed", 1) and "secret" not in json.dumps(detail)


def test_what_is_not_forgotten(sql, connect, owner):
    with pytest.raises(psycopg2.errors.InvalidParameterValue):
        sql.forget_key(owner, digest("k"), "")
    other = connect(autocommit=False)
    claim = other.claim_key(owner)
    assert sql.forget_key(owner, digest("k"), "why") == "live"                     # in somebody's transaction
    other.commit()
    assert sql.forget_key(owner, digest("k"), "why") == "live"                     # under its lease
    sql.fail(owner, claim.id, 1, "failed_retryable", "{}", HOUR)
    assert sql.forget_key(owner, digest("k"), "why") == "open"
    assert acts(sql) == []


def test_forgetting_one_owners_key_leaves_the_others(sql):
    for owner in (1, 2, None):
        claim = sql.claim_key(owner)
        sql.complete(owner, claim.id, 1, "{}", HOUR)
    assert sql.forget_key(1, digest("k"), "why") == "forgotten"
    assert [sql.claim_key(owner).verdict for owner in (1, 2, None)] == ["claimed", "replay", "replay"]


# --- what has ended lately --------------------------------------------------------------------------------------------------------------

def test_recent_ends_are_the_last_ones(sql):
    assert sql.q("SELECT * FROM umavez.recent_ends(64)") == []
    sql.q("""INSERT INTO umavez.finished_runs (run_id, task, queue, priority, status, replay, outcome, deliveries, enqueued_at, finished_at)
             SELECT gen_random_uuid(), 't.' || g, 'q', 2, 'completed', false, '{}', 1, now(), clock_timestamp() FROM generate_series(1, 20000) g""")
    rows = sql.q("SELECT task FROM umavez.recent_ends(4)")
    numbers = sorted(int(row.task[2:]) for row in rows)
    assert 50 < len(rows) < 400 and numbers == list(range(numbers[0], 20001))
    assert sql.blocks("SELECT * FROM umavez.recent_ends(4)") < 1000
    assert len(sql.q("SELECT * FROM umavez.recent_ends(100000)")) == 20000


# --- workers ----------------------------------------------------------------------------------------------------------------------------

def test_workers_come_and_go(sql):
    first, second, old = (str(uuid.uuid4()) for _ in range(3))
    for worker in (first, second, old):
        sql.worker_beat(worker, "box", 7, "0.1.0", '{"queues": ["default"]}')
    sql.q("UPDATE umavez.workers SET seen_at = now() - interval '2 hours' WHERE worker_id = %s", old)
    before = sql.val("SELECT seen_at FROM umavez.workers WHERE worker_id = %s", first)
    sql.worker_beat(first, "box", 7, "0.1.0", "{}")
    assert sql.val("SELECT seen_at FROM umavez.workers WHERE worker_id = %s", first) > before
    assert sql.val("SELECT detail->'queues' FROM umavez.workers WHERE worker_id = %s", first) == ["default"]
    assert {r.worker_id for r in sql.q("SELECT worker_id FROM umavez.workers")} == {first, second}
    sql.worker_gone(first)
    sql.bury_worker(second, "{}", None)
    assert sql.q("SELECT * FROM umavez.workers") == []
