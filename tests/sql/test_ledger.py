"""claim, settle, replay and their races, for tenants and the platform alike.

Rows of the cases here: B04, B07, B09, B10, B11, C06, E10, F01, H02, H05.
"""
import random
import threading
import time
import uuid

import psycopg2
import pytest

from conftest import HOUR, TENANT, digest

K, F, G = digest("k"), digest("f"), digest("g")


def row(sql, table, key="k"):
    found = sql.q(f"SELECT *, xmin::text, ctid::text, expires_at > clock_timestamp() AS alive FROM {table} WHERE idempotency_key = %s",
                  digest(key))
    return found[0] if found else None


def expire(sql, table):
    sql.q(f"UPDATE {table} SET expires_at = clock_timestamp() - interval '1 millisecond'")


def settled(sql, owner, status, outcome='{"a": 1}', retention=HOUR):
    claim = sql.claim_key(owner)
    assert claim.verdict == "claimed"
    if status == "completed":
        sql.complete(owner, claim.id, claim.attempt, outcome, retention)
    elif status != "processing":
        sql.fail(owner, claim.id, claim.attempt, status, outcome, retention)
    return claim


# --- every branch of claim

def test_a_new_key_is_claimed(sql, owner, table):
    claim = sql.claim_key(owner, lease_ms=5000)
    assert (claim.verdict, claim.attempt, claim.status, claim.outcome, claim.remaining_ms) == ("claimed", 1, "processing", "{}", 5000)
    stored = row(sql, table)
    assert (stored.id, stored.status, stored.attempt, stored.outcome) == (claim.id, "processing", 1, {})
    assert 0 < (stored.expires_at - stored.created_at).total_seconds() <= 5.1


@pytest.mark.parametrize("status", ["completed", "failed_permanent"])
def test_B11_settled_is_replayed_and_untouched(sql, owner, table, status):
    first = settled(sql, owner, status)
    before = row(sql, table)
    for _ in range(3):
        claim = sql.claim_key(owner)
        assert (claim.verdict, claim.id, claim.attempt, claim.status, claim.outcome) == ("replay", first.id, 1, status, '{"a": 1}')
        assert HOUR - 60_000 < claim.remaining_ms <= HOUR
    assert row(sql, table) == before


@pytest.mark.parametrize("status", ["completed", "failed_permanent", "failed_retryable", "processing"])
def test_C06_another_fingerprint_is_a_conflict_and_changes_nothing(sql, owner, table, status):
    settled(sql, owner, status)
    before = row(sql, table)
    claim = sql.claim_key(owner, fingerprint="g")
    assert (claim.verdict, claim.status, claim.outcome) == ("conflict", status, None)
    assert row(sql, table) == before


def test_an_abandoned_lease_of_another_fingerprint_is_a_conflict_too(sql, owner, table):
    settled(sql, owner, "processing")
    expire(sql, table)
    assert sql.claim_key(owner, fingerprint="g").verdict == "conflict"


def test_B04_failed_retryable_is_taken_over_with_the_next_attempt(sql, owner, table):
    first = settled(sql, owner, "failed_retryable")
    claim = sql.claim_key(owner)
    assert (claim.verdict, claim.id, claim.attempt, claim.status, claim.outcome) == ("claimed", first.id, 2, "processing", "{}")
    assert row(sql, table).outcome == {}
    sql.complete(owner, claim.id, 2, "{}", HOUR)
    assert (row(sql, table).attempt, row(sql, table).status) == (2, "completed")


def test_B09_a_committed_lease_is_obeyed_then_taken_over_and_fenced(sql, owner, table):
    first = settled(sql, owner, "processing")
    busy = sql.claim_key(owner)
    assert busy.verdict == "busy" and 0 < busy.remaining_ms <= 30_000
    expire(sql, table)
    claim = sql.claim_key(owner)
    assert (claim.verdict, claim.id, claim.attempt) == ("claimed", first.id, 2)
    before = row(sql, table)
    for stale in [lambda: sql.complete(owner, first.id, 1, "{}", HOUR), lambda: sql.renew(owner, first.id, 1, HOUR),
                  lambda: sql.fail(owner, first.id, 1, "failed_retryable", "{}", HOUR), lambda: sql.release(owner, first.id, 1)]:
        with pytest.raises(psycopg2.Error) as caught:
            stale()
        assert caught.value.pgcode == "UV001"
    assert row(sql, table) == before


