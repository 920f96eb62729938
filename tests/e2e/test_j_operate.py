"""Group J of the cases, as far as one worker without supervisor goes; test_j_supervisor.py has supervisors.
J09 (100,000 runs, PostgreSQL away for a minute) with the chaos runs; J07 is in test_cli.py.

Rows of the cases here: J01, J02, J05, J06, J08.
"""
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from lab import GATES, OWNERS, SLACK, clean_environment, digest
from support import procs
from support.servers import umavez_bin


@OWNERS
@GATES
def test_J01_drain_lets_runs_finish(lab, owner, gate):
    lab.latch("a")
    lab.gate(gate)
    worker = lab.worker(drain_timeout="5s", pool_size=10)
    lua = "start() effect() reached('a') for _ = 1, 20 do ctx.sql:one('SELECT pg_sleep(0.1)') end return {}"
    runs = lab.enqueue_many(owner.task("run"), [{"n": n, "lua": lua} for n in range(10)], owner)
    lab.reached("a", count=10)
    more = lab.enqueue_many(owner.task("run"), [{"n": n, "lua": "start() effect() return {}"} for n in range(10, 40)], owner)
    worker.process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    lab.until(lambda: not worker.running(), 5 + SLACK, "the worker's exit")
    assert worker.process.returncode == 0 and time.monotonic() - begun <= 5 + SLACK
    for run in runs:
        end = lab.finished(run)
        assert end and (end.status, end.deliveries) == ("completed", 1)
    # What came with the signal or after it was either done before or is as it was.
    left = [lab.live(run) for run in more if not lab.finished(run)]
    assert all((row.state, row.deliveries, row.worker_id, row.lease_until) == ("available", 0, None, None) for row in left)
    assert lab.starts() == lab.effects() == 40 - len(left)
    assert not any(entry and b":P:" in entry for entry in (e[3] for e in lab.env.gate.all()))
    lab.worker()
    assert {lab.done(run).status for run in more} == {"completed"}


@OWNERS
@GATES
@pytest.mark.parametrize("how", ["drain_timeout", "second SIGTERM"])
def test_J02_drain_gives_back_what_does_not_end(lab, owner, gate, how):
    for letter, who in (("t", "tenant"), ("p", "platform")):
        lab.env.tasks.add(f"e2.{letter}_long", owner=who, key=["e1"], lease="30s", timeout="120s",
                          handler=(procs.ROOT / "tests/support/tasks/lab.lua").read_text())
    lab.latch("a")
    lab.gate(gate)
    worker = lab.worker(drain_timeout="1s" if how == "drain_timeout" else "60s")
    lua = f"local n = start() effect() if n <= 4 then reached('a') if n % 2 == 0 then ctx.sql:one('SELECT pg_sleep(60)') else ctx:sleep('60s') end end return {{ attempt = ctx.attempt }}"
    runs = lab.enqueue_many(owner.task("long"), [{"e1": f"E{n}", "lua": lua} for n in range(4)], owner)
    lab.reached("a", count=4)
    worker.process.send_signal(signal.SIGTERM)
    if how == "second SIGTERM":
        worker.wait_line("drain")
        worker.process.send_signal(signal.SIGTERM)
    lab.until(lambda: not worker.running(), 3 + SLACK, "the worker's exit")
    assert worker.process.returncode == 0
    ended = time.monotonic()
    assert lab.effects() == 0 and lab.ledger(owner) == []
    for run in runs:
        row = lab.live(run)
        assert (row.state, row.deliveries, row.worker_id, row.lease_until) == ("available", 0, None, None)
        assert lab.value("SELECT run_at <= clock_timestamp() FROM umavez.runs WHERE run_id = %s::uuid", run)
    assert lab.gate_keys() == []
    lab.worker()
    lab.until(lambda: lab.starts() == 8, 2 + SLACK, "the runs to start again")
    assert time.monotonic() - ended <= 2 + SLACK
    ends = [lab.done(run) for run in runs]
    assert {(end.status, end.deliveries, end.attempt, end.outcome["attempt"]) for end in ends} == {("completed", 1, 1, 1)}
    assert lab.effects() == 4


def test_J02_drain_of_a_worker_without_work(lab):
    for off in ("valkey", "absent"):
        lab.gate(off)
        worker = lab.worker()
        worker.wait_event("worker_ready")
        begun = time.monotonic()
        assert worker.terminate() == 0 and time.monotonic() - begun < 2 + SLACK


@OWNERS
@GATES
def test_J05_killed_worker_leaves_nothing(lab, owner, gate):
    lab.latch("a")
    lab.gate(gate)
    worker = lab.worker()
    runs = lab.enqueue_many(owner.task("key"), [{"e1": f"E{n}", "lua": "start() effect() reached('a') wait('a') return {}"} for n in range(5)], owner)
    lab.reached("a", count=5)
    worker.kill()
    lab.until(lambda: not lab.sessions(), 5, "the sessions to end")
    assert lab.effects() == 0 and lab.ledger(owner) == []
    lab.open("a")
    lab.worker()
    assert {lab.done(run, 2 + 5 + SLACK).status for run in runs} == {"completed"}
    assert (lab.effects(), lab.starts()) == (5, 10)


