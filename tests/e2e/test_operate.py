"""The operator's commands against workers at work: pause, cancel, discard, retry of many, forget, workers, audit.

What the SQL functions promise alone is in tests/sql/test_acts.py.
"""
import json
import os
import signal
import uuid

import pytest

from lab import GATES, OWNERS, TASKS, digest
from support import snippets
from test_command_line import mistake, umavez

LISTENING = pytest.mark.parametrize("listen", [True, False], ids=["notified", "behind a pooler"])    # False: learns of orders by its renewals


def alone(lab, **fields):
    """A task of which one run at a time is done, for both owners."""
    for letter, who in (("t", "tenant"), ("p", "platform")):
        lab.env.tasks.add(f"e2.{letter}_alone", owner=who, key=["e1"], lease="2s", timeout="60s", concurrency=1, queue="narrow",
                          handler=(TASKS / "lab.lua").read_text(), **fields)


def one_begun(lab, owner, listen, count):
    """Runs in a worker's hands of which one is in its handler until the latch `a` is opened, and the others wait for their turn."""
    alone(lab)
    lab.latch("a")
    lab.worker(pool_size=4, **({} if listen else {"prepare": "false"}))
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.tasks WHERE queue = 'narrow'"), 30, "the task to be known")
    runs = lab.enqueue_many(owner.task("alone"), [{"e1": f"E{n}", "lua": "effect() reached('a') wait('a') return {}"} for n in range(count)], owner)
    lab.reached("a")
    return runs


def acts(lab, *argv):
    return [json.loads(line) for line in lab.cli("audit", "--json", "--limit", 1000, *argv).out.splitlines()]


def tenant_flags(owner):
    return ["--tenant", owner.tenant_id] if owner.tenant_id else ["--platform"]


# --- pause ------------------------------------------------------------------------------------------------------------------------------

@OWNERS
def test_a_paused_queue_is_not_taken_from(lab, owner):
    lab.worker()
    done = lab.cli("pause", "default", "--reason", "INC-1")
    assert done.code == 0 and "paused" in done.out and "default" in done.out, done
    assert "already" in lab.cli("pause", "default").out
    first = lab.enqueue(owner.task("run"), {"lua": "effect() return {}"}, owner)
    # What comes later into another queue of the same worker is done; with it a look at this one has passed.
    for _ in range(3):
        other = lab.enqueue(owner.task("elsewhere"), {"lua": "effect() return {}"}, owner)
        assert lab.done(other).status == "completed"
    assert (lab.live(first).state, lab.live(first).deliveries) == ("available", 0)
    shown = {row["queue"]: row for row in map(json.loads, lab.cli("queues", "--json").out.splitlines())}
    assert shown["default"]["due"] == 1 and "@" in shown["default"]["paused_by"] and shown["default"]["reason"] == "INC-1"
    assert "paused_at" not in shown["e2_elsewhere"]
    table = lab.cli("queues").out
    assert "INC-1" in table and "PAUSED" in table
    assert lab.cli("resume", "default").code == 0 and lab.done(first).status == "completed"
    assert "was not paused" in lab.cli("resume", "default").out
    assert [(act["action"], act["target"], act.get("reason")) for act in acts(lab)] == [("resume", "default", None), ("pause", "default", "INC-1")]
    assert "INC-1" in lab.cli("audit").out


@OWNERS
@LISTENING
def test_pausing_gives_back_what_has_not_begun(lab, owner, listen):
    runs = one_begun(lab, owner, listen, 4)
    assert lab.cli("pause", "narrow").code == 0
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.runs WHERE state = 'running'") == 1, 30, "the runs that wait to go back")
    assert lab.value("SELECT max(deliveries) FROM umavez.runs WHERE state = 'available'") == 0
    lab.open("a")
    lab.until(lambda: lab.effects() == 1 and lab.value("SELECT count(*) FROM umavez.runs") == 3, 30, "the one that had begun")
    assert lab.cli("resume", "narrow").code == 0
    assert {lab.done(run).status for run in runs} == {"completed"}


@pytest.mark.parametrize("command", [["pause", "e2_elsewere"], ["limit", "queue", "e2_elsewere", "3"]], ids=lambda command: command[0])
def test_pausing_or_limiting_an_unknown_queue_says_so(lab, command):
    lab.sql("SELECT umavez.enqueue('e2.t_elsewhere', queue => 'e2_elsewhere')")
    done = lab.cli(*command)
    assert done.code == 0 and 'did you mean "e2_elsewhere"' in done.err
    lab.sql("DELETE FROM umavez.runs")


