"""Group B of the cases: the ledger and the transactions. B02's and B03's supervisor is stopped together with its child
once there is one; here the worker is the one process.

Rows of the cases here: B01, B02, B03, B04, B05, B06, B07, B08, B09, B10, B11.
"""

import json
import time

import pytest

from lab import GATES, OWNERS, digest, fingerprint
from support.procs import wait_until

WAITS = "start() effect() reached('a') wait('a') return { attempt = ctx.attempt }"


@OWNERS
@GATES
def test_B01_worker_killed_after_the_effect(lab, owner, gate):
    lab.latch("a")
    lab.gate(gate)
    first = lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": WAITS}, owner)
    lab.reached("a")
    killed = time.monotonic()
    first.kill()
    lab.until(lambda: not lab.sessions(), 5, "the dead worker's sessions to end")
    assert lab.effects() == 0
    assert lab.ledger(owner) == []
    lab.open("a")
    lab.worker()
    done = lab.done(run, 2 + 5 + lab.SLACK)
    assert time.monotonic() - killed <= 2 + 5 + lab.SLACK
    assert (done.status, done.replay, lab.effects(), lab.starts()) == ("completed", False, 1, 2)
    row, = lab.ledger(owner)
    # The first claim was never committed: the key's first attempt is this one.
    assert (row.status, row.attempt, row.outcome) == ("completed", 1, {"attempt": 1})


@OWNERS
@pytest.mark.parametrize("point", ["before the effect", "at the last statement"])
def test_B01_worker_killed_at_other_points(lab, owner, point):
    lab.latch("a")
    lua = {"before the effect": "start() reached('a') wait('a') effect() return {}",
           "at the last statement": "start() effect() effect() reached('a') wait('a') return {}"}[point]
    first = lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": lua}, owner)
    lab.reached("a")
    first.kill()
    lab.until(lambda: not lab.sessions(), 5, "the dead worker's sessions to end")
    assert (lab.effects(), lab.ledger(owner)) == (0, [])
    lab.open("a")
    lab.worker()
    assert lab.done(run, 12).status == "completed"
    assert lab.starts() == 2
    assert lab.effects() == (2 if "last" in point else 1)
    lab.allow("effect_once")     # one point has two effects of one run


@OWNERS
@GATES
def test_B02_frozen_worker_loses_its_transaction(lab, owner, gate):
    # The second holder's start is number 2: it does not wait, and says who it is.
    lab.latch("a")
    lab.gate(gate)
    lua = "local n = start() effect() if n == 1 then reached('a') wait('a') effect('late') end return { start = n }"
    frozen = lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": lua}, owner)
    lab.reached("a")
    frozen.freeze()
    second = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": lua}, owner)
    lab.worker()
    lab.until(lambda: lab.finished(second) or lab.finished(run), 60, "the other worker to complete the key")
    lab.until(lambda: lab.ledger(owner)[0].status == "completed", 10, "the row")
    before, = lab.ledger(owner)
    lab.open("a")
    frozen.thaw()
    lab.done(run, 30), lab.done(second, 30)
    lab.settle(frozen)
    after, = lab.ledger(owner)
    assert lab.effects() == 1 and lab.effects("late") == 0 and lab.starts() == 2
    assert (after.status, after.outcome, after.attempt) == ("completed", {"start": 2}, before.attempt)
    assert (after.xmin, after.updated_at) == (before.xmin, before.updated_at)
    assert sorted([lab.finished(run).replay, lab.finished(second).replay]) == [False, True]


