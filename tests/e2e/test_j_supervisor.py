"""Group J of the cases for a supervisor and its children: drain, reload, replacement, recycling, the log file. What is told to a service
manager is in test_service.py; who is charged for a crash is in test_watch*.py.

Rows of the cases here: J01, J02, J03, J04, J05, J06.
"""
import os
import signal
import threading
import time

import pytest

from lab import GATES, LONG, OWNERS, PLATFORM, SLACK, TENANT
from support import procs
from support.http import Closed, Connection, Door, wait_ready
from support.procs import wait_until
from test_j_operate import pid_one  # noqa: F401

LAB = (procs.ROOT / "tests/support/tasks/lab.lua").read_text()


def hang_up(worker):
    worker.process.send_signal(signal.SIGHUP)


# --- drain ------------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
def test_J01_supervised_drain_lets_runs_finish(lab, owner, gate):
    lab.latch("a")
    lab.gate(gate)
    worker = lab.worker(workers=2, drain_timeout="5s", pool_size=5)
    worker.wait_children(2)
    children = worker.children()
    lua = "start() effect() reached('a') for _ = 1, 20 do ctx.sql:one('SELECT pg_sleep(0.1)') end return {}"
    runs = lab.enqueue_many(owner.task("run"), [{"n": n, "lua": lua} for n in range(10)], owner)
    lab.reached("a", count=10, timeout=90)
    more = lab.enqueue_many(owner.task("run"), [{"n": n, "lua": "start() effect() return {}"} for n in range(10, 40)], owner)
    worker.process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    lab.until(lambda: not worker.running(), 5 + SLACK, "the supervisor's exit")
    assert worker.process.returncode == 0 and time.monotonic() - begun <= 5 + SLACK
    assert not any(map(procs.alive, children)) and not worker.processes()
    assert {(end.status, end.deliveries) for end in map(lab.finished, runs)} == {("completed", 1)}
    left = [lab.live(run) for run in more if not lab.finished(run)]
    assert all((row.state, row.deliveries, row.worker_id, row.lease_until) == ("available", 0, None, None) for row in left)
    assert lab.starts() == lab.effects() == 40 - len(left)
    assert len({lab.finished(run).worker_id for run in runs}) == 2
    lab.worker(workers=2)
    assert {lab.done(run).status for run in more} == {"completed"}


@OWNERS
@GATES
@pytest.mark.parametrize("how", ["drain_timeout", "second SIGTERM", "SIGINT twice"])
def test_J02_supervised_drain_gives_back_what_does_not_end(lab, owner, gate, how):
    lab.env.tasks.add("e2.long", owner="platform" if owner is PLATFORM else "tenant", key=["e1"], lease="30s", timeout="120s", handler=LAB)
    lab.latch("a")
    lab.gate(gate)
    worker = lab.worker(workers=2, drain_timeout="1s" if how == "drain_timeout" else "60s", pool_size=2)
    worker.wait_children(2)
    lua = "local n = start() effect() if n <= 4 then reached('a') if n % 2 == 0 then ctx.sql:one('SELECT pg_sleep(60)') else ctx:sleep('60s') end end return { attempt = ctx.attempt }"
    runs = lab.enqueue_many("e2.long", [{"e1": f"E{n}", "lua": lua} for n in range(4)], owner)
    lab.reached("a", count=4, timeout=90)
    asked = signal.SIGINT if how == "SIGINT twice" else signal.SIGTERM
    worker.process.send_signal(asked)
    if how != "drain_timeout":
        lab.until(lambda: len(worker.events("worker_draining")) == 2, 20, "both children to drain")
        worker.process.send_signal(asked)
    lab.until(lambda: not worker.running(), 3 + SLACK, "the supervisor's exit")
    assert worker.process.returncode == 0 and not worker.processes()
    assert lab.effects() == 0 and lab.ledger(owner) == [] and lab.gate_keys() == []
    for run in runs:
        row = lab.live(run)
        assert (row.state, row.deliveries, row.worker_id, row.lease_until) == ("available", 0, None, None)
    lab.worker(workers=2, pool_size=2)
    ends = [lab.done(run) for run in runs]
    assert {(end.status, end.deliveries, end.outcome["attempt"]) for end in ends} == {("completed", 1, 1)}
    assert (lab.effects(), lab.starts()) == (4, 8)


