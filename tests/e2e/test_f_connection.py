"""Group F of the cases: lost connections, failover, poolers.

What these rows say of the door is in test_door_faults.py (F04, F08) and test_g_door.py (F07: G07, F09: G05); of the supervisor (responsive in F07), with the
supervisor: here the worker process itself must stay responsive.
"""
import time

import pytest

from support.procs import wait_until
from support.proxy import PgProxy
from support.servers import PgBouncer

EFFECT = r"INSERT INTO effects"


def warm_up(env):
    env.wait_finished(env.enqueue("t.effect", env.args("warm")))


def sessions(env):
    return env.db.val("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_worker'")


# --- F01, F02 --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("server", ["reachable", "unreachable"])
@pytest.mark.parametrize("task", ["t.effect", "t.peffect"])
def test_F01_committed_but_the_answer_is_lost(env, task, server):
    proxy = env.closing(PgProxy(env.pg))
    env.worker(database_url=proxy.url(env.db), lease="5s")
    warm_up(env)

    def refuse():
        proxy.refuse = server == "unreachable"
    proxy.cut_after_commit(after=EFFECT, then=refuse)
    run = env.enqueue(task, env.args("E1"))
    proxy.wait_fired()
    row = env.wait_finished(run)          # seen by the test at once: the server has committed
    if server == "unreachable":           # nothing that the worker wants to ask is answered for a while
        proxy.cut_all()
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > 2, 10)
        proxy.refuse = False
    assert (row.status, row.replay, row.failure, row.attempt, env.effects("E1")) == ("completed", False, None, 1, 1)
    again = env.wait_finished(env.enqueue(task, env.args("E1")))
    assert (again.status, again.replay, again.outcome) == ("completed", True, row.outcome)
    ledger = env.ledger(task, "E1")
    assert (ledger.status, ledger.attempt, env.starts("E1"), env.effects("E1")) == ("completed", 1, 1, 1)
    assert env.finished(run) == row


def test_F01_committed_failures_whose_answer_is_lost(env):
    """The neighbours: the COMMIT that records ctx:fail, and the one that records an error."""
    env.audit.allow("settled_effect")
    proxy = env.closing(PgProxy(env.pg))
    env.worker(database_url=proxy.url(env.db), lease="5s")
    warm_up(env)
    proxy.cut_after_commit(after=EFFECT)
    run = env.enqueue("t.effect", env.args("E1", [["effect"], ["fail", {"status": 422, "code": "limit", "message": "too much"}]]))
    proxy.wait_fired()
    row = env.wait_finished(run)
    assert (row.status, row.outcome["code"], env.effects("E1"), env.starts("E1")) == ("failed_permanent", "limit", 0, 1)
    proxy.cut_after_commit(after=EFFECT)
    run = env.enqueue("t.effect", env.args("E2", [["effect"], ["attempt", 1, ["error", "first"]]]))
    proxy.wait_fired()
    row = env.wait_finished(run)
    assert (row.status, row.attempt, env.effects("E2"), env.starts("E2")) == ("completed", 2, 1, 2)


@pytest.mark.parametrize("task", ["t.effect", "t.peffect"])
def test_F02_commit_never_reaches_the_server(env, task):
    proxy = env.closing(PgProxy(env.pg))
    env.worker(database_url=proxy.url(env.db), lease="3s")
    warm_up(env)
    seen = []
    proxy.cut_before_commit(after=EFFECT, then=lambda: seen.append(time.monotonic()))
    run = env.enqueue(task, env.args("E1"))
    proxy.wait_fired()
    row = env.wait_finished(run, 60)
    assert (row.status, row.replay, row.attempt, env.effects("E1"), env.starts("E1")) == ("completed", False, 1, 1, 2)
    assert row.failure is None, "a failure was recorded by guess"
    assert (env.ledger(task, "E1").attempt, len(seen)) == (1, 1)