@OWNERS
def test_B03_frozen_worker_wakes_while_its_transaction_lives(lab, owner):
    # A statement that runs in the server keeps the transaction alive while the worker is stopped.
    lab.latch("a")
    lab.sql("""CREATE FUNCTION hold() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM test_reach('a_reached'), test_wait('a', 60000); END $$""")
    lua = "start() effect() ctx.sql:exec('SELECT hold()') return {}"
    frozen = lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": lua}, owner)
    lab.reached("a")
    frozen.freeze()
    other = lab.worker()
    # The lease ends, the other worker gets the run, and finds its key held.
    lab.busy(run)
    for _ in range(20):
        assert lab.lock_waits() == []
        time.sleep(0.02)
    frozen.thaw()
    lab.open("a")
    done = lab.done(run, 30)
    lab.settle(frozen, other)
    assert (done.status, lab.effects(), lab.starts()) == ("completed", 1, 1)
    assert lab.value("SELECT count(*) FROM umavez.finished_runs WHERE run_id = %s", run) == 1
    row, = lab.ledger(owner)
    assert (row.status, row.attempt) == ("completed", 1)


@OWNERS
@GATES
def test_B04_error_then_takeover_by_either_run(lab, owner, gate):
    lab.latch("a"), lab.latch("b")
    lab.gate(gate)
    lua = """start() effect() if ctx.attempt == 1 then reached('a') wait('a') error('the first attempt fails') end
             reached('b') wait('b') return { attempt = ctx.attempt }"""
    args = {"e1": "E1", "lua": lua}
    lab.worker()
    one = lab.enqueue(owner.task("key"), args, owner)
    lab.reached("a")
    two = lab.enqueue(owner.task("key"), args, owner)
    lab.busy(two)
    assert lab.lock_waits() == []
    lab.open("a")
    lab.reached("b", 20)
    # The second attempt's claim is not committed: what everybody sees is the first one's failure.
    row, = lab.ledger(owner)
    assert (row.status, row.attempt, row.outcome["code"]) == ("failed_retryable", 1, "error")
    assert lab.effects() == 0
    lab.open("b")
    ends = [lab.done(run, 20) for run in (one, two)]
    assert [end.status for end in ends] == ["completed"] * 2
    assert sorted(end.replay for end in ends) == [False, True]
    assert [end.outcome for end in ends] == [{"attempt": 2}] * 2
    row, = lab.ledger(owner)
    assert (row.status, row.attempt, lab.effects(), lab.starts()) == ("completed", 2, 1, 2)


DEFERRED = """CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NOT EXISTS (SELECT FROM parent) THEN RAISE EXCEPTION 'no parent yet' USING ERRCODE = TG_ARGV[0]; END IF; RETURN NULL; END $$;
"""


@OWNERS
@GATES
def test_B05_fault_at_commit(lab, owner, gate):
    lab.sql(DEFERRED)
    faults = {"23503": "child", "P0001": "watched_1", "22012": "watched_2"}
    for fault, table in list(faults.items())[1:]:
        lab.sql(f"""CREATE TABLE {table} (n int);
                    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late('{fault}')""")
    lab.gate(gate)
    with lab.gate_monitor() as monitor:
        lab.worker()
        runs = {fault: lab.enqueue(owner.task("later"), {"e1": fault, "lua": f"""
            start() effect() ctx.sql:exec('INSERT INTO {table} VALUES (7)') return {{ done = true }}"""}, owner) for fault, table in faults.items()}
        for fault, run in runs.items():
            live = lab.failed_once(run)
            row = lab.row(owner.task("later"), owner, fault)
            assert (row.status, row.attempt, row.outcome["code"], row.outcome["sqlstate"]) == ("failed_retryable", 1, "sql", fault)
            assert (live.deliveries, live.failure["code"], live.failure["sqlstate"]) == (1, "sql", fault)
            assert lab.value("SELECT run_at > now() FROM umavez.runs WHERE run_id = %s", run)
            assert lab.value(f"SELECT count(*) FROM {faults[fault]}") == 0
        assert lab.effects() == 0
        assert not monitor.saw(b":C:"), "the gate was told of a completion that did not happen"
        lab.sql("INSERT INTO parent VALUES (7)")
        for run in runs.values():
            lab.due(run)
        ends = [lab.done(run) for run in runs.values()]
    assert {(end.status, end.attempt, json.dumps(end.outcome)) for end in ends} == {("completed", 2, '{"done": true}')}
    assert {(row.status, row.attempt) for row in lab.ledger(owner)} == {("completed", 2)}
    assert (lab.effects(), lab.starts()) == (3, 6)


