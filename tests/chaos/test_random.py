"""The randomised fault run: many runs, a third of them duplicates, while everything around them is killed, cut, frozen and flushed.

UMAVEZ_CHAOS_SEED repeats a schedule (the seed of a run is printed), UMAVEZ_CHAOS_RUNS (20000) and UMAVEZ_CHAOS_SECONDS (150, while faults happen) make it smaller.
UMAVEZ_CHAOS_ISOLATION sets the database's default isolation. The effect table has no unique constraint. What must hold at the end: one effect for each key that may succeed, none for the others, an outcome for every
run, replays equal to the first outcome, nothing of rolled-back enqueues, no lease, session or token left. Half of the workers are supervisors with two
children: parents and children are killed, children frozen, reloads asked for.
"""
import collections
import heapq
import json
import os
import random
import signal
import time
import uuid

import psycopg2
import pytest

from support import procs
from support.client import AWAY
from support.procs import wait_until
from support.proxy import PgProxy, ValkeyProxy

RUNS = int(os.environ.get("UMAVEZ_CHAOS_RUNS", "20000"))
SECONDS = float(os.environ.get("UMAVEZ_CHAOS_SECONDS", "150"))
SEED = int(os.environ.get("UMAVEZ_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
ISOLATION = os.environ.get("UMAVEZ_CHAOS_ISOLATION")
WORKERS = int(os.environ.get("UMAVEZ_CHAOS_WORKERS", "4"))

# kind of run -> (share, steps, may it have an effect)
KINDS = {
    "plain": (60, [["effect"]], True),
    "slow": (12, [["effect"], ["sleep", 0.05]], True),
    "split": (8, [["sleep", 0.02], ["effect"], ["sleep", 0.02]], True),
    "long": (1, [["effect"], ["sleep", 1.5]], True),
    "error": (8, [["effect"], ["attempt", 1, ["error", "asked"]]], True),
    "retry": (4, [["attempt", 1, ["effect"], ["retry", {}]], ["effect"]], True),
    "caught": (3, [["effect"], ["attempt", 1, ["try", "SELECT 1/0"]]], True),
    "fail": (4, [["effect"], ["fail", {"status": 422, "code": "declined", "message": "no"}]], False),
}


class Chaos:
    def __init__(self, env):
        self.env = env
        self.random = random.Random(SEED)
        self.slots = []
        self.faults = collections.Counter()
        self.undo = []                # (when, number, function)
        self.down = set()             # what is frozen or stopped now
        self.expected = {}            # (task, tenant, key) -> may it have an effect
        self.phantoms = []            # run_ids whose enqueue was rolled back

    # --- the load ------------------------------------------------------------------------------------------------------------

    def make_runs(self):
        """RUNS runs as enqueue_many takes them; a third repeats an earlier one's task, tenant and args."""
        rnd, runs, first = self.random, [], []
        kinds = [kind for kind, (share, _, _) in KINDS.items() for _ in range(share)]
        for number in range(RUNS):
            if first and rnd.random() < 1 / 3:
                # mostly a recent one, so that duplicates meet their original alive
                original = first[-rnd.randint(1, min(50, len(first)))] if rnd.random() < 0.8 else rnd.choice(first)
                run = dict(original)
            else:
                kind = rnd.choice(kinds)
                tenant = rnd.choice([1, 2, 3, None])
                task = ("c.tenant" if tenant else "c.platform")
                run = {"task": task, "args": {"key": f"k{number}", "steps": KINDS[kind][1]}}
                if tenant:
                    run["tenant_id"] = tenant
                self.expected[(task, tenant, f"k{number}")] = KINDS[kind][2]
                first.append(run)
            runs.append({**run, "run_id": str(uuid.UUID(int=rnd.getrandbits(128), version=4))})
        return runs

    def enqueue(self, batch):
        """The same run_ids again when the answer was lost: enqueueing twice is one run."""
        text = json.dumps(batch)

        def sent():
            try:
                self.env.db.q("SELECT umavez.enqueue_many(%s::jsonb)", text)
                return True
            except (*AWAY, psycopg2.errors.ReadOnlySqlTransaction):
                return False
        wait_until(sent, 60, "enqueued", 0.1)
        self.env.accepted.update((run["run_id"], run["task"]) for run in batch)
        if self.random.random() < 0.1:
            self.roll_back()

    def roll_back(self):
        ghost = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        try:
            connection = self.env.db.connect(autocommit=False)
            with connection.cursor() as cursor:
                cursor.execute("SELECT umavez.enqueue('c.platform', %s::jsonb, run_id => %s::uuid)", (json.dumps({"key": "ghost" + ghost}), ghost))
            connection.rollback()
            connection.close()
        except psycopg2.Error:
            pass
        self.phantoms.append(ghost)

    # --- the faults ------------------------------------------------------------------------------------------------------------

    def start_slot(self):
        pg, vk = self.env.closing(PgProxy(self.env.pg)), self.env.closing(ValkeyProxy(self.env.valkey))
        slot = {"pg": pg, "vk": vk, "supervised": len(self.slots) % 2 == 1}
        self.start_worker(slot)
        self.slots.append(slot)

    def start_worker(self, slot):
        size = {"workers": 2, "pool_size": 3} if slot["supervised"] else {"pool_size": 6}
        slot["worker"] = self.env.worker(database_url=slot["pg"].url(self.env.db), valkey_url=slot["vk"].url, drain_timeout="10s",
                                        gate_timeout="100ms", **size)

    def strike_children(self, name):
        """False when there is no child to strike now."""
        slot = self.random.choice([slot for slot in self.slots if slot["supervised"]] or [None])
        children = slot and sorted(slot["worker"].children())
        if not children or not slot["worker"].events("child_ready"):
            return False
        child = self.random.choice(children)
        if name == "child_kill":
            procs.send(child, signal.SIGKILL)
        elif name == "child_freeze":
            return self.for_a_while(("child", child), 0.5, 5, lambda: procs.send(child, signal.SIGSTOP), lambda: procs.send(child, signal.SIGCONT))
        elif name == "parent_kill":                                             # its children drain by themselves, beside the next one's
            slot["worker"].killed = True
            slot["worker"].process.kill()
            slot["worker"].process.wait()
            self.start_worker(slot)
        elif name == "reload":
            slot["worker"].process.send_signal(signal.SIGHUP)
        return True

    def later(self, seconds, function):
        heapq.heappush(self.undo, (time.monotonic() + seconds, len(self.undo) + self.faults.total(), function))

    def mend(self, everything=False):
        while self.undo and (everything or self.undo[0][0] <= time.monotonic()):
            heapq.heappop(self.undo)[2]()

    def for_a_while(self, thing, low, high, break_it, mend_it):
        if thing in self.down:
            return False
        if break_it() is False:
            return False
        self.down.add(thing)

        def mended():
            mend_it()
            self.down.discard(thing)
        self.later(self.random.uniform(low, high), mended)
        return True

    def strike(self):
        rnd, env = self.random, self.env
        slot = rnd.choice(self.slots)
        name = rnd.choices(*zip(*(
            ("worker_kill", 4), ("worker_freeze", 3), ("worker_term", 2), ("child_kill", 4), ("child_freeze", 2), ("parent_kill", 2), ("reload", 2),
            ("pg_cut", 4), ("pg_cut_after_commit", 4), ("pg_cut_before_commit", 4),
            ("pg_stall", 2), ("pg_terminate", 3), ("pg_restart_fast", 1), ("pg_restart_immediate", 1), ("pg_restart_kill", 0.5),
            ("vk_cut", 2), ("vk_swallow", 3), ("vk_stall", 2), ("vk_flush", 3), ("vk_restart", 2), ("vk_stop", 1), ("vk_freeze", 2), ("vk_oom", 1))))[0]
        done = True
        if name in ("child_kill", "child_freeze", "parent_kill", "reload"):
            done = self.strike_children(name)
        elif name == "worker_kill":
            slot["worker"].kill()
            self.start_worker(slot)
        elif name == "worker_freeze":
            worker = slot["worker"]
            done = self.for_a_while(("worker", worker.name), 0.5, 5, worker.try_freeze, worker.thaw)
        elif name == "worker_term":
            done = ("worker", slot["worker"].name) not in self.down and bool(slot["worker"].text())     # before main() SIGTERM kills
            if done:
                slot["worker"].process.terminate()
                slot["old"] = slot["worker"]
                self.start_worker(slot)
        elif name == "pg_cut":
            slot["pg"].cut_all()
        elif name == "pg_cut_after_commit":
            slot["pg"].cut_after_commit(after="INSERT INTO effects", count=rnd.randint(1, 3))
        elif name == "pg_cut_before_commit":
            slot["pg"].cut_before_commit(after="INSERT INTO effects", count=rnd.randint(1, 3))
        elif name == "pg_stall":
            done = self.for_a_while(id(slot["pg"]), 0.2, 4, slot["pg"].stall, slot["pg"].resume)
        elif name == "pg_terminate":
            try:
                env.db.q("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_worker'
                            AND random() < 0.3""")
            except AWAY:
                pass
        elif name.startswith("pg_restart"):
            env.pg.restart(name.rsplit("_", 1)[1])
        elif name == "vk_cut":
            slot["vk"].cut_all()
        elif name == "vk_swallow":
            slot["vk"].swallow(lambda event: event.mentions(":gate:"), count=rnd.randint(1, 3))
        elif name == "vk_stall":
            done = self.for_a_while(id(slot["vk"]), 0.05, 2, slot["vk"].stall, slot["vk"].resume)
        elif "valkey" in self.down:
            done = False
        elif name == "vk_flush":
            env.valkey.flush()
        elif name == "vk_restart":
            env.valkey.restart()
        elif name == "vk_stop":
            done = self.for_a_while("valkey", 1, 4, env.valkey.stop, env.valkey.start)
        elif name == "vk_freeze":
            done = self.for_a_while("valkey", 0.1, 2, env.valkey.freeze, env.valkey.thaw)
        elif name == "vk_oom":
            done = self.for_a_while("valkey", 0.5, 2, lambda: env.valkey.configure(maxmemory="1"), lambda: env.valkey.configure(maxmemory="0"))
        if done:
            self.faults[name] += 1

    # --- the end ---------------------------------------------------------------------------------------------------------------

    def audit(self):
        """This test's own look, beside the auditor's of every test: exact counts by key."""
        env, problems = self.env, []
        effects = {(row.task, row.tenant_id, row.key): row.n for row in env.db.q("SELECT task, tenant_id, key, count(*) AS n FROM effects GROUP BY 1, 2, 3")}
        for key, may in self.expected.items():
            if effects.pop(key, 0) != (1 if may else 0):
                problems.append(f"{key}: should{'' if may else ' not'} have an effect")
        problems += [f"an effect of nobody's key: {key}" for key in effects]
        by_key = collections.defaultdict(list)
        for row in env.finished_all():
            by_key[(row.task, row.tenant_id, bytes(row.idempotency_key) if row.idempotency_key else None)].append(row)
        for (task, tenant, digest), rows in by_key.items():
            if len({(row.status, json.dumps(row.outcome, sort_keys=True)) for row in rows}) != 1 or sum(not row.replay for row in rows) != 1 or digest is None:
                problems.append(f"{task} {tenant} {digest and digest.hex()}: {[(r.status, r.replay, r.outcome) for r in rows][:4]}")
        if len(by_key) != len(self.expected):
            problems.append(f"{len(by_key)} keys ended, {len(self.expected)} were enqueued")
        ghosts = env.db.val("""SELECT count(*) FROM (SELECT run_id FROM umavez.runs UNION ALL SELECT run_id FROM umavez.finished_runs) r
                               WHERE run_id = ANY(%s::uuid[])""", self.phantoms)
        if ghosts:
            problems.append(f"{ghosts} runs of rolled-back enqueues")
        return problems


@pytest.mark.timeout(900)
def test_random_faults(own_env):
    env = own_env
    env.audit.allow("gate_tokens", "leases")     # Valkey and workers are away when runs end; the entries' TTL ends them
    print(f"\nUMAVEZ_CHAOS_SEED={SEED} UMAVEZ_CHAOS_RUNS={RUNS} UMAVEZ_CHAOS_SECONDS={SECONDS:g}")
    retry = {"max_attempts": 100, "base": "50ms", "cap": "500ms"}    # no run may end for the faults' number alone
    env.tasks.add("c.tenant", owner="tenant", key=["key"], lease="3s", timeout="10s", retry=retry)
    env.tasks.add("c.platform", owner="platform", key=["key"], lease="3s", timeout="10s", retry=retry)
    if ISOLATION:
        env.db.q(f"ALTER DATABASE {env.db.name} SET default_transaction_isolation = '{ISOLATION}'")
    chaos = Chaos(env)
    runs = chaos.make_runs()
    for _ in range(WORKERS):
        chaos.start_slot()
    begun, sent, next_fault = time.monotonic(), 0, 1.0
    while (elapsed := time.monotonic() - begun) < SECONDS:
        due = min(len(runs), int(len(runs) * elapsed / (SECONDS * 0.9)) + 20)
        if due > sent:
            chaos.enqueue(runs[sent:due])
            sent = due
        chaos.mend()
        if elapsed > next_fault:
            chaos.strike()
            next_fault = time.monotonic() - begun + chaos.random.uniform(0.1, 1.8)
        time.sleep(0.05)
    if sent < len(runs):
        chaos.enqueue(runs[sent:])
    chaos.mend(everything=True)
    for slot in chaos.slots:
        slot["pg"].rule = slot["vk"].rule = None
    backlog = env.live()
    settled = time.monotonic()
    env.wait_finished(timeout=180)
    stats = env.db.one("""SELECT count(*) AS runs, count(*) FILTER (WHERE replay) AS replays, sum(deliveries) AS deliveries, max(deliveries) AS most,
                                 count(*) FILTER (WHERE status <> 'completed') AS failed FROM umavez.finished_runs""")
    print(f"{stats.runs} runs, {stats.replays} replays, {stats.deliveries} deliveries (at most {stats.most} for one), {stats.failed} failed as asked; "
          f"{env.effects()} effects of {sum(chaos.expected.values())} keys; backlog of {backlog} done in {time.monotonic() - settled:.1f} s after the last fault")
    print(f"{chaos.faults.total()} faults: " + ", ".join(f"{n} {c}" for n, c in chaos.faults.most_common()))
    for slot in chaos.slots:
        if slot["supervised"] and slot["worker"].terminate() == 5:               # so many children were killed that it was told as a crash loop
            assert slot["worker"].events("crash_loop")
            slot["worker"].killed = True
    problems = chaos.audit()
    assert not problems, f"seed {SEED}:\n- " + "\n- ".join(problems[:20])
    assert chaos.faults.total() >= SECONDS / 3, "too few faults to mean anything"
