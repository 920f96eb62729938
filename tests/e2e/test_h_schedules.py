"""Group H of the cases: schedules, with real workers. When slots are due is in sql/test_schedules.py, what may be written in spec/cron_spec.lua.

Rows of the cases here: H01 (schedules), H07.
"""
import itertools
import json
import random
import subprocess
import threading
from datetime import timedelta

import pytest

from support import procs
from support.procs import wait_until
from support.servers import clean_environment, umavez_bin
from support.skew import YEAR, Skew

ON = {"schedules": "true"}
EMPTY = "return function(ctx, args) return {} end"


@pytest.fixture
def clock(env):
    """One task with a slot every two seconds, none of which may be missed."""
    env.audit.allow("settled_effect")
    env.tasks.add("t.clock", owner="platform", handler=EMPTY, lease="2s", schedule={"every": "2s", "missed": "all", "slot_arg": "at"})
    return env


def slots_of(env, task="t.clock"):
    """The slots of all its runs, live and finished: found again from their ids."""
    first, last = env.db.one("SELECT min(enqueued_at), max(enqueued_at) FROM (SELECT enqueued_at, task FROM umavez.runs UNION ALL "
                             "SELECT enqueued_at, task FROM umavez.finished_runs) r WHERE task = %s", task)
    if first is None:
        return [], 0
    ids = env.db.q("""SELECT s FROM generate_series(date_trunc('minute', %s - interval '10 minutes'), %s + interval '1 minute', interval '2 seconds') s
                       WHERE EXISTS (SELECT FROM umavez.runs r WHERE r.run_id = umavez.slot_run_id(%s, NULL, s))
                          OR EXISTS (SELECT FROM umavez.finished_runs f WHERE f.run_id = umavez.slot_run_id(%s, NULL, s)) ORDER BY s""", first, last, task, task)
    count = env.db.val("SELECT (SELECT count(*) FROM umavez.runs WHERE task = %s) + (SELECT count(*) FROM umavez.finished_runs WHERE task = %s)", task, task)
    return [row[0] for row in ids], count


def assert_each_slot_once(env):
    """One run for each slot from the first to the last, and none else."""
    slots, count = slots_of(env)
    assert slots == [slots[0] + timedelta(seconds=2 * n) for n in range(len(slots))] and count == len(slots), (count, slots)
    assert slots[-1] == env.db.val("SELECT last_slot FROM umavez.schedules WHERE task = 't.clock'")
    return slots


def schedule_row(env, task="t.clock"):
    return env.db.one("SELECT * FROM umavez.schedules WHERE task = %s", task)


def test_H07_each_slot_once_whoever_dies(clock, long):
    """Workers are killed and started again around the slots, in any order, and now and then none is left."""
    env, dice = clock, random.Random(7)
    env.audit.allow("leases")
    width, restarts = (20, 50) if long else (4, 16)
    workers = [env.worker(**ON) for _ in range(width)]
    wait_until(lambda: schedule_row(env), 60, "the schedule is declared")
    for n in range(restarts):
        last = schedule_row(env).last_slot
        wait_until(lambda: schedule_row(env).last_slot != last, 60, lambda: "a slot;" + env.report())      # right behind a slot
        for victim in (range(width) if n % 8 == 7 else [dice.randrange(width)]):
            workers[victim].kill()
            workers[victim] = env.worker(**ON)
    last = schedule_row(env).last_slot
    wait_until(lambda: schedule_row(env).last_slot > last, 60, "a slot after the last restart")
    for worker in workers:
        assert worker.terminate() == 0
    env.worker()        # ends what is left, without schedules
    wait_until(lambda: not env.live(), 60, "every run has ended")
    slots = assert_each_slot_once(env)
    assert len(slots) >= restarts
    for worker in env.all_workers:
        assert not worker.events("schedule_failed") and not worker.events("schedules_not_read") and not worker.events("schedule_skipped"), worker.tail()
    told = [event for worker in env.all_workers for event in worker.events("schedule_enqueued")]
    assert all("lag_ms" in event for event in told) and len(told) > 0


@pytest.mark.parametrize("clock_is", ["a year ahead", "an hour behind", "leaping"])
def test_H01_schedules_keep_the_databases_time(clock, clock_is):
    env, directory, ended = clock, procs.private_dir("skew-"), threading.Event()
    skew = Skew(directory)
    skew.set({"a year ahead": YEAR, "an hour behind": -3600, "leaping": YEAR}[clock_is])

    def leap():
        for sign in itertools.cycle((1, -1)):
            if ended.wait(0.1):
                return
            skew.set(YEAR * sign)
    leaper = threading.Thread(target=leap)
    if clock_is == "leaping":
        leaper.start()
    try:
        workers = [env.worker(env=skew.env, **ON) for _ in range(2)]
        wait_until(lambda: len(slots_of(env)[0]) >= 4, 60, lambda: "four slots;" + env.report())
        for worker in workers:
            assert worker.terminate() == 0
        slots = assert_each_slot_once(env)
        now = env.db.val("SELECT clock_timestamp()")
        assert all(slot <= now for slot in slots)
        assert env.db.val("SELECT min(enqueued_at) FROM umavez.finished_runs WHERE task = 't.clock'") >= slots[0]
    finally:
        ended.set()
        if leaper.is_alive():
            leaper.join()
        procs.remove_dir(directory)


