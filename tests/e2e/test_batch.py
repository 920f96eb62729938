"""Many runs in one transaction (core/batch): nothing changes for a handler but speed.

UMAVEZ_TEST_SHARE makes every task share from its first run on, whatever its handlers do; without it a task's share grows while they are
quick. The runs are enqueued before the worker starts, so that they are taken together.
"""
import json
import os
import signal

import pytest

from lab import OWNERS, TASKS, TENANT
from support.proxy import PgProxy

PLAIN = "start() effect() return { n = args.n }"


def counted(lab):
    """An effect's xmin is that of its savepoint: the transaction itself stands in a column of its own."""
    lab.sql("ALTER TABLE effects ADD COLUMN transaction bigint DEFAULT txid_current()")
    return lab


@pytest.fixture
def free(request, monkeypatch):
    """A lab whose tasks may share transactions as by default."""
    monkeypatch.delenv("UMAVEZ_TEST_BATCH", raising=False)
    return counted(request.getfixturevalue("lab"))


@pytest.fixture
def shared(free, monkeypatch):
    """A lab whose workers let up to 16 runs share a transaction from the first run on."""
    monkeypatch.setenv("UMAVEZ_TEST_SHARE", "16")
    return free


def transactions(lab, task="%"):
    """How many transactions have made effects, and how many effects there are."""
    row = lab.sql("SELECT count(DISTINCT transaction) AS transactions, count(*) AS effects FROM effects WHERE task LIKE %s", task)[0]
    return row.transactions, row.effects


def enqueue(lab, owner, bodies, kind="run", **more):
    return lab.enqueue_many(owner.task(kind), [{"n": n, "e1": f"E{n}", "lua": lua, **more} for n, lua in enumerate(bodies)], owner)


@OWNERS
def test_runs_share_transactions(shared, owner):
    runs = enqueue(shared, owner, [PLAIN] * 64)
    shared.worker()
    ends = [shared.done(run) for run in runs]
    assert [(e.status, e.outcome, e.attempt, e.deliveries, e.replay) for e in ends] == [("completed", {"n": n}, 1, 1, False) for n in range(64)]
    made, effects = transactions(shared)
    assert effects == shared.starts() == 64 and made < 32, f"{made} transactions"
    assert {(row.status, row.attempt) for row in shared.ledger(owner)} == {("completed", 1)}


def test_batch_1_shares_nothing(shared):
    lab = shared
    lab.env.tasks.add("e2.t_single", batch=1, handler=(TASKS / "lab.lua").read_text())
    runs = lab.enqueue_many("e2.t_single", [{"n": n, "lua": PLAIN} for n in range(24)], TENANT)
    lab.worker()
    for run in runs:
        assert lab.done(run).status == "completed"
    assert transactions(lab) == (24, 24)


# What one run does must not be seen in another's fate: (its body, its end, its outcome's code, its effects).
CULPRITS = {
    "an error": ("start() effect() error('broken')", "failed_permanent", "error", 0),
    "ctx:fail": ("start() effect() return ctx:fail { code = 'declined', message = 'no' }", "failed_permanent", "declined", 0),
    "an SQL error": ("start() effect() ctx.sql:one('SELECT 1/0')", "failed_permanent", "sql", 0),
    "an SQL error, swallowed": ("start() effect() pcall(ctx.sql.one, ctx.sql, 'SELECT 1/0') return {}", "failed_permanent", "sql", 0),
    "a savepoint undone": ("start() effect() pcall(ctx.sql.savepoint, ctx.sql, function() effect('x') ctx.sql:one('SELECT 1/0') end) return {}",
                           "completed", None, 1),
    "an outcome that is too large": ("start() effect() return { s = string.rep('x', 5000) }", "failed_permanent", "outcome_too_large", 0),
    "an outcome that is none": ("start() effect() return 7", "failed_permanent", "outcome_invalid", 0),
    "no SQL at all": ("return { quiet = true }", "completed", None, 0),
    "a wait": ("start() effect() ctx:sleep('300ms') return {}", "completed", None, 1),
    "a slow statement": ("start() effect() ctx.sql:one('SELECT pg_sleep(0.4)') return {}", "completed", None, 1),
    "a name that stays": ("start() effect() ctx.sql:exec('DECLARE c CURSOR FOR SELECT 1') return {}", "completed", None, 1),
    "a time-out of its own": ("start() effect() repeat ctx.sql:one('SELECT pg_sleep(0.02)') until false", "failed_permanent", "timeout", 0),
}