AFTER = ["return { ok = true }", "pcall(effect) return { ok = true }", "return nil", "pcall(function() ctx.sql:savepoint(effect) end) return { ok = true }"]
SWALLOWED = {"INSERT INTO uniq VALUES (1)": "23505", "SELECT 1/0": "22012", "SELECT * FROM nowhere": "42P01", "not sql at all": "42601"}


@OWNERS
def test_B06_swallowed_error(lab, owner):
    lab.sql("CREATE TABLE uniq (n int UNIQUE); INSERT INTO uniq VALUES (1)")
    lab.worker()
    runs = {(fault, after): lab.enqueue(owner.task("later"), {"e1": fault + after, "lua": f"""
        start() effect() pcall(function() ctx.sql:exec("{fault}") end) {after}"""}, owner) for fault in SWALLOWED for after in AFTER}
    for (fault, after), run in runs.items():
        live = lab.failed_once(run)
        row = lab.row(owner.task("later"), owner, fault + after)
        assert (row.status, row.attempt, row.outcome["code"], row.outcome["sqlstate"]) == ("failed_retryable", 1, "sql", SWALLOWED[fault]), (fault, after)
        assert (live.state, lab.finished(run)) == ("available", None)
        wait_until(lambda at=fault + after: lab.gate_state(owner.task("later"), owner, at) in (None, "F"), 10)     # given up behind the COMMIT
    assert (lab.effects(), lab.starts()) == (0, len(runs))


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@OWNERS
def test_B07_other_isolation_levels(lab, isolation, owner):
    lab.isolation(isolation)
    workers = [lab.worker(), lab.worker()]
    args = {"e1": "E1", "lua": "start() effect() return { n = 1 }"}
    runs = lab.enqueue_many(owner.task("key"), [args] * 64, owner)
    ends = [lab.done(run, 60) for run in runs]
    assert {end.status for end in ends} == {"completed"}
    assert sum(end.replay for end in ends) == 63
    row, = lab.ledger(owner)
    assert (row.status, row.attempt, lab.effects(), lab.starts()) == ("completed", 1, 1, 1)
    assert lab.value("SELECT count(*) FROM umavez.runs") == 0
    lab.settle(*workers)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_B07_serialization_failure_costs_no_attempt(lab, isolation):
    lab.isolation(isolation)
    lab.latch("a")
    lab.sql("CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)")
    lua = """local n = start() effect()
             local seen = ctx.sql:one('SELECT n FROM counter').n
             if n <= 2 then reached('a') repeat until ctx.sql:one('SELECT last_value AS n, pg_sleep(0.02) FROM signals.a_reached').n >= 2 end
             ctx.sql:exec('UPDATE counter SET n = $1', seen + 1) return {}"""
    lab.worker()
    runs = [lab.enqueue("e2.t_run", {"lua": lua, "n": n}, lab.tenant) for n in (1, 2)]
    ends = [lab.done(run, 30) for run in runs]
    assert [(end.status, end.deliveries, end.attempt) for end in ends] == [("completed", 1, 1)] * 2
    assert (lab.value("SELECT n FROM counter"), lab.effects()) == (2, 2)
    assert lab.starts() >= 3        # each of the two, and the one that lost at least once again


@pytest.mark.parametrize("owners", ["tenant", "platform", "both"])
def test_B08_deadlock(lab, owners):
    lab.latch("a")
    lab.sql("CREATE TABLE pair (id int PRIMARY KEY, n int); INSERT INTO pair VALUES (1, 0), (2, 0)")
    lua = """start() effect()
             ctx.sql:exec('UPDATE pair SET n = n + 1 WHERE id = $1', args.first) reached('a')
             repeat until ctx.sql:one('SELECT last_value AS n, pg_sleep(0.02) FROM signals.a_reached').n >= 2
             ctx.sql:exec('UPDATE pair SET n = n + 1 WHERE id = $1', args.second) return {}"""
    pair = {"tenant": [lab.tenant] * 2, "platform": [lab.platform] * 2, "both": [lab.tenant, lab.platform]}[owners]
    lab.worker()
    runs = [lab.enqueue(who.task("key"), {"e1": f"E{first}", "first": first, "second": 3 - first, "lua": lua}, who)
            for who, first in zip(pair, (1, 2))]
    ends = [lab.done(run, 30) for run in runs]
    assert [(end.status, end.deliveries, end.attempt) for end in ends] == [("completed", 1, 1)] * 2
    rows = lab.ledger(lab.tenant) + lab.ledger(lab.platform)
    assert [(row.status, row.attempt) for row in rows] == [("completed", 1)] * 2
    assert (lab.effects(), lab.starts()) == (2, 3)
    assert lab.sql("SELECT n FROM pair") == [(2,), (2,)]