# --- F03 -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_F03_postgresql_restarted_under_100_runs(own_env, mode):
    env = own_env
    workers = env.workers(2, pool_size=50, prefetch=50, lease="10s")
    env.signal("at", "go")
    warm_up(env)
    runs = env.enqueue_many([("t.effect", env.args(f"r{i}", [["effect"], ["reach", "at"], ["wait", "go"]], starts=None)) for i in range(100)])
    env.wait_reached("at", 100)
    before = (sessions(env), [w.fds() for w in workers])
    env.pg.stop(mode)
    env.pg.start()
    back = time.monotonic()
    env.set("go")
    probe = env.enqueue("t.effect", env.args("probe", starts=None))

    def goes_on():
        return env.db.val("SELECT count(*) FROM umavez.finished_runs") > 1
    wait_until(goes_on, 20, lambda: "work goes on;" + env.report())
    assert time.monotonic() - back < 10 + 3
    rows = env.wait_finished(runs + [probe], 90)
    assert all(row.status == "completed" for row in rows)
    assert env.effects() == 102
    assert sessions(env) <= before[0]
    wait_until(lambda: all(w.fds() <= b for w, b in zip(workers, before[1])), 20, lambda: f"fds as before: {[w.fds() for w in workers]} {before}")
    assert all(w.running() for w in workers)


# --- F04 -------------------------------------------------------------------------------------------------------------------

def test_F04_failover_that_lost_the_run(own_env):
    env = own_env
    env.pg.settings["wal_keep_size"] = "64MB"
    standby = env.pg.standby()
    proxy = env.closing(PgProxy(env.pg))
    env.worker(database_url=proxy.url(env.db))
    warm_up(env)
    there = standby.database(env.db.name)
    wait_until(lambda: there.val("SELECT count(*) FROM umavez.finished_runs") == 1, 30, "the standby follows")
    env.count("E1")
    wait_until(lambda: there.val("SELECT to_regclass('starts.\"E1\"')"), 30, "the standby follows")
    there.q("ALTER SYSTEM SET primary_conninfo = ''")
    there.q("SELECT pg_reload_conf()")
    wait_until(lambda: there.val("SELECT count(*) FROM pg_stat_wal_receiver") == 0, 30, "the standby lags")
    args = env.args("E1", starts=None)
    lost = env.wait_finished(env.enqueue("t.effect", args))
    digest = env.digest("t.effect", "E1")
    entry = wait_until(lambda: (lambda e: e if e and e.state == "C" else None)(env.gate.get(digest, 1)), 20, "the gate is warm")
    old = env.pg
    old.stop("kill")
    env.db.close()
    standby.promote()
    env.pg = standby
    env.db = env.gate.db = there
    assert there.val("SELECT count(*) FROM umavez.finished_runs WHERE run_id = %s::uuid", lost.run_id) == 0, "the standby had the run"
    env.accepted.pop(lost.run_id)
    assert env.gate.pttl(digest, 1) > 0 and env.gate.raw(digest, 1) == entry.raw, "the entry of the old timeline still stands"
    again = env.enqueue("t.effect", args)
    proxy.retarget(standby)
    row = env.wait_finished(again, 60)
    assert (row.status, row.replay, env.effects("E1")) == ("completed", False, 1)
    replay = env.wait_finished(env.enqueue("t.effect", args))
    assert (replay.replay, replay.outcome, env.effects("E1")) == (True, row.outcome, 1)
    old.destroy()


# --- F05 -------------------------------------------------------------------------------------------------------------------