@pytest.mark.parametrize("name", CULPRITS)
def test_one_among_others(shared, name):
    body, status, code, effects = CULPRITS[name]
    kind = "brief" if code == "timeout" else "once"
    if name == "no SQL at all":
        shared.allow("settled_effect")
    bodies = [PLAIN] * 15
    bodies[4] = bodies[9] = body
    runs = enqueue(shared, TENANT, bodies, kind)
    shared.worker()
    for n, run in enumerate(runs):
        end = shared.done(run)
        if bodies[n] is PLAIN:
            assert (end.status, end.outcome, end.attempt, end.deliveries) == ("completed", {"n": n}, 1, 1)
            assert shared.effects(f"E{n}") == 1
        else:
            assert (end.status, end.outcome.get("code")) == (status, code), end
            assert shared.effects(f"E{n}") == effects
            row = shared.row(TENANT.task(kind), TENANT, f"E{n}")
            assert (row.status, row.outcome, row.attempt) == (status, end.outcome, end.attempt)
    assert transactions(shared)[0] < 15 or code == "timeout"


def test_what_a_function_leaves_is_not_seen_by_the_next(shared):
    """Settings, role and tenant of one run's functions, in the same transaction as the next."""
    leave = ("ctx.sql:one([[SELECT set_config('app.user', 'eve', true), set_config('statement_timeout', '12345', false), "
             "set_config('umavez.tenant_id', '2', true)]]) effect() return {}")
    look = ("local r = ctx.sql:one([[SELECT coalesce(current_setting('app.user', true), '') AS u, current_setting('statement_timeout') AS t, "
            "current_setting('umavez.tenant_id') AS id, current_user AS role, "
            "current_setting('idle_in_transaction_session_timeout') <> '0' AS idle]]) effect() return r")
    runs = enqueue(shared, TENANT, [leave, look] * 10)
    shared.worker()
    ends = [shared.done(run) for run in runs]
    assert {json.dumps(e.outcome, sort_keys=True) for e in ends[1::2]} == {json.dumps(
        {"id": "1", "idle": True, "role": "app_worker", "t": "0", "u": ""}, sort_keys=True)}
    assert transactions(shared)[0] < 20


def test_tenants_are_apart(shared):
    runs = [(t, shared.env.enqueue("e2.t_run", {"lua": "effect() return ctx.sql:one([[SELECT current_setting('umavez.tenant_id') AS id]])"}, tenant=t))
            for _ in range(8) for t in (1, 2, 3)]
    shared.worker()
    for tenant, run in runs:
        assert shared.done(run).outcome == {"id": str(tenant)}
    assert transactions(shared)[0] < 24


def test_children_come_with_their_parents(shared):
    """ctx:enqueue inside a shared transaction: once for what commits, never for what is undone."""
    good = "effect() ctx:enqueue('e2.t_run', { lua = 'effect() return {}' }) return {}"
    bad = "ctx:enqueue('e2.t_run', { lua = 'effect() return {}' }) return ctx:fail { code = 'no', message = 'no' }"
    runs = enqueue(shared, TENANT, [good, bad] * 8, "once")
    shared.worker()
    assert [shared.done(run).status for run in runs] == ["completed", "failed_permanent"] * 8
    shared.until(lambda: shared.value("SELECT NOT EXISTS (SELECT FROM umavez.runs)"), 30, "the children to end")
    assert shared.effects() == 16


