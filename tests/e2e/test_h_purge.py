"""Group H of the cases: time and the purge.

H07, H08 and H01's schedules are in test_h_schedules.py and sql/test_schedules.py.

Rows of the cases here: H01, H02, H03, H04, H05, H06.
"""
import json
import os
import subprocess
import threading
import time

import pytest

from lab import GATES, LONG, OWNERS, SLACK, WARMTH, Lab, digest
from support import procs
from support.skew import YEAR, Skew

EFFECT = "local n = start() effect() return { n = n }"


@pytest.fixture
def skew():
    directory = procs.private_dir("skew-")
    yield Skew(directory)
    procs.remove_dir(directory)


@pytest.mark.parametrize("clock,gate", [("a day ahead", "valkey"), ("an hour behind", "valkey"), ("jumping", "valkey"), ("jumping", "absent"),
                                        ("a year ahead", "valkey"), ("a year behind", "valkey"), ("leaping", "valkey")])
def test_H01_wrong_clock(lab, clock, gate, skew):
    lab.allow("effect_once", "replays_equal", "ledger_run")          # the retention of one key passes
    lab.gate(gate)
    skew.set({"a day ahead": 86400, "an hour behind": -3600, "a year ahead": YEAR, "a year behind": -YEAR}.get(clock, 300))
    assert abs(int(subprocess.run(["date", "+%s"], env={**os.environ, **skew.env}, capture_output=True, text=True).stdout) - time.time()) > 200
    ended, sign = threading.Event(), 1

    def jump():
        nonlocal sign
        while not ended.wait(0.3):
            sign = -sign
            skew.set((YEAR if clock == "leaping" else 300) * sign)
    jumper = threading.Thread(target=jump)
    if clock in ("jumping", "leaping"):
        jumper.start()
    try:
        lab.latch("a")
        workers = [lab.worker(env=skew.env), lab.worker(env=skew.env)]
        # Duplicates, effects once; a retry after about 100 ms.
        runs = lab.enqueue_many("e2.t_key", [{"e1": "once", "lua": EFFECT}] * 20)
        again = lab.enqueue("e2.p_key", {"e1": "retried", "lua": "effect() if ctx.attempt == 1 then error('x') end return {}"}, lab.platform)
        # run_at: neither early nor late.
        at = lab.value("SELECT (clock_timestamp() + interval '2 seconds')::text")
        later = lab.enqueue("e2.t_run", {"lua": "effect('later') return {}"}, run_at=at)
        # A retention that ends.
        short = lab.done(lab.enqueue("e2.t_short", {"e1": "short", "lua": EFFECT}))
        assert 3.5 < lab.value("SELECT extract(epoch FROM expires_at - %s)::float FROM umavez.idempotency_keys WHERE idempotency_key = %s",
                               short.finished_at, digest("e2.t_short", "short")) < 4.5
        assert sum(lab.done(run).replay for run in runs) == 19 and lab.effects("once") == 1
        assert (lab.done(again).status, lab.finished(again).attempt) == ("completed", 2)
        assert float(lab.value("SELECT extract(epoch FROM finished_at - enqueued_at) FROM umavez.finished_runs WHERE run_id = %s::uuid", again)) < 1.5 + SLACK
        lab.done(later)
        late = float(lab.value("SELECT extract(epoch FROM finished_at - %s::timestamptz) FROM umavez.finished_runs WHERE run_id = %s::uuid", at, later))
        assert 0 <= late <= 1 + SLACK
        # A deadline: not reached by a jump, reached by time.
        slow = lab.enqueue("e2.t_key", {"e1": "slow", "lua": "effect() for _ = 1, 50 do ctx.sql:one('SELECT pg_sleep(0.03)') end return {}"})
        over = lab.enqueue("e2.t_brief", {"e1": "over", "lua": "ctx.sql:one('SELECT pg_sleep(30)')"})
        assert (lab.done(slow).status, lab.finished(slow).attempt) == ("completed", 1)
        assert lab.done(over).outcome["code"] == "timeout"
        lab.until(lambda: lab.value("SELECT expires_at < clock_timestamp() FROM umavez.idempotency_keys WHERE idempotency_key = %s",
                                    digest("e2.t_short", "short")), 10, "the retention's end")
        assert not lab.done(lab.enqueue("e2.t_short", {"e1": "short", "lua": EFFECT})).replay
        # Leases: renewed while the run lives (2 s lease, 3 s of work), and at their end the run goes to another.
        held = lab.enqueue("e2.t_key", {"e1": "held", "lua": "start() effect() reached('a') wait('a') return {}"})
        lab.reached("a")
        claimed = lab.value("SELECT worker_id FROM umavez.runs WHERE run_id = %s::uuid", held)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert lab.value("SELECT worker_id = %s AND deliveries = 1 FROM umavez.runs WHERE run_id = %s::uuid", claimed, held)
            time.sleep(0.1)
        for worker in workers:
            worker.kill()
        killed = time.monotonic()
        lab.open("a")
        lab.worker(env=skew.env)
        assert lab.done(held, 2 + 5 + SLACK).status == "completed" and time.monotonic() - killed < 2 + 5 + SLACK
        assert lab.effects("held") == 1
    finally:
        ended.set()
        if jumper.is_alive():
            jumper.join()


