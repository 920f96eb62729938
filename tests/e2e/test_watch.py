"""A supervisor's watch over its children: who is charged for a death, what becomes of code that does not come back, whose leases go on.

Rows of the cases here: B02, E01, E02, I01.
"""
import json
import os
import signal

import pytest

from lab import OWNERS, PLATFORM, SLACK, TENANT, digest, fingerprint
from support import procs
from support.http import Closed, Door
from support.taskset import Raw
from test_e_queue import CRASHES

LAB = (procs.ROOT / "tests/support/tasks/lab.lua").read_text()
HELD = "effect() reached('a') wait('a') return {}"


def add(lab, owner, name, **fields):
    """A task of this test's own, in both gaits of the lab: its name."""
    lab.env.tasks.add(f"e2.{name}", owner="platform" if owner is PLATFORM else "tenant", key=["e1"], handler=LAB,
                      **{"retry": {"max_attempts": 3, "base": "100ms", "cap": "1s"}, **fields})
    return f"e2.{name}"


def held(lab, owner, worker, count, task=None):
    """Runs that are in their handlers when this returns, and stay there until the latch `a` is opened."""
    runs = lab.enqueue_many(task or owner.task("run"), [{"e1": f"held {n}", "lua": HELD} for n in range(count)], owner)
    lab.reached("a", count=count)
    return runs


def finish_held(lab, runs):
    """Opens the latch: each of them has had its effect once, and was charged for one delivery."""
    lab.open("a")
    ends = [lab.done(run, 60) for run in runs]
    assert {(end.status, end.deliveries) for end in ends} == {("completed", 1)}
    assert [lab.effects(f"held {n}") for n in range(len(runs))] == [1] * len(runs)


@pytest.mark.parametrize("how,owner", [(how, TENANT) for how in CRASHES] + [("abort", PLATFORM)], ids=str)
def test_E01_supervised_run_that_kills_its_worker(lab, how, owner):
    lab.allow("worker_death")
    worker = lab.worker(workers=2)
    args = {"e1": "E1", "lua": "start() effect() " + CRASHES[how]}
    run = lab.enqueue(owner.task("crash"), args, owner)
    others = lab.enqueue_many(owner.task("run"), [{"e1": f"other {n}", "lua": "effect() return {}"} for n in range(10)], owner)
    end = lab.done(run, 90)
    assert (end.status, end.outcome["code"], end.replay, end.args) == ("failed_permanent", "worker_lost", False, args)
    assert (lab.starts(), lab.effects("E1")) == (3, 0)
    row = lab.row(owner.task("crash"), owner, "E1")
    assert (row.status, row.outcome) == ("failed_permanent", end.outcome)
    named = worker.events("run_lost_its_worker", run_id=run, task=owner.task("crash"))
    assert len(named) == 3 and len({event["child"] for event in named}) == 3
    assert {(lab.done(other).status, lab.finished(other).deliveries) for other in others} == {("completed", 1)}
    # Once dead, a duplicate is answered and kills nobody.
    again = lab.done(lab.enqueue(owner.task("crash"), args, owner))
    assert (again.status, again.replay, again.outcome, lab.starts()) == ("failed_permanent", True, end.outcome, 3)
    assert worker.running()


@OWNERS
def test_E02_innocent_runs_beside_a_crash(lab, owner):
    lab.allow("worker_death")
    lab.latch("a")
    worker = lab.worker(workers=1, pool_size=20)
    innocents = held(lab, owner, worker, 10)
    child, = worker.wait_children(1)
    run = lab.enqueue(owner.task("crash"), {"e1": "E1", "lua": "start() effect() " + CRASHES["abort"]}, owner)
    lab.until(lambda: not procs.alive(child), 30, "the child's death")
    end = lab.done(run, 90)
    assert (end.status, end.outcome["code"], lab.effects("E1")) == ("failed_permanent", "worker_lost", 0)
    assert {event["run_id"] for event in worker.events("run_lost_its_worker")} == {run}
    finish_held(lab, innocents)


