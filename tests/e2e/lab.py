"""The laboratory of groups B, C, D, E, H, I, J: an Env (tests/support) with tasks whose code the tests bring along.

A run's handler is in its args (`lua`, see tests/support/tasks/lab.lua), so that a test reads as one story. Each kind of task of KINDS
exists for both owners: `tenant.task("key")` and `platform.task("key")`.
"""
import collections
import contextlib
import hashlib
import json
import os
import re
import struct
import subprocess
import threading
from pathlib import Path

import psycopg2
import pytest

from support.procs import wait_until
from support.servers import clean_environment, umavez_bin
from support.taskset import Raw

LONG = os.environ.get("UMAVEZ_LONG") == "1"
SLACK = float(os.environ.get("UMAVEZ_TEST_SLACK", "5"))   # what a busy machine may add to a bound
TASKS = Path(__file__).resolve().parents[1] / "support" / "tasks"

FAST = {"max_attempts": 3, "base": "100ms", "cap": "1s"}
KINDS = {
    # by business key; leases short enough to see one end
    "key": {"key": ["e1"], "lease": "2s", "timeout": "20s", "retry": FAST},
    "twin": {"key": ["e1"], "lease": "2s", "timeout": "20s", "retry": FAST},
    # by run_id
    "run": {"lease": "2s", "timeout": "20s", "retry": FAST},
    # a failure stays visible: the next attempt is an hour away
    "later": {"key": ["e1"], "lease": "2s", "timeout": "20s", "retry": {"max_attempts": 8, "base": "1h", "cap": "1h"}},
    "eight": {"key": ["e1"], "lease": "5s", "timeout": "20s", "retry": {"max_attempts": 8, "base": "100ms", "cap": "1s"}},
    "once": {"key": ["e1"], "lease": "5s", "timeout": "20s", "retry": {"max_attempts": 1, "base": "100ms", "cap": "1s"}},
    "twice": {"key": ["e1"], "lease": "2s", "timeout": "20s", "retry": {"max_attempts": 2, "base": "100ms", "cap": "1s"}},
    "brief": {"key": ["e1"], "lease": "2s", "timeout": "1s", "retry": {"max_attempts": 2, "base": "100ms", "cap": "1s"}},
    "short": {"key": ["e1"], "lease": "2s", "timeout": "20s", "retention": "4s", "retry": FAST},
    "crash": {"key": ["e1"], "lease": "1s", "timeout": "20s", "retry": FAST},
    "forgotten": {"lease": "5s", "timeout": "20s", "history": False, "retry": FAST},
    "elsewhere": {"queue": "e2_elsewhere", "retry": FAST},
    # kinds of key
    "a": {"key": ["a"], "retry": FAST},
    "ab": {"key": ["a", "b"], "retry": FAST},
    "deep": {"key": ["order.id", "step"], "retry": FAST},
    "fn": {"key": Raw('function(args) if args.boom then error("the key function broke") end return args.k end'), "retry": FAST},
    "narrow": {"key": ["e1"], "fingerprint": ["amount"], "retry": FAST},
}


class Owner:
    def __init__(self, name, tenant_id):
        self.name, self.tenant_id = name, tenant_id
        self.letter = "p" if tenant_id is None else "t"
        self.purged = "platform_keys" if tenant_id is None else "tenant_keys"      # its count in the purge's outcome
        self.table = "umavez.platform_idempotency_keys" if tenant_id is None else "umavez.idempotency_keys"

    def task(self, kind):
        return f"e2.{self.letter}_{kind}"

    def __repr__(self):
        return self.name


TENANT, OTHER_TENANT, PLATFORM = Owner("tenant", 1), Owner("other tenant", 2), Owner("platform", None)
OWNERS = pytest.mark.parametrize("owner", [TENANT, PLATFORM], ids=repr)
GATES = pytest.mark.parametrize("gate", ["valkey", "absent"])            # with a gate, and with Valkey off
WARMTH = pytest.mark.parametrize("gate", ["warm", "cold", "absent"])     # for duplicates: cold is flushed between the deliveries


# --- key digests and fingerprints, for every kind of part ---------------------------------------------------------------------------

