"""Tests of sql/ alone: a database of its own for each test, from the harness in tests/support."""
import hashlib
import threading
import uuid

import pytest

TENANT, PLATFORM = 1, None
HOUR = 3_600_000


def digest(text):
    return hashlib.sha256(text.encode()).digest()


class Sql:
    """The functions under test by name, on one connection: `sql.claim(1, key, …)` gives a row, a value, or None."""

    def __init__(self, connection):
        self.connection = connection

    def __getattr__(self, function):
        def call(*args, **named):
            places = ["%s"] * len(args) + [f"{name} => %s" for name in named]
            rows = self.q(f"SELECT * FROM umavez.{function}({', '.join(places)})", *args, *named.values())
            if not rows:
                return None
            return rows[0][0] if len(rows[0]) == 1 else rows[0]
        return call

    def q(self, sql, *params):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params or None)
            return cursor.fetchall() if cursor.description else []

    def val(self, sql, *params):
        return self.q(sql, *params)[0][0]

    def blocks(self, sql, params=None):
        """Carries the statement out and gives the blocks it looked at, those of the functions it calls included."""
        with self.connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, params)
            plan = cursor.fetchone()[0][0]["Plan"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    def claim_key(self, owner, key="k", fingerprint="f", lease_ms=30_000):
        return self.claim(owner, digest(key), digest(fingerprint), lease_ms)

    def take(self, limit=100, queues=("default",), worker=None, leases="{}", lease_ms=30_000, since=None, skip=None):
        return self.q("SELECT * FROM umavez.take_runs(%s::uuid, %s, %s, %s::jsonb, %s, %s::timestamptz, %s::text[])",
                      worker or str(uuid.uuid4()), list(queues), limit, leases, lease_ms, since, skip)

    def commit(self):
        self.connection.commit()

    def rollback(self):
        self.connection.rollback()


@pytest.fixture
def connect(db):
    """Makes connections: connect() in autocommit, connect(autocommit=False) for transactions, connect("role")."""
    made = []

    def one(role="postgres", autocommit=True):
        made.append(db.connect(role, autocommit))
        return Sql(made[-1])
    yield one
    for connection in made:
        connection.close()


@pytest.fixture
def sql(connect):
    return connect()


@pytest.fixture(params=[TENANT, PLATFORM], ids=["tenant", "platform"])
def owner(request):
    return request.param


@pytest.fixture
def table(owner):
    return "umavez.platform_idempotency_keys" if owner is None else "umavez.idempotency_keys"


class Background(threading.Thread):
    """Runs fn; `result()` joins and gives its value or raises its error."""

    def __init__(self, fn, *args):
        super().__init__(daemon=True)
        self.fn, self.args, self.value, self.error = fn, args, None, None
        self.start()

    def run(self):
        try:
            self.value = self.fn(*self.args)
        except BaseException as error:  # noqa: BLE001: it is raised again where it is waited for
            self.error = error

    def result(self, timeout=60):
        self.join(timeout)
        assert not self.is_alive(), "still running"
        if self.error:
            raise self.error
        return self.value


@pytest.fixture
def background():
    return Background