def test_E02_a_child_that_is_killed_from_outside_charges_nobody(lab):
    lab.latch("a")
    worker = lab.worker(workers=1, pool_size=8)
    runs = held(lab, TENANT, worker, 6)
    for deaths in (1, 2, 3, 4):      # more than max_crashes and max_attempts
        child, = worker.wait_children(1)
        os.kill(child, signal.SIGKILL)
        lab.reached("a", count=6 + 6 * deaths, timeout=60)
    assert worker.events("run_lost_its_worker") == []
    finish_held(lab, runs)


def test_E02_a_crash_in_nobodys_code_charges_what_was_started(lab):
    lab.allow("worker_death")
    lab.latch("a")
    worker = lab.worker(workers=1, pool_size=2)
    runs = held(lab, TENANT, worker, 2)
    child, = worker.wait_children(1)
    os.kill(child, signal.SIGSEGV)
    lab.reached("a", count=4, timeout=60)
    rows = [lab.live(run) for run in runs]
    assert [(row.crashes, row.deliveries, row.failure["code"]) for row in rows] == [(1, 2, "worker_lost")] * 2
    lab.open("a")
    assert {lab.done(run).status for run in runs} == {"completed"}
    assert (lab.effects("held 0"), lab.effects("held 1")) == (1, 1)


ENDLESS = {"compiled": "while true do end", "interpreted": "jit.off(true, true) while true do end",
           "swallows": "while true do pcall(error, 'x') end", "C": "local s = ('a'):rep(60000) while true do s:find('.-.-.-b') end"}


@pytest.mark.parametrize("loop,owner", [(loop, TENANT) for loop in ENDLESS] + [("compiled", PLATFORM)], ids=str)
def test_I01_endless_loop_beside_fifteen_others(lab, owner, loop):
    lab.latch("a")
    worker = lab.worker(workers=1, pool_size=16, **({} if loop == "compiled" else {"stall": "1s"}))
    innocents = held(lab, owner, worker, 15)
    args = {"e1": "E1", "lua": "start() effect() " + ENDLESS[loop]}
    task = owner.task("brief")                  # timeout 1 s, two attempts
    run = lab.enqueue(task, args, owner)
    worker.wait_event("child_killed", 60, run_id=run, task=task)
    end = lab.done(run, 120)
    assert (end.status, end.outcome["code"], end.args) == ("failed_permanent", "timeout", args)
    assert (lab.starts(), lab.effects("E1")) == (2, 0)
    stalls, kills = worker.events("loop_stalled", run_id=run, task=task), worker.events("child_killed", run_id=run, task=task)
    assert len(stalls) == len(kills) == 2
    assert all(int(kill["ms"]) <= 1000 + 5000 + SLACK * 1000 for kill in kills), kills
    if loop == "interpreted":
        assert all("lua:1" in stall["traceback"] for stall in stalls), stalls
        assert "lua:1" in lab.value("SELECT failure->>'traceback' FROM umavez.finished_runs WHERE run_id = %s::uuid", run)
    elif loop in ("compiled", "C"):
        assert all("none: compiled code" in stall["traceback"] for stall in stalls), stalls
    finish_held(lab, innocents)


@OWNERS
def test_I01_endless_prepare(lab, owner):
    lab.env.tasks.add("e2.halves", owner="platform" if owner is PLATFORM else "tenant", key=["e1"], timeout="1s", lease="2s",
                      retry={"max_attempts": 2, "base": "100ms", "cap": "1s"},
                      handler=(procs.ROOT / "tests/support/tasks/lab_split.lua").read_text())
    worker = lab.worker(workers=1, stall="1s")
    run = lab.enqueue("e2.halves", {"e1": "E1", "prepare": "while true do end", "effect": "return {}"}, owner)
    end = lab.done(run, 90)
    assert (end.status, end.outcome["code"]) == ("failed_permanent", "timeout")
    assert len(worker.events("child_killed", run_id=run)) == 2


BUSY = {"compiled": "local ffi = require('ffi') pcall(ffi.cdef, 'long time(long *);') local t = tonumber(ffi.C.time(nil)) + 8 while tonumber(ffi.C.time(nil)) < t do end",
        "interpreted": "jit.off(true, true) local t = os.time() + 8 while os.time() < t do end"}