@OWNERS
@WARMTH
def test_H02_expired_row_counts_as_absent(lab, owner, gate):
    lab.allow("effect_once", "effect_settled", "replays_equal", "ledger_run")    # two operations of one key, a retention apart
    lab.gate(gate)
    lab.worker()
    task, starts = owner.task("later"), 0
    for before in ("return { old = true }", "return ctx:fail { code = 'old', message = 'old' }", "error('old')"):
        for amount in (100, 101):      # the same args, and others
            key = f"{before} {amount}"
            args = {"e1": key, "amount": 100, "lua": f"start() effect() if ctx.sql:one('SELECT count(*) = 0 AS n FROM olds WHERE key = $1', args.e1).n then {before} end "
                                                     "return { attempt = ctx.attempt }"}
            lab.sql("CREATE TABLE IF NOT EXISTS olds (key text)")
            first = lab.enqueue(task, args, owner)
            if "error" in before:
                lab.failed_once(first)
                lab.sql("DELETE FROM umavez.runs")
                del lab.env.accepted[first]
            else:
                lab.done(first)
                if gate == "warm":
                    lab.settled_entry(task, owner, key)
            lab.sql("INSERT INTO olds VALUES (%s)", key)
            if gate == "cold":
                lab.flush_gate()
            old = lab.row(task, owner, key)
            lab.sql(f"UPDATE {owner.table} SET expires_at = clock_timestamp() - interval '1 second' WHERE id = %s", old.id)
            end = lab.done(lab.enqueue(task, {**args, "amount": amount}, owner))
            row, starts = lab.row(task, owner, key), starts + 2
            assert (end.status, end.replay, end.outcome) == ("completed", False, {"attempt": 1}), key
            assert (row.status, row.attempt, row.outcome, lab.starts()) == ("completed", 1, {"attempt": 1}, starts), key
            assert (bytes(row.request_fingerprint) == bytes(old.request_fingerprint)) == (amount == 100)
            assert lab.value(f"SELECT expires_at > clock_timestamp() + interval '23 hours' FROM {owner.table} WHERE id = %s", row.id)
            if gate != "absent":
                # The old copy stands until the new one, which comes after the commit, replaces it.
                lab.until(lambda: json.loads(lab.settled_entry(task, owner, key).outcome) == {"attempt": 1}, 10, "the new outcome's copy")