@pytest.mark.parametrize("status", ["completed", "failed_permanent", "failed_retryable"])
@pytest.mark.parametrize("fingerprint", ["f", "g"])
def test_H02_past_its_retention_a_row_counts_as_absent(sql, owner, table, status, fingerprint):
    first = settled(sql, owner, status)
    expire(sql, table)
    claim = sql.claim_key(owner, fingerprint=fingerprint)
    assert (claim.verdict, claim.attempt, claim.outcome) == ("claimed", 1, "{}") and claim.id > first.id
    sql.complete(owner, claim.id, 1, '{"new": true}', HOUR)
    stored = row(sql, table)
    assert (bytes(stored.request_fingerprint), stored.outcome) == (digest(fingerprint), {"new": True})


def test_owners_do_not_share_keys(sql):
    verdicts = [sql.claim_key(owner).verdict for owner in (1, 2, None)]
    assert verdicts == ["claimed"] * 3
    assert sql.val("SELECT count(*) FROM umavez.idempotency_keys") == 2


# --- transactions

def test_a_live_transaction_makes_it_busy_without_waiting(connect, owner):
    holder, other = connect(autocommit=False), connect()
    assert holder.claim_key(owner).verdict == "claimed"
    other.q("SET statement_timeout = 1000")
    for fingerprint in ("f", "g"):
        claim = other.claim_key(owner, fingerprint=fingerprint)
        assert (claim.verdict, claim.remaining_ms) == ("busy", None)
    holder.rollback()
    assert other.claim_key(owner).verdict == "claimed"


def test_duplicates_of_a_settled_key_do_not_stand_in_each_others_way(connect, sql, owner):
    settled(sql, owner, "completed")
    one, other = connect(autocommit=False), connect()
    assert one.claim_key(owner).verdict == "replay"                # holds the key's lock until it ends
    assert (other.claim_key(owner).verdict, other.claim_key(owner).outcome) == ("replay", '{"a": 1}')
    conflict = other.claim_key(owner, fingerprint="g")
    assert (conflict.verdict, conflict.outcome) == ("conflict", None)


def test_a_dead_holder_is_taken_over_at_once(db, connect, owner):
    settled(connect(), owner, "failed_retryable")
    holder, other = connect(autocommit=False), connect()
    assert holder.claim_key(owner).attempt == 2
    db.q("SELECT pg_terminate_backend(%s, 10000)", holder.connection.get_backend_pid())
    claim = other.claim_key(owner)
    assert (claim.verdict, claim.attempt) == ("claimed", 2)


def test_twice_in_one_transaction_is_busy(connect, owner):
    one = connect(autocommit=False)
    assert [one.claim_key(owner).verdict, one.claim_key(owner).verdict] == ["claimed", "busy"]


def test_a_foreign_row_lock_is_55P03_soon_and_the_setting_is_restored(connect, sql, owner, table):
    settled(sql, owner, "failed_retryable")
    foreign, other = connect(autocommit=False), connect(autocommit=False)
    foreign.q(f"SELECT 1 FROM {table} FOR UPDATE")
    other.q("SET LOCAL lock_timeout = '7s'")
    begun = time.monotonic()
    with pytest.raises(psycopg2.errors.LockNotAvailable):
        other.claim_key(owner)
    assert time.monotonic() - begun < 3
    other.rollback()
    other.q("SET LOCAL lock_timeout = '7s'")
    other.claim_key(owner, "another key")
    assert other.val("SHOW lock_timeout") == "7s"


