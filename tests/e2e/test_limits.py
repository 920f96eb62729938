"""Limits across workers, weights and tenants in turn, with workers at work and with faults. The SQL alone: tests/sql/test_lanes.py.

Workers here poll once an hour: whatever goes on after a limit was full goes on because somebody was woken.
"""
import contextlib
import json
import os
import signal
import threading
import time

import pytest

from lab import OWNERS, TASKS, TENANT
from support import snippets
from support.metrics import scrape
from test_metrics import SECRET, serve

BRIEF = "effect() ctx:sleep('%dms') return {}"

# How many were at work when each of them began: from the effect, the handler's first act, to the end of its transaction.
MOST = """SELECT max((SELECT count(*) FROM effects o JOIN umavez.finished_runs g ON g.run_id = o.run_id
                       WHERE {same} AND o.at <= e.at AND g.finished_at > e.at))
            FROM effects e JOIN umavez.finished_runs f ON f.run_id = e.run_id WHERE {mine}"""


def limited(lab, limit=None, lease="2s", queue="narrow", **fields):
    for letter, who in (("t", "tenant"), ("p", "platform")):
        lab.env.tasks.add(f"e2.{letter}_limited", owner=who, key=["e1"], lease=lease, timeout="60s", queue=queue,
                          handler=(TASKS / "lab.lua").read_text(), retry={"max_attempts": 9, "max_crashes": 9, "base": "10ms", "cap": "50ms"},
                          **({"global_limit": limit} if limit else {}), **fields)


def known(lab):
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.tasks WHERE queue = 'narrow'"), 30, "the task to be known")


def most(lab, by="task"):
    return lab.value(MOST.format(same=f"g.{by} = f.{by}", mine="true"))


class Watch(threading.Thread):
    """The most runs of a task that are held at any moment that it looks at."""

    def __init__(self, lab, where):
        super().__init__(daemon=True)
        self.db, self.where, self.ended, self.most, self.looks = lab.env.db.connect(), where, threading.Event(), 0, 0
        self.db.autocommit = True
        self.start()

    def run(self):
        with self.db.cursor() as cursor:
            while not self.ended.is_set():
                cursor.execute(f"SELECT count(*) FROM umavez.runs WHERE state = 'running' AND {self.where}")
                self.most, self.looks = max(self.most, cursor.fetchone()[0]), self.looks + 1

    def stop(self):
        self.ended.set()
        self.join()
        self.db.close()
        return self.most


def all_done(lab, runs, timeout=60):
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.finished_runs WHERE run_id = ANY (%s::uuid[])", runs) == len(runs), timeout, "all runs to end")
    assert lab.sql("SELECT DISTINCT status FROM umavez.finished_runs WHERE run_id = ANY (%s::uuid[])", runs) == [("completed",)]


def some(lab, owner, count, ms=20, first=0):
    return lab.enqueue_many(owner.task("limited"), [{"e1": f"E{first + n}", "lua": BRIEF % ms} for n in range(count)], owner)


# --- limits -------------------------------------------------------------------------------------------------------------------------------

@OWNERS
@pytest.mark.parametrize("kind,isolation", [("task", None), ("queue", None), ("task", "serializable")])
def test_a_limit_holds_over_workers_and_nobody_waits_for_a_poll(lab, owner, kind, isolation):
    if isolation:
        lab.isolation(isolation)
    limited(lab, 3 if kind == "task" else None)
    if kind == "queue":
        lab.env.tasks.add_queue("narrow", global_limit=3)
    lab.worker(pool_size=8, poll_interval="1h")
    known(lab)
    lab.worker(workers=2, supervise="true", pool_size=4, poll_interval="1h")
    watch = Watch(lab, "task LIKE 'e2._\\_limited'")
    all_done(lab, some(lab, owner, 60))
    assert watch.stop() <= 3
    assert most(lab) in (2, 3)


def test_a_place_that_one_worker_frees_is_another_ones(lab):
    """The worker that held it drains, so that it takes no more: the sleeping one is told."""
    limited(lab, 1)
    lab.latch("a")
    first = lab.worker(pool_size=2, poll_interval="1h")
    known(lab)
    held = lab.enqueue(TENANT.task("limited"), {"e1": "A", "lua": "effect() reached('a') wait('a') return {}"})
    lab.reached("a")
    second = lab.worker(pool_size=2, poll_interval="1h")
    runs = some(lab, TENANT, 5)
    lab.until(lambda: second.events("worker_ready"), 30, "the second worker")
    first.process.terminate()
    lab.until(lambda: first.events("worker_draining"), 30, "the first to drain")
    lab.open("a")
    all_done(lab, [held, *runs], 30)