def test_F05_commit_hangs_on_synchronous_replication(own_env, long):
    env = own_env
    name = env.tasks.add("f.sync", key=["key"], timeout="2s", lease="3s")
    env.db.q("SET synchronous_commit = local")
    env.workers(2)
    env.signal("at", "go")
    warm_up(env)
    run = env.enqueue(name, env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]]))
    env.wait_reached("at")
    env.db.q("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    env.db.q("SELECT pg_reload_conf()")
    wait_until(lambda: env.db.val("SHOW synchronous_standby_names") == "nobody", 10)
    env.set("go")

    def hanging():
        return env.db.q("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND usename = 'app_worker' AND query ILIKE 'commit%'")
    pids = {row.pid for row in wait_until(hanging, 20, "COMMIT hangs")}
    begun = time.monotonic()
    while time.monotonic() - begun < (30 if long else 9):       # beyond time-out and lease
        assert pids <= {row.pid for row in hanging()}, "a hanging COMMIT was cancelled or cut"
        assert env.starts("E1") == 1 and env.finished(run) is None
        time.sleep(0.1)
    env.db.q("ALTER SYSTEM RESET synchronous_standby_names")
    env.db.q("SELECT pg_reload_conf()")
    row = env.wait_finished(run, 30)
    assert (row.status, row.failure, row.attempt, env.starts("E1"), env.effects("E1")) == ("completed", None, 1, 1, 1)
    assert "canceling" not in env.pg.log_text()


# --- F06 -------------------------------------------------------------------------------------------------------------------

def test_F06_server_becomes_a_standby(own_env):
    """The address leads to a hot standby for a while, as after a switch-over; the ledger must not be read there."""
    env = own_env
    standby = env.closing(env.pg.standby(settings={"log_statement": "all"}))
    proxy = env.closing(PgProxy(env.pg))
    worker = env.worker(database_url=proxy.url(env.db))
    env.signal("at", "go")
    warm_up(env)
    busy = env.enqueue("t.effect", env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]]))
    env.wait_reached("at")
    proxy.retarget(standby)
    env.set("go")
    connected = proxy.total
    runs = [env.enqueue("t.effect", env.args(f"k{i}", starts="k")) for i in range(20)]
    wait_until(lambda: proxy.total >= connected + 3, 30, "the worker asks again and again who is there")
    text = standby.log_text()
    assert not [w for w in ("begin_run", "ack_replay", "take_runs", "complete_run", "resolve_commit") if w in text], "the ledger was asked of a standby"
    assert env.db.val("SELECT count(*) FROM umavez.finished_runs") == 1
    proxy.retarget(env.pg)
    rows = env.wait_finished(runs + [busy], 60)
    assert all(row.status == "completed" for row in rows)
    assert {row.attempt for row in rows if row.run_id != busy} == {1}
    assert {row.deliveries for row in rows if row.run_id != busy} == {1}
    assert env.starts("k") == 20 and env.effects() == 22 and worker.running()


def test_F06_server_becomes_read_only(own_env):
    """25006 on connections that live on: default_transaction_read_only is set under the worker."""
    env = own_env
    env.worker()
    env.signal("at", "go")
    warm_up(env)
    env.db.q("SET default_transaction_read_only = off")
    busy = env.enqueue("t.effect", env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]]))
    env.wait_reached("at")
    env.db.q("ALTER SYSTEM SET default_transaction_read_only = on")
    env.db.q("SELECT pg_reload_conf()")
    other = env.db.connect()
    wait_until(lambda: _show(other, "default_transaction_read_only") == "on", 10)
    runs = [env.enqueue("t.effect", env.args(f"k{i}", starts="k")) for i in range(20)]
    env.set("go")
    refused = env.pg.log_text().count("read-only transaction")
    begun = time.monotonic()
    wait_until(lambda: env.pg.log_text().count("read-only transaction") > refused or time.monotonic() - begun > 5, 30)
    env.db.q("ALTER SYSTEM RESET default_transaction_read_only")
    env.db.q("SELECT pg_reload_conf()")
    rows = env.wait_finished(runs + [busy], 60)
    assert all((row.status, row.attempt) == ("completed", 1) for row in rows if row.run_id != busy)
    assert env.finished(busy).status == "completed"
    assert env.starts("k") == 20 and env.effects() == 22


def _show(connection, name):
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return cursor.fetchone()[0]


