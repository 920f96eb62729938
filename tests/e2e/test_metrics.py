"""The metrics page: what it counts is what the database holds, over deaths of children and of the gate; who may read it."""
import json
import os
import re
import signal
import threading

import pytest

from lab import GATES, TASKS
from support import metrics
from support.http import Closed, Connection, make_token, start_door, wait_ready
from support.metrics import promtool, scrape
from support.procs import ROOT, wait_until

SECRET = "a-token-of-the-operators-own"
RESULTS = ("completed", "replay", "failed_retryable", "failed_permanent", "busy", "conflict", "given_back", "unknown")


def serve(lab, **settings):
    """A worker with an open page: (worker, port)."""
    if lab.valkey_off:
        settings.setdefault("valkey_url", None)
    return start_door(lab.env, metrics="open", **settings)


def runs_of(page, kind):
    """What the page tells of a task's deliveries, without what is none of their ends."""
    found = {result: page.value("umavez_runs_total", task=f"e2.t_{kind}", result=result) for result in RESULTS}
    assert found.pop("unknown") == 0
    return found


def until_page(port, look, what, timeout=60):
    """Scrapes until look(page) holds; gives that page."""
    pages = []

    def holds():
        pages.append(scrape(port))
        return look(pages[-1])
    wait_until(holds, timeout, lambda: f"{what}:\n{pages[-1].text if pages else ''}")
    return pages[-1]


def ends(lab, kind):
    """The truth: how many runs of a task have ended how."""
    return {(row.status, row.replay): row.n for row in lab.sql(
        "SELECT status, replay, count(*)::int AS n FROM umavez.finished_runs WHERE task = %s GROUP BY 1, 2", f"e2.t_{kind}")}


# --- counts and the ledger's truth --------------------------------------------------------------------------------------------------

@GATES
def test_counts_are_the_ledgers(lab, gate):
    lab.allow("settled_effect")
    lab.gate(gate)
    _, port = serve(lab)
    before = scrape(port)
    assert {value for name, value in before.rising().items() if name[0].startswith("umavez_runs_total")} == {0}
    done = lab.enqueue_many("e2.t_key", [{"e1": f"E{n}", "lua": "start() effect() return {}"} for n in range(20)])
    for run in done:
        assert lab.done(run).status == "completed"
    for run in lab.enqueue_many("e2.t_key", [{"e1": f"E{n}", "lua": "start() effect() return {}"} for n in range(7)]):
        assert lab.done(run).replay
    for n in range(3):                                                    # the key with another request
        assert lab.done(lab.enqueue("e2.t_key", {"e1": f"E{n}", "other": n, "lua": "return {}"})).status == "failed_permanent"
    for n in range(4):
        assert lab.done(lab.enqueue("e2.t_key", {"e1": f"F{n}", "lua": "return ctx:fail { code = 'no' }"})).status == "failed_permanent"
    again = [lab.enqueue("e2.t_run", {"lua": "if ctx.attempt < 3 then error('not yet') end return {}"}) for _ in range(2)]
    assert [lab.done(run).attempt for run in again] == [3, 3]
    dead = lab.done(lab.enqueue("e2.t_once", {"e1": "dead", "lua": "error('never')"}))
    late = lab.done(lab.enqueue("e2.t_brief", {"e1": "late", "lua": "ctx:sleep('60s') return {}"}))
    assert dead.status == late.status == "failed_permanent"

    page = until_page(port, lambda p: p.value("umavez_runs_held") == 0, "all runs to have been let go")
    page.assert_after(before)
    key, run = runs_of(page, "key"), runs_of(page, "run")
    assert key == {"completed": 20, "replay": 7, "failed_retryable": 0, "failed_permanent": 4, "busy": 0, "conflict": 3, "given_back": 0}
    assert ends(lab, "key") == {("completed", False): 20, ("completed", True): 7, ("failed_permanent", False): 7}
    assert run == {"completed": 2, "replay": 0, "failed_retryable": 4, "failed_permanent": 0, "busy": 0, "conflict": 0, "given_back": 0}
    assert page.value("umavez_runs_dead_total", task="e2.t_key") == 7
    assert page.value("umavez_runs_dead_total", task="e2.t_once") == page.value("umavez_runs_dead_total", task="e2.t_brief") == 1
    assert page.value("umavez_retries_total", task="e2.t_run") == 4 and page.value("umavez_retries_total", task="e2.t_brief") == 1
    assert page.value("umavez_handler_timeouts_total", task="e2.t_brief") == 2
    assert page.total("umavez_runs_total") == page.value("umavez_runs_taken_total") == lab.value(
        "SELECT sum(deliveries)::int FROM umavez.finished_runs")
    # started handlers: 20 + 4 of keys, two with three attempts, one dead, one that was stopped twice
    assert page.value("umavez_handler_duration_seconds_count", task="e2.t_key") == 24
    assert page.value("umavez_handler_duration_seconds_count", task="e2.t_run") == 6
    assert page.value("umavez_handler_duration_seconds_count", task="e2.t_brief") == 2
    assert 2 <= page.value("umavez_handler_duration_seconds_sum", task="e2.t_brief")
    assert page.value("umavez_queue_latency_seconds_count", task="e2.t_run") == 6
    assert page.value("umavez_claims_total", verdict="claimed") == 24 + 6 + 1 + 2
    if gate == "valkey":
        assert page.value("umavez_gate_total", result="replay") == 7 and page.value("umavez_gate_total", result="conflict") == 3
        assert page.value("umavez_gate_total", result="acquired") == 33 and page.value("umavez_gate_duration_seconds_count") >= 43
        assert page.value("umavez_gate_breaker_open") == 0
    else:
        assert page.total("umavez_gate_total") == 0
        assert page.value("umavez_claims_total", verdict="replay") == 7 and page.value("umavez_claims_total", verdict="conflict") == 3


