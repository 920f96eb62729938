"""The hostile gate: a Valkey that forgets, lies, stutters and answers late, changed every few hundred milliseconds while duplicates come to the queue
and to the door. Only latency may change: one effect per key, right answers only (support/hostile.py lists the lies).

UMAVEZ_CHAOS_SEED repeats the schedule (its seed is printed), UMAVEZ_HOSTILE_SECONDS (20) makes it longer.
"""
import collections
import json
import os
import random
import threading
import time
from dataclasses import replace

import pytest

from support.client import Env
from support.hostile import LIES, MODES, HostileValkey
from support.http import Closed, Door
from support.keys import parse_entry
from support.procs import wait_until

SECONDS = float(os.environ.get("UMAVEZ_HOSTILE_SECONDS", "20"))
SEED = int(os.environ.get("UMAVEZ_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
VALUES = ["evict", "amnesia", "acquired", "held", "stale", "foreign", "forged", "relative", "hashes"]
RETRY = {"max_attempts": 20, "base": "50ms", "cap": "500ms"}
STEPS = {"plain": [["effect"]], "slow": [["effect"], ["sleep", 0.15]], "error": [["effect"], ["attempt", 1, ["error", "asked"]]],
         "fail": [["effect"], ["fail", {"status": 422, "code": "declined", "message": "no"}]]}


@pytest.fixture
def world(env: Env):
    """An Env whose workers meet a hostile Valkey."""
    secret = env.gate.secret()

    def sign(key, raw):
        owner, _, digest = key.decode().partition("{")[2][:-1].partition(":")
        entry = parse_entry(raw, owner, digest)
        entry = replace(entry, state="C", dbid=os.urandom(8).hex(), outcome='{"ok": true, "run": "of another timeline"}')
        return replace(entry, hmac=entry.sign(secret)).encode()

    env.hostile = env.closing(HostileValkey(SEED, sign))
    for name, owner in (("t", "tenant"), ("p", "platform")):
        env.tasks.add(f"h.{name}_queue", owner=owner, key=["key"], lease="2s", timeout="5s", retry=RETRY)
        env.tasks.add(f"h.{name}_door", owner=owner, lease="2s", timeout="5s", http={"method": "POST", "path": f"/{name}/door"})
    return env


class Clients:
    """Callers of the door: each picks a key, old or new, and asks until it has the answer. What they saw is the history."""

    def __init__(self, doors, rnd):
        self.doors, self.seed = doors, rnd.getrandbits(32)
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.made = []                                    # (owner index, key, kind), in order
        self.answers = collections.defaultdict(list)      # of a key: (status, body, was a replay)
        self.settled = set()
        self.problems, self.statuses, self.slowest = [], collections.Counter(), 0.0
        self.threads = [threading.Thread(target=self._loop, args=(n,), daemon=True) for n in range(4)]
        for thread in self.threads:
            thread.start()

    def _loop(self, number):
        rnd = random.Random(self.seed + number)
        try:
            while not self.ended.is_set():
                with self.lock:
                    if not self.made or rnd.random() < 0.4:
                        self.made.append((rnd.randrange(len(self.doors)), f"d{len(self.made)}", rnd.choice(list(STEPS))))
                        pick = self.made[-1]
                    else:
                        pick = self.made[-min(len(self.made), 1 + int(rnd.expovariate(0.15)))]
                self._ask(pick, reused=rnd.random() < 0.1, rnd=rnd)
        except Exception as error:  # noqa: BLE001: told at the end
            self.problems.append(f"client {number}: {error!r}")

    def _ask(self, pick, reused, rnd):
        owner, key, kind = pick
        body = {"key": key, "steps": STEPS[kind], **({"other": True} if reused else {})}
        if reused and pick not in self.settled:
            return      # whoever comes first makes the key
        begun = time.monotonic()
        while time.monotonic() - begun < 60:
            was_settled = pick in self.settled
            try:
                answer = rnd.choice(self.doors[owner]).post("/" + "tp"[self.doors[owner][0].tenant is None] + "/door", body, key=key)
            except (Closed, OSError) as error:
                self.problems.append(f"{pick}: the door closed the connection: {error!r}")
                return
            self.statuses[answer.status, answer.problem] += 1
            if reused:
                if answer.status != 422 or answer.problem != "key_reused":
                    self.problems.append(f"{pick} with another body: {answer}")
                return
            if answer.problem == "in_progress" and was_settled:
                self.problems.append(f"{pick}: in progress, although it was settled")
            if answer.status == 200 or (answer.status == 422 and answer.problem is None):
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.answers[pick].append((answer.status, answer.body, answer.replayed))
                self.settled.add(pick)
                return
            if answer.status not in (409, 500):      # 500: the handler's own error
                self.problems.append(f"{pick}: {answer}")
            time.sleep(0.02)
        self.problems.append(f"{pick}: no answer within a minute")

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(90)

    def audit(self, env):
        found = list(self.problems)
        effects = {(row.task, row.tenant_id, row.key): row.n for row in
                   env.db.q("SELECT task, tenant_id, key, count(*) AS n FROM effects WHERE task LIKE '%%door' GROUP BY 1, 2, 3".replace("%%", "%"))}
        for pick in self.made:
            owner, key, kind = pick
            door = self.doors[owner][0]
            count = effects.pop(("h.p_door" if door.tenant is None else "h.t_door", door.tenant, key), 0)
            answers = self.answers.get(pick, [])
            if count > 1 or (answers and count != (kind != "fail")):
                found.append(f"{pick}: {count} effects")
            if len({(status, body) for status, body, _ in answers}) > 1:
                found.append(f"{pick}: different answers: {set(answers)}")
            if sum(not replayed for _, _, replayed in answers) > 1:
                found.append(f"{pick}: answered first more than once")
            if answers and (answers[0][0] == 422) != (kind == "fail"):
                found.append(f"{pick}: {answers[0]}")
        return found + [f"an effect of nobody's key: {key}" for key in effects]


def queue_runs(rnd, first, count):
    """`count` runs, most of them duplicates of a recent one."""
    runs = []
    for _ in range(count):
        if first and rnd.random() < 0.65:
            runs.append(rnd.choice(first[-30:]))
        else:
            tenant = rnd.choice([1, 2, None])
            kind = rnd.choice(list(STEPS))
            run = ("h.t_queue" if tenant else "h.p_queue", {"key": f"q{len(first)}", "steps": STEPS[kind]}, tenant)
            first.append(run)
            runs.append(run)
    return runs


@pytest.mark.timeout(int(SECONDS) + 400)
def test_hostile_gate_changes_latency_only(world):
    env, hostile, rnd = world, world.hostile, random.Random(SEED)
    print(f"\nUMAVEZ_CHAOS_SEED={SEED} UMAVEZ_HOSTILE_SECONDS={SECONDS:g}")
    first = [Door(env, tenant=1, valkey_url=hostile.url, gate_timeout="100ms", pool_size=8) for _ in range(2)]
    clients = Clients([first, [door.as_owner(2) for door in first], [door.as_owner(None) for door in first]], rnd)
    made = []
    begun = time.monotonic()

    def untold():
        return sorted(set(LIES) - set(hostile.told))
    try:
        while (elapsed := time.monotonic() - begun) < SECONDS or (untold() and elapsed < 120 + SECONDS):
            # Lies in values, and honest spells to lie about, more often than what only shuts the breaker.
            often = rnd.random()
            hostile.mode = "honest" if often < 0.3 else rnd.choice(VALUES) if often < 0.7 else rnd.choice(untold() or list(MODES))
            until = time.monotonic() + rnd.uniform(0.1, 0.5)
            while time.monotonic() < until:
                env.enqueue_many(queue_runs(rnd, made, 8))
                time.sleep(0.05)
    finally:
        clients.stop()
    hostile.mode = "honest"
    rows = env.wait_finished(timeout=120)
    problems = clients.audit(env)
    effects = {(row.task, row.tenant_id, row.key): row.n for row in env.db.q("SELECT task, tenant_id, key, count(*) AS n FROM effects GROUP BY 1, 2, 3")}
    ended = collections.defaultdict(set)
    for row in rows:
        ended[row.task, row.tenant_id, bytes(row.idempotency_key)].add((row.status, json.dumps(row.outcome, sort_keys=True)))
    problems += [f"{key}: {outcomes}" for key, outcomes in ended.items() if len(outcomes) != 1]
    for task, args, tenant in made:
        if effects.get((task, tenant, args["key"]), 0) != (args["steps"] != STEPS["fail"]):
            problems.append(f"{task} {tenant} {args['key']}: {effects.get((task, tenant, args['key']), 0)} effects")
    answers = sum(map(len, clients.answers.values()))
    print(f"{len(rows)} runs of {len(made)} keys, {sum(row.replay for row in rows)} replays; {answers} answers of the door for {len(clients.made)} keys, "
          f"{sum(replayed for key in clients.answers.values() for _, _, replayed in key)} replays, the slowest after {clients.slowest:.1f} s")
    print(f"{sum(hostile.told.values())} lies: " + ", ".join(f"{kind} {count}" for kind, count in hostile.told.most_common()))
    print("door: " + ", ".join(f"{status} {problem or ''} {count}" for (status, problem), count in clients.statuses.most_common()))
    assert not problems, f"seed {SEED}:\n- " + "\n- ".join(problems[:20])
    assert not untold(), f"never told: {untold()}"
    assert answers > SECONDS and len(rows) > SECONDS * 10, "too little load to mean anything"


# --- faults that it found, and neighbours, one by one ---------------------------------------------------------------------------

@pytest.mark.parametrize("lie", ["extra", "huge", "order", "hashes"])
def test_a_worker_outlives(world, lie):
    """`extra`: hiredis aborts the process when a reply comes that nobody has asked for."""
    env, hostile = world, world.hostile
    worker = env.worker(valkey_url=hostile.url, gate_timeout="100ms")
    env.wait_finished(env.enqueue("h.t_queue", {"key": "warm"}))
    hostile.mode = lie
    args = [{"key": f"k{n}"} for n in range(20)]
    begun = time.monotonic()
    while hostile.told[lie] < 5 and time.monotonic() - begun < 60:
        env.wait_finished(env.enqueue_many([("h.t_queue", one, 1) for one in args * 2]))
    assert hostile.told[lie] >= 5 and worker.running() and env.effects() == 21
    hostile.mode = "honest"
    wait_until(lambda: hostile.past and worker.events("valkey_up"), 30, "the gate is used again")


def test_a_copy_of_a_retention_that_has_passed(env):
    """Valkey's clock is not the database's: an entry that it still has, or has again, counts only until the retention ends."""
    env.audit.allow("effect_once", "replays_equal", "ledger_run", "gate_truth")
    env.tasks.add("h.brief", owner="tenant", retention="2s", lease="2s", timeout="5s", http={"method": "POST", "path": "/brief"})
    door = Door(env)
    first = door.post("/brief", {"key": "E1"}, key="k1")
    wait_until(lambda: getattr(door.gate("h.brief", "k1"), "state", None) == "C", 20, "the copy in the gate")
    digest, raw = bytes.fromhex(door.gate("h.brief", "k1").key), door.gate("h.brief", "k1").raw
    again = door.post("/brief", {"key": "E1"}, key="k1")
    wait_until(lambda: env.db.val("SELECT expires_at < clock_timestamp() FROM umavez.idempotency_keys"), 20, "the end of the retention")
    env.gate.put(digest, raw, 1, px=60_000)
    new = door.post("/brief", {"key": "E1"}, key="k1")
    assert (first.status, new.status, new.replayed, env.effects("E1")) == (200, 200, False, 2)
    assert again.body == first.body != new.body


@pytest.mark.parametrize("task", ["h.t_queue", "h.p_queue"])
def test_an_old_processing_entry_is_not_believed_for_ever(world, task):
    """A server that always answers with an entry of a holder that is long gone would keep a key BUSY without end."""
    env = world
    tenant = env.tenant(task)
    now = env.db.val("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    env.worker()
    env.wait_finished(env.enqueue(task, {"key": "warm"}))
    for key, acquired_ms, believed in (("E1", now - 3_600_000, False), ("E2", now, True)):
        args, digest = {"key": key}, env.digest(task, key)
        env.gate.put(digest, env.gate.entry(task, args, digest, tenant, time_ms=acquired_ms), tenant, px=2000)
        run = env.enqueue(task, args)
        if believed:
            wait_until(lambda: env.run(run).busy > 0, 20, "BUSY")
        row = env.wait_finished(run)
        assert row.status == "completed" and (row.finished_at - row.enqueued_at).total_seconds() < 2 or believed
