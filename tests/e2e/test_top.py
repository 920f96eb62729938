"""`umavez top`: one look for scripts, and the refreshing one on a terminal."""
import contextlib
import json
import os
import pty
import signal
import subprocess

import pytest

from lab import OWNERS
from support.servers import clean_environment, umavez_bin
from test_command_line import mistake, umavez


@OWNERS
def test_one_look(lab, owner):
    empty = json.loads(lab.cli("top", "--once", "--json").out)
    assert (empty["ended_per_s"], empty["dead_last_hour"], empty["tasks"], empty["workers"]) == (0, 0, [], [])
    lab.worker()
    lua = "if args.bad then return ctx:fail { code = 'declined' } end effect() return {}"
    runs = [lab.enqueue(owner.task("key"), {"e1": f"E{n}", "lua": lua, "bad": n == 0}, owner) for n in range(5)]
    for run in runs:
        lab.done(run)
    lab.sql("SELECT umavez.enqueue('e2.t_run', tenant_id => 1, queue => 'nobodys')")
    # Whatever a busy machine took for it: the ends count as of now.
    lab.sql("UPDATE umavez.finished_runs SET enqueued_at = clock_timestamp() - interval '50 milliseconds', finished_at = clock_timestamp()")
    seen = json.loads(lab.cli("top", "--once", "--json").out)
    assert seen["ended_per_s"] > 0 and seen["failed_per_s"] > 0 and seen["dead_last_hour"] == 1
    assert seen["ended_per_s"] / seen["failed_per_s"] == pytest.approx(5)
    assert 40 < seen["p50_ms"] <= seen["p99_ms"] < 5000
    assert [row["task"] for row in seen["tasks"]] == [owner.task("key")]
    assert {row["queue"]: row["due"] for row in seen["queues"]}["nobodys"] == 1
    assert len(seen["workers"]) == 1
    text = lab.cli("top")                                            # no terminal: once
    assert text.code == 0 and owner.task("key") in text.out and "QUEUE" in text.out and "\x1b" not in text.out, text
    lab.sql("DELETE FROM umavez.runs")


def test_an_interval_that_is_none():
    mistake(umavez("top", "--interval", "0", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none"), 2, "--interval")


@contextlib.contextmanager
def on_a_terminal(argv, env):
    """Runs argv on a terminal of its own; gives the process and what reads its screen."""
    try:
        ours, theirs = pty.openpty()
    except OSError as why:                                           # a root without /dev/pts
        pytest.skip(f"pseudo-terminals are not to be had here: {why}")
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    os.set_blocking(ours, False)
    text = bytearray()

    def screen():
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 65536):
                text.extend(chunk)
        return text.decode(errors="replace")
    try:
        yield process, screen
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def test_on_a_terminal_it_refreshes_and_outlives_the_server(lab):
    run = lab.enqueue("e2.t_run", {"lua": "effect() return {}"})
    env = {**clean_environment(), "DATABASE_URL": lab.env.db.url("postgres"), "TERM": "xterm"}
    with on_a_terminal([str(umavez_bin()), "top", "--interval", "0.2"], env) as (process, screen):
        lab.until(lambda: screen().count("\x1b[2J") >= 3, 30, "three looks")
        assert "default" in screen() and process.poll() is None
        lab.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%%recent_ends%%' AND pid <> pg_backend_pid()")
        seen = screen().count("\x1b[2J")
        lab.until(lambda: screen().count("\x1b[2J") >= seen + 3, 30, "looks after its session was ended")
        assert process.poll() is None and "fault of umavez" not in screen()
        process.send_signal(signal.SIGINT)
        lab.until(lambda: process.poll() is not None, 30, "its end")
    lab.worker()
    assert lab.done(run).status == "completed"


def test_a_bar_for_long_work_on_a_terminal(lab):
    lab.sql("""INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, args, deliveries, enqueued_at)
               SELECT gen_random_uuid(), 'e2.t_run', 1, 'default', 2, 'failed_permanent', false, '{}', '{}', 1, now() FROM generate_series(1, 250)""")
    env = {**clean_environment(), "DATABASE_URL": lab.env.db.url("postgres"), "TERM": "xterm"}
    with on_a_terminal([str(umavez_bin()), "retry", "--failed", "--since", "1h"], env) as (process, screen):
        lab.until(lambda: screen() and process.poll() is not None, 30, "its end")
        assert "] 200 of 250" in screen() and "250 of 250" in screen() and "250 runs are back" in screen()
    lab.sql("DELETE FROM umavez.runs")


def expired_keys(lab, n):
    for owner, column, value in (("idempotency_keys", "tenant_id,", "1,"), ("platform_idempotency_keys", "", "")):
        lab.sql(f"""INSERT INTO umavez.{owner} ({column} idempotency_key, request_fingerprint, status, expires_at)
                    SELECT {value} sha256(int8send(g)), sha256('f'), 'completed', now() - interval '1 hour' FROM generate_series(1, {n}) g""")


def test_purging_by_hand_with_a_bar_on_a_terminal_only(lab):
    expired_keys(lab, 3000)
    env = {**clean_environment(), "DATABASE_URL": lab.env.db.url("postgres"), "TERM": "xterm"}
    with on_a_terminal([str(umavez_bin()), "purge"], env) as (process, screen):
        lab.until(lambda: process.poll() is not None, 60, "its end")
        assert process.returncode == 0 and "] 4000 of 6000" in screen() and "] 6000 of 6000" in screen(), screen()
        assert "3000 keys of tenants and 3000 of the platform are removed" in screen()
    assert lab.value("SELECT count(*) FROM umavez.idempotency_keys") == 0
    expired_keys(lab, 5)
    done = lab.cli("purge", "--json")
    assert json.loads(done.out) == {"tenant_keys": 5, "platform_keys": 5, "partitions": 0} and done.err == ""


def test_enqueueing_a_file_with_a_bar_on_a_terminal(lab, tmp_path):
    lines = tmp_path / "runs.jsonl"
    lines.write_text("".join(json.dumps({"task": "e2.p_elsewhere", "args": {"n": n}}) + "\n" for n in range(1200)))
    env = {**clean_environment(), "DATABASE_URL": lab.env.db.url("postgres"), "TERM": "xterm", "UMAVEZ_TASKS_DIR": str(lab.env.tasks.dir)}
    with on_a_terminal([str(umavez_bin()), "enqueue", "--file", str(lines)], env) as (process, screen):
        lab.until(lambda: process.poll() is not None, 60, "its end")
        assert process.returncode == 0 and "] 500 of 1200" in screen() and "] 1200 of 1200" in screen(), screen()
    lab.sql("DELETE FROM umavez.runs")