def test_a_child_that_does_not_drain_is_killed(lab):
    """It is said, and the exit status tells that not all went well."""
    lab.env.tasks.add("e2.loop", lease="60s", timeout="120s", handler="""
      return function(ctx)
        ctx.sql:one("SELECT test_reach('a_reached')")
        if ctx.sql:one("SELECT test_start('lab') AS n").n == 1 then while true do end end
        return {}
      end""")
    lab.latch("a")
    lab.allow("worker_death", "exit_status", "settled_effect")
    worker = lab.worker(workers=1, drain_timeout="1s")
    run = lab.enqueue("e2.loop", {})
    lab.reached("a")
    worker.process.send_signal(signal.SIGTERM)
    lab.until(lambda: not worker.running(), 60, "the supervisor's exit")
    assert worker.process.returncode == 1
    assert worker.events("child_killed") and not worker.processes()
    died = worker.events("child_died")[-1]
    assert "signal 9" in died["how"] and died["run_id"] == run
    row = lab.live(run)         # given back before the supervisor's end, and not charged: it was within its time-out
    assert (row.state, row.deliveries, row.crashes) == ("available", 0, 0)
    lab.flush_gate()
    lab.worker()
    assert lab.done(run).deliveries == 1


# --- reload -----------------------------------------------------------------------------------------------------------------------------

BROKEN = {
    "manifest": lambda lab, conf: lab.env.tasks.add("e2.late", lease="7 parsecs"),
    "syntax": lambda lab, conf: (lab.env.tasks.dir / "e2" / "late.lua").write_text("return function(ctx, args) return {"),
    "handler": lambda lab, conf: (lab.env.tasks.dir / "e2" / "late.lua").unlink(),
    "setting": lambda lab, conf: conf.write_text("return { pool_sise = 3 }"),
    "value": lambda lab, conf: conf.write_text("return { drain_timeout = 'soon' }"),
    "settings file": lambda lab, conf: conf.unlink(),
    "database": lambda lab, conf: conf.write_text("return { database_url = 'postgresql://nobody_there@/none?host=" + str(lab.env.pg.socket_dir) + "' }"),
    "crash": lambda lab, conf: (lab.env.tasks.dir / "e2" / "late.lua").write_text(
        "local ffi = require('ffi') ffi.cdef('void abort(void);') ffi.C.abort() return function() end"),
}
TOLD = {
    "manifest": ["manifest.lua", "e2.late", "lease", "7 parsecs", "expected"],
    "syntax": ["late.lua", "e2.late"],
    "handler": ["late.lua", "e2.late"],
    "setting": ["pool_sise", "pool_size", "umavez-test.lua"],
    "value": ["drain_timeout", "soon", "umavez-test.lua"],
    "settings file": ["umavez-test.lua"],
    "database": ["database"],
    "crash": [],
}


@pytest.mark.parametrize("fault", BROKEN)
def test_J03_a_broken_reload_changes_nothing(lab, fault):
    conf = lab.env.log_dir / "umavez-test.lua"
    conf.write_text("return {}")
    lab.env.tasks.add("e2.late", handler="return function() return { version = 1 } end")
    options = {"database_url": ""} if fault == "database" else {}
    if fault == "database":
        conf.write_text(f"return {{ database_url = [[{lab.env.db.url()}]] }}")
    lab.allow("settled_effect", "worker_death")
    good = conf.read_text()
    worker = lab.worker(workers=2, env={"UMAVEZ_CONFIG": str(conf), **({"DATABASE_URL": ""} if options else {})})
    children = worker.wait_children(2)
    assert lab.done(lab.enqueue("e2.late", {})).outcome == {"version": 1}
    BROKEN[fault](lab, conf)
    hang_up(worker)
    failed = worker.wait_event("reload_failed", timeout=60)
    assert failed["level"] == "error"
    faults = worker.events("worker_fault")
    for word in TOLD[fault]:
        assert any(word in event["message"] for event in faults), (word, faults)
        assert word in failed["why"], failed
    if fault == "manifest":
        event, = [event for event in faults if "field" in event]
        assert event["file"].endswith("e2/manifest.lua") and event["task"] == "e2.late" and event["field"] == "lease"
        assert "7 parsecs" in event["found"] and event["expected"]
    if fault == "crash":
        assert "signal 6" in failed["how"]
    assert sorted(worker.children()) == sorted(children), "the old children go on"
    assert lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"})).status == "completed"
    # mended
    conf.write_text(good)
    lab.env.tasks.add("e2.late", lease="30s", handler="return function() return { version = 2 } end")
    hang_up(worker)
    worker.wait_event("reloaded")
    assert not set(worker.wait_children(2, generation=2)) & set(children)
    assert lab.done(lab.enqueue("e2.late", {})).outcome == {"version": 2}