def number(value):
    """A number in its canonical form: ES6's where a double holds it, its exact decimal otherwise."""
    if isinstance(value, int):
        if float(value) == value and abs(value) <= 2 ** 53:
            value = float(value)
        else:
            return str(value)
    if value == 0:
        return "0"
    digits, exponent = re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", f"{value:.16e}").groups()
    for precision in range(17):
        text = f"{value:.{precision}e}"
        if float(text) == value:
            digits, exponent = text.split("e")
            break
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    digits = digits.replace(".", "").rstrip("0") or "0"
    n, k = int(exponent) + 1, len(digits)
    if k <= n <= 21:
        return sign + digits + "0" * (n - k)
    if 0 < n <= 21:
        return sign + digits[:n] + "." + digits[n:]
    if -6 < n <= 0:
        return sign + "0." + "0" * -n + digits
    mantissa = digits[0] + ("." + digits[1:] if k > 1 else "")
    return f"{sign}{mantissa}e{'+' if n > 0 else '-'}{abs(n - 1)}"


def digest(task, *parts, function=False):
    """The key digest of declared parts, or of a key function's string."""
    framed = b"umavez.key.v1\0" + struct.pack(">I", len(task)) + task.encode()
    for part in parts:
        if isinstance(part, bool):
            kind, text = b"b", "true" if part else "false"
        elif isinstance(part, (int, float)):
            kind, text = b"n", number(part)
        else:
            kind, text = (b"f" if function else b"s"), part
        framed += kind + struct.pack(">I", len(text.encode())) + text.encode()
    return hashlib.sha256(framed).digest()


def canonical(value):
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
        return "{" + ",".join(canonical(k) + ":" + canonical(v) for k, v in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value)
    return json.dumps(value, ensure_ascii=False)


def fingerprint(task, args):
    text = canonical(args).encode()
    return hashlib.sha256(b"umavez.fingerprint.v1\0" + struct.pack(">I", len(task)) + task.encode() + struct.pack(">Q", len(text)) + text).digest()


# --- the laboratory -----------------------------------------------------------------------------------------------------------------

Done = collections.namedtuple("Done", "code out err")