def test_duplicates_in_one_batch(shared):
    """B: runs of one key, without a gate, so that they meet in PostgreSQL alone."""
    runs = shared.enqueue_many("e2.t_key", [{"e1": f"K{n % 4}", "lua": "start() effect() return {}"} for n in range(32)], TENANT)
    shared.worker(valkey_url=None)
    ends = [shared.done(run, 60) for run in runs]
    assert {e.status for e in ends} == {"completed"} and sum(not e.replay for e in ends) == 4
    assert shared.effects() == shared.starts() == 4


def test_deferred_constraint_at_commit(shared):
    """COMMIT refuses the whole batch: each run is done again alone, and only the culprit fails."""
    shared.sql("CREATE TABLE parents (id int PRIMARY KEY)")
    shared.sql("CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
    shared.sql("GRANT ALL ON parents, children TO app_worker")
    bodies = [PLAIN] * 12
    bodies[5] = "effect() ctx.sql:exec('INSERT INTO children VALUES (1)') return {}"
    runs = enqueue(shared, TENANT, bodies, "once")
    shared.worker()
    for n, run in enumerate(runs):
        end = shared.done(run)
        if n == 5:
            assert (end.status, end.outcome["code"], end.outcome["sqlstate"]) == ("failed_permanent", "sql", "23503")
        else:
            assert (end.status, end.attempt, end.deliveries) == ("completed", 1, 1)
    assert shared.effects() == 11


def test_deadlock_between_batches(shared):
    """Rows in opposite orders: what is done is committed, the victim is done again; nobody is charged."""
    shared.sql("CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)")
    shared.sql("INSERT INTO counters SELECT generate_series(1, 8)")
    shared.sql("GRANT ALL ON counters TO app_worker")
    bodies = [f"for i = {a}, {b}, {step} do ctx.sql:exec('UPDATE counters SET n = n + 1 WHERE id = $1', i) end effect() return {{}}"
              for _ in range(8) for a, b, step in ((1, 8, 1), (8, 1, -1))]
    runs = enqueue(shared, TENANT, bodies)
    shared.worker(pool_size=2)
    ends = [shared.done(run, 90) for run in runs]
    assert {(e.status, e.attempt, e.deliveries) for e in ends} == {("completed", 1, 1)}
    assert shared.value("SELECT min(n) = 16 AND max(n) = 16 FROM counters") and shared.effects() == 16


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_no_sharing_where_transactions_keep_their_snapshot(shared, isolation):
    shared.isolation(isolation)
    runs = enqueue(shared, TENANT, [PLAIN] * 16)
    shared.worker()
    assert {shared.done(run, 60).status for run in runs} == {"completed"}
    assert transactions(shared) == (16, 16)


def test_the_connection_dies_in_a_turn(shared):
    """Only the run whose turn it was is charged; the others of its transaction are done again."""
    shared.latch("gone")
    bodies = [PLAIN] * 12
    bodies[6] = "start() effect() reached('gone') if ctx.attempt == 1 and ctx.deliveries == 1 then wait('gone') end return {}"
    runs = enqueue(shared, TENANT, bodies)
    shared.worker()
    shared.reached("gone")
    pid = shared.value("SELECT pid FROM pg_stat_activity WHERE usename = 'app_worker' AND query LIKE '%%test_wait%%' AND state <> 'idle' LIMIT 1")
    shared.value("SELECT pg_terminate_backend(%s)", pid)
    shared.open("gone")
    ends = [shared.done(run, 60) for run in runs]
    assert {e.status for e in ends} == {"completed"}
    assert {e.deliveries for n, e in enumerate(ends) if n != 6} == {1}
    assert shared.effects() == 12


def test_drain_in_the_middle_of_a_batch(shared):
    """What has had its turn commits; the rest goes back uncharged, and is done elsewhere."""
    shared.latch("middle")
    bodies = [PLAIN] * 12
    bodies[3] = "effect() reached('middle') wait('middle') return {}"
    runs = enqueue(shared, TENANT, bodies)
    first = shared.worker(drain_timeout="20s")
    shared.reached("middle")
    os.kill(first.pid, signal.SIGTERM)
    first.wait_event("worker_draining", 30)
    shared.open("middle")
    assert first.process.wait(60) == 0
    shared.worker()
    ends = [shared.done(run, 60) for run in runs]
    assert {(e.status, e.deliveries, e.attempt) for e in ends} == {("completed", 1, 1)}
    assert shared.effects() == 12


def test_share_grows_by_itself(free):
    """Without any setting: a backlog of quick handlers comes to share, and sleeping ones do not."""
    lab = free
    quick = enqueue(lab, TENANT, [PLAIN] * 600)
    slow = lab.enqueue_many("e2.t_twin", [{"e1": f"S{n}", "lua": "effect() ctx:sleep('100ms') return {}"} for n in range(20)], TENANT)
    lab.worker()
    for run in quick + slow:
        assert lab.done(run, 120).status == "completed"
    made, _ = transactions(lab, "e2.t_run")
    assert made < 500, f"{made} transactions for 600 quick runs"
    assert lab.effects() == 620


def test_F01_the_answer_to_commit_is_lost(shared):
    """The truth is asked for, run by run, as for a run alone: nothing starts again, and what is put off stays so."""
    bodies = [PLAIN] * 8
    bodies[3] = "start() effect() return ctx:retry { after = '1h' }"
    runs = enqueue(shared, TENANT, bodies)
    proxy = shared.env.closing(PgProxy(shared.env.pg))
    proxy.cut_after_commit(after="complete_runs")
    worker = shared.worker(database_url=proxy.url(shared.env.db))
    proxy.wait_fired()
    for n, run in enumerate(runs):
        if n != 3:
            end = shared.done(run, 60)
            assert (end.status, end.deliveries, end.attempt) == ("completed", 1, 1)
    assert shared.done(shared.enqueue("e2.t_run", {"e1": "next", "lua": PLAIN}), 60).status == "completed"
    assert worker.terminate() == 0                  # by now it knows what became of each
    row = shared.live(runs[3])
    assert (row.state, row.deliveries) == ("available", 1)
    assert shared.value("SELECT run_at > clock_timestamp() + interval '50 min' FROM umavez.runs WHERE run_id = %s::uuid", runs[3])
    assert (shared.starts(), shared.effects()) == (9, 8)
    assert worker.events("batch_undone") == []
    shared.sql("DELETE FROM umavez.runs")
    shared.allow("accounted")


TEMPORARY = """start() effect() return ctx.sql:one('SELECT leave_and_count() AS n')"""


def test_I03_a_temporary_table_of_the_run_before(shared):
    """A common idiom: the function makes its work table unless it is there. Each run sees its own, whoever shared the transaction."""
    shared.sql("""CREATE FUNCTION leave_and_count() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
        CREATE TEMP TABLE IF NOT EXISTS work (n int) ON COMMIT DROP; INSERT INTO work VALUES (1); RETURN (SELECT sum(n) FROM work); END $$""")
    runs = enqueue(shared, TENANT, [TEMPORARY] * 8)
    worker = shared.worker()
    assert [shared.done(run, 60).outcome for run in runs] == [{"n": 1}] * 8
    assert shared.effects() == 8 and worker.events("task_shares_nothing")


def test_I03_constraints_of_the_run_before(shared):
    """SET CONSTRAINTS holds until the transaction ends: for its own run only."""
    shared.sql("CREATE TABLE parents (id int PRIMARY KEY)")
    shared.sql("CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
    shared.sql("GRANT ALL ON parents, children TO app_worker")
    late = "start() effect() ctx.sql:exec('INSERT INTO children VALUES ($1)', args.n) ctx.sql:exec('INSERT INTO parents VALUES ($1)', args.n) return {}"
    strict = "start() effect() ctx.sql:exec('/* now */ SET CONSTRAINTS ALL IMMEDIATE') return {}"
    runs = enqueue(shared, TENANT, [strict, late, strict, late, late, late], "once")
    shared.worker()
    ends = [shared.done(run, 60) for run in runs]
    assert [(end.status, end.deliveries, end.attempt) for end in ends] == [("completed", 1, 1)] * 6
    assert shared.effects() == 6 and shared.value("SELECT count(*) FROM children") == 4