# --- F07 -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("fault", ["packets_dropped", "processes_stopped"])
def test_F07_postgresql_falls_silent(own_env, fault, long):
    env = own_env
    silent_s = 60 if long else 20
    proxy = env.closing(PgProxy(env.pg))
    worker = env.worker(database_url=proxy.url(env.db), pool_size=20)
    env.signal("at", "go")
    warm_up(env)
    stuck = env.enqueue_many([("t.effect", env.args(f"s{i}", [["effect"], ["reach", "at"], ["wait", "go"]], starts=None)) for i in range(10)])
    env.wait_reached("at", 10)
    queued = env.enqueue_many([("t.effect", env.args(f"q{i}", starts=None)) for i in range(10)])
    before = len(worker.text().splitlines())
    proxy.stall() if fault == "packets_dropped" else env.pg.freeze()
    begun = time.monotonic()
    try:
        def noticed():
            lines = worker.text().splitlines()[before:]
            return [line for line in lines if '"warn"' in line or '"error"' in line or "level=warn" in line or "level=error" in line]
        wait_until(noticed, 40, "the silence is noticed")
        assert time.monotonic() - begun < 15 + 2
        wait_until(lambda: time.monotonic() - begun > silent_s, silent_s + 10)
        assert worker.running()
    finally:
        proxy.resume() if fault == "packets_dropped" else env.pg.thaw()
    env.set("go")
    rows = env.wait_finished(stuck + queued, 90)
    assert all(row.status == "completed" for row in rows)
    assert env.effects() == 21 and worker.running()


# --- F08 -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("prepare", ["false", "true"])
def test_F08_pgbouncer_in_transaction_mode(env, prepare):
    """Two server connections, 500 runs. `prepare=false` is the documented setting; the default must lose no attempt either."""
    env.audit.allow("sessions")     # the pooler keeps its own
    pooler = env.closing(PgBouncer(env.pg, pool_size=2))
    env.worker(database_url=env.db.url(host=pooler.socket_dir, port=pooler.port), pool_size=10, prepare=prepare)
    warm_up(env)
    runs = env.enqueue_many([("t.effect", env.args(f"k{i}", starts="k")) for i in range(500)])
    rows = env.wait_finished(runs, 120)
    assert {(row.status, row.attempt, row.deliveries, row.failure) for row in rows} == {("completed", 1, 1, None)}
    assert env.effects() == 501 and env.starts("k") == 500


# --- F09 -------------------------------------------------------------------------------------------------------------------

def test_F09_waiting_duplicates_hold_no_connection(env):
    """The handler of E1 waits until the 100 others are done: with a connection less for each duplicate they never would be."""
    env.worker(pool_size=2)
    env.signal("at", "go")
    warm_up(env)
    args = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    first = env.enqueue("t.effect", args)
    env.wait_reached("at")
    duplicates = env.enqueue_many([("t.effect", args)] * 50)
    wait_until(lambda: env.db.val("SELECT count(*) FROM umavez.runs WHERE busy > 0") > 0, 30, "duplicates are BUSY")
    others = env.enqueue_many([("t.effect", env.args(f"k{i}", starts="k")) for i in range(100)])
    begun = time.monotonic()
    env.wait_finished(others, 30)
    took = time.monotonic() - begun
    assert env.finished(first) is None
    env.set("go")
    rows = env.wait_finished(duplicates + [first], 60)
    assert took < 2 + 4, f"the 100 took {took:.1f} s"
    assert sum(row.replay for row in rows) == 50 and env.starts("E1") == 1
    assert env.effects() == 102 and env.starts("k") == 100


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "alone"])
def test_an_outage_is_one_warning_and_one_word_when_it_is_over(own_env, supervised):
    env = own_env
    worker = env.worker(supervised=supervised, log_level="debug", **({"workers": 1} if supervised else {}))
    worker.wait_event("worker_ready")
    warm_up(env)
    for n in (1, 2):
        env.pg.stop("immediate")

        def cut():
            return {e["connection"] for name in ("postgres_down", "postgres_disconnected") for e in worker.events(name)[-3 * n:]}
        wait_until(lambda: worker.events("postgres_down") and cut() >= {"leases", "verdicts", "handlers"}, 30, "all connections to be lost")
        env.pg.start()
        wait_until(lambda: len(worker.events("postgres_up")) == n + 1, 30, lambda: "all connections to be there\n" + worker.tail())
        loud = [e["event"] for e in worker.events() if e.get("level") in ("warn", "error")]
        assert loud == ["postgres_down"] * n, loud
    env.audit.allow("sessions")
