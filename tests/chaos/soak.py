"""The soak: mixed load under random faults for as long as asked; what the worker holds must end where it began.

    UMAVEZ_SOAK_SECONDS=1800 pytest tests/chaos/test_soak.py -s         (make soak)

One worker is observed, and never killed: its sockets are cut, its servers die, restart, hang and forget. A second worker beside it is killed and started
again. After a warm-up (two fifths of the time) and at the end the load stops, the queue runs empty, and the worker is measured: memory, descriptors,
server sessions, prepared statements, Lua's memory, dead tuples.
"""
import collections
import random
import threading
import time
import zlib
from dataclasses import dataclass

from support.client import AWAY
from support.http import Closed, Door
from support.procs import wait_until
from support.proxy import PgProxy, ValkeyProxy

TEXTS = 1000      # distinct SQL texts (J09)
POOL = 6
PROBE = """return function(ctx)
  collectgarbage() collectgarbage()
  return { lua_kb = math.floor(collectgarbage("count")),
           prepared = ctx.sql:one("SELECT count(*)::int AS n FROM pg_prepared_statements").n }
end
"""


@dataclass
class Measure:
    rss_kb: int
    fds: int
    sessions: int
    prepared: int
    lua_kb: int
    dead_tuples: int
    queue_kb: int

    def __str__(self):
        return (f"RSS {self.rss_kb / 1024:.1f} MB, {self.fds} descriptors, {self.sessions} sessions, {self.prepared} prepared statements at most on one, "
                f"Lua {self.lua_kb} KB, {self.dead_tuples} dead tuples, queue's table {self.queue_kb} KB")