@pytest.mark.parametrize("code", BUSY)
@pytest.mark.parametrize("owner", [TENANT, PLATFORM], ids=str)
def test_I01_leases_go_on_while_a_handler_computes(lab, owner, code):
    """Beside other runs in the same child, and idle workers that would take what is let go."""
    lab.latch("a")
    task = add(lab, owner, "busy", lease="3s", timeout="60s")
    worker = lab.worker(workers=1, pool_size=8, stall="2s")
    others = held(lab, owner, worker, 4, task)
    lab.worker()
    run = lab.enqueue(task, {"e1": "E1", "lua": "start() effect() " + BUSY[code] + " return {}"}, owner)
    end = lab.done(run, 90)
    assert (end.status, end.deliveries, lab.effects("E1")) == ("completed", 1, 1)
    assert (lab.starts(), lab.env.reached("a_reached")) == (1, 4)
    finish_held(lab, others)


def test_B02_a_stopped_child_is_killed_and_its_runs_go_on_elsewhere(lab):
    lab.latch("a")
    task = add(lab, TENANT, "stopped", lease="2s", timeout="60s")
    worker = lab.worker(workers=1, stall="1s", pool_size=2)
    run, = held(lab, TENANT, worker, 1, task)
    child, = worker.wait_children(1)
    os.kill(child, signal.SIGSTOP)
    killed = worker.wait_event("child_killed", 60)
    assert int(killed["child"]) == child
    lab.reached("a", count=2, timeout=60)
    finish_held(lab, [run])
    assert worker.events("run_lost_its_worker") == []


def test_B02_a_stopped_supervisor_and_its_child_commit_nothing_later(lab):
    lab.latch("a", "b")
    task = add(lab, TENANT, "zombie", lease="2s", timeout="2s")
    worker = lab.worker(workers=1, stall="1s", pool_size=2)
    lua = "local n = start() effect() reached('a') if n == 1 then wait('b') end return { n = n }"
    run = lab.enqueue(task, {"e1": "E1", "lua": lua})
    lab.reached("a")
    child, = worker.wait_children(1)
    worker.freeze()
    os.kill(child, signal.SIGSTOP)
    lab.worker()
    end = lab.done(run, 60)
    assert (end.status, end.outcome, lab.effects()) == ("completed", {"n": 2}, 1)
    lab.open("b")
    os.kill(child, signal.SIGCONT)
    worker.thaw()
    later = lab.done(lab.enqueue(task, {"e1": "E1", "lua": lua}))
    assert (later.replay, later.outcome, lab.effects(), lab.starts()) == (True, {"n": 2}, 1, 2)
    assert lab.row(task, TENANT, "E1").attempt == 1


@OWNERS
@pytest.mark.parametrize("code", ["worker_lost", "timeout"])
def test_E01_limits_never_end_a_run_whose_key_is_held_or_settled(lab, owner, code):
    task = owner.task("key")
    args = {"e1": "E1", "lua": "start() effect() return {}"}
    lab.foreign(owner, digest(task, "E1"), fingerprint(task, args), seconds=4)
    settled = {"e1": "E2", "lua": "start() effect() return {}"}
    lab.foreign(owner, digest(task, "E2"), fingerprint(task, settled), status="completed", seconds=60, outcome={"by": "another program"})
    lab.allow("ledger_run")
    one, two = lab.enqueue(task, args, owner), lab.enqueue(task, settled, owner)
    lab.sql("UPDATE umavez.runs SET crashes = 3, deliveries = 3, failure = %s::jsonb", json.dumps({"code": code, "message": "as recorded"}))
    lab.worker()
    lab.busy(one)
    replayed = lab.done(two)
    assert (replayed.status, replayed.replay, replayed.outcome) == ("completed", True, {"by": "another program"})
    end = lab.done(one)          # the other program's lease is over: now it is ended, without another start
    assert (end.status, end.outcome["code"], end.args, lab.starts()) == ("failed_permanent", code, args, 0)
    assert "as recorded" in end.outcome["message"]
    assert lab.row(task, owner, "E1").status == "failed_permanent"
    # An operator's second chance begins anew.
    assert lab.cli("retry", one).code == 0
    assert lab.done(one).status == "completed"