@OWNERS
@pytest.mark.parametrize("attempt,gate", [(1, "absent"), (3, "valkey")])
def test_B09_foreign_processing_row(lab, owner, attempt, gate):
    task = owner.task("key")
    args = {"e1": "E1", "lua": "start() effect() return { attempt = ctx.attempt }"}
    foreign = lab.foreign(owner, digest(task, "E1"), fingerprint(task, args), attempt=attempt, seconds=3)
    lab.gate(gate)
    lab.worker()
    run = lab.enqueue(task, args, owner)
    lab.busy(run)
    assert lab.value("SELECT expires_at > clock_timestamp() FROM " + owner.table), "the lease had ended before anybody looked"
    assert (lab.starts(), lab.lock_waits(), lab.ledger(owner)[0].xmin) == (0, [], foreign.xmin)
    done = lab.done(run, 3 + 5 + lab.SLACK)
    row, = lab.ledger(owner)
    assert (done.status, done.outcome, lab.effects(), lab.starts()) == ("completed", {"attempt": attempt + 1}, 1, 1)
    assert (row.id, row.status, row.attempt) == (foreign.id, "completed", attempt + 1)
    for settle in ("umavez.complete(%s, %s, %s, '{\"by\": \"the other\"}'::jsonb, 1000)",
                   "umavez.fail(%s, %s, %s, 'failed_permanent', '{\"code\": \"x\"}'::jsonb, 1000)",
                   "umavez.fail(%s, %s, %s, 'failed_retryable', '{\"code\": \"x\"}'::jsonb, 1000)",
                   "umavez.renew(%s, %s, %s, 1000)"):
        assert lab.refused("SELECT " + settle, owner.tenant_id, foreign.id, attempt) == "UV001"
    after, = lab.ledger(owner)
    assert (after.xmin, after.outcome) == (row.xmin, {"attempt": attempt + 1})


@OWNERS
def test_B09_foreign_row_whose_lease_is_over(lab, owner):
    task = owner.task("key")
    args = {"e1": "E1", "lua": "start() effect() return {}"}
    lab.foreign(owner, digest(task, "E1"), fingerprint(task, args), attempt=3, seconds=-1)
    lab.worker()
    done = lab.done(lab.enqueue(task, args, owner), 10)
    row, = lab.ledger(owner)
    assert (done.status, done.deliveries, row.status, row.attempt, lab.effects()) == ("completed", 1, "completed", 4, 1)


@OWNERS
def test_B09_foreign_row_of_another_request(lab, owner):
    lab.allow("processing", "ledger_run")     # the foreign program's
    task = owner.task("key")
    lab.worker()
    for status in ("processing", "failed_retryable", "completed", "failed_permanent"):
        foreign = lab.foreign(owner, digest(task, status), bytes(32), attempt=3, seconds=600, status=status, outcome={} if status == "processing" else {"code": "secret"})
        done = lab.done(lab.enqueue(task, {"e1": status, "lua": "start() effect() return {}"}, owner))
        assert (done.status, done.outcome["code"], lab.starts()) == ("failed_permanent", "key_reused", 0), status
        assert "secret" not in json.dumps([done.outcome, done.failure])
        row = lab.row(task, owner, status)
        assert (row.xmin, row.status, row.attempt) == (foreign.xmin, status, 3)