class Soak:
    def __init__(self, env, seed):
        self.env, self.random = env, random.Random(seed)
        self.faults, self.sent, self.answers = collections.Counter(), collections.Counter(), collections.Counter()
        self.number, self.recent, self.text = 0, [], 0
        retry = {"max_attempts": 100, "base": "50ms", "cap": "500ms"}
        for name, owner in (("t", "tenant"), ("p", "platform")):
            env.tasks.add(f"s.{name}", owner=owner, key=["key"], lease="3s", timeout="20s", retry=retry)
        env.tasks.add("s.door", owner="tenant", lease="3s", timeout="10s", http={"method": "POST", "path": "/s"})
        env.tasks.add("s.probe", owner="platform", queue="probe", handler=PROBE)
        self.pg, self.vk = env.closing(PgProxy(env.pg)), env.closing(ValkeyProxy(env.valkey))
        observed = {"database_url": self.pg.url(env.db), "valkey_url": self.vk.url, "pool_size": POOL, "gate_timeout": "200ms"}
        self.door = Door(env, **observed)      # all queues: it serves the probe as well
        self.worker = self.door.worker
        self.other = None
        self.loading, self.ended = threading.Event(), threading.Event()
        self.caller = threading.Thread(target=self._call, args=(random.Random(seed + 1),), daemon=True)
        self.caller.start()

    # --- load ----------------------------------------------------------------------------------------------------------------

    def _call(self, rnd):
        """A caller of the door: new keys and old ones."""
        while not self.ended.is_set():
            if not self.loading.wait(0.2):
                continue
            key = f"d{rnd.randrange(1 + self.number)}"
            try:
                answer = self.door.post("/s", {"key": key, "pad": "x" * (100 + 97 * (zlib.crc32(key.encode()) % 1000))}, key=key)
                self.answers[answer.status] += 1
            except (Closed, OSError):
                self.answers["closed"] += 1
            time.sleep(0.01)

    def _run(self):
        rnd = self.random
        if self.recent and rnd.random() < 0.3:
            self.sent["duplicate"] += 1
            return rnd.choice(self.recent)
        self.number += 1
        kind = rnd.choice(["plain"] * 6 + ["text"] * 6 + ["sleep", "ctxsleep", "error", "retry", "caught", "fail", "big"])
        self.text += kind == "text"
        steps = {"plain": [["effect"]], "sleep": [["effect"], ["sleep", 0.05]], "ctxsleep": [["effect"], ["ctxsleep", "50ms"]],
                 "error": [["effect"], ["attempt", 1, ["error", "asked"]]], "retry": [["attempt", 1, ["retry", {}]], ["effect"]],
                 "caught": [["effect"], ["attempt", 1, ["try", "SELECT 1/0"]]], "big": [["effect"]],
                 "fail": [["effect"], ["fail", {"status": 422, "code": "declined", "message": "no"}]],
                 "text": [["effect"], ["sql", f"SELECT {self.text % TEXTS} AS n"]]}[kind]
        args = {"key": f"k{self.number}", "steps": steps, **({"pad": "x" * 200_000} if kind == "big" else {})}
        tenant = rnd.choice([1, 2, None])
        self.sent[kind] += 1
        self.recent = self.recent[-200:] + [("s.t" if tenant else "s.p", args, tenant)]
        return self.recent[-1]

    def load(self, seconds):
        """Load and faults for so long; then the load stops and the queue runs empty."""
        begun, next_fault, away = time.monotonic(), 2.0, False
        self.loading.set()
        while (elapsed := time.monotonic() - begun) < seconds:
            if self.env.db.val("SELECT count(*) FROM umavez.runs") < 400:
                try:
                    self.env.enqueue_many([self._run() for _ in range(20)])
                except AWAY:
                    pass
            if not away and elapsed > seconds / 2:      # J09: PostgreSQL is away for a while, amid
                away = True
                self.faults["pg_away"] += 1
                self.env.pg.stop("immediate")
                wait_until(lambda: time.monotonic() - begun > seconds / 2 + min(60, seconds / 10), 120)
                self.env.pg.start()
            if elapsed > next_fault:
                self.strike()
                next_fault = elapsed + self.random.uniform(0.3, 2.5)
            time.sleep(0.05)
        self.loading.clear()
        self.vk.rule = self.pg.rule = None
        self.env.wait_finished(timeout=180)

    def strike(self):
        rnd, env = self.random, self.env
        fault = rnd.choice(["pg_cut", "pg_terminate", "pg_cut_after_commit", "pg_cut_before_commit", "pg_restart", "vk_cut", "vk_swallow", "vk_flush",
                            "vk_restart", "vk_hang", "other_killed", "other_killed"])
        self.faults[fault] += 1
        if fault == "pg_cut":
            self.pg.cut_all()
        elif fault == "pg_terminate":
            env.db.q("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_worker' AND random() < 0.3")
        elif fault == "pg_cut_after_commit":
            self.pg.cut_after_commit(after="INSERT INTO effects")
        elif fault == "pg_cut_before_commit":
            self.pg.cut_before_commit(after="INSERT INTO effects")
        elif fault == "pg_restart":
            env.pg.restart("fast")
        elif fault == "vk_cut":
            self.vk.cut_all()
        elif fault == "vk_swallow":
            self.vk.swallow(lambda event: event.mentions(":gate:"), count=2)
        elif fault == "vk_flush":
            env.valkey.flush()
        elif fault == "vk_restart":
            env.valkey.restart()
        elif fault == "vk_hang":
            self.vk.stall()
            threading.Timer(rnd.uniform(0.1, 1), self.vk.resume).start()
        else:
            if self.other:
                self.other.kill()
            self.other = env.worker(pool_size=3, queues="default")

    # --- measure -------------------------------------------------------------------------------------------------------------

    def measure(self):
        env = self.env
        if self.other:
            self.other.kill()
            self.other = None
        env.wait_finished(env.enqueue_many([("s.p", {"key": f"m{time.monotonic_ns()}{n}"}, None) for n in range(30)]), 120)     # the pool is whole again
        probes = env.wait_finished(env.enqueue_many([("s.probe", {}, None)] * (3 * POOL)), 120)
        dead = self._dead_tuples()
        return Measure(self.worker.rss_kb(), self.worker.fds(), env.db.val(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_worker'"),
            max(row.outcome["prepared"] for row in probes), min(row.outcome["lua_kb"] for row in probes), dead,
            env.db.val("SELECT pg_table_size('umavez.runs') / 1024"))

    def _dead_tuples(self):
        """Behind VACUUM: what is left is what somebody's open transaction holds. For some seconds it may be anybody's."""
        begun, dead = time.monotonic(), None
        while dead is None or (dead > 0 and time.monotonic() - begun < 20):
            self.env.db.q("VACUUM")
            dead = self.env.db.val("SELECT coalesce(sum(n_dead_tup), 0)::int FROM pg_stat_user_tables WHERE schemaname = 'umavez'")
        return dead

    def close(self):
        self.ended.set()
        self.caller.join(70)