@OWNERS
@GATES
def test_H03_gate_never_outlives_the_retention(lab, owner, gate):
    lab.allow("effect_once", "replays_equal", "ledger_run")          # a retention passes
    lab.gate(gate)
    lab.worker(replay_cache="1h")
    task, args = owner.task("short"), {"e1": "E1", "lua": EFFECT}
    remaining = f"SELECT (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::int FROM {owner.table}"

    def bounded():
        """The entry's time never goes beyond the row's, which is read first, so that it is the larger if they are the same. A TTL counts from
        when Valkey got it: it may have been on its way a moment. (-2: it went between the two looks at it.)"""
        left = lab.value(remaining)
        entry = lab.gate_entry(task, owner, "E1")
        if entry and entry.state in "CF" and entry.pttl != -2:
            assert 0 <= entry.pttl <= max(left, 0) + 500, (entry.pttl, left)

    def until_left(ms):
        while lab.value(remaining) > ms:
            bounded()
            time.sleep(0.02)
    assert not lab.done(lab.enqueue(task, args, owner)).replay
    if gate == "valkey":
        lab.settled_entry(task, owner, "E1")
    until_left(3000)
    assert lab.done(lab.enqueue(task, args, owner)).replay
    until_left(1200)
    lab.flush_gate()
    end = lab.done(lab.enqueue(task, args, owner))
    assert end.replay and end.outcome == {"n": 1}
    if gate == "valkey":
        lab.settled_entry(task, owner, "E1")
        bounded()
    until_left(0)
    end = lab.done(lab.enqueue(task, args, owner))
    assert (end.replay, end.outcome, lab.starts()) == (False, {"n": 2}, 2)


FILL = """INSERT INTO {table} ({tenant} idempotency_key, request_fingerprint, status, outcome, expires_at)
SELECT {value} sha256((%s || g)::bytea), sha256('f'), %s, CASE WHEN %s = 'processing' THEN '{{}}'::jsonb ELSE '{{"x": 1}}'::jsonb END, clock_timestamp() + %s * interval '1 second'
FROM generate_series(1, %s) g"""


def fill(lab, owner, name, status, seconds, count):
    tenant = owner.tenant_id is not None
    lab.sql(FILL.format(table=owner.table, tenant="tenant_id," if tenant else "", value="g % 50 + 1," if tenant else "").replace("g % 50", "g %% 50"),
            name, status, status, seconds, count)


def other(lab, owner):
    return lab.tenant if owner is lab.platform else lab.platform


def purge_to_the_end(lab, run):
    """A purge removes one batch a run and enqueues the next: all of them."""
    ends = []
    while True:
        ends.append(lab.done(run, 60))
        assert ends[-1].status == "completed", ends[-1].outcome
        if ends[-1].outcome["done"]:
            return ends
        run = ends[-1].outcome["next_run_id"]


@OWNERS
def test_H04_purge_of_many_expired_rows(lab, owner):
    lab.allow("ledger_run", "processing", "settled_effect")
    expired, live = (200000, 1000) if LONG else (30000, 1000)
    third = expired // 3
    for status, count in (("completed", expired - 2 * third), ("failed_permanent", third), ("failed_retryable", third)):
        fill(lab, owner, status, status, -60, count)
    fill(lab, owner, "live", "completed", 3600, live)
    fill(lab, owner, "live p", "processing", 3600, 10)
    # How many rows one statement takes.
    lab.sql(f"""CREATE TABLE batches (n int);
        CREATE FUNCTION batch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.batches SELECT count(*) FROM gone; RETURN NULL; END $$;
        CREATE TRIGGER batch AFTER DELETE ON {owner.table} REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION batch()""")
    workers = [lab.worker(), lab.worker()]
    slow, ended = [], threading.Event()

    def watch():      # 'extend' is the disk's: who makes a file longer holds it, whether or not anybody purges
        connection = lab.env.db.connect()
        with connection.cursor() as cursor:
            while not ended.is_set():
                cursor.execute("""SELECT pid, query, wait_event FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_worker'
                                  AND wait_event_type = 'Lock' AND wait_event <> 'extend' AND clock_timestamp() - state_change > interval '100 ms'""")
                slow.extend(cursor.fetchall())
                ended.wait(0.02)
        connection.close()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        purge = lab.enqueue("maintenance.purge", {}, lab.platform)
        runs = lab.enqueue_many(owner.task("key"), [{"e1": str(n), "lua": "effect() return {}"} for n in range(300)], owner)
        ends = [lab.done(run, 60) for run in runs]
        purges = purge_to_the_end(lab, purge)
    finally:
        ended.set()
        watcher.join()
    assert {(end.status, end.deliveries) for end in ends} == {("completed", 1)}
    assert slow == [], "a session waited more than 100 ms for a lock"
    assert (purges[-1].outcome[owner.purged], purges[-1].outcome[other(lab, owner).purged]) == (expired, 0)     # it adds up on its way
    assert lab.value(f"SELECT count(*) FROM {owner.table} WHERE expires_at < clock_timestamp()") == 0
    assert lab.value(f"SELECT count(*) FROM {owner.table}") == live + 10 + 300 + (len(purges) if owner is lab.platform else 0)     # the purge's own rows are the platform's
    sizes = [row.n for row in lab.sql("SELECT n FROM batches WHERE n > 0")]
    assert sum(sizes) == expired and max(sizes) <= 10000, sizes
    lab.sql("TRUNCATE batches")
    again, = purge_to_the_end(lab, lab.enqueue("maintenance.purge", {}, lab.platform))
    assert (again.outcome["tenant_keys"], again.outcome["platform_keys"]) == (0, 0)
    assert sum(row.n for row in lab.sql("SELECT n FROM batches")) == 0
    lab.settle(*workers)