def test_a_reload_takes_new_settings(lab):
    conf = lab.env.log_dir / "umavez-test.lua"
    conf.write_text("return { workers = 1, http_listen = '127.0.0.1:0' }")
    worker = lab.worker(supervised=True, workers="", env={"UMAVEZ_CONFIG": str(conf)})
    worker.wait_children(1)
    for generation, count in ((2, 4), (3, 2)):
        conf.write_text(f"return {{ workers = {count}, http_listen = '127.0.0.1:0' }}")
        hang_up(worker)
        worker.wait_children(count, generation=generation)
    assert worker.events("restart_needed") == []
    conf.write_text("return { workers = 2, http_listen = '127.0.0.1:1' }")
    hang_up(worker)
    assert worker.wait_event("restart_needed")["setting"] == "http_listen"
    worker.wait_children(2, generation=4)
    port = int(worker.events("supervisor_started")[0]["port"])
    wait_ready(port, worker)                                                   # the door is where it was


def test_after_a_reload_to_another_database_deaths_are_told_there(lab):
    """The supervisor tells a death to the database that the dead child worked with, not to that of its own first settings."""
    lab.env.tasks.add("e2.away", owner="platform", lease="10m", timeout="60s", handler=LAB)       # no lease ends in this test
    other = lab.env.pg.database()
    conf = lab.env.log_dir / "umavez-test.lua"
    try:
        conf.write_text(f"return {{ database_url = [[{lab.env.db.url()}]] }}")
        worker = lab.worker(workers=1, drain_timeout="100ms", env={"UMAVEZ_CONFIG": str(conf), "DATABASE_URL": ""})
        worker.wait_children(1)
        conf.write_text(f"return {{ database_url = [[{other.url()}]] }}")
        hang_up(worker)
        worker.wait_event("reloaded")
        child, = worker.wait_children(1, generation=2)
        run = other.val("SELECT umavez.enqueue('e2.away', %s::jsonb)", '{"lua": "ctx.sql:one(\'SELECT pg_sleep(60)\') return {}"}')

        def holder():
            row = other.one("SELECT worker_id, deliveries FROM umavez.runs WHERE run_id = %s AND state = 'running'", run)
            started = row and other.val("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%%pg_sleep(60)%%' AND pid <> pg_backend_pid()")
            return row if started else None
        first = wait_until(holder, 30, lambda: worker.tail())
        os.kill(child, signal.SIGKILL)
        worker.wait_event("worker_buried", worker_id=str(first.worker_id), returned=1)
        again = wait_until(lambda: holder() if holder() and holder().worker_id != first.worker_id else None, 30, lambda: worker.tail())
        assert again.deliveries == 1
        assert worker.terminate() == 0
    finally:
        other.drop()


def test_a_reload_whose_database_is_away_is_given_up(own_env):
    """The new child waits for its database; the old ones, which can do no more, are kept, and the next reload works."""
    worker = own_env.worker(workers=1)
    child, = worker.wait_children(1)
    own_env.pg.stop()
    hang_up(worker)
    failed = worker.wait_event("reload_failed", timeout=90)
    assert "30 s" in failed["why"]
    own_env.pg.start()
    run = own_env.enqueue("t.effect", own_env.args("E1", [["effect"]]))
    own_env.wait_finished([run])
    wait_until(lambda: worker.children() == [child], 60, "the late child has gone")
    hang_up(worker)
    worker.wait_event("reloaded")