# --- cancel -----------------------------------------------------------------------------------------------------------------------------

@OWNERS
def test_cancelling_a_run_that_waits(lab, owner):
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": "effect() return {}"}, owner)
    done = lab.cli("cancel", run, "--reason", "wrong amount")
    assert done.code == 0 and "is cancelled" in done.out, done
    end = lab.finished(run)
    assert (end.status, end.outcome["code"]) == ("failed_permanent", "cancelled") and "wrong amount" in end.outcome["message"]
    again = lab.cli("cancel", run)
    assert again.code == 1 and "failed_permanent" in again.err
    assert lab.cli("cancel", uuid.uuid4()).code == 1
    lab.worker()
    assert lab.cli("retry", run).code == 0 and lab.done(run).status == "completed"
    assert [act["action"] for act in acts(lab, "--target", run)] == ["retry", "cancel"]


WAITS = {"sql": "ctx.sql:one('SELECT pg_sleep(600)')", "sleep": "ctx:sleep('600s')", "pcall": "while true do pcall(ctx.sql.one, ctx.sql, 'SELECT pg_sleep(0.2)') end"}


@OWNERS
@GATES
@pytest.mark.parametrize("wait", WAITS)
def test_cancelling_a_run_that_runs(lab, owner, gate, wait):
    for letter, who in (("t", "tenant"), ("p", "platform")):
        lab.env.tasks.add(f"e2.{letter}_long", owner=who, key=["e1"], lease="30s", timeout="900s", handler=(TASKS / "lab.lua").read_text())
    lab.gate(gate)
    lab.latch("a")
    worker = lab.worker()
    run = lab.enqueue(owner.task("long"), {"e1": "E1", "lua": f"local n = start() effect() if n > 1 then return {{ n = n }} end reached('a') {WAITS[wait]} return {{}}"}, owner)
    lab.reached("a")
    done = lab.cli("cancel", run, "--reason", "INC-2", "--wait", "60s")
    assert done.code == 0 and "is cancelled" in done.out, done
    end = lab.finished(run)
    assert (end.status, end.outcome["code"], end.attempt) == ("failed_permanent", "cancelled", 1) and "INC-2" in end.outcome["message"]
    assert lab.effects() == 0
    row = lab.row(owner.task("long"), owner, "E1")
    assert (row.status, row.outcome["code"]) == ("failed_permanent", "cancelled")
    if gate == "valkey":
        assert lab.settled_entry(owner.task("long"), owner, "E1").state == "F"
    lab.until(lambda: not [s for s in lab.sessions() if s.state != "idle" and "pg_sleep" in s.query], 30, "its statement to end")
    assert worker.events("run_cancelled", run_id=run)
    # A duplicate is answered by it, and an operator can open it again.
    other = lab.enqueue(owner.task("long"), {"e1": "E1", "lua": f"local n = start() effect() if n > 1 then return {{ n = n }} end reached('a') {WAITS[wait]} return {{}}"}, owner)
    assert lab.done(other).outcome["code"] == "cancelled" and lab.starts() == 1
    lab.allow("replays_equal")
    assert lab.cli("retry", run).code == 0
    assert lab.done(run).outcome == {"n": 2} and lab.effects() == 1


@OWNERS
@LISTENING
def test_cancelling_a_run_that_a_worker_holds_and_has_not_begun(lab, owner, listen):
    runs = one_begun(lab, owner, listen, 3)
    held, = lab.sql("SELECT run_id::text FROM umavez.runs WHERE run_id <> (SELECT run_id FROM umavez.runs ORDER BY run_at LIMIT 1) ORDER BY run_at LIMIT 1")
    lab.cli("cancel", held.run_id, "--wait", "0s")
    end = lab.done(held.run_id)
    assert (end.status, end.outcome["code"]) == ("failed_permanent", "cancelled")
    lab.open("a")
    assert sorted(lab.done(run).status for run in runs) == ["completed", "completed", "failed_permanent"]
    assert lab.effects() == 2 and lab.value("SELECT count(*) FROM umavez.cancellations") == 0