def test_a_foreign_insert_is_55P03_soon(connect, owner, table):
    foreign, other = connect(autocommit=False), connect()
    column, value = ("tenant_id,", "1,") if owner else ("", "")
    foreign.q(f"INSERT INTO {table} ({column} idempotency_key, request_fingerprint, expires_at) VALUES ({value} %s, %s, now())", K, F)
    with pytest.raises(psycopg2.errors.LockNotAvailable):
        other.claim_key(owner)
    foreign.rollback()
    assert other.claim_key(owner).verdict == "claimed"


def test_a_stale_verdict_ends_the_transaction(connect, sql, owner, table):
    """COMMIT after UV001 gives ROLLBACK: the effect is undone."""
    stale = settled(sql, owner, "processing")
    expire(sql, table)
    assert sql.claim_key(owner).attempt == 2
    one = connect(autocommit=False)
    one.q("INSERT INTO public.effects (run_id, task, key) VALUES (gen_random_uuid(), 't', 'stale')")
    with pytest.raises(psycopg2.Error) as caught:
        one.complete(owner, stale.id, 1, "{}", HOUR)
    assert caught.value.pgcode == "UV001"
    with one.connection.cursor() as cursor:
        with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
            cursor.execute("SELECT 1")
        cursor.execute("COMMIT")
        assert cursor.statusmessage == "ROLLBACK"
    assert sql.val("SELECT count(*) FROM public.effects WHERE key = 'stale'") == 0


@pytest.mark.parametrize("wrong", [dict(attempt=2), dict(id=10**9), dict(owner=True)])
def test_settling_is_fenced_by_row_attempt_and_owner(sql, owner, table, wrong):
    claim = settled(sql, owner, "processing")
    who = (2 if owner is None else None) if "owner" in wrong else owner
    for call in (lambda i, a: sql.complete(who, i, a, "{}", HOUR), lambda i, a: sql.fail(who, i, a, "failed_permanent", "{}", HOUR),
                 lambda i, a: sql.renew(who, i, a, HOUR), lambda i, a: sql.release(who, i, a)):
        with pytest.raises(psycopg2.Error) as caught:
            call(wrong.get("id", claim.id), wrong.get("attempt", 1))
        assert caught.value.pgcode == "UV001"
    assert row(sql, table).status == "processing"


@pytest.mark.parametrize("status", ["completed", "failed_permanent", "failed_retryable"])
def test_G6_a_settled_row_is_never_settled_again(sql, owner, table, status):
    claim = settled(sql, owner, status)
    before = row(sql, table)
    for settle in (lambda: sql.complete(owner, claim.id, 1, '{"b": 2}', HOUR),
                   lambda: sql.fail(owner, claim.id, 1, "failed_permanent", '{"b": 2}', HOUR)):
        with pytest.raises(psycopg2.Error) as caught:
            settle()
        assert caught.value.pgcode == "UV001"
    assert row(sql, table) == before


def test_fail_knows_two_words(sql, owner):
    claim = sql.claim_key(owner)
    for status in ("completed", "processing", "", None):
        with pytest.raises(psycopg2.errors.InvalidParameterValue):
            sql.fail(owner, claim.id, 1, status, "{}", HOUR)


