"""The fault matrix: each step of the runner (a failpoint where worker A is stopped) × each fault, then recovery beside a healthy worker B, then the auditor.

No dice are thrown: A stands still at a known octet of the protocol while the fault happens, so a cell's name repeats it. What becomes of the run is open
(A, B or a redelivery ends it); the auditor's rules are not.
"""
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg2

from support.client import Env
from support.failpoints import Failpoints
from support.history import SETTLED, History
from support.http import Door, start_door
from support.procs import ROOT, wait_until

HANDLER = (ROOT / "tests" / "support" / "tasks" / "matrix.lua").read_text()
PREPARED = f"""local effect = (function() {HANDLER} end)()
return {{ prepare = function(ctx) if ctx.deliveries < 3 then error("asked to", 0) end end, effect = effect }}"""
PURGE = (ROOT / "tasks" / "maintenance" / "purge.lua").read_text().replace('"maintenance.purge"', '"m.purge"')
LEASE = 1.0           # seconds; what a killed or stopped worker holds is delivered again after that
CHILDS_LEASE = 7.0    # under a supervisor, which gives it back at once: longer than the auditor would wait
LIMIT = 120           # seconds for what must happen some time; a busy machine is no fault
TENANT = {"tenant": 1, "platform": None}

# step -> (failpoint, what the armed run is asked to do)
STEPS_OF_THE_RUNNER = {
    "before SET": ("gate-before", None),
    "SET sent": ("gate-sent", None),
    "claimed": ("claim-answered", None),
    "before effects": ("effect-before", None),
    "between effects": ("effect-between", None),
    "after effects": ("effect-after", None),
    "completion sent": ("completion-sent", None),
    "COMMIT sent": ("commit-sent", None),
    "COMMIT answered": ("commit-answered", None),
    "copy sent": ("copy-sent", None),
    "before the answer": ("answer-before", None),
    "renewal sent": ("renew-sent", "slow"),
    "failure sent": ("failure-sent", "fail"),
    "retry sent": ("failure-sent", "error"),
    "lost failure sent": ("lost-sent", "prepare"),
    "replay's ack sent": ("ack-sent", None),
    "purging": ("statement-sent", "purge"),
}
ENTRIES = ("queue", "batch", "door")
FAULTS = ("SIGKILL", "SIGKILL of a child", "SIGSTOP", "PostgreSQL cut inwards", "PostgreSQL cut outwards", "Valkey cut inwards", "Valkey cut outwards",
          "PostgreSQL crash", "Valkey restart", "FLUSHALL", "Valkey hung")
CUTS = {"PostgreSQL cut inwards": "cut-pg-read", "PostgreSQL cut outwards": "cut-pg-write",
        "Valkey cut inwards": "cut-valkey-read", "Valkey cut outwards": "cut-valkey-write"}

NO_CONNECTION = "no connection to PostgreSQL is lent to the run there"
ALONE = "a run is by itself there, in a shared transaction or not: the queue's cell is the same"
# (entry, step, fault or "*") -> why there is no such cell
MEANINGLESS = {
    **{("batch", step, "*"): ALONE for step in ("before SET", "SET sent", "before the answer", "renewal sent", "lost failure sent", "replay's ack sent", "purging")},
    **{("batch", "copy sent", fault): NO_CONNECTION for fault in ("PostgreSQL cut inwards", "PostgreSQL cut outwards")},
    **{(entry, step, fault): NO_CONNECTION for entry in ("queue", "door") for step in ("before SET", "SET sent", "copy sent")
       for fault in ("PostgreSQL cut inwards", "PostgreSQL cut outwards")},
    ("door", "before the answer", "PostgreSQL cut inwards"): NO_CONNECTION,
    ("door", "before the answer", "PostgreSQL cut outwards"): NO_CONNECTION,
    ("queue", "before the answer", "*"): "only a request is answered over HTTP",
    ("door", "lost failure sent", "*"): "a request whose transaction is lost leaves no record: its client comes again",
    ("door", "replay's ack sent", "*"): "a request is in no queue from which a replay would have to be removed",
    ("door", "purging", "*"): "the purge is a run of the queue",
}