def test_J04_reloads_under_load(lab):
    """SIGHUP every 2 s under runs of 300 ms: each is done once, old children end with what they have, one generation is left."""
    runs, seconds = (1000, 30) if LONG else (300, 9)
    lab.env.tasks.add("e2.steady", key=["e1"], lease="30s", timeout="20s", handler=LAB)
    worker = lab.worker(workers=2, pool_size=8 if LONG else 6, prefetch=5)
    worker.wait_children(2)
    lua = "start() effect() ctx.sql:one('SELECT pg_sleep(0.3)') return {}"
    ids = lab.enqueue_many("e2.steady", [{"e1": f"E{n}", "lua": lua} for n in range(runs)])
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        hang_up(worker)
        pause = time.monotonic() + 2
        lab.until(lambda: time.monotonic() >= pause, 10, "two seconds")
    ends = lab.env.wait_finished(ids, timeout=120)
    assert {(end.status, end.deliveries, end.replay) for end in ends} == {("completed", 1, False)}
    assert lab.effects() == lab.starts() == runs
    lab.until(lambda: worker.events("reload_started") and len(worker.events("reload_started")) == len(worker.events("reloaded")), 90, "the last reload")
    last = int(worker.events("reloaded")[-1]["generation"])
    assert last >= 3
    lab.until(lambda: len(worker.children()) == 2, 30 + SLACK, "the old children's end")
    worker.wait_children(2, generation=last)
    assert not worker.events("child_killed") and not worker.events("drain_timeout")
    # An old child ends with what it had in hand: who goes on taking runs would drain until the queue is empty.
    for draining in worker.events("worker_draining"):
        drained, = worker.events("worker_drained", pid=draining["pid"])
        assert seconds_between(draining, drained) <= 0.3 + 5 + SLACK


def seconds_between(first, second):
    def at(event):
        clock = event["ts"].split("T")[1].rstrip("Z").split(":")
        return int(clock[0]) * 3600 + int(clock[1]) * 60 + float(clock[2])
    return (at(second) - at(first)) % 86400