def test_renew_and_release(sql, owner, table):
    claim = sql.claim_key(owner, lease_ms=1000)
    sql.renew(owner, claim.id, 1, HOUR)
    assert sql.claim_key(owner).remaining_ms > 1000
    sql.release(owner, claim.id, 1)
    assert row(sql, table) is None
    settled(sql, owner, "failed_retryable")
    second = sql.claim_key(owner)
    sql.release(owner, second.id, 2)
    assert (row(sql, table).status, row(sql, table).attempt) == ("failed_retryable", 1)
    assert sql.claim_key(owner).attempt == 2


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_B07_isolation_of_the_database(connect, owner, table, isolation):
    """Eight sessions, one key: one claims and completes, the others replay, with 40001 tried again; no other answer."""
    counts, lock = {}, threading.Lock()

    def session():
        one = connect(autocommit=False)
        one.q(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}")
        one.commit()
        while True:
            try:
                claim = one.claim_key(owner)
                if claim.verdict == "claimed":
                    one.complete(owner, claim.id, claim.attempt, '{"n": 1}', HOUR)
                one.commit()
            except psycopg2.errors.SerializationFailure:
                one.rollback()
                continue
            with lock:
                counts[claim.verdict] = counts.get(claim.verdict, 0) + 1
            if claim.verdict != "busy":
                return
    threads = [threading.Thread(target=session) for _ in range(8)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert (counts["claimed"], counts["replay"]) == (1, 7) and "conflict" not in counts
    assert (row(connect(), table).attempt, row(connect(), table).status) == (1, "completed")


def test_two_claimers_of_one_takeover(connect, background, sql, owner, table):
    """Each round one of two takes over the failure, and attempts rise by one."""
    settled(sql, owner, "failed_retryable")
    barrier = threading.Barrier(2)

    def claimer():
        one, won = connect(autocommit=False), 0
        for _ in range(100):
            barrier.wait(30)
            claim = one.claim_key(owner)
            if claim.verdict == "claimed":
                won += 1
                one.fail(owner, claim.id, claim.attempt, "failed_retryable", "{}", HOUR)
            one.commit()
        return won
    a, b = background(claimer), background(claimer)
    won = a.result() + b.result()
    assert won >= 100 and row(sql, table).attempt == 1 + won


def test_H05_the_purge_deletes_between_conflict_and_read(connect, background, sql, owner, table):
    """1,000 races of a claim with the purge of its expired row: claimed each time, or busy while the purge commits; never an error."""
    stop = threading.Event()

    def purger():
        one = connect()
        while not stop.is_set():
            one.q("SELECT umavez.purge_keys(10)")
    purge, claimer = background(purger), connect()
    try:
        for i in range(1000):
            sql.q(f"""INSERT INTO {table} ({'tenant_id,' if owner else ''} idempotency_key, request_fingerprint, status, expires_at)
                      VALUES ({'1,' if owner else ''} %s, %s, 'completed', clock_timestamp() - interval '1 second')""",
                  digest(f"k{i}"), G)
            claim = None
            while not claim:
                try:
                    claim = claimer.claim_key(owner, f"k{i}")
                except psycopg2.errors.LockNotAvailable:           # busy
                    pass
            assert (claim.verdict, claim.attempt) == ("claimed", 1)
            claimer.complete(owner, claim.id, 1, "{}", HOUR)
            assert claimer.claim_key(owner, f"k{i}").verdict == "replay"
    finally:
        stop.set()
        purge.result()
    assert sql.val(f"SELECT count(*) FROM {table}") == 1000


# --- with runs

def running(sql, owner, key="k", args='{"x": 1}'):
    """A run taken by a worker and its claim, uncommitted if the connection says so."""
    run = sql.enqueue(task="t.a", args=args, tenant_id=owner)
    worker = str(uuid.uuid4())
    assert [r.run_id for r in sql.take(worker=worker)] == [run]
    return run, worker


def test_begin_run_sets_what_the_handler_needs(connect, owner):
    one = connect(autocommit=False)
    one.q("SET lock_timeout = '9s'")
    one.commit()
    claim = one.begin_run(owner, K, F, 30_000, 20_000)
    assert claim.verdict == "claimed"
    assert one.val("SELECT current_setting('umavez.tenant_id')") == ("" if owner is None else "1")
    assert (one.val("SHOW idle_in_transaction_session_timeout"), one.val("SHOW lock_timeout")) == ("20s", "9s")
    one.commit()
    assert one.val("SELECT nullif(current_setting('umavez.tenant_id', true), '')") is None
    assert one.val("SHOW idle_in_transaction_session_timeout") == "0"


def test_complete_run_settles_and_ends(sql, owner, table):
    run, worker = running(sql, owner)
    claim = sql.claim_key(owner)
    done = sql.complete_run(run, owner, K, claim.id, 1, '{"b":1,"a":[]}', HOUR, True)
    assert (done.outcome, done.remaining_ms) == ('{"a": [], "b": 1}', HOUR)
    ended = sql.q("SELECT * FROM umavez.finished_runs")[0]
    assert (ended.run_id, ended.status, ended.replay, ended.outcome, ended.args, ended.attempt, ended.deliveries, ended.worker_id) == \
        (run, "completed", False, {"a": [], "b": 1}, None, 1, 1, worker)
    assert (bytes(ended.idempotency_key), ended.tenant_id) == (K, owner)
    assert sql.q("SELECT 1 FROM umavez.runs") == []
    assert row(sql, table).outcome == {"a": [], "b": 1}


def test_complete_run_without_history_or_outcome(sql, owner):
    run, _ = running(sql, owner)
    claim = sql.claim_key(owner)
    assert sql.complete_run(run, owner, K, claim.id, 1, None, HOUR, False).outcome == "{}"
    assert sql.q("SELECT 1 FROM umavez.finished_runs UNION ALL SELECT 1 FROM umavez.runs") == []


def test_complete_run_of_a_run_that_is_gone_and_stale(sql, owner, table):
    claim = sql.claim_key(owner)
    with pytest.raises(psycopg2.Error) as caught:
        sql.complete_run(str(uuid.uuid4()), owner, K, claim.id, 1, "{}", HOUR, True)
    assert caught.value.pgcode == "UV002"
    run, _ = running(sql, owner)
    with pytest.raises(psycopg2.Error) as caught:
        sql.complete_run(run, owner, K, claim.id, 2, "{}", HOUR, True)
    assert caught.value.pgcode == "UV001"
    assert row(sql, table).status == "processing"
    assert sql.val("SELECT count(*) FROM umavez.runs") == 1


def test_fail_run_for_good(sql, owner, table):
    run, _ = running(sql, owner)
    claim = sql.claim_key(owner)
    sql.fail_run(run, owner, K, claim.id, 1, True, '{"code": "limit"}', '{"traceback": "t"}', HOUR, None, False)
    ended = sql.q("SELECT * FROM umavez.finished_runs")[0]
    assert (ended.status, ended.outcome, ended.failure, ended.args) == \
        ("failed_permanent", {"code": "limit"}, {"traceback": "t"}, {"x": 1})     # kept, history or not
    assert (row(sql, table).status, row(sql, table).outcome) == ("failed_permanent", {"code": "limit"})


def test_fail_run_to_try_again(sql, owner, table):
    run, _ = running(sql, owner)
    claim = sql.claim_key(owner)
    sql.fail_run(run, owner, K, claim.id, 1, False, '{"code": "error"}', '{"t": 1}', HOUR, 60_000, True)
    live = sql.q("SELECT *, run_at - clock_timestamp() AS wait FROM umavez.runs")[0]
    assert (live.state, live.failure, live.lease_until, live.worker_id, live.deliveries) == ("available", {"t": 1}, None, None, 1)
    assert 50 < live.wait.total_seconds() <= 60
    assert row(sql, table).status == "failed_retryable"


def test_end_run_and_reschedule_run_leave_the_ledger_alone(sql, owner, table):
    run, _ = running(sql, owner)
    sql.reschedule_run(run, 0, '{"why": 1}')
    assert [r.run_id for r in sql.take()] == [run]
    sql.end_run(run, "failed_permanent", '{"code": "key_missing"}', None)
    ended = sql.q("SELECT * FROM umavez.finished_runs")[0]
    assert (ended.outcome, ended.args, ended.attempt, ended.idempotency_key) == ({"code": "key_missing"}, {"x": 1}, None, None)
    assert row(sql, table) is None
    for call in (lambda: sql.end_run(run, "failed_permanent", "{}", None), lambda: sql.reschedule_run(run, 0)):
        with pytest.raises(psycopg2.Error) as caught:
            call()
        assert caught.value.pgcode == "UV002"


@pytest.mark.parametrize("status", ["completed", "failed_permanent"])
@pytest.mark.parametrize("history", [True, False])
def test_ack_replay_ends_the_run_with_the_ledgers_outcome(sql, owner, table, status, history):
    settled(sql, owner, status)
    before = row(sql, table)
    run, _ = running(sql, owner)
    ack = sql.ack_replay(run, owner, K, F, history)
    assert (ack.status, ack.outcome, ack.attempt) == (status, '{"a": 1}', 1) and 0 < ack.remaining_ms <= HOUR
    assert sql.q("SELECT 1 FROM umavez.runs") == []
    ended = sql.q("SELECT * FROM umavez.finished_runs")
    if history or status != "completed":
        assert (ended[0].status, ended[0].replay, ended[0].outcome) == (status, True, {"a": 1})
        assert ended[0].args == (None if status == "completed" else {"x": 1})
    else:
        assert ended == []
    assert row(sql, table) == before
    assert sql.ack_replay(run, owner, K, F, history).outcome == '{"a": 1}'     # gone already: the same word, nothing changes
    assert len(sql.q("SELECT 1 FROM umavez.finished_runs")) == len(ended)


@pytest.mark.parametrize("case", ["absent", "processing", "failed_retryable", "fingerprint", "expired", "owner"])
def test_G4_ack_replay_never_ends_a_run_on_a_wrong_word(sql, owner, table, case):
    if case != "absent":
        settled(sql, owner, case if case in ("processing", "failed_retryable") else "completed")
    if case == "expired":
        expire(sql, table)
    run, _ = running(sql, owner)
    who = (2 if owner is None else None) if case == "owner" else owner
    assert sql.ack_replay(run, who, K, G if case == "fingerprint" else F, True) is None
    assert sql.val("SELECT count(*) FROM umavez.runs") == 1
    assert sql.q("SELECT 1 FROM umavez.finished_runs") == []


def test_fail_lost_run_records_when_nobody_has_the_key(sql, owner, table):
    run, worker = running(sql, owner)
    assert sql.fail_lost_run(worker, run, owner, K, F, False, '{"code": "worker_lost"}', '{"t": 1}', HOUR, 0, True) == "recorded"
    assert (row(sql, table).status, row(sql, table).attempt) == ("failed_retryable", 1)
    assert [r.run_id for r in sql.take(worker=worker)] == [run]
    assert sql.fail_lost_run(worker, run, owner, K, F, True, '{"code": "timeout"}', None, HOUR, 0, True) == "recorded"
    assert (row(sql, table).status, row(sql, table).attempt) == ("failed_permanent", 2)
    assert sql.val("SELECT status FROM umavez.finished_runs") == "failed_permanent"


@pytest.mark.parametrize("case", ["completed", "processing", "conflict", "live", "foreign"])
def test_B10_fail_lost_run_leaves_what_others_did(connect, sql, owner, table, case):
    other = connect(autocommit=False)
    if case == "live":
        other.claim_key(owner)
    else:
        settled(sql, owner, "completed" if case == "conflict" else "failed_retryable" if case == "foreign" else case)
        if case == "foreign":
            other.q(f"SELECT 1 FROM {table} FOR UPDATE")
    before = row(sql, table)
    run, worker = running(sql, owner)
    assert sql.fail_lost_run(worker, run, owner, K, G if case == "conflict" else F, True, "{}", None, HOUR, 5000, True) == "left"
    other.rollback()
    assert row(sql, table) == before
    assert sql.val("SELECT state FROM umavez.runs") == "available"


def test_fail_lost_run_of_a_run_that_another_worker_has(sql, owner, table):
    run, worker = running(sql, owner)
    assert sql.fail_lost_run(str(uuid.uuid4()), run, owner, K, F, True, "{}", None, HOUR, 0, True) == "left"
    assert sql.fail_lost_run(worker, str(uuid.uuid4()), owner, K, F, True, "{}", None, HOUR, 0, True) == "left"
    assert (row(sql, table), sql.val("SELECT state FROM umavez.runs")) == (None, "running")


def test_F01_F02_F05_resolve_commit(connect, sql, owner, table):
    run, _ = running(sql, owner)
    one = connect(autocommit=False)
    claim = one.claim_key(owner)
    one.complete_run(run, owner, K, claim.id, 1, '{"a": 1}', HOUR, True)
    assert sql.resolve_commit(run, owner, K, claim.id, 1).verdict == "in_progress"
    one.rollback()
    assert tuple(sql.resolve_commit(run, owner, K, claim.id, 1)) == ("rolled_back", None, None, None)
    claim = one.claim_key(owner)
    one.complete_run(run, owner, K, claim.id, 1, '{"a": 1}', HOUR, True)
    one.commit()
    truth = sql.resolve_commit(run, owner, K, claim.id, 1)
    assert (truth.verdict, truth.status, truth.outcome) == ("committed", "completed", '{"a": 1}') and truth.remaining_ms > 0
    assert sql.resolve_commit(None, owner, K, claim.id, 1).verdict == "committed"
    assert sql.resolve_commit(None, owner, K, claim.id, 2).verdict == "rolled_back"


def test_resolve_commit_is_not_fooled_by_another_takeover_of_the_same_attempt(connect, sql, owner):
    settled(sql, owner, "failed_retryable")
    run, _ = running(sql, owner)
    one = connect(autocommit=False)
    claim = one.claim_key(owner)                                    # attempt 2, lost
    one.rollback()
    other = sql.claim_key(owner)
    assert (other.id, other.attempt) == (claim.id, claim.attempt)
    sql.complete(owner, other.id, 2, "{}", HOUR)                    # somebody else's attempt 2
    assert sql.resolve_commit(run, owner, K, claim.id, 2).verdict == "rolled_back"


def test_resolve_commit_tells_nothing_of_another_requests_row(connect, sql, owner, table):
    """The claim is lost, the key goes to another request, and so the run ends by a conflict, all before it is asked."""
    run, _ = running(sql, owner)
    one = connect(autocommit=False)
    claim = one.claim_key(owner)
    one.rollback()
    other = sql.claim(owner, K, G, HOUR)
    sql.complete(owner, other.id, 1, '{"other": 1}', HOUR)
    sql.end_run(run, "failed_permanent", '{"code": "key_reused"}', None, K, None)
    assert tuple(sql.resolve_commit(run, owner, K, claim.id, 1)) == ("committed", None, None, None)


def test_resolve_commit_of_a_recorded_failure_and_its_isolation(connect, sql, owner):
    run, _ = running(sql, owner)
    claim = sql.claim_key(owner)
    sql.fail_run(run, owner, K, claim.id, 1, False, '{"code": "e"}', None, HOUR, 0, True)
    truth = sql.resolve_commit(run, owner, K, claim.id, 1)
    assert (truth.verdict, truth.status) == ("committed", "failed_retryable")
    one = connect(autocommit=False)
    one.q("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(psycopg2.Error) as caught:
        one.resolve_commit(run, owner, K, claim.id, 1)
    assert caught.value.pgcode == "25000"


def test_E10_retry_run(sql, owner, table):
    run, _ = running(sql, owner)
    claim = sql.claim_key(owner)
    sql.fail_run(run, owner, K, claim.id, 1, True, '{"code": "error"}', '{"t": 1}', HOUR, None, True)
    sql.retry_run(run)
    assert row(sql, table).status == "failed_retryable"
    live = sql.q("SELECT * FROM umavez.runs")[0]
    assert (live.args, live.deliveries, live.state, live.failure) == ({"x": 1}, 0, "available", {"t": 1})
    assert sql.q("SELECT 1 FROM umavez.finished_runs") == []
    assert [r.run_id for r in sql.take()] == [run]
    claim = sql.claim_key(owner)
    assert (claim.verdict, claim.attempt) == ("claimed", 2)
    sql.complete_run(run, owner, K, claim.id, 2, "{}", HOUR, True)
    for gone in (run, str(uuid.uuid4())):
        with pytest.raises(psycopg2.Error) as caught:
            sql.retry_run(gone)
        assert caught.value.pgcode == "UV004"


@pytest.mark.parametrize("case", ["key_reused", "completed meanwhile", "no key"])
def test_retry_run_leaves_a_ledger_row_that_is_not_its_failure(sql, owner, table, case):
    settled(sql, owner, "completed" if case == "completed meanwhile" else "failed_permanent")
    before = row(sql, table)
    run, _ = running(sql, owner)
    sql.end_run(run, "failed_permanent", '{"code": "%s"}' % ("key_reused" if case == "key_reused" else "error"), None,
                None if case == "no key" else K, None)
    sql.retry_run(run)
    assert row(sql, table) == before


def test_retry_run_does_not_reopen_a_later_requests_failure(sql, owner, table):
    """The dead run's retention has passed, and the key has failed for another request since."""
    run, _ = running(sql, owner)
    claim = sql.claim_key(owner)
    sql.fail_run(run, owner, K, claim.id, 1, True, '{"code": "error"}', None, HOUR, None, True)
    expire(sql, table)
    other = sql.claim(owner, K, G, HOUR)
    sql.fail(owner, other.id, other.attempt, "failed_permanent", '{"code": "limit"}', HOUR)
    before = row(sql, table)
    sql.retry_run(run)
    assert row(sql, table) == before


@pytest.mark.parametrize("permanent", [True, False])
def test_requests_settle_without_a_run(sql, owner, table, permanent):
    request = str(uuid.uuid4())
    claim = sql.claim_key(owner)
    sql.fail_request(request, "t.a", owner, K, claim.id, 1, permanent, '{"code": "e"}', '{"t": 1}', '{"x": 1}', HOUR, 500, None)
    assert row(sql, table).status == ("failed_permanent" if permanent else "failed_retryable")
    assert [(r.run_id, r.status, r.args) for r in sql.q("SELECT * FROM umavez.finished_runs")] == \
        ([(request, "failed_permanent", {"x": 1})] if permanent else [])
    claim = sql.claim_key(owner, "other")
    done = sql.complete_request(str(uuid.uuid4()), "t.a", owner, digest("other"), claim.id, 1, '{"b":1}', HOUR, True, 500, None)
    assert (done.outcome, done.remaining_ms) == ('{"b": 1}', HOUR)
    with pytest.raises(psycopg2.Error) as caught:
        sql.complete_request(request, "t.a", owner, digest("other"), claim.id, 1, "{}", HOUR, True, 500, None)
    assert caught.value.pgcode == "UV001"


def test_settlement_is_hot(sql, connect, owner, table):
    """Also when fifty claims of one transaction are settled together, and with outcomes larger than the claim."""
    one = connect(autocommit=False)
    for batch in range(20):
        claims = [one.claim_key(owner, f"{batch} {i}") for i in range(50)]
        for claim in claims:
            one.complete(owner, claim.id, 1, '{"status": 201, "payment_id": %d}' % random.randrange(10**9), HOUR)
        one.commit()
    one.q("SELECT pg_sleep(0.6)")
    one.commit()
    one.connection.close()
    name = table.split(".")[1]
    for _ in range(100):
        seen = sql.q("SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_all_tables WHERE relname = %s", name)[0]
        if seen.all >= 1000:
            break
        time.sleep(0.1)
        sql.q("SELECT pg_stat_clear_snapshot()")
    assert seen.all == 1000 and seen.hot >= 990, seen


def test_a_failure_of_the_applications_own_named_key_reused_can_be_retried(sql, owner, table):
    """The code alone was taken for a conflict: the row stayed failed_permanent, and each retry was answered with the old failure."""
    run, _ = running(sql, owner)
    claim = sql.claim_key(owner)
    sql.fail_run(run, owner, K, claim.id, 1, True, '{"code": "key_reused"}', None, HOUR, 0, True)
    sql.retry_run(run)
    assert row(sql, table).status == "failed_retryable"


def test_a_failed_request_is_not_put_into_the_queue(sql, owner, table):
    """No worker serves the queue 'http': it would have stood there for ever."""
    request, claim = str(uuid.uuid4()), sql.claim_key(owner)
    sql.fail_request(request, "t.a", owner, K, claim.id, 1, True, '{"code": "e"}', None, '{"x": 1}', HOUR, 500, None)
    with pytest.raises(psycopg2.Error) as caught:
        sql.retry_run(request)
    assert caught.value.pgcode == "UV004"
    assert sql.val("SELECT count(*) FROM umavez.runs") == 0 and row(sql, table).status == "failed_permanent"