@OWNERS
def test_cancelling_in_the_prepare_step(lab, owner):
    handler = "return { prepare = function(ctx, args) if args.hold then ctx:sleep('600s') end return {} end, effect = function(ctx, args) return {} end }"
    lab.env.tasks.add(f"e2.{owner.letter}_steps", owner=owner.name, key=["e1"], lease="2s", timeout="900s", handler=handler)
    lab.worker()
    run = lab.enqueue(owner.task("steps"), {"e1": "E1", "hold": True}, owner)
    lab.until(lambda: lab.live(run).state == "running", 30, "the run to be taken")
    assert lab.cli("cancel", run, "--wait", "60s").code == 0
    assert (lab.finished(run).status, lab.finished(run).outcome["code"]) == ("failed_permanent", "cancelled")


@OWNERS
def test_cancelling_a_run_whose_worker_dies(lab, owner):
    lab.latch("a")
    worker = lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": "start() effect() reached('a') wait('a') return {}"}, owner)
    lab.reached("a")
    worker.kill()
    done = lab.cli("cancel", run, "--wait", "0s", "--json")
    assert json.loads(done.out)["state"] == "asked", done
    lab.worker()
    end = lab.done(run, 60)
    assert (end.status, end.outcome["code"]) == ("failed_permanent", "cancelled") and lab.starts() == 1


def test_cancelling_a_run_of_a_batch(lab, monkeypatch):
    """Those that wait for their turn in its transaction are done, the cancelled one is not."""
    monkeypatch.setenv("UMAVEZ_TEST_SHARE", "8")
    monkeypatch.setenv("UMAVEZ_TEST_BATCH", "8")
    lab.env.tasks.add("e2.t_shared", owner="tenant", key=["e1"], lease="2s", timeout="60s", handler=(TASKS / "lab.lua").read_text(), batch=8)
    worker = lab.worker(pool_size=1)
    lua = "effect() if args.slow then for _ = 1, 900 do ctx.sql:one('SELECT pg_sleep(0.05)') end end return {}"
    runs = lab.enqueue_many("e2.t_shared", [{"e1": f"E{n}", "lua": lua, "slow": n == 0} for n in range(8)])
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.runs WHERE state = 'running'") > 0, 30, "a run to be taken")
    slow = lab.value("SELECT run_id::text FROM umavez.runs WHERE args->>'slow' = 'true'")
    assert lab.cli("cancel", slow, "--wait", "60s").code == 0
    ends = {run: lab.done(run) for run in runs}
    assert [run for run in runs if ends[run].status != "completed"] == [slow]
    assert lab.effects() == 7 and worker.running()


# --- discard, retry of many -------------------------------------------------------------------------------------------------------------

@OWNERS
def test_discarding_and_retrying_what_failed(lab, owner):
    lab.worker()
    lua = "if start() <= 4 then return ctx:fail { code = 'declined' } end effect() return {}"
    runs = [lab.enqueue(owner.task("key"), {"e1": f"E{n}", "lua": lua}, owner) for n in range(4)]
    assert {lab.done(run).status for run in runs} == {"failed_permanent"}
    lab.sql("UPDATE umavez.finished_runs SET finished_at = finished_at - interval '2 hours' WHERE run_id = %s::uuid", runs[0])
    lab.sql(f"UPDATE {owner.table} SET created_at = created_at - interval '3 hours'")
    done = lab.cli("discard", runs[1], "--reason", "refunded")
    assert done.code == 0 and "1 of 1" in done.out, done
    assert lab.cli("discard", runs[1]).code == 1
    listed = {json.loads(line)["run_id"] for line in lab.cli("runs", "--state", "failed_permanent", "--json").out.splitlines()}
    assert listed == {runs[0], runs[2], runs[3]}
    assert runs[1] in lab.cli("runs", "--state", "discarded").out
    assert "discarded at" in lab.cli("show", runs[1]).out
    done = lab.cli("retry", "--failed", "--since", "1h", "--reason", "mended", "--json")
    assert done.code == 0 and json.loads(done.out) == {"retried": 2} and done.err == "", done
    assert {lab.done(run).status for run in runs[2:]} == {"completed"} and lab.effects() == 2
    assert lab.finished(runs[0]).status == lab.finished(runs[1]).status == "failed_permanent"
    assert lab.cli("retry", "--failed", "--task", owner.task("twin"), "--since", "3h").out.startswith("0 runs")
    assert lab.cli("retry", "--failed", "--task", owner.task("key"), "--since", "3h").out.startswith("1 runs")
    assert lab.done(runs[0]).status == "completed"
    assert lab.cli("retry", runs[1]).code == 0 and lab.done(runs[1]).status == "completed"
    assert [act["action"] for act in acts(lab)] == ["retry", "retry", "retry", "discard"]