def test_E01_key_function_that_holds_up_its_worker(lab):
    """What would end such a run needs its key: it is ended without."""
    lab.env.tasks.add("e2.k_slow", owner="tenant", timeout="1s", lease="2s", handler=LAB, retry={"max_attempts": 1},
                      key=Raw('function(args) return args.s:find(".-.-.-.-b") and "x" or "y" end'))
    worker = lab.worker(workers=1, stall="500ms")
    args = {"s": "a" * 60000, "lua": "start() effect() return {}"}
    run = lab.enqueue("e2.k_slow", args)
    end = lab.done(run, 90)
    assert (end.status, end.outcome["code"], end.args, end.idempotency_key, lab.starts()) == ("failed_permanent", "worker_lost", args, None, 0)
    assert "key function" in end.outcome["message"] and len(worker.events("child_killed", run_id=run)) == 2


def test_E02_a_death_is_told_when_postgresql_is_back(own_lab):
    lab = own_lab
    lab.latch("a")
    task = add(lab, TENANT, "away", lease="10m", timeout="60s")       # no lease ends in this test
    worker = lab.worker(workers=1, pool_size=4)
    runs = held(lab, TENANT, worker, 3, task)
    child, = worker.wait_children(1)
    worker.freeze()                  # the server is gone before the supervisor hears of the death
    os.kill(child, signal.SIGKILL)
    lab.env.pg.stop("immediate")
    worker.thaw()
    worker.wait_event("postgres_down", 60, connection="keeper")
    lab.env.pg.start()
    worker.wait_event("worker_buried", 60)
    finish_held(lab, runs)


def test_I01_a_busy_child_whose_leases_cannot_be_renewed_is_killed_uncharged(own_lab):
    lab = own_lab
    task = add(lab, TENANT, "busy", lease="3s", timeout="10m")
    worker = lab.worker(workers=1, stall="1s")
    lua = "local n = start() effect() if n == 1 then while true do end end return { n = n }"
    run = lab.enqueue(task, {"e1": "E1", "lua": lua})
    lab.until(lambda: lab.starts() == 1 and worker.events("loop_stalled", run_id=run), 60, "the handler's stall")
    lab.env.pg.stop("immediate")
    killed = worker.wait_event("child_killed", 60, run_id=run)
    assert "leases" in killed["why"]
    lab.env.pg.start()
    end = lab.done(run, 90)
    # Its lease was over: if PostgreSQL took longer to start than the burial may wait, another worker has taken it as expired.
    assert (end.status, lab.effects()) == ("completed", 1) and end.deliveries in (1, 2)
    assert worker.events("run_lost_its_worker") == []


def test_I01_a_request_that_holds_up_its_child(lab):
    """At the door: its connection breaks, it is named, and the same key may be sent again: nothing was kept of it."""
    lab.env.tasks.add("e2.door", owner="tenant", timeout="1s", handler=LAB, http={"path": "/door"})
    worker = lab.worker(workers=1, stall="500ms", http_listen="127.0.0.1:0")
    port = int(worker.wait_event("supervisor_started")["port"])
    worker.wait_children(1)
    door = Door(lab.env, port=port, worker=worker)
    lua = "if start() == 1 then while true do end end effect() return { n = 2 }"
    with pytest.raises(Closed):
        door.post("/door", {"lua": lua}, key="k1")
    killed, = worker.events("child_killed")
    assert killed["task"] == "e2.door"
    worker.wait_event("run_lost_its_worker", run_id=killed["run_id"])
    worker.wait_children(1)
    answer = lab.until(lambda: retry(door, lua), 60, "an answer of the next child")
    assert (answer.status, lab.starts(), lab.effects()) == (200, 2, 1)


def retry(door, lua):
    """The same request; None while no child is there to take it, or the dead one's claim is not yet gone."""
    try:
        answer = door.post("/door", {"lua": lua}, key="k1")
    except (Closed, OSError):
        return None
    return answer if answer.status not in (409, 503) else None