@pytest.mark.parametrize("supervised", [True, False], ids=["buried at once", "by its lease"])
def test_a_killed_workers_places_come_back(lab, supervised):
    lab.allow("worker_death", "gate_tokens")
    limited(lab, 2, lease="600s" if supervised else "2s")
    lab.latch("a")
    first = lab.worker(pool_size=4, poll_interval="1h", **({"workers": 1, "supervise": "true"} if supervised else {}))
    known(lab)
    lua = "if start() <= 2 then reached('a') wait('a') end effect() return {}"
    runs = lab.enqueue_many(TENANT.task("limited"), [{"e1": f"E{n}", "lua": lua} for n in range(8)])
    lab.reached("a", count=2)
    second = lab.worker(pool_size=4, poll_interval="1h")
    lab.until(lambda: second.events("worker_ready"), 30, "the second worker")
    assert lab.value("SELECT count(*) FROM umavez.runs WHERE state = 'running'") == 2
    watch = Watch(lab, "task LIKE 'e2._\\_limited'")
    if supervised:
        os.kill(first.wait_children(1)[0], signal.SIGKILL)
    else:
        first.kill()
    all_done(lab, runs, 60)
    assert watch.stop() <= 2


def test_a_limit_over_a_restart_of_postgresql(own_lab):
    lab = own_lab
    limited(lab, 2)
    for _ in range(2):
        lab.worker(pool_size=4)
    known(lab)
    runs = some(lab, TENANT, 60)
    lab.until(lambda: lab.effects() >= 10, 30, "some to end")
    lab.env.pg.restart("immediate")
    all_done(lab, runs, 90)
    assert most(lab) <= 2 and lab.effects() == 60


def test_pausing_a_limited_queue(lab):
    limited(lab, 2)
    lab.latch("a")
    lab.worker(pool_size=4, poll_interval="1h")
    known(lab)
    first = lab.enqueue_many(TENANT.task("limited"), [{"e1": f"A{n}", "lua": "effect() reached('a') wait('a') return {}"} for n in range(2)])
    lab.reached("a", count=2)
    runs = some(lab, TENANT, 6)
    assert lab.cli("pause", "narrow").code == 0
    lab.open("a")
    all_done(lab, first)
    assert lab.value("SELECT count(*) FROM umavez.runs WHERE state = 'available'") == 6
    assert lab.cli("resume", "narrow").code == 0
    all_done(lab, runs)
    assert most(lab) == 2


@OWNERS
def test_cancelling_under_a_limit_frees_the_place(lab, owner):
    limited(lab, 1)
    lab.latch("a")
    worker = lab.worker(pool_size=4, poll_interval="1h")
    known(lab)
    long = lab.enqueue(owner.task("limited"), {"e1": "A", "lua": "effect() if start() == 1 then reached('a') ctx:sleep('600s') end return {}"}, owner)
    lab.reached("a")
    waiting = some(lab, owner, 3)
    assert lab.cli("cancel", waiting[0]).code == 0
    assert lab.cli("cancel", long, "--wait", "60s").code == 0
    all_done(lab, waiting[1:])
    assert lab.cli("retry", long).code == 0 and lab.cli("retry", waiting[0]).code == 0
    all_done(lab, [long, waiting[0]])
    assert lab.effects() == 4 and most(lab) == 1 and not worker.events("take_failed")


def test_discarding_and_retrying_many_under_a_limit(lab):
    limited(lab, 2)
    lab.worker(pool_size=4, poll_interval="1h")
    known(lab)
    lua = "if start() <= 6 then ctx:fail { code = 'no', message = 'not yet' } end effect() return {}"
    runs = lab.enqueue_many(TENANT.task("limited"), [{"e1": f"E{n}", "lua": lua} for n in range(6)])
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.finished_runs WHERE status = 'failed_permanent'") == 6, 30, "all to fail")
    assert lab.cli("discard", runs[0], "--reason", "by hand").code == 0
    done = lab.cli("retry", "--failed", "--task", TENANT.task("limited"), "--since", "1h")
    assert done.code == 0, done
    all_done(lab, runs[1:])
    assert lab.effects() == 5 and most(lab) <= 2 and lab.value("SELECT used FROM umavez.list_limits() WHERE kind = 'task' AND name = 'e2.t_limited'") == 0