def test_latency_counts_from_when_a_run_was_due(lab):
    due = lab.value("SELECT (clock_timestamp() - interval '1000 seconds')::text")
    late = lab.enqueue("e2.t_run", {"lua": "effect() return {}"}, run_at=due)
    _, port = serve(lab)
    lab.done(late)
    page = until_page(port, lambda p: p.value("umavez_queue_latency_seconds_count", task="e2.t_run") == 1, "the start")
    assert 1000 <= page.value("umavez_queue_latency_seconds_sum", task="e2.t_run") < 2000
    assert page.value("umavez_queue_latency_seconds_bucket", task="e2.t_run", le="300") == 0
    lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"}, run_at=lab.value("SELECT (clock_timestamp() + interval '1 second')::text")))
    page = until_page(port, lambda p: p.value("umavez_queue_latency_seconds_count", task="e2.t_run") == 2, "the second start")
    assert page.value("umavez_queue_latency_seconds_bucket", task="e2.t_run", le="300") == 1


def test_a_held_key_is_busy(lab):
    lab.latch("a")
    _, port = serve(lab)
    lua = "if start() == 1 then effect() reached('a') wait('a') end return {}"
    first = lab.enqueue("e2.t_key", {"e1": "E", "lua": lua})
    lab.reached("a")
    second = lab.enqueue("e2.t_key", {"e1": "E", "lua": lua})
    lab.busy(second)
    page = until_page(port, lambda p: runs_of(p, "key")["busy"] > 0, "the duplicate to be told as busy")
    assert page.total("umavez_gate_total", result="busy") + page.total("umavez_claims_total", verdict="busy") > 0
    assert page.value("umavez_pool_connections", state="lent") == 1 and page.value("umavez_pool_size") == 16
    assert page.value("umavez_runs_held") >= 1
    lab.open("a")
    lab.done(first), lab.done(second)
    page = until_page(port, lambda p: p.value("umavez_pool_connections", state="lent") == 0, "the connection to be given back")
    assert (runs_of(page, "key")["completed"], runs_of(page, "key")["replay"]) == (1, 1)
    assert page.value("umavez_pool_wait_seconds_count") >= 1 and page.value("umavez_pool_waiting") == 0


def test_runs_that_share_a_transaction(lab):
    lab.env.tasks.add("e2.t_shared", owner="tenant", batch=50, handler=(TASKS / "lab.lua").read_text())
    _, port = serve(lab, env={"UMAVEZ_TEST_SHARE": "8"})
    runs = lab.enqueue_many("e2.t_shared", [{"n": n, "lua": "effect() return {}"} for n in range(200)])
    for run in runs:
        assert lab.done(run).status == "completed"
    page = until_page(port, lambda p: runs_of(p, "shared")["completed"] == 200, "all to be counted")
    shared, alone = page.value("umavez_batch_runs_sum"), page.value("umavez_batch_alone_total")
    assert 0 < page.value("umavez_batch_runs_count") <= shared <= 200 and alone <= 200
    assert page.value("umavez_batch_runs_bucket", le="8") == page.value("umavez_batch_runs_count")
    assert page.value("umavez_commit_duration_seconds_count") == page.value("umavez_batch_runs_count") + 200 - shared