def test_slots_missed_while_no_worker_was_there(clock):
    """all: each of them, by whoever comes; skip: none, and it is told."""
    env = clock
    env.tasks.add("t.skips", owner="platform", handler=EMPTY, schedule={"cron": "17 4 29 2 *", "missed": "skip"})
    first = env.worker(**ON)
    wait_until(lambda: schedule_row(env, "t.skips") and slots_of(env)[0], 60, "both are declared")
    assert first.terminate() == 0
    env.db.q("UPDATE umavez.schedules SET next_slot = umavez.next_slot(declared, next_slot - interval '30 years') WHERE task = 't.skips'")
    second = env.worker(**ON)
    skipped = second.wait_event("schedule_skipped", task="t.skips")
    assert skipped["level"] == "warn" and skipped["slot"] < skipped["before"] and not slots_of(env, "t.skips")[1]
    wait_until(lambda: len(slots_of(env)[0]) >= 4, 60, "more slots")
    assert second.terminate() == 0
    assert_each_slot_once(env)


def test_a_schedule_that_is_taken_out_of_the_manifest_stops(clock):
    env = clock
    worker = env.worker(workers=1, **ON)
    wait_until(lambda: slots_of(env)[0], 60, "a slot")
    env.tasks.add("t.clock", owner="platform", handler=EMPTY)
    env.tasks.add("t.other", owner="platform", handler=EMPTY, schedule={"every": "1s", "missed": "all"})
    worker.process.send_signal(1)
    worker.wait_children(1, generation=2)
    wait_until(lambda: len(worker.processes()) == 2, 60, "the old child has gone")
    last = schedule_row(env).last_slot
    wait_until(lambda: (schedule_row(env, "t.other").last_slot or last) >= last + timedelta(seconds=8), 60, "the new one's slots")
    assert schedule_row(env).last_slot == last


def test_the_purge_runs_by_schedule_and_no_schedules_leaves_it(env):
    env.audit.allow("settled_effect")
    idle = env.worker(arguments=["--no-schedules"], **ON)
    idle.wait_event("worker_ready")
    worker = env.worker(**ON)
    worker.wait_event("schedule_declared", task="maintenance.purge")
    assert not idle.events("schedule_declared")
    assert worker.terminate() == 0
    env.db.q("UPDATE umavez.schedules SET next_slot = next_slot - interval '15 minutes' WHERE last_slot IS NULL")
    env.worker(**ON)
    done = wait_until(lambda: env.db.q("SELECT status FROM umavez.finished_runs WHERE task = 'maintenance.purge'"), 60, lambda: "a purge;" + env.report())
    assert {row.status for row in done} == {"completed"}


def test_each_tenant_by_schedule(env):
    env.audit.allow("settled_effect")
    env.tasks.add("t.report", owner="tenant", handler=EMPTY, schedule={"every": "2s", "tenants": "each", "missed": "all"})
    tenants = {row.id for row in env.db.q("SELECT id FROM public.tenants")}
    worker = env.worker(**ON)
    wait_until(lambda: {row.tenant_id for row in env.db.q("SELECT tenant_id FROM umavez.finished_runs WHERE task = 't.report'")} == tenants, 60, "a run of each tenant")
    assert worker.terminate() == 0


def cli(env, *argv):
    done = subprocess.run([umavez_bin(), *argv], capture_output=True, text=True, timeout=60,
                          env={**clean_environment(), "DATABASE_URL": env.db.url("postgres"), "UMAVEZ_TASKS_DIR": str(env.tasks.dir)})
    return done.returncode, done.stdout, done.stderr


def test_schedules_lists_them(clock):
    env = clock
    env.tasks.add("t.monthly", owner="platform", handler=EMPTY, schedule={"cron": "30 0 L * *", "tz": "America/Sao_Paulo"})
    worker = env.worker(**ON)
    wait_until(lambda: slots_of(env)[0], 60, "a slot")
    assert worker.terminate() == 0
    env.db.q("INSERT INTO umavez.schedules (task, declared) VALUES ('old.gone', '{\"text\": \"@daily\", \"tz\": \"UTC\", \"missed\": \"once\", \"each_tenant\": false}')")
    code, out, _ = cli(env, "schedules", "--json", "--next", "5")
    rows = {row["task"]: row for row in map(json.loads, out.splitlines())}
    assert code == 0 and set(rows) == {"t.clock", "t.monthly", "maintenance.purge", "old.gone"}
    assert rows["t.clock"]["spec"] == "every 2s" and rows["t.clock"]["last_slot"] and len(rows["t.clock"]["next"]) == 5
    assert rows["t.monthly"]["tz"] == "America/Sao_Paulo" and all(slot.endswith("T03:30:00Z") for slot in rows["t.monthly"]["next"])
    assert rows["old.gone"]["declared"] is False and rows["old.gone"]["next"] == []
    code, out, _ = cli(env, "schedules")
    assert code == 0 and "30 0 L * *" in out and "not declared by the manifests here" in out
    code, out, _ = cli(env, "schedules", "--task", "t.monthly", "--next", "1")
    assert code == 0 and len(out.splitlines()) == 2
    code, _, err = cli(env, "schedules", "--task", "t.monthli")
    assert code == 1 and "t.monthly" in err
    assert cli(env, "schedules", "--next", "0")[0] == 2