def test_an_ordered_limit_counts_what_is_at_work(lab):
    limited(lab)
    lab.latch("a")
    lab.worker(pool_size=4, poll_interval="1h")
    known(lab)
    held = lab.enqueue_many(TENANT.task("limited"), [{"e1": f"A{n}", "lua": "effect() reached('a') wait('a') return {}"} for n in range(3)])
    lab.reached("a", count=3)
    assert lab.cli("limit", "queue", "narrow", "2").code == 0
    runs = some(lab, TENANT, 6, first=100)
    other = lab.enqueue(TENANT.task("run"), {"lua": "effect() return {}"})
    assert lab.done(other).status == "completed"                     # a look has passed
    assert lab.value("SELECT count(*) FROM umavez.runs WHERE state = 'available'") == 6
    lab.open("a")
    all_done(lab, [*held, *runs])
    assert lab.value(MOST.format(same="true", mine="length(e.key) = 4")) <= 2


def test_a_run_that_fails_leaves_its_place(lab):
    limited(lab, 1)
    lab.worker(pool_size=4, poll_interval="1h")
    known(lab)
    lua = "if start() <= 3 then error('no') end effect() return {}"
    all_done(lab, lab.enqueue_many(TENANT.task("limited"), [{"e1": f"E{n}", "lua": lua} for n in range(4)]))


def test_what_an_operator_orders(lab):
    limited(lab, 4)
    lab.worker(pool_size=8, poll_interval="1h")
    known(lab)
    done = lab.cli("limit", "task", "e2.t_limited", "1", "--reason", "INC-7")
    assert done.code == 0 and "1" in done.out and "4" in done.out, done
    all_done(lab, some(lab, TENANT, 12))
    assert most(lab) == 1
    shown = {(row["kind"], row["name"]): row for row in map(json.loads, lab.cli("limit", "--json").out.splitlines())}
    assert (shown["task", "e2.t_limited"]["limit"], shown["task", "e2.t_limited"]["declared"], shown["task", "e2.t_limited"]["used"]) == (1, 4, 0)
    slip = lab.cli("limit", "task", "e2.t_limitd", "1")
    assert slip.code == 0 and 'did you mean "e2.t_limited"' in slip.err and "so far" not in done.err, (done, slip)
    assert lab.cli("limit", "task", "e2.t_limitd", "declared").code == 0
    assert lab.cli("limit", "task", "e2.t_limited", "declared").code == 0
    assert lab.cli("limit", "queue", "narrow", "2").code == 0
    all_done(lab, some(lab, TENANT, 12, first=100))
    assert lab.value(MOST.format(same="true", mine="length(e.key) = 4")) <= 2
    queues = {row["queue"]: row for row in map(json.loads, lab.cli("queues", "--json").out.splitlines())}
    assert (queues["narrow"]["places"], queues["narrow"]["used"]) == (2, 0)
    assert "LIMIT" in lab.cli("queues").out
    assert [act["detail"] for act in map(json.loads, lab.cli("audit", "--json").out.splitlines()) if act["action"] == "limit"][-1] == {"limit": 1, "before": 4}
    for wrong in (["queue", "narrow", "0"], ["queue", "narrow", "many"], ["tenant", "narrow", "1"], ["queue", "narrow"]):
        assert lab.cli("limit", *wrong).code == 2, wrong


def test_limits_are_told_to_prometheus_and_shown(lab, tmp_path):
    limited(lab, 3)
    lab.env.tasks.add_queue("narrow", global_limit=5, fair=True)
    lab.latch("a")
    _, port = serve(lab, pool_size=4)
    known(lab)
    runs = lab.enqueue_many(TENANT.task("limited"), [{"e1": f"A{n}", "lua": "effect() reached('a') wait('a') return {}"} for n in range(2)])
    lab.reached("a", count=2)
    found = scrape(port, SECRET)
    assert found.value("umavez_task_limit", task="e2.t_limited") == 3 and found.value("umavez_task_limit_used", task="e2.t_limited") == 2
    assert found.value("umavez_queue_limit", queue="narrow") == 5 and found.value("umavez_queue_limit_used", queue="narrow") == 2
    top = lab.cli("top", "--once").out
    assert "2 of 5" in top and "LIMIT OF" in top
    assert "3 at once in all workers" in lab.cli("describe", "e2.t_limited").out
    lab.open("a")
    all_done(lab, runs)