def test_the_door_stays_open_over_reloads(env):
    """No connection is refused, no request goes without its answer, and each is answered by its own outcome."""
    env.tasks.add("d.add", key=["key"], http={"path": "/add"})
    worker = env.worker(workers=2, http_listen="127.0.0.1:0", drain_timeout="20s")
    worker.wait_children(2)
    port = int(worker.events("supervisor_started")[0]["port"])
    wait_ready(port, worker)
    door = Door(env, port=port, worker=worker)
    env.count("door")
    stop, answers, faults = threading.Event(), [], []

    def client(number, keep):
        connection, n = None, 0
        try:
            while not stop.is_set():
                if connection is None:
                    connection = Connection(port)
                key = f"c{number}-{n}"
                answer = door.post("/add", {"key": key, "starts": "door", "steps": [["effect"], ["sleep", 0.02]]}, key=key, on=connection)
                answers.append((key, answer.status, answer.replayed))
                n += 1
                if not keep or answer.get("Connection") == "close":
                    connection.close()
                    connection = None
        except (OSError, Closed) as error:
            faults.append((number, keep, n, repr(error)))
        finally:
            if connection:
                connection.close()
    threads = [threading.Thread(target=client, args=(n, n % 2 == 0), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for generation in (2, 3, 4):
        hang_up(worker)
        worker.wait_event("reloaded", generation=generation, timeout=90)
        done = len(answers)
        wait_until(lambda: len(answers) > done + 20 or faults, 60, "requests go on")
    wait_until(lambda: len(worker.children()) == 2, 60, "the old children's end")
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not faults, faults
    assert {(status, replayed) for _, status, replayed in answers} == {(200, False)}
    assert env.effects() == len(answers) == env.starts("door")


# --- deaths -----------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
def test_J05_the_parents_death_drains_the_children(lab, owner, gate):
    lab.latch("a")
    lab.gate(gate)
    worker = lab.worker(workers=2, pool_size=3, drain_timeout="5s")
    children = worker.wait_children(2)
    lua = "start() effect() reached('a') for _ = 1, 10 do ctx.sql:one('SELECT pg_sleep(0.1)') end return {}"
    runs = lab.enqueue_many(owner.task("run"), [{"n": n, "lua": lua} for n in range(6)], owner)
    lab.reached("a", count=6, timeout=90)
    more = lab.enqueue_many(owner.task("run"), [{"n": n, "lua": lua} for n in range(6, 26)], owner)
    worker.killed = True
    worker.process.kill()
    worker.process.wait()
    lab.until(lambda: not any(map(procs.alive, children)), 5 + 3 + SLACK, "the children's end")
    assert not worker.processes()
    assert {(int(event["pid"]), int(event["supervisor"])) for event in worker.events("supervisor_gone")} == {(child, worker.pid) for child in children}
    lab.until(lambda: not lab.sessions(), 5, "the sessions to end")
    assert {(end.status, end.deliveries) for end in map(lab.finished, runs)} == {("completed", 1)}
    left = [lab.live(run) for run in more if not lab.finished(run)]
    assert len(left) >= 10 and all((row.state, row.deliveries, row.worker_id) == ("available", 0, None) for row in left)
    lab.worker()
    assert {lab.done(run).status for run in more} == {"completed"}
    assert lab.effects() == lab.starts() == 26


def test_J05_a_child_whose_loop_does_not_turn_does_not_outlive_its_supervisor(lab):
    """Nobody is left to kill it: it ends itself, drain_timeout and ten seconds after."""
    worker = lab.worker(workers=1, drain_timeout="1s", stall="5m")
    child, = worker.wait_children(1)
    lab.allow("worker_death", "leases", "open_sessions", "accounted")
    run = lab.enqueue(TENANT.task("run"), {"e1": "E1", "lua": "start() effect() if args.n == nil then while true do end end return {}"})
    lab.until(lambda: lab.starts() == 1, 30, "the handler's start")
    worker.killed = True
    worker.process.kill()
    worker.process.wait()
    lab.until(lambda: not procs.alive(child), 60, "the child's end")
    lab.until(lambda: not lab.sessions(), 30, "the sessions to end")
    assert lab.effects() == 0
    lab.sql("DELETE FROM umavez.runs WHERE run_id = %s::uuid", run)


@GATES
def test_J06_supervisors_with_the_same_pids(lab, gate, pid_one):  # noqa: F811
    """In a container supervisor and child have the pids of those before them."""
    lab.latch("a")
    lab.gate(gate)
    first = lab.worker(workers=1)
    run = lab.enqueue("e2.t_key", {"e1": "E1", "lua": "start() effect() reached('a') wait('a') return {}"})
    lab.reached("a")
    held = lab.live(run)
    first.kill()
    second = lab.worker(workers=1)
    lab.open("a")
    end = lab.done(run)
    assert (end.status, end.worker_id != held.worker_id, lab.effects(), lab.starts()) == ("completed", True, 1, 2)
    assert end.finished_at >= held.lease_until, "nobody took the dead one's lease for its own"
    supervisor, = procs.children_of(second.pid)                                # unshare does not hand SIGTERM on
    procs.send(supervisor, signal.SIGTERM)
    lab.until(lambda: not second.running(), 20, "the supervisor's exit")
    assert second.process.returncode == 0


def test_a_dead_child_is_replaced_and_named(lab):
    lab.latch("a")
    lab.allow("worker_death")
    worker = lab.worker(workers=2, pool_size=1)
    children = worker.wait_children(2)
    run = lab.enqueue("e2.t_crash", {"e1": "E1", "lua": "local n = start() effect() reached('a') if n == 1 then wait('a') end return {}"})
    lab.reached("a")
    mine = lab.live(run).worker_id
    pid = next(int(e["pid"]) for e in worker.events("worker_ready") if e["worker_id"] == str(mine))
    os.kill(pid, signal.SIGKILL)
    died = worker.wait_event("child_died")
    assert (int(died["child"]), died["worker_id"], died["level"]) == (pid, str(mine), "error") and "signal 9" in died["how"]
    after = worker.wait_children(2)
    assert pid not in after and set(children) - {pid} <= set(after)
    assert lab.done(run).status == "completed" and lab.effects() == 1


def test_a_child_that_is_told_to_stop_is_replaced_without_alarm(lab):
    worker = lab.worker(workers=2)
    first, second = worker.wait_children(2)
    os.kill(first, signal.SIGTERM)
    died = worker.wait_event("child_died", child=first)
    assert (died["level"], died["how"]) == ("info", "exit status 0")
    assert first not in worker.wait_children(2)


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "child"])
def test_SIGTERM_between_teardown_and_exit_does_not_end_it_by_the_signal(lab, supervised):
    """One that came when nobody listened to signals any more, and the process was about to exit, ended it with -15."""
    for _ in range(8):
        worker = lab.worker(workers=1) if supervised else lab.worker()
        pid = worker.wait_children(1)[0] if supervised else worker.pid
        worker.wait_event("worker_ready")
        wait_until(lambda: procs.send(pid, signal.SIGTERM) or not procs.alive(pid), 30, "its end, under signals without a pause", interval=0)
        if supervised:
            assert worker.wait_event("child_died", child=pid)["how"] == "exit status 0"
            assert worker.terminate() == 0
        else:
            assert worker.process.wait(30) == 0