def test_retrying_many_in_batches(lab):
    lab.sql("""INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, args, deliveries, enqueued_at)
               SELECT gen_random_uuid(), 'e2.t_run', 1, 'default', 2, 'failed_permanent', false, '{}', '{}', 1, now() FROM generate_series(1, 450)""")
    assert lab.cli("retry", "--failed", "--since", "1h").out == "450 runs are back in the queue\n"
    assert lab.value("SELECT count(*) FROM umavez.runs") == 450
    assert [len(act["detail"]["runs"]) for act in acts(lab)] == [50, 200, 200]
    lab.sql("DELETE FROM umavez.runs")


def test_discarding_many_in_batches(lab):
    """And the query of docs/operations.md, which says of what the failed runs have died."""
    lab.worker()
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.tasks WHERE name = 'e2.t_run'") == 1, 30, "the task to be known")
    lab.sql("""INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, args, deliveries, enqueued_at, finished_at)
               SELECT gen_random_uuid(), CASE WHEN n <= 20 THEN 'e2.t_key' ELSE 'e2.t_run' END, 1, 'default', 2, 'failed_permanent', false,
                      jsonb_build_object('code', CASE WHEN n % 2 = 0 THEN 'error' ELSE 'declined' END), '{}', 1, now(), now() - CASE WHEN n > 440 THEN interval '3 hours' ELSE '0' END
                 FROM generate_series(1, 450) AS n""")
    why = snippets.one("docs/operations.md", "outcome->>'code'").text
    assert [tuple(row)[:3] for row in lab.sql(why)] == [("e2.t_run", "declined", 215), ("e2.t_run", "error", 215), ("e2.t_key", "declined", 10), ("e2.t_key", "error", 10)]
    assert lab.cli("discard", "--failed", "--task", "e2.t_run", "--since", "1h", "--reason", "INC-1").out == "420 runs are discarded\n"
    assert lab.value("SELECT count(*) FROM umavez.finished_runs WHERE discarded_at IS NULL") == 30
    assert {(act["action"], act["reason"]) for act in acts(lab)} == {("discard", "INC-1")} and len(acts(lab)) == 420
    assert lab.cli("discard", "--failed", "--task", "e2.t_run", "--since", "1h").out == "0 runs are discarded\n"
    assert json.loads(lab.cli("discard", "--failed", "--since", "1h", "--json").out) == {"discarded": 20}
    for words in ([], ["--failed"], ["--task", "e2.t_run"], [str(uuid.uuid4()), "--failed", "--since", "1h"]):
        refused = lab.cli("discard", *words)
        assert refused.code == 2 and "--failed [--task TASK] [--since 1h]" in refused.err, refused
    slip = lab.cli("discard", "--failed", "--task", "e2.t_rum")
    assert slip.code == 1 and "e2.t_run" in slip.err, slip


# --- forget -----------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
@pytest.mark.parametrize("by", ["run", "digest"])
def test_forgetting_a_key_lets_its_operation_be_done_anew(lab, owner, gate, by):
    lab.gate(gate)
    lab.worker()
    task, args = owner.task("key"), {"e1": "E1", "lua": "effect() return { n = start() }"}
    run = lab.enqueue(task, args, owner)
    assert lab.done(run).outcome == {"n": 1}
    if gate == "valkey":
        lab.settled_entry(task, owner, "E1")
    key = digest(task, "E1").hex()
    argv = ["--run", run] if by == "run" else [key, *tenant_flags(owner)]
    valkey = {} if gate == "valkey" else {"VALKEY_URL": ""}
    done = lab.cli("forget", *argv, "--reason", "paid to the wrong account", **valkey)
    assert done.code == 0 and "is forgotten" in done.out and ("Valkey" in done.out) == (gate == "valkey"), done
    assert lab.row(task, owner, "E1") is None and lab.gate_state(task, owner, "E1") is None
    again = lab.cli("forget", *argv, "--reason", "x", **valkey)
    assert again.code == 1 and "there is no key" in again.out
    lab.allow("effect_once", "effect_settled", "ledger_run", "replays_equal")
    second = lab.enqueue(task, args, owner)
    assert lab.done(second).outcome == {"n": 2} and lab.effects() == 2
    act, = acts(lab)
    assert (act["action"], act["target"], act["reason"], act["detail"]["status"]) == ("forget", key, "paid to the wrong account", "completed")