def test_a_full_limit_is_not_polled(lab):
    """Two hundred runs wait for one place: a worker looks when somebody has told it, and not again and again."""
    limited(lab, 1)
    lab.latch("a")
    _, port = serve(lab, pool_size=4, poll_interval="1h")
    known(lab)
    held = lab.enqueue(TENANT.task("limited"), {"e1": "A", "lua": "effect() reached('a') wait('a') return {}"})
    lab.reached("a")
    runs = some(lab, TENANT, 200, ms=0)
    before = scrape(port).value("umavez_takes_total")
    for _ in range(20):
        assert lab.done(lab.enqueue(TENANT.task("run"), {"lua": "effect() ctx:sleep('50ms') return {}"})).status == "completed"
    assert scrape(port).value("umavez_takes_total") - before <= 3 * 20
    lab.open("a")
    all_done(lab, [held, *runs], 120)


# --- reload -----------------------------------------------------------------------------------------------------------------------------

def test_a_reload_changes_a_limit_for_all(lab):
    limited(lab, 3)
    worker = lab.worker(workers=1, supervise="true", pool_size=4, poll_interval="1h")
    other = lab.worker(pool_size=4, poll_interval="1h")
    lab.until(lambda: other.events("worker_ready"), 30, "the other worker")
    known(lab)
    all_done(lab, some(lab, TENANT, 12))
    limited(lab, 1)
    worker.process.send_signal(signal.SIGHUP)
    lab.until(lambda: worker.events("reloaded"), 60, "the reload")
    all_done(lab, some(lab, TENANT, 12, first=100))
    assert lab.value(MOST.format(same="true", mine="length(e.key) = 4")) == 1
    limited(lab)
    worker.process.send_signal(signal.SIGHUP)
    lab.until(lambda: len(worker.events("reloaded")) == 2, 60, "the second reload")
    assert lab.value("SELECT count(*) FROM umavez.list_limits() WHERE places IS NOT NULL") == 0
    all_done(lab, some(lab, TENANT, 6, first=200))


# --- weights, tenants in turn -----------------------------------------------------------------------------------------------------------------

def ended(lab, column, first):
    return [row[0] for row in lab.sql(f"SELECT {column} FROM umavez.finished_runs WHERE task LIKE 'e2.%%' ORDER BY finished_at LIMIT %s", first)]


def test_a_worker_shares_its_queues_by_weight(lab):
    runs = [lab.enqueue("e2.t_run", {"lua": "effect() return {}"}, queue=queue) for queue in ("payments", "mail") for _ in range(150)]
    lab.worker(pool_size=4, queues="payments:3, mail")
    all_done(lab, runs)
    assert "payments:3,mail " in lab.cli("workers").out
    share = ended(lab, "queue", 120).count("payments")
    assert 60 < share < 120, share                                   # 90 on average


def test_a_worker_takes_in_strict_order(lab):
    runs = [lab.enqueue("e2.t_run", {"lua": "effect() return {}"}, queue=queue) for queue in ("mail", "payments") for _ in range(60)]
    lab.worker(pool_size=1, queues="payments,mail", queue_order="strict")
    all_done(lab, runs)
    assert "payments > mail" in lab.cli("workers").out
    assert set(ended(lab, "queue", 60)) == {"payments"}


@pytest.mark.parametrize("settings,wrong", [({"queues": "a,b:2,a"}, "twice"), ({"queue_order": "strict"}, "name them"),
                                            ({"queues": "a:2,b", "queue_order": "strict"}, "without weights"), ({"queues": "a:0"}, "from 1 to 1000")])
def test_settings_that_contradict_each_other(lab, settings, wrong):
    lab.allow("worker_death", "exit_status")
    worker = lab.worker(**settings)
    lab.until(lambda: not worker.running(), 30, "the worker to end")
    assert worker.process.returncode == 3 and wrong in worker.tail(), worker.tail()