@pytest.fixture
def pid_one(tmp_path, monkeypatch):
    """Workers in pid namespaces of their own: each has pid 1 and the same host name."""
    wrapper = tmp_path / "umavez"
    flags = "--pid --fork --kill-child" if os.geteuid() == 0 else "--user --map-current-user --pid --fork --kill-child"
    wrapper.write_text(f'#!/bin/sh\nexec unshare {flags} "{umavez_bin()}" "$@"\n')
    wrapper.chmod(0o755)
    probe = subprocess.run(["unshare", *flags.split(), "sh", "-c", "echo $$"], capture_output=True, text=True)
    if probe.stdout.strip() != "1":
        pytest.skip(f"pid namespaces are not to be had here: {probe.stderr.strip()}")
    monkeypatch.setenv("UMAVEZ_BIN", str(wrapper))


@OWNERS
@GATES
def test_J06_same_host_name_and_pid(lab, owner, gate, pid_one):
    lab.latch("a")
    lab.gate(gate)
    first = lab.worker()
    run = lab.enqueue(owner.task("key"), {"e1": "E1", "lua": "start() effect() reached('a') wait('a') return {}"}, owner)
    lab.reached("a")
    held = lab.live(run)
    first.kill()
    killed = time.monotonic()
    second = lab.worker()
    lab.until(lambda: len(lab.sessions()) > 0 and second.running(), 10, "the second worker")
    lab.open("a")
    seen = []

    def look():
        row = lab.live(run)
        if row and row.worker_id == held.worker_id:
            seen.append(row.lease_until)
        return lab.finished(run)
    end = lab.until(look, 2 + 5 + SLACK, "the run's end")
    assert time.monotonic() - killed <= 2 + 5 + SLACK
    assert set(seen) <= {held.lease_until}, "somebody renewed the dead worker's lease"
    assert (end.status, end.worker_id != held.worker_id, lab.effects(), lab.starts()) == ("completed", True, 1, 2)
    # The lease was waited for: nobody took the dead one's run for its own.
    assert end.finished_at >= held.lease_until
    # unshare does not hand SIGTERM on.
    child, = procs.children_of(second.pid)
    procs.send(child, signal.SIGTERM)
    lab.until(lambda: not second.running(), 20, "the worker's exit")
    assert second.process.returncode == 0


# --- J08 ------------------------------------------------------------------------------------------------------------------------------

@OWNERS
@pytest.mark.parametrize("log_format", ["json", "logfmt"])
def test_J08_secrets_and_lines(lab, owner, log_format):
    lab.sql("CREATE TABLE uniq (token text UNIQUE); INSERT INTO uniq VALUES ('tok_SECRET')")
    url = lab.env.db.url().replace("app_worker@", "app_worker:pw_SECRET@")
    assert "pw_SECRET" in url
    worker = lab.worker(database_url=url, log_format=log_format, log_level="debug")
    endings = {"fine": "return { ok = true }", "error": "error('first line\\nevent=forged level=error\\r\\n{\"event\":\"forged\"}', 0)", "declared": "return ctx:fail { code = 'declined', message = 'line\\nline' }",
               "sql": "ctx.sql:exec('SELECT 1 / 0')", "unique": "ctx.sql:exec('INSERT INTO uniq VALUES ($1)', args.token)", "bad": "return { f = print }",
               "nil": "return args.nothing.here"}
    runs = [lab.enqueue(owner.task("twice"), {"e1": name, "token": "tok_SECRET", "lua": "effect() " + lua}, owner) for name, lua in endings.items()]
    seen = []
    procs_listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    ends = [lab.done(run) for run in runs]
    seen.append(procs_listing + subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout)
    assert [end.status for end in ends].count("completed") == 1
    text = worker.text()
    assert "tok_SECRET" not in text and "pw_SECRET" not in text, [line for line in text.splitlines() if "SECRET" in line]
    assert not any("SECRET" in listing for listing in seen)
    records = lab.sql("SELECT outcome, failure FROM umavez.finished_runs")
    assert "SECRET" not in json.dumps([list(row) for row in records]), [row for row in records if "SECRET" in json.dumps(list(row))]
    # The args of dead runs are kept, in the table alone.
    assert lab.value("SELECT count(*) FROM umavez.finished_runs WHERE args ->> 'token' = 'tok_SECRET'") == len(endings) - 1
    lines = text.splitlines()
    if log_format == "json":
        events = [json.loads(line) for line in lines]
        assert all(event["event"] != "forged" for event in events)
    else:
        assert all(line.count("event=") >= 1 and not line.startswith("event=forged") for line in lines)
    assert any(run in line for run in runs for line in lines)


def test_J08_settings_in_the_log(lab):
    # What the start-up line says of the settings has no password either.
    url = lab.env.db.url().replace("app_worker@", "app_worker:pw_SECRET@")
    worker = lab.worker(database_url=url, log_level="debug", valkey_url="redis://:vk_SECRET@127.0.0.1:1/0")
    lab.until(lab.sessions, 10, "the worker to connect")
    assert lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"})).status == "completed"
    assert "SECRET" not in worker.text()
    bad = lab.cli("runs", DATABASE_URL="postgresql://someone:pw_SECRET@127.0.0.1:1/nowhere")
    assert bad.code == 4 and "SECRET" not in bad.out + bad.err