class Lab:
    SLACK, LONG = SLACK, LONG
    tenant, other_tenant, platform = TENANT, OTHER_TENANT, PLATFORM

    def __init__(self, env):
        self.env, self.allow = env, env.audit.allow
        self.valkey_off = False
        handler = (TASKS / "lab.lua").read_text()
        for letter, owner in (("t", "tenant"), ("p", "platform")):
            for kind, fields in KINDS.items():
                env.tasks.add(f"e2.{letter}_{kind}", owner=owner, handler=handler, **fields)
        env.tasks.add("e2.t_split", owner="tenant", handler=(TASKS / "lab_split.lua").read_text(), key=["e1"], lease="2s")
        self.sql("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO umavez_worker")
        env.count("lab")

    # servers and workers

    def gate(self, mode):
        """Before the workers start: "absent" runs them without Valkey."""
        self.valkey_off = mode == "absent"
        self.cold = mode == "cold"

    def worker(self, **settings):
        if self.valkey_off:
            settings.setdefault("valkey_url", None)
        return self.env.worker(**settings)

    def settle(self, *workers):
        """Lets workers come to their end, so that nothing of theirs is still to come."""
        for worker in workers:
            assert worker.terminate() == 0, worker.tail()

    def until(self, predicate, timeout=30, what=None):
        return wait_until(predicate, timeout, lambda: f"{what}; {self.env.report()}")

    def cli(self, *argv, input=None, role="postgres", timeout=60, cwd=None, **env):
        """Runs `umavez ARGV` to its end: code, out, err."""
        environment = {**clean_environment(), "DATABASE_URL": self.env.db.url(role), "VALKEY_URL": self.env.valkey.url,
                       "UMAVEZ_TASKS_DIR": str(self.env.tasks.dir), **env}
        done = subprocess.run([str(umavez_bin()), *map(str, argv)], env=environment, input=input, capture_output=True, text=True,
                              timeout=timeout, cwd=cwd or self.env.log_dir)
        return Done(done.returncode, done.stdout, done.stderr)

    # SQL

    def sql(self, text, *params):
        return self.env.db.q(text, *params)

    def value(self, text, *params):
        return self.env.db.val(text, *params)

    def refused(self, text, *params):
        """The SQLSTATE with which a statement is refused, or None."""
        try:
            self.sql(text, *params)
        except psycopg2.Error as error:
            return error.pgcode or getattr(error.__cause__, "pgcode", None)     # the harness wraps codes that psycopg2 does not know
        return None

    def isolation(self, level):
        self.sql(f"ALTER DATABASE {self.env.db.name} SET default_transaction_isolation = '{level}'")

    def sessions(self):
        """The workers' sessions."""
        return self.sql("SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_worker'")

    def lock_waits(self):
        return self.env.lock_waits()

    # runs

    def enqueue(self, task, args, owner=TENANT, **options):
        return self.env.enqueue(task, args, tenant=owner.tenant_id, **options)

    def enqueue_text(self, task, text, owner=TENANT):
        """Args as they are written, not as Python writes them."""
        run = str(self.value("SELECT umavez.enqueue(%s, %s::jsonb, tenant_id => %s)", task, text, owner.tenant_id))
        self.env.accepted[run] = task
        return run

    def enqueue_many(self, task, many, owner=TENANT):
        return self.env.enqueue_many([(task, args, owner.tenant_id) for args in many])

    def live(self, run):
        return self.env.run(run)

    def finished(self, run):
        return self.env.finished(run)

    def done(self, run, timeout=30):
        """Waits for the run's end; gives its finished row."""
        return self.env.wait_finished(run, timeout=timeout)

    def failed_once(self, run, timeout=20):
        """Waits until a failure of the run is recorded and it waits for its next attempt; gives the live row."""
        def look():
            row = self.live(run)
            return row and row.failure and row.state == "available" and row
        return self.until(look, timeout, "a failure to be recorded")

    def busy(self, run, timeout=20):
        """Waits until the run was found BUSY."""
        def look():
            row = self.live(run)
            assert row, "the run ended instead of being BUSY"
            return row.busy > 0
        self.until(look, timeout, "the run to be BUSY")

    def due(self, run):
        self.sql("UPDATE umavez.runs SET run_at = clock_timestamp() WHERE run_id = %s::uuid", run)

    # effects, starts, latches

    def effects(self, key=None):
        return self.env.effects(key)

    def starts(self):
        return self.env.starts("lab")

    def latch(self, *names):
        for name in names:
            self.env.signal(name, name + "_reached")

    def open(self, name):
        self.env.set(name)

    def reached(self, name, timeout=30, count=1):
        self.env.wait_reached(name + "_reached", count, timeout)

    # the ledger and the gate

    def ledger(self, owner):
        return self.sql(f"SELECT *, xmin::text, ctid::text FROM {owner.table} ORDER BY id")

    def row(self, task, owner, *parts):
        """The ledger's row of a declared key, or None."""
        mine = [row for row in self.ledger(owner) if bytes(row.idempotency_key) == digest(task, *parts)]
        return mine[0] if mine else None

    def foreign(self, owner, key, finger, *, attempt=1, seconds=3, status="processing", outcome=None):
        """A row that another program has committed; gives it."""
        columns = {"idempotency_key": psycopg2.Binary(key), "request_fingerprint": psycopg2.Binary(finger), "status": status,
                   "attempt": attempt, "outcome": json.dumps(outcome or {})}
        if owner.tenant_id is not None:
            columns["tenant_id"] = owner.tenant_id
        names, marks = ", ".join(columns), ", ".join(["%s"] * len(columns))
        self.sql(f"INSERT INTO {owner.table} ({names}, expires_at) VALUES ({marks}, clock_timestamp() + %s * interval '1 second')",
                 *columns.values(), seconds)
        return self.ledger(owner)[-1]

    def gate_keys(self):
        return [entry[0] for entry in self.env.gate.all()]

    def gate_entry(self, task, owner, *parts):
        """The gate's well-formed entry of a declared key, or None."""
        return self.env.gate.get(digest(task, *parts), owner.tenant_id)

    def gate_state(self, task, owner, *parts):
        entry = self.gate_entry(task, owner, *parts)
        return entry and entry.state

    def settled_entry(self, task, owner, *parts):
        """Waits for the copy of a settled outcome, which comes after the commit."""
        self.until(lambda: self.gate_state(task, owner, *parts) in ("C", "F"), 10, "the outcome's copy in the gate")
        return self.gate_entry(task, owner, *parts)

    def flush_gate(self):
        self.env.valkey.flush()

    @contextlib.contextmanager
    def gate_monitor(self):
        """Everything that Valkey is told meanwhile."""
        monitor = Monitor(self.env.valkey.client())
        try:
            yield monitor
        finally:
            monitor.close()


class Monitor:
    def __init__(self, client):
        self.client, self.lines = client, []
        client("MONITOR")
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        with contextlib.suppress(OSError, ValueError):
            while True:
                self.lines.append(self.client.read())

    def saw(self, text):
        return any(text in line for line in list(self.lines) if isinstance(line, bytes))

    def close(self):
        self.client.socket.shutdown(2)
        self.thread.join(5)
        self.client.close()


@pytest.fixture
def lab(env):
    return Lab(env)


@pytest.fixture
def own_lab(own_env):
    """A lab with a cluster of its own, which may be stopped."""
    return Lab(own_env)