@OWNERS
def test_a_key_in_use_is_not_forgotten(lab, owner):
    lab.latch("a")
    lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": "effect() reached('a') wait('a') return {}"}, owner)
    lab.reached("a")
    by_digest = lab.cli("forget", digest(owner.task("key"), "E1").hex(), *tenant_flags(owner), "--reason", "x")
    assert by_digest.code == 1 and "in use" in by_digest.err
    by_run = lab.cli("forget", "--run", run, "--reason", "x")
    assert by_run.code == 1 and "has not ended" in by_run.err
    lab.open("a")
    assert lab.done(run).status == "completed" and acts(lab) == []


def test_forgetting_without_valkey_changes_nothing(lab):
    lab.worker()
    run = lab.enqueue("e2.t_key", {"e1": "E1", "lua": "effect() return {}"})
    lab.done(run)
    away = {"VALKEY_URL": "redis://:vk_SECRET@127.0.0.1:1/0"}
    done = lab.cli("forget", "--run", run, "--reason", "x", **away)
    assert done.code == 1 and "--without-valkey" in done.err and "SECRET" not in done.err, done
    assert lab.row("e2.t_key", lab.tenant, "E1")
    assert lab.cli("forget", "--run", run, "--reason", "x", "--without-valkey", **away).code == 0
    assert lab.row("e2.t_key", lab.tenant, "E1") is None
    lab.allow("effect_settled", "ledger_run", "gate_truth")


@pytest.mark.parametrize("argv,words", [
    (["forget", "abc", "--tenant", "1", "--reason", "x"], ["64", "abc"]), (["forget", "a" * 64, "--reason", "x"], ["--tenant"]), (["forget", "--reason", "x"], ["DIGEST"]),
    (["forget", "a" * 64, "--platform"], ["--reason"]), (["forget", "--run", "x", "--reason", "x"], ["x"]), (["forget", "--run", "0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c", "--tenant", "1", "--reason", "x"], ["--run"]),
    (["cancel", "x"], ["x"]), (["cancel", "0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c", "--wait", "soon"], ["wait", "soon"]), (["discard", "x"], ["x"]), (["audit", "--action", "odd"], ["odd", "forget"]), (["retry", "--failed"], ["--since"]),
], ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None)
def test_usage_mistakes(argv, words):
    mistake(umavez(*argv, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none"), 2, *words)


def test_a_time_that_is_none(lab):
    mistake((done := lab.cli("retry", "--failed", "--since", "yesteryear")) and (done.code, done.out, done.err), 2, "--since", "yesteryear")


# --- workers ----------------------------------------------------------------------------------------------------------------------------

def listed(lab, *argv):
    return [json.loads(line) for line in lab.cli("workers", "--json", *argv).out.splitlines()]


@OWNERS
def test_workers_are_listed_while_they_live(lab, owner):
    lab.latch("a")
    worker = lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": "effect() reached('a') wait('a') return {}"}, owner)
    lab.reached("a")
    row, = lab.until(lambda: listed(lab), 30, "the worker to be listed")
    assert (row["pid"], row["held"], row["alive"]) == (worker.pid, 1, True) and "default" in row["queues"]
    assert row["version"] and row["host"] and str(lab.live(run).worker_id) == row["worker_id"]
    assert str(worker.pid) in lab.cli("workers").out
    lab.open("a")
    lab.done(run)
    lab.settle(worker)
    assert lab.value("SELECT count(*) FROM umavez.workers") == 0


def test_a_killed_worker_is_silent_and_a_killed_child_is_gone(lab):
    alone_worker = lab.worker()
    lab.until(lambda: len(listed(lab)) == 1, 30, "the worker to be listed")
    alone_worker.kill()
    lab.sql("UPDATE umavez.workers SET seen_at = seen_at - interval '2 minutes'")
    assert listed(lab) == [] and [row["alive"] for row in listed(lab, "--all")] == [False]
    assert "(silent)" in lab.cli("workers", "--all").out
    lab.sql("DELETE FROM umavez.workers")
    parent = lab.env.worker(supervised=True, workers=1)
    child, = parent.wait_children(1)
    row, = lab.until(lambda: listed(lab), 30, "the child to be listed")
    assert row["supervisor"] == parent.pid
    lab.allow("leases")
    os.kill(row["pid"], signal.SIGKILL)
    lab.until(lambda: [r["pid"] for r in listed(lab)] not in ([], [row["pid"]]) and len(listed(lab)) == 1, 60, "its row to be replaced")