@OWNERS
def test_H04_processing_rows_are_left_alone(lab, owner):
    # Alive or not: a lease that has passed is a takeover's business, and its attempt number must not start again.
    lab.allow("processing", "settled_effect")
    fill(lab, owner, "live", "processing", 3600, 5)
    fill(lab, owner, "dead", "processing", -60, 5)
    lab.worker()
    assert lab.done(lab.enqueue("maintenance.purge", {}, lab.platform), 60).status == "completed"
    assert lab.value(f"SELECT count(*) FROM {owner.table} WHERE status = 'processing' AND expires_at > clock_timestamp()") == 5
    assert lab.value(f"SELECT count(*) FROM {owner.table} WHERE status = 'processing'") == 10


@OWNERS
@GATES
def test_H05_claims_against_the_purge(lab, owner, gate):
    lab.allow("effect_once", "effect_settled", "replays_equal", "ledger_run", "gate_truth")   # retentions pass all the time
    lab.gate(gate)
    for letter, who in (("t", "tenant"), ("p", "platform")):
        lab.env.tasks.add(f"e2.{letter}_fleeting", owner=who, key=["e1"], retention="1s", handler=(procs.ROOT / "tests/support/tasks/lab.lua").read_text())
    workers = [lab.worker(), lab.worker()]
    ended, purged = threading.Event(), []

    def purge():
        connection = lab.env.db.connect()
        with connection.cursor() as cursor:
            while not ended.is_set():
                cursor.execute(f"UPDATE {owner.table} SET expires_at = clock_timestamp() WHERE status <> 'processing' AND expires_at > clock_timestamp()")
                cursor.execute("SELECT * FROM umavez.purge_keys(50)")
                purged.append(sum(cursor.fetchone()))
        connection.close()
    purger = threading.Thread(target=purge)
    purger.start()
    try:
        runs = lab.enqueue_many(owner.task("fleeting"), [{"e1": str(n % 20), "lua": EFFECT} for n in range(1000)], owner)
        ends = lab.env.wait_finished(runs, timeout=120)
    finally:
        ended.set()
        purger.join()
    assert {end.status for end in ends} == {"completed"}
    assert lab.value("SELECT count(*) FROM umavez.finished_runs WHERE failure IS NOT NULL") == 0
    fresh = sum(not end.replay for end in ends)
    assert lab.effects() == lab.starts() == fresh and sum(purged) > 0
    assert max(end.deliveries for end in ends) == 1
    lab.settle(*workers)


PARTITIONS = """SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) AS bound FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'umavez.finished_runs'::regclass"""


def drop_days(lab):
    for row in lab.sql(PARTITIONS):
        if row.bound != "DEFAULT":
            lab.sql(f"DROP TABLE umavez.{row.relname}")