@OWNERS
@GATES
def test_B10_failure_against_success(lab, owner, gate):
    # Of each key's two runs the first start declares a failure, any other would succeed.
    keys = 60
    lab.gate(gate)
    for n in range(keys):
        lab.sql(f"CREATE SEQUENCE starts.first_{n}")
    lua = """start() local n = ctx.sql:one("SELECT test_start('first_' || $1)::int AS n", args.e1).n effect()
             if n == 1 then return ctx:fail { code = 'declined', message = 'no' } end return { n = n }"""
    runs = lab.enqueue_many(owner.task("key"), [{"e1": str(n), "lua": lua} for n in range(keys) for _ in (1, 2)], owner)
    workers = [lab.worker(), lab.worker()]
    ends = [lab.done(run, 60) for run in runs]
    rows = lab.ledger(owner)
    assert len(rows) == keys
    # A declared failure is final: once it is recorded nothing of the key may complete, and nothing completed may fail.
    for n in range(keys):
        pair = ends[2 * n: 2 * n + 2]
        assert pair[0].status == pair[1].status
        assert sorted(end.replay for end in pair) == [False, True]
        assert pair[0].outcome == pair[1].outcome
    assert {row.status for row in rows} == {"failed_permanent"} and {row.attempt for row in rows} == {1}
    assert (lab.effects(), lab.starts()) == (0, keys)
    lab.settle(*workers)


@OWNERS
def test_B10_failure_declared_after_the_transaction_was_lost(lab, owner, tmp_path):
    # Run 1 cannot know that its transaction is gone and that run 2 has completed: its failure must not go over that.
    latch = tmp_path / "latch"
    lab.latch("a")
    lab.gate("absent")        # with a gate run 2 would wait for run 1's token, which is renewed until run 1 times out
    lua = f"""local n = start() effect() if n > 1 then return {{ n = n }} end
              reached('a') repeat ctx:sleep("20ms") until io.open("{latch}")
              return ctx:fail {{ code = 'declined', message = 'too late' }}"""
    args = {"e1": "E1", "lua": lua}
    lab.worker()
    one = lab.enqueue(owner.task("key"), args, owner)
    lab.reached("a")
    lab.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = current_database()")
    two = lab.enqueue(owner.task("key"), args, owner)
    lab.done(two, 30)
    latch.touch()
    ends = [lab.done(run, 30) for run in (one, two)]
    row, = lab.ledger(owner)
    assert [end.status for end in ends] == ["completed"] * 2
    assert sorted(end.replay for end in ends) == [False, True]
    assert (row.status, row.outcome, lab.effects()) == ("completed", {"n": 2}, 1)


@OWNERS
@GATES
@pytest.mark.parametrize("ending", ["return { done = true }", "return ctx:fail { code = 'declined', message = 'no' }"])
def test_B11_replays_leave_the_row_alone(lab, owner, gate, ending):
    lua = f"""start() effect() ctx:enqueue("e2.{owner.letter}_elsewhere", {{ child = true }}) {ending}"""
    args = {"e1": "E1", "lua": lua}
    lab.gate(gate)
    lab.worker(queues="default")
    first = lab.done(lab.enqueue(owner.task("key"), args, owner), 20)
    before, = lab.ledger(owner)
    children = 0 if "fail" in ending else 1
    for batch in range(2):
        if batch == 1:
            lab.flush_gate()
        ends = [lab.done(run, 60) for run in lab.enqueue_many(owner.task("key"), [args] * 50, owner)]
        assert {(end.status, end.replay) for end in ends} == {(first.status, True)}
        assert all(end.outcome == first.outcome for end in ends)
    after, = lab.ledger(owner)
    assert (after.xmin, after.ctid, after.updated_at) == (before.xmin, before.ctid, before.updated_at)
    assert lab.value("SELECT count(*) FROM umavez.runs WHERE task LIKE 'e2.%elsewhere'") == children
    assert (lab.starts(), lab.effects()) == (1, children)
    lab.sql("DELETE FROM umavez.runs WHERE task LIKE 'e2.%elsewhere'")