def test_a_small_tenant_does_not_wait_for_a_big_one(lab):
    """2000 runs of one tenant, then ten of another: the ten are done before the big one's 200th."""
    lab.env.tasks.add_queue("narrow", fair=True)
    limited(lab)
    worker = lab.worker()
    known(lab)
    lab.settle(worker)                                               # what is declared is known
    big = lab.enqueue_many(TENANT.task("limited"), [{"e1": f"B{n}", "lua": "effect() return {}"} for n in range(2000)])
    small = lab.enqueue_many(TENANT.task("limited"), [{"e1": f"S{n}", "lua": "effect() return {}"} for n in range(10)], lab.other_tenant)
    lab.worker(pool_size=4)
    all_done(lab, small)
    before = lab.value("""SELECT count(*) FROM umavez.finished_runs WHERE tenant_id = 1
                           AND finished_at < (SELECT max(finished_at) FROM umavez.finished_runs WHERE tenant_id = 2)""")
    assert before < 200
    all_done(lab, big)


def test_many_tenants_of_whom_nothing_is_due_are_not_polled(lab):
    """5000 tenants with delayed runs, more than a take looks at: an idle worker does not look again and again, and finds the one that is due."""
    lab.env.tasks.add_queue("narrow", fair=True)
    limited(lab)
    _, port = serve(lab, pool_size=4, poll_interval="1h")
    known(lab)
    lab.sql("INSERT INTO public.tenants (id) SELECT g FROM generate_series(1001, 6000) g")
    lab.sql("""SELECT umavez.enqueue_many(jsonb_agg(jsonb_build_object('task', 'e2.t_limited', 'tenant_id', t, 'run_at', '2999-01-01',
                                                 'args', jsonb_build_object('e1', t, 'lua', 'effect() return {}')))) FROM generate_series(1001, 6000) t""")
    for n in range(5):
        assert lab.done(lab.enqueue(TENANT.task("limited"), {"e1": f"E{n}", "lua": "effect() return {}"})).status == "completed"
    before, since = scrape(port).value("umavez_takes_total"), time.monotonic()
    lab.until(lambda: time.monotonic() - since > 3, 10, "three seconds")
    assert scrape(port).value("umavez_takes_total") - before <= (time.monotonic() - since) * 5 + 10
    lab.sql("DELETE FROM umavez.runs WHERE run_at > now() + interval '1 year'")


def test_the_manifest_of_the_docs(lab, tmp_path):
    (tmp_path / "tasks" / "shown").mkdir(parents=True)
    (tmp_path / "tasks" / "shown" / "manifest.lua").write_text(snippets.one("docs/manifest.md", "queues = {").text)
    for name in ("transfer", "import"):
        (tmp_path / "tasks" / "shown" / f"{name}.lua").write_text("return function() end")
    done = lab.cli("check", UMAVEZ_TASKS_DIR=str(tmp_path / "tasks"))
    assert done.code == 0, done
    (tmp_path / "tasks" / "other").mkdir()
    (tmp_path / "tasks" / "other" / "manifest.lua").write_text("return { tasks = {}, queues = { bank = { global_limit = 0 }, imports = {} } }")
    done = lab.cli("check", UMAVEZ_TASKS_DIR=str(tmp_path / "tasks"))
    assert done.code == 3 and "found 0, expected a whole number from 1 to 10000" in done.err + done.out
    assert "queues.imports" in done.err + done.out and "declared in" in done.err + done.out


def test_workers_killed_again_and_again_under_a_limit(lab):
    """Two supervised workers with two children each; one of the four is killed a dozen times while 60 runs pass through two places."""
    lab.allow("worker_death", "gate_tokens")
    limited(lab, 2, lease="600s")
    crew = [lab.worker(workers=2, supervise="true", pool_size=4, poll_interval="1h") for _ in range(2)]
    known(lab)
    for worker in crew:
        worker.wait_children(2)
    watch = Watch(lab, "task LIKE 'e2._\\_limited'")
    runs = some(lab, TENANT, 60, ms=30)
    for n in range(12):
        lab.until(lambda n=n: lab.effects() >= 4 * n, 60, "some to end")
        worker = crew[n % 2]
        children = lab.until(worker.children, 60, "a child")
        with contextlib.suppress(ProcessLookupError):
            os.kill(children[n // 2 % len(children)], signal.SIGKILL)
    all_done(lab, runs, 120)
    assert watch.stop() <= 2 and watch.looks > 100
    assert most(lab) <= 2 and lab.effects() == 60