def test_a_purge_tells_what_it_removed(lab):
    lab.allow("effect_settled", "gate_truth")          # the keys are purged long before their time
    _, port = serve(lab)
    for n in range(5):
        lab.done(lab.enqueue("e2.t_key", {"e1": f"E{n}", "lua": "effect() return {}"}))
    lab.sql("UPDATE umavez.idempotency_keys SET expires_at = clock_timestamp() - interval '1 second'")
    lab.sql("UPDATE umavez.purge_zones SET next_at = '-infinity'")
    outcome = lab.done(lab.enqueue("maintenance.purge", {"limit": 2}, lab.platform)).outcome
    while not outcome["done"]:
        outcome = lab.done(outcome["next_run_id"]).outcome
    page = until_page(port, lambda p: p.total("umavez_purged_total") > 0, "the purge to be counted")
    assert page.value("umavez_purged_total", what="tenant_keys") == outcome["tenant_keys"] == 5
    assert page.value("umavez_purged_total", what="platform_keys") == outcome["platform_keys"]


class Watcher(threading.Thread):
    """Scrapes without a pause; a connection may be lost with the child that had it, but no page may fall behind the one before."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.ended, self.pages, self.last, self.error = port, threading.Event(), 0, None, None
        self.start()

    def run(self):
        while not self.ended.wait(0.01):
            try:
                page = scrape(self.port)
                page.assert_after(self.last or page)
                self.last, self.pages = page, self.pages + 1
            except (OSError, Closed):
                continue
            except AssertionError as error:
                self.error = error
                return

    def end(self):
        self.ended.set()
        self.join(60)
        assert not self.is_alive()
        if self.error:
            raise self.error
        assert self.pages > 1


# --- a worker of several processes --------------------------------------------------------------------------------------------------

def test_counts_outlive_children(lab):
    """SIGKILL of child after child, with runs under way: nothing falls, and what was done before stays counted."""
    lab.allow("worker_death", "exit_status", "settled_effect", "gate_tokens")
    worker, port = serve(lab, workers=2)
    children = worker.wait_children(2)
    runs = lab.enqueue_many("e2.t_run", [{"n": n, "lua": "effect() return {}"} for n in range(60)])
    for run in runs:
        lab.done(run)
    last = until_page(port, lambda p: runs_of(p, "run")["completed"] == 60, "sixty runs")
    assert last.value("umavez_children") == 2 and last.value("umavez_child_deaths_total") == 0
    started = last.value("umavez_start_time_seconds")
    watcher = Watcher(port)
    for round in range(3):
        slow = lab.enqueue("e2.t_run", {"lua": "effect() if ctx.attempt == 1 then ctx:sleep('100ms') end return {}"})
        victim = children[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in worker.children(), 30, "its death")
        children = worker.wait_children(2)
        wait_ready(port, worker)
        page = until_page(port, lambda p: p.value("umavez_child_deaths_total") == round + 1 and p.value("umavez_children") == 2, "its successor")
        page.assert_after(last)
        last = page
        lab.done(slow, timeout=60)
    watcher.end()
    page = until_page(port, lambda p: p.value("umavez_runs_held") == 0, "all runs to have been let go")
    page.assert_after(last)
    assert page.value("umavez_start_time_seconds") == started
    # what a child was killed over may have been committed without being counted; nothing is counted twice
    assert 60 <= runs_of(page, "run")["completed"] <= 63 == lab.value("SELECT count(*)::int FROM umavez.finished_runs")


def test_counts_outlive_a_reload(lab):
    worker, port = serve(lab, workers=2)
    worker.wait_children(2)
    for run in lab.enqueue_many("e2.t_run", [{"n": n, "lua": "effect() return {}"} for n in range(20)]):
        lab.done(run)
    last = until_page(port, lambda p: runs_of(p, "run")["completed"] == 20, "twenty runs")
    lab.allow("settled_effect")
    lab.env.tasks.add("e2.new", owner="tenant", handler="return function() return {} end")
    worker.process.send_signal(signal.SIGHUP)
    worker.wait_event("reloaded", timeout=90)
    worker.wait_children(2, generation=2)
    lab.done(lab.enqueue("e2.new", {}))
    page = until_page(port, lambda p: p.total("umavez_runs_total", task="e2.new", result="completed") == 1 and p.value("umavez_children") == 2,
                      "the new task")
    page.assert_after(last)
    assert runs_of(page, "run")["completed"] == 20 and page.value("umavez_child_deaths_total") == 0


# --- the gate -----------------------------------------------------------------------------------------------------------------------

def test_the_gate_goes_and_comes_back(lab):
    lab.allow("gate_tokens")
    _, port = serve(lab)
    until_page(port, lambda p: p.value("umavez_gate_breaker_open") == 0, "the gate")
    lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"}))
    until_page(port, lambda p: p.value("umavez_gate_total", result="acquired") >= 1, "the gate's use")
    lab.env.valkey.stop()
    page = until_page(port, lambda p: p.value("umavez_gate_breaker_open") == 1, "the breaker to open")
    opened, down = page.value("umavez_gate_breaker_opened_total"), page.value("umavez_gate_total", result="down")
    assert opened == 1
    for _ in range(3):
        lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"}))
    page = until_page(port, lambda p: p.value("umavez_gate_total", result="down") == down + 3, "three that went past it")
    lab.env.valkey.start()
    page = until_page(port, lambda p: p.value("umavez_gate_breaker_open") == 0, "the breaker to close")
    acquired = page.value("umavez_gate_total", result="acquired")

    def used_again(p):
        lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"}))
        return p.value("umavez_gate_total", result="acquired") > acquired
    until_page(port, used_again, "the gate to be used again")


# --- queues -------------------------------------------------------------------------------------------------------------------------

def test_queues_are_told_of(lab):
    for n in range(6):
        lab.enqueue("e2.t_elsewhere", {"lua": "effect() return {}"}, queue="nobodys", run_at=lab.value(
            "SELECT (clock_timestamp() + %s * interval '1 second')::text", -3600 + n if n < 4 else 3600))
    _, port = serve(lab, queues="default,nobodys", queue="false")
    page = until_page(port, lambda p: p.value("umavez_queues_known") == 1, "PostgreSQL's word")
    assert page.value("umavez_queue_due", queue="nobodys") == 4 and page.value("umavez_queue_later", queue="nobodys") == 2
    assert 3600 <= page.value("umavez_queue_oldest_seconds", queue="nobodys") < 7200
    assert page.value("umavez_queue_due", queue="default") == page.value("umavez_queue_oldest_seconds", queue="default") == 0
    assert page.value("umavez_queue_due", queue="e2_elsewhere") == 0      # the manifests name it
    lab.sql("DELETE FROM umavez.runs")
    lab.env.accepted.clear()


def test_database_up_is_what_readyz_says(lab):
    """A question about the queues that is refused is not a database that is away."""
    lab.sql("REVOKE EXECUTE ON FUNCTION umavez.queue_depths(text[], integer) FROM umavez_worker")
    _, port = serve(lab)
    until_page(port, lambda p: p.value("umavez_database_up") == 1, "the worker to be connected")
    assert scrape(port, SECRET).value("umavez_queues_known") == 0
    with Connection(port) as connection:
        assert connection.request("GET", "/readyz").status == 200


def test_how_late_schedules_are_is_told(lab):
    lab.env.tasks.add("t.often", owner="platform", schedule={"every": "1s"})
    lab.env.tasks.add("t.seldom", owner="platform", schedule={"every": "20m", "missed": "all"})
    _, port = serve(lab, schedules="true")
    page = until_page(port, lambda p: p.value("umavez_schedule_lag_seconds_count") >= 2, "two slots")
    assert page.value("umavez_schedule_lag_seconds_bucket", le="60") >= 2
    lab.sql("UPDATE umavez.schedules SET next_slot = next_slot - interval '1 hour' WHERE task = 't.seldom'")
    until_page(port, lambda p: p.value("umavez_schedule_lag_seconds_count") > p.value("umavez_schedule_lag_seconds_bucket", le="300"), "a slot that was late")


def test_a_page_without_the_database(own_env):
    """Away, or silent: what the worker itself knows is told all the same, to who has a token that needs no database."""
    worker, port = start_door(own_env, metrics_token=SECRET)
    wait_until(lambda: scrape(port, SECRET).value("umavez_database_up") == 1, 60, "PostgreSQL's word")
    own_env.pg.freeze()
    try:
        wait_until(lambda: scrape(port, SECRET).value("umavez_database_up") == 0, 60, "the page without PostgreSQL's word")
        assert "umavez_queue_due" not in scrape(port, SECRET).families
    finally:
        own_env.pg.thaw()
    wait_until(lambda: scrape(port, SECRET).value("umavez_database_up") == 1, 60, "PostgreSQL's word again")
    own_env.pg.stop()
    wait_until(lambda: scrape(port, SECRET).value("umavez_database_up") == 0, 60, "the page without PostgreSQL")
    own_env.pg.start()
    wait_until(lambda: scrape(port, SECRET).value("umavez_database_up") == 1, 60, "PostgreSQL's word at last")
    assert worker.running()


# --- the page itself, and who may read it -------------------------------------------------------------------------------------------

def test_the_page_is_whole(lab):
    lab.env.tasks.add("e2.t_bounded", global_limit=3)
    lab.env.tasks.add_queue("bounded", global_limit=5)
    _, port = serve(lab)
    lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"}))
    page = until_page(port, lambda p: p.value("umavez_database_up") == 1 and p.total("umavez_runs_total") == 1, "the page")
    assert {name: family.kind for name, family in page.families.items()} == metrics.table()
    assert page.value("umavez_children") == page.total("umavez_build_info") == 1
    assert page.value("umavez_lua_memory_bytes") > 100_000 and page.value("umavez_loop_turn_seconds_count") > 0
    assert page.value("umavez_http_answers_total", status="2xx") >= 1
    with Connection(port) as c:
        head, post = c.request("HEAD", "/metrics"), c.request("POST", "/metrics", [("Content-Length", "0")])
        assert (head.status, head.body, head.get("Cache-Control"), post.status, post.get("Allow")) == (200, b"", "no-store", 405, "GET, HEAD")
    checked = promtool("check", "metrics", input=page.text)
    assert checked is None or checked.returncode == 0, checked.stdout + checked.stderr


def status(port, token=None):
    with Connection(port) as c:
        return c.request("GET", "/metrics", [("Authorization", f"Bearer {token}")] if token else []).status


def test_by_default_a_token_opens_the_page(env):
    _, port = start_door(env)
    assert status(port) == 401 and status(port, "unknown") == 401 and status(port, SECRET) == 401
    assert status(port, make_token(env, None, ["metrics"])) == status(port, make_token(env, None, ["*"])) == 200
    assert status(port, make_token(env, None, ["t.effect"])) == 403                   # another scope
    assert status(port, make_token(env, 1, ["*"])) == status(port, make_token(env, 1, ["metrics"])) == 403     # a tenant's


def test_a_token_of_the_settings(env):
    _, port = start_door(env, metrics_token=SECRET)
    assert (status(port), status(port, SECRET), status(port, SECRET + "x"), status(port, SECRET[:-1])) == (401, 200, 401, 401)
    assert status(port, make_token(env, None, ["metrics"])) == 200
    with Connection(port) as c:
        twice = [("Authorization", f"Bearer {SECRET}")] * 2
        assert c.request("GET", "/metrics", twice).status == 401


def test_open_and_off(env):
    _, port = start_door(env, metrics="open")
    assert status(port) == 200
    _, port = start_door(env, metrics="off", metrics_token=SECRET)
    assert (status(port), status(port, SECRET)) == (404, 404)


def test_a_short_token_is_refused_without_being_told(lab):
    done = lab.cli("worker", UMAVEZ_METRICS_TOKEN="too short", UMAVEZ_SUPERVISE="false")
    assert done.code == 3 and "metrics_token" in done.err and "too short" not in done.err + done.out


def test_a_worker_without_routes_serves_the_page(env):
    """The door alone: health and metrics."""
    _, port = start_door(env, metrics="open")
    env.wait_finished([env.enqueue("t.effect", env.args("E1"))])
    wait_until(lambda: scrape(port).total("umavez_runs_total", result="completed") == 1, 60, "the run to be counted")


# --- contrib: the names are checked by lint, too (tests/lint/docs.lua) ----------------------------------------------------------------

def test_the_dashboard_is_whole():
    board = json.loads((ROOT / "contrib/grafana-dashboard.json").read_text())
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(places)) == len(places) == len({p["id"] for p in board["panels"]})
    used = "\n".join(t["expr"] for p in board["panels"] for t in p.get("targets", []))
    assert all(p.get("targets") for p in board["panels"] if p["type"] != "row")
    known = set(metrics.table())
    named = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in known else name for name in re.findall(r"umavez_\w+", used)}
    assert named <= known, named - known
    assert used.count("(") == used.count(")") and used.count("{") == used.count("}")


def test_promtool_reads_rules_and_dashboard(tmp_path):
    board = json.loads((ROOT / "contrib/grafana-dashboard.json").read_text())
    asked = [t["expr"].replace("$__rate_interval", "5m") for p in board["panels"] for t in p.get("targets", [])]
    rules = [{"record": f"dashboard:{n}", "expr": expr} for n, expr in enumerate(asked)]
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))      # YAML reads JSON
    checked = promtool("check", "rules", ROOT / "contrib/alerts.yml", tmp_path / "dashboard.yml")
    if checked is None:
        pytest.skip("promtool is not installed")
    assert checked.returncode == 0, checked.stdout + checked.stderr