def test_a_crash_loop_is_slow_and_loud(lab):
    lab.allow("worker_death", "exit_status")
    worker = lab.worker(workers=1)
    for n in range(6):
        child, = worker.wait_children(1)
        os.kill(child, signal.SIGKILL)
        worker.wait_event("child_died", child=child)
    waits = [int(event["next_start_ms"]) for event in worker.events("child_died")]
    assert waits[0] == 0 and 100 <= waits[1] <= 200 and 200 <= waits[2] <= 400 and 400 <= waits[3] <= 800 and 1600 <= waits[5] <= 3200, waits
    assert worker.events("crash_loop")[0]["level"] == "error"
    worker.wait_children(1)                                                    # it is not given up
    assert worker.terminate() == 5


def test_a_first_child_that_cannot_start_ends_the_worker(lab):
    """Its code and its reason are the worker's: a service manager need not start what a person must mend."""
    lab.env.tasks.add("e2.broken", lease="7 parsecs")
    done = lab.cli("worker", "--workers", "2")
    assert done.code == 3 and "7 parsecs" in done.err and done.err.count("supervisor_started") == 1
    lab.env.tasks.add("e2.broken", lease="7s")
    done = lab.cli("worker", "--workers", "2", DATABASE_URL=lab.env.db.url().replace(lab.env.db.name, "nowhere"))
    assert done.code == 4 and "nowhere" in done.err
    done = lab.cli("worker", "--workers", "many")
    assert done.code == 3 and "workers" in done.err and "supervisor_started" not in done.err
    lab.env.tasks.add("e2.broken", handler="local ffi = require('ffi') ffi.cdef('void abort(void);') ffi.C.abort() return function() end")
    done = lab.cli("worker", "--workers", "2")
    assert done.code == 5 and done.err.count("child_died") == 5 and "again and again" in done.err


# --- recycling --------------------------------------------------------------------------------------------------------------------------

def test_max_runs_recycles_one_child_after_another(lab):
    worker = lab.worker(workers=2, max_runs=20, pool_size=4, prefetch=4)
    worker.wait_children(2)
    runs = lab.enqueue_many("e2.t_run", [{"n": n, "lua": "start() effect() ctx.sql:one('SELECT pg_sleep(0.05)') return {}"} for n in range(150)])
    ends = lab.env.wait_finished(runs, timeout=120)
    assert {(end.status, end.deliveries) for end in ends} == {("completed", 1)} and lab.effects() == lab.starts() == 150
    lab.until(lambda: len(worker.events("child_stopping", why="recycle")) >= 2, 60, "two children to be recycled")
    # Between the decision and the old one's end stands the new one's readiness, and no second decision.
    steps = [e["event"] for e in worker.events() if e["event"] in ("child_recycled", "child_ready") or (e["event"] == "child_stopping" and e["why"] == "recycle")]
    text = " ".join(steps[2:])
    assert text.startswith("child_recycled child_ready child_stopping child_recycled child_ready child_stopping"), text
    assert not worker.events("child_died", level="error") and worker.events("child_recycled")[0]["why"] == "max_runs"


def test_max_memory_recycles_a_child(lab):
    lab.env.tasks.add("e2.greedy", handler="""
      local ffi = require("ffi")
      kept = kept or {}                         -- luacheck: ignore
      return function(ctx, args)
        local block = ffi.new("char[?]", args.bytes)
        ffi.fill(block, args.bytes, 1)
        kept[#kept + 1] = block
        return {}
      end""")
    lab.allow("settled_effect")
    worker = lab.worker(workers=1, max_memory=150)
    child, = worker.wait_children(1)
    assert lab.done(lab.enqueue("e2.greedy", {"bytes": 1})).status == "completed"
    assert lab.done(lab.enqueue("e2.greedy", {"bytes": 200000000})).status == "completed"
    recycled = worker.wait_event("child_recycled", timeout=60)
    assert (int(recycled["child"]), recycled["why"]) == (child, "max_memory") and int(recycled["found"]) > 150 << 20
    worker.wait_event("worker_drained", pid=child)
    assert worker.wait_children(1) != [child]