def why_not(entry, step, fault):
    return MEANINGLESS.get((entry, step, fault)) or MEANINGLESS.get((entry, step, "*"))


def cells(entry):
    """(step, fault, owner): the owners take turns, the other way round at the door, so that each step and each fault meets both."""
    return [(step, fault, ("tenant", "platform")[(i + j + (entry == "door")) % 2])
            for i, step in enumerate(STEPS_OF_THE_RUNNER) for j, fault in enumerate(FAULTS) if not why_not(entry, step, fault)]


class Servers:
    """A PostgreSQL and a Valkey that the cells of one process share, and may crash."""

    def __init__(self, pg, valkey):
        self.pg, self.valkey = pg, valkey

    def well(self):
        """Both answer again, whatever a failed cell has left."""
        if not self.pg.running():
            self.pg.start()
        self.valkey.thaw()
        self.valkey.flush()


class Cell:
    """One cell's world: database, tasks, two workers, what was seen."""

    def __init__(self, servers, entry, step, fault, owner):
        self.servers, self.entry, self.step, self.fault, self.owner = servers, entry, step, fault, owner
        self.failpoint, self.wish = STEPS_OF_THE_RUNNER[step]
        servers.well()
        self.env = Env(servers.pg, valkey=servers.valkey)
        self.env.history = self.history = History(self.env)
        self.history.fails_before_start = self.wish == "prepare"
        self.points = self.env.closing(Failpoints())
        self.supervised = fault == "SIGKILL of a child"
        self.lease = CHILDS_LEASE if self.supervised else LEASE
        self.bystander = "platform" if owner == "tenant" else "tenant"
        self.add_tasks()
        self.begun = time.monotonic()

    # --- tasks and workers -----------------------------------------------------------------------------------------------------

    def add_tasks(self):
        retry = {"max_attempts": 100, "base": "20ms", "cap": "200ms"}
        for owner in ("tenant", "platform"):
            fields = {"owner": owner, "key": ["key"], "lease": f"{self.lease:g}s", "timeout": "30s", "retry": retry}
            self.env.tasks.add(f"m.{owner}", handler=PREPARED if self.wish == "prepare" else HANDLER, **fields,
                               http={"method": "POST", "path": f"/{owner}", "wait": "20ms"})
        if self.wish == "purge":
            self.env.tasks.add("m.purge", handler=PURGE, owner="platform", lease=f"{self.lease:g}s", timeout="30s", retry=retry)
        self.armed = "m.purge" if self.wish == "purge" else f"m.{self.owner}"

    def settings(self):
        return {"pool_size": 4, "log_level": "debug", "gate_timeout": "300ms", "drain_timeout": "20s"}

    def environment(self):
        """What A has in its environment besides."""
        return {}

    def start_a(self):
        settings = {"env": {**self.points.armed(f"{self.failpoint}@{self.armed}:pause"), **self.environment()}, **self.settings()}
        if self.supervised:
            settings.update(supervised=True, workers=1, stall="60s")
        if self.entry == "door":
            self.a, port = start_door(self.env, **settings)
            self.doors = [Door(self.env, tenant=TENANT[self.owner], port=port, worker=self.a)]
        else:
            self.a = self.env.worker(**settings)
            self.a.wait_event("worker_ready")

    def start_b(self):
        if self.entry == "door":
            self.b, port = start_door(self.env, **self.settings())
            self.doors.append(Door(self.env, tenant=TENANT[self.owner], port=port, worker=self.b))
            self.doors[1].token = self.doors[0].token
        else:
            self.b = self.env.worker(**self.settings())
            self.b.wait_event("worker_ready")

    def args(self, key="K", number=1, wish=None):
        return {"key": key, "number": number, "starts": str(self.history.starts), **({"wish": wish} if wish else {}),
                **({"sleep": f"{int(400 * self.lease + 1000)}ms"} if wish == "slow" else {})}      # beyond the first renewal, at a third of the lease

    # --- the fault ---------------------------------------------------------------------------------------------------------------

    def strike(self, hit):
        """A stands at its failpoint; B is at work. Returns when the fault has happened and A, if it lives, goes on."""
        fault, env = self.fault, self.env
        if fault == "SIGKILL":
            self.history.kill(self.a_id(), self.a.kill)
        elif self.supervised:
            self.points.release()
            self.history.kill(self.a_id(), lambda: os.kill(hit.pid, signal.SIGKILL), supervised=True)
        elif fault == "SIGSTOP":
            self.a.freeze()
            self.wait_past_the_lease()
            hit.answer()
            self.a.thaw()
        elif fault in CUTS:
            if self.failpoint == "commit-sent":
                wait_until(self.committed, LIMIT, "the server has executed the COMMIT whose answer will be lost")
            hit.answer(CUTS[fault])
        elif fault == "PostgreSQL crash":
            env.pg.restart("immediate")
            hit.answer()
        elif fault == "Valkey restart":
            env.valkey.restart()
            hit.answer()
        elif fault == "FLUSHALL":
            env.valkey.flush()
            hit.answer()
        elif fault == "Valkey hung":
            env.valkey.freeze()
            hit.answer()
        else:
            raise AssertionError(fault)

    def a_id(self):
        return self.a.events("worker_ready")[0]["worker_id"]

    def committed(self):
        return any(row.status in ("completed", "failed_permanent") for row in self.env.ledger_rows())

    def wait_past_the_lease(self):
        """Until B has brought everything to its end without A: what A does afterwards comes too late.

        In the middle of a group of statements (the completion without its COMMIT) no time-out of PostgreSQL's runs: A's transaction lives, and
        holds the key, so that nobody else can begin. There A is stopped for two leases, and commits what is still its own.
        """
        if self.step == "completion sent":
            self.env.db.q("SELECT pg_sleep(%s)", 2 * LEASE)
            assert not self.over()
        else:
            wait_until(self.over, LIMIT, lambda: "B has done everything while A is stopped;" + self.env.report(), 0.05)

    def over(self):
        raise NotImplementedError

    def load(self):
        """Work for A alone: what will come to the failpoint."""
        raise NotImplementedError

    def more_load(self):
        """While A stands: duplicates, a conflict, the other owners."""
        raise NotImplementedError

    def finish(self):
        """Waits for the end of all that was accepted or asked, whatever it takes."""
        raise NotImplementedError

    def ask_again(self):
        """After everything: each key once more, which must be a replay."""
        raise NotImplementedError

    # --- the course ----------------------------------------------------------------------------------------------------------------

    def run(self):
        self.history.watch()
        self.start_a()
        self.load()
        hit = self.points.wait(self.a, LIMIT)
        assert hit.name == self.failpoint
        self.start_b()
        self.more_load()
        self.strike(hit)
        self.finish()
        if self.fault == "Valkey hung":
            self.env.valkey.thaw()
        self.ask_again()
        self.history.stop()
        return self.seen()

    def seen(self):
        """What the table says of this cell."""
        waits = [w for w in self.history.waited_for().values() if w is not None]
        return {"starts": len(self.history.started()), "runs": self.env.db.val("SELECT count(*) FROM umavez.finished_runs"),
                "replays": self.env.db.val("SELECT count(*) FROM umavez.finished_runs WHERE replay") + sum(a.replay for a in self.history.answers),
                "effects": self.env.effects(), "waited": f"{max(waits):.1f}" if waits else "-", "seconds": f"{time.monotonic() - self.begun:.1f}"}

    def close(self, failed):
        self.history.stop()
        self.servers.well()
        self.env.close(failed)