@OWNERS
@pytest.mark.parametrize("history", [True, False])
def test_H06_no_partition_for_today(lab, owner, history):
    kind = "run" if history else "forgotten"
    drop_days(lab)
    lab.allow("settled_effect")
    if not history:
        lab.allow("effect_settled", "accounted", "ledger_run")
    lab.worker()

    def some():
        runs = lab.enqueue_many(owner.task(kind), [{"n": n, "lua": "start() effect() return {}"} for n in range(50)], owner)
        if history:
            assert {lab.done(run).status for run in runs} == {"completed"}
        else:
            lab.until(lambda: lab.value("SELECT count(*) FROM umavez.runs") == 0, 30, "the runs to end")
    some()
    assert (lab.effects(), lab.starts()) == (50, 50)
    # The default partition holds rows of today: making today's partition must cope, and the purge of it too.
    lab.sql("SELECT umavez.make_partitions(3)")
    some()
    assert lab.done(lab.enqueue("maintenance.purge", {}, lab.platform), 60).status == "completed"
    some()
    assert (lab.effects(), lab.starts()) == (150, 150)


def test_H06_midnight_passes_under_load(own_env, skew):
    """PostgreSQL's own clock (the one that counts) is four days on, where nothing was prepared, and a few seconds before midnight."""
    lab, cluster = Lab(own_env), own_env.pg
    day = 86400
    cluster.stop()
    os.environ.update(skew.env)
    try:
        skew.set((day - time.time() % day) + 3 * day - 4)
        cluster.start()
    finally:
        for name in skew.env:
            os.environ.pop(name)
    before = lab.value("SELECT current_date")
    workers = [lab.worker(), lab.worker()]
    text = json.dumps({"lua": "start() effect() return {}"})
    sent, deadline = 0, time.monotonic() + 60
    while lab.value("SELECT clock_timestamp() < current_date + interval '2 seconds' OR current_date = %s", before):
        assert time.monotonic() < deadline, "midnight does not come"
        lab.sql("SELECT umavez.enqueue('e2.t_run', %s::jsonb, tenant_id => 1) AS t, umavez.enqueue('e2.p_run', %s::jsonb) AS p FROM generate_series(1, 10)", text, text)
        sent += 20
        time.sleep(0.05)      # the load's own pace
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.runs") == 0, 60, "the runs to end")
    assert lab.sql("SELECT status, replay, deliveries, count(*) FROM umavez.finished_runs GROUP BY 1, 2, 3") == [("completed", False, 1, sent)]
    assert lab.value("SELECT count(DISTINCT finished_at::date) FROM umavez.finished_runs") == 2
    assert (lab.effects(), lab.starts()) == (sent, sent)
    assert "23514" not in "".join(worker.text() for worker in workers)


def test_what_operators_did_is_purged_after_its_retention(lab):
    lab.sql("""INSERT INTO umavez.audit (at, db_user, action, target)
               SELECT clock_timestamp() - d * interval '1 day', 'x', 'pause', d::text FROM unnest(ARRAY[500, 401, 399, 100, 1]) d""")
    lab.worker()
    assert lab.done(lab.enqueue("maintenance.purge", {}, lab.platform), 60).outcome["audit_rows"] == 2
    assert lab.done(lab.enqueue("maintenance.purge", {"keep_audit_days": 90}, lab.platform), 60).outcome["audit_rows"] == 2
    refused = lab.done(lab.enqueue("maintenance.purge", {"keep_audit_days": 89}, lab.platform), 60)
    assert (refused.status, refused.outcome["code"]) == ("failed_permanent", "bad_args")
    assert lab.value("SELECT string_agg(target, ',') FROM umavez.audit") == "1"


def test_how_long_is_kept_is_a_setting(lab):
    worker = lab.worker(schedules="true", keep_runs="90d", keep_audit="100d")
    worker.wait_event("schedule_declared", task="maintenance.purge")
    assert lab.value("SELECT declared->'args' FROM umavez.schedules WHERE task = 'maintenance.purge'") == {"keep_days": 90, "keep_audit_days": 100}
    lab.sql("UPDATE umavez.schedules SET next_slot = clock_timestamp() WHERE task = 'maintenance.purge'")
    worker.terminate()
    lab.worker(schedules="true", keep_runs="90d", keep_audit="100d")
    run = lab.until(lambda: lab.value("SELECT run_id::text FROM umavez.finished_runs WHERE task = 'maintenance.purge'"), 30, "the purge by schedule")
    assert lab.finished(run).status == "completed" and "audit_rows" in lab.finished(run).outcome
    refused = lab.cli("worker", "--keep-audit", "10d")
    assert refused.code == 3 and "keep_audit" in refused.err