# --- the log file -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "alone"])
def test_SIGUSR1_opens_the_log_file_anew(lab, supervised):
    log = lab.env.log_dir / "umavez.log"
    worker = lab.worker(supervised=supervised, log_file=str(log))
    wait_until(lambda: log.exists() and log.read_text().count("worker_ready") == (2 if supervised else 1), 60, "the worker is ready")
    assert worker.text() == ""
    moved = log.rename(log.with_suffix(".1"))
    worker.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: log.exists() and log.read_text().count("log_reopened") >= (3 if supervised else 1), 60, "the new file is used")
    size = moved.stat().st_size
    assert lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"})).status == "completed"
    assert worker.terminate() == 0
    assert "worker_drained" in log.read_text() and moved.stat().st_size == size
    if supervised:
        assert len({line.split('"pid":')[1].split(",")[0] for line in log.read_text().splitlines() if "log_reopened" in line}) == 3


def test_a_log_file_that_cannot_be_written_is_refused(lab):
    for flags in ([], ["--no-supervise"]):
        done = lab.cli("worker", "--log-file", "/nowhere/at/all.log", *flags)
        assert done.code == 3 and "log_file" in done.err and "/nowhere/at/all.log" in done.err


def test_a_worker_alone_says_that_it_cannot_reload(lab):
    worker = lab.worker()
    worker.wait_event("worker_ready")
    hang_up(worker)
    assert "restart" in worker.wait_event("reload_ignored")["why"]
    assert worker.running() and worker.terminate() == 0


# --- --watch ---------------------------------------------------------------------------------------------------------------------

def test_watch_reloads_when_a_file_has_changed(lab):
    """Saved in place, saved by a rename, in a new folder, removed, broken and mended; and what is no reason."""
    version = lambda n: f"return function() return {{ version = {n} }} end"     # noqa: E731
    tasks = lab.env.tasks
    lab.env.audit.allow("settled_effect")
    tasks.add("w.one", owner="platform", handler=version(1))
    worker = lab.worker(supervised=True, workers=1, arguments=["--watch"])
    worker.wait_children(1)
    outcome = lambda task: lab.done(lab.env.enqueue(task, {}, tenant=None)).outcome   # noqa: E731
    assert outcome("w.one") == {"version": 1}
    generation = 1

    def reloaded():
        nonlocal generation
        generation += 1
        worker.wait_event("reloaded", generation=str(generation))

    (tasks.dir / "w" / "one.lua").write_text(version(2))
    reloaded()
    assert outcome("w.one") == {"version": 2}
    (tasks.dir / "w" / "one.lua~").write_text(version(3))
    (tasks.dir / "w" / "one.lua~").rename(tasks.dir / "w" / "one.lua")
    reloaded()
    assert outcome("w.one") == {"version": 3}
    aside = tasks.dir.parent / (tasks.dir.name + "-aside")
    (aside / "b").mkdir(parents=True)
    (aside / "b" / "manifest.lua").write_text('return { tasks = { c = { owner = "platform" } } }')
    (aside / "b" / "c.lua").write_text(version(4))
    aside.rename(tasks.dir / "a")
    reloaded()
    assert outcome("a.b.c") == {"version": 4}
    (tasks.dir / "a" / "b" / "c.lua").write_text(version(5))                   # a folder that came later is watched, too
    reloaded()
    assert outcome("a.b.c") == {"version": 5}
    before = len(worker.events("reload_started"))
    (tasks.dir / "w" / "one_spec.lua").write_text("error('no task')")
    (tasks.dir / "w" / "notes.txt").write_text("nothing")
    (tasks.dir / "w" / ".one.lua.swp").write_text("nothing")
    (tasks.dir / "w" / "one.lua").write_text("return oops oops")
    failed = worker.wait_event("reload_failed")
    assert "one.lua" in failed["why"] and len(worker.events("reload_started")) == before + 1
    assert outcome("w.one") == {"version": 3}
    (tasks.dir / "w" / "one.lua").write_text(version(5))
    wait_until(lambda: len(worker.events("reload_started")) == before + 2 and not reloading(worker), 60, "mended")
    assert outcome("w.one") == {"version": 5}
    assert lab.cli("worker", "--watch", "--no-supervise")[0] == 3


def reloading(worker):
    ended = len(worker.events("reloaded")) + len(worker.events("reload_failed"))
    return len(worker.events("reload_started")) > ended