class QueueCell(Cell):
    """Duplicates of two keys, a conflict, and runs of other owners with the same key."""

    def asked(self):
        """The wish that args carry."""
        return self.wish if self.wish in ("slow", "fail", "error") else None

    def enqueue(self, owner, key, number=1, tenant="auto", wish=None):
        return self.env.enqueue(f"m.{owner}", self.args(key, number, wish), tenant=TENANT[owner] if tenant == "auto" else tenant)

    def load(self):
        if self.wish == "purge":
            self.leave_expired_keys()
            self.env.enqueue("m.purge", {"limit": 10})
            return
        for key, count in (("K", 3), ("L", 2)):
            for _ in range(count):
                self.enqueue(self.owner, key, wish=self.asked())

    def more_load(self):
        self.enqueue(self.owner, "K", wish=self.asked())
        self.enqueue(self.owner, "K", 2, wish=self.asked())
        for _ in range(2):
            self.enqueue(self.bystander, "K")
        self.enqueue("tenant", "K", 3, tenant=2)

    def over(self):
        try:
            return self.env.live() == 0
        except psycopg2.Error:
            return False

    def finish(self):
        self.env.wait_finished(timeout=LIMIT)
        wait_until(lambda: self.env.live() == 0, LIMIT, lambda: "no run is left;" + self.env.report())     # the purge enqueues runs of its own

    def ask_again(self):
        again = [self.enqueue("tenant", "K", 3, tenant=2)]
        if self.wish != "purge":
            again.append(self.enqueue(self.owner, "L", wish=self.asked()))
        for row in self.env.wait_finished(again, timeout=LIMIT):
            assert row.replay, row
        assert not set(self.history.started()) & set(again), "a handler has started although its key was settled"
        self.check_ends()

    def check_ends(self):
        """One of the two requests with K is refused, whichever came second; everything else ends as it was asked to."""
        rows = self.env.finished_all()
        same = [row for row in rows if row.task == f"m.{self.owner}" and row.tenant_id == TENANT[self.owner]]
        refused = [row for row in same if row.outcome.get("code") == "key_reused"]
        ones = 1 if self.wish == "purge" else 4
        assert len(refused) in (1, ones), [row.outcome for row in same]
        wanted = "failed_permanent" if self.wish == "fail" else "completed"
        wrong = [row for row in same if row not in refused and row.status != wanted]
        wrong += [row for row in rows if row not in same and row.status != "completed"]
        assert not wrong, wrong
        if self.wish == "purge":
            self.check_purged([row for row in rows if row.task == "m.purge"])

    def leave_expired_keys(self):
        """Rows as others left them: 25 whose retention has passed, 3 whose has not."""
        self.kept = [bytes([7]) * 31 + bytes([i]) for i in range(3)]
        expired = [bytes([9]) * 31 + bytes([i]) for i in range(25)]
        for hours, keys in ((1, self.kept), (-1, expired)):
            for key in keys:
                self.env.db.q("""INSERT INTO umavez.idempotency_keys (tenant_id, idempotency_key, request_fingerprint, status, outcome, expires_at)
                                 VALUES (1, %s, %s, 'failed_retryable', '{}', clock_timestamp() + %s * interval '1 hour')""",
                              psycopg2.Binary(key), psycopg2.Binary(key), hours)

    def check_purged(self, purges):
        assert self.env.db.val("SELECT count(*) FROM umavez.idempotency_keys WHERE expires_at < clock_timestamp()") == 0
        kept = self.env.db.val("SELECT count(*) FROM umavez.idempotency_keys WHERE idempotency_key = ANY(%s)", [psycopg2.Binary(key) for key in self.kept])
        assert kept == 3, "the purge has removed rows whose retention has not passed"
        last = [row.outcome for row in purges if row.outcome["done"]]
        assert len(purges) == 3 and [outcome["tenant_keys"] for outcome in last] == [25], [row.outcome for row in purges]


class BatchCell(QueueCell):
    """The queue's cell, but A's runs share transactions (core/batch) where they come together: K's and L's first, and those of six more keys."""

    def __init__(self, *args):
        super().__init__(*args)
        self.keys = [f"M{n}" for n in range(6)]

    def settings(self):
        return {**super().settings(), "pool_size": 1}

    def environment(self):
        return {"UMAVEZ_TEST_SHARE": "16"}

    def load(self):
        """In one statement, so that A takes them together."""
        keys = ["K", "L", *self.keys, "K", "K", "L"]
        self.env.enqueue_many([(f"m.{self.owner}", self.args(key, wish=self.asked())) for key in keys])

    def ask_again(self):
        again = [self.enqueue(self.owner, key, wish=self.asked()) for key in self.keys]
        for row in self.env.wait_finished(again, timeout=LIMIT):
            assert row.replay, row
        super().ask_again()


class DoorCell(Cell):
    """The same by HTTP. Clients do what clients shall do: the same request again, here or there, until it is settled or refused for good."""

    PATIENCE = 3.0

    def __init__(self, *args):
        super().__init__(*args)
        self.pool = ThreadPoolExecutor(16)
        self.clients = []

    def doors_of(self, tenant):
        return self.doors if tenant == TENANT[self.owner] else self.others[tenant]

    def client(self, owner, tenant, key, number, wish, first):
        """Ends with the last answer."""
        body, turn, until = self.args(key, number, wish), first, time.monotonic() + LIMIT
        while True:
            doors = self.doors_of(tenant)
            answer = self.history.ask(doors[turn % len(doors)], f"/{owner}", f"m.{owner}", key, body, self.PATIENCE)
            if answer.kind in SETTLED:      # at once again, elsewhere: it must not be in progress any more
                self.history.ask(self.doors_of(tenant)[(turn + 1) % len(self.doors_of(tenant))], f"/{owner}", f"m.{owner}", key, body, self.PATIENCE)
            if answer.kind in (*SETTLED, "conflict"):
                return answer
            assert time.monotonic() < until, f"no settled answer within {LIMIT} s: {answer}"
            turn += 1
            time.sleep(0.05)

    def start_client(self, owner, key, number=1, *, tenant="auto", wish=None, first=0):
        tenant = TENANT[owner] if tenant == "auto" else tenant
        self.clients.append(self.pool.submit(self.client, owner, tenant, key, number, wish, first))

    def load(self):
        for key, count in (("K", 3), ("L", 2)):
            for _ in range(count):
                self.start_client(self.owner, key, wish=self.wish)

    def more_load(self):
        self.others = {tenant: [self.doors[0].as_owner(tenant), self.doors[1].as_owner(tenant)] for tenant in (1, 2, None) if tenant != TENANT[self.owner]}
        self.start_client(self.owner, "K", wish=self.wish, first=1)
        self.start_client(self.owner, "K", 2, wish=self.wish, first=1)
        for _ in range(2):
            self.start_client(self.bystander, "K", first=1)
        self.start_client("tenant", "K", 3, tenant=2, first=1)

    def over(self):
        return all(client.done() for client in self.clients)

    def finish(self):
        for client in self.clients:
            client.result(2 * LIMIT)

    def ask_again(self):
        for owner, tenant, key, number, wish in ((self.owner, TENANT[self.owner], "L", 1, self.wish), ("tenant", 2, "K", 3, None)):
            answer = self.client(owner, tenant, key, number, wish, 1)
            assert answer.replay, answer
        self.check_ends()

    def check_ends(self):
        ends = [client.result() for client in self.clients]
        same = [end for end in ends if (end.tenant, end.task) == (TENANT[self.owner], f"m.{self.owner}")]
        assert sum(end.kind == "conflict" for end in same) in (1, 4), ends
        wanted = "failure" if self.wish == "fail" else "success"
        wrong = [end for end in same if end.kind not in (wanted, "conflict")] + [end for end in ends if end not in same and end.kind != "success"]
        assert not wrong, wrong

    def close(self, failed):
        self.pool.shutdown(wait=not failed)
        super().close(failed)
