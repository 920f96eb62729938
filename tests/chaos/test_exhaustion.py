"""What PostgreSQL runs out of: disk, connections. A clear error, no storm, no run lost, and work goes on by itself.

The full disk is a preloaded library (support/full.c) that answers ENOSPC as a full file system does: it needs neither a mount nor privileges, so that a
bare container and an ordinary user run it as well, and unlike a limit on file sizes (EFBIG) it is the error that PostgreSQL knows as 53100.
"""
import os
import re
import subprocess
import time

import pytest

from support import procs
from support.client import AWAY, Env
from support.http import Door
from support.procs import wait_until
from support.servers import WORKER_ROLE, Cluster

BIG = [["effect"], ["sql", "INSERT INTO big SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 400)"]]


class Disk:
    """The switch of support/full.c."""

    def __init__(self):
        self.dir = procs.private_dir("fd-")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self.dir / "full.so", procs.ROOT / "tests" / "support" / "full.c", "-ldl"], check=True)
        self.file = self.dir / "full"
        self.free()
        self.env = {"LD_PRELOAD": str(self.dir / "full.so"), "UMAVEZ_TEST_FULL": str(self.file)}

    def fill(self, what):
        self.file.write_text(what)
        self.file.chmod(0o644)

    def free(self):
        self.fill("none")


@pytest.fixture
def disk_env():
    disk = Disk()
    cluster = Cluster.create(env=disk.env, settings={"min_wal_size": "32MB"})
    cluster.start()
    env = Env(cluster, own_cluster=True)
    env.disk = disk
    env.tasks.add("x.big", key=["key"], lease="5s", timeout="20s", retry={"max_attempts": 2, "base": "100ms", "cap": "1s"},
                  http={"method": "POST", "path": "/big"})
    env.db.q("CREATE TABLE big (t text); ALTER TABLE big ALTER t SET STORAGE EXTERNAL; GRANT ALL ON big TO umavez_worker")
    failed = True
    try:
        yield env
        failed = False
    finally:
        disk.free()
        if not cluster.running():
            cluster.start()
        env.close(failed)
        procs.remove_dir(disk.dir)


def lines(worker, word):
    return [line for line in worker.text().splitlines() if word in line]


@pytest.mark.parametrize("at", ["handler", "claim"])
def test_disk_full(disk_env, at):
    """At the handler's own INSERT; and where not even the claim finds room."""
    env = disk_env
    door = Door(env, pool_size=8)
    worker = door.worker
    env.wait_finished(env.enqueue_many([("x.big", env.args(f"w{i}", BIG, starts=None)) for i in range(5)]))
    if at == "claim":     # the ledger's last page has no room
        env.db.q("VACUUM FULL umavez.idempotency_keys")
        env.db.q("ALTER TABLE umavez.idempotency_keys SET (fillfactor = 10); ")
        env.db.q("VACUUM FULL umavez.idempotency_keys")
    env.disk.fill("data")
    runs = []
    begun = time.monotonic()
    while len(runs) < 60 and time.monotonic() - begun < 20:
        try:
            runs.append(env.enqueue("x.big", env.args(f"k{len(runs)}", BIG, starts=None)))
        except Exception as error:  # noqa: BLE001: the queue's own table may be full: then the sender hears it
            assert getattr(error, "pgcode", None) == "53100", error
            break
    assert runs
    wait_until(lambda: lines(worker, "53100"), 30, lambda: "a clear error;" + worker.tail())
    answer = door.post("/big", env.args("d1", BIG, starts=None), key="d1")
    assert (answer.status, answer.problem) == (503, "unavailable") and int(answer.get("Retry-After")) >= 1
    told = lines(worker, "53100")[0]
    assert "No space left on device" in told
    until = time.monotonic() + 8          # longer than a lease
    before = len(lines(worker, "53100"))
    while time.monotonic() < until:
        assert worker.running()
        time.sleep(0.2)
    assert len(lines(worker, "53100")) - before <= 12, "\n".join(lines(worker, "53100")[-20:])
    assert not [row for row in env.finished_all(runs) if row.status != "completed"]
    env.disk.free()
    rows = env.wait_finished(runs, 90)
    assert {(row.status, row.failure, row.attempt) for row in rows} == {("completed", None, 1)}
    assert door.post("/big", env.args("d1", BIG, starts=None), key="d1").status == 200
    assert env.effects() == 5 + len(runs) + 1 and worker.running()
    print(f"{at}: {len(runs)} runs, {len(lines(worker, '53100'))} lines")


def test_disk_full_for_the_wal(disk_env):
    """PostgreSQL itself panics, and does not come up until there is room; whoever runs it starts it again then."""
    env = disk_env
    env.audit.allow("gate_tokens")
    worker = env.worker(pool_size=8)
    env.wait_finished(env.enqueue("x.big", env.args("warm", BIG, starts=None)))
    runs = env.enqueue_many([("x.big", env.args(f"k{i}", BIG, starts=None)) for i in range(200)])
    env.disk.fill("wal")

    def panics():
        try:
            env.db.q("INSERT INTO big SELECT repeat('x', 1000000) FROM generate_series(1, 60)")
        except Exception:  # noqa: BLE001: what we are after
            pass
        return "No space left on device" in env.pg.log_text() and ("PANIC" in env.pg.log_text() or not env.pg.running())
    wait_until(panics, 60, lambda: "PostgreSQL runs out of room for its WAL: " + env.pg.log_text()[-2000:])
    time.sleep(2)
    assert worker.running()
    env.disk.free()
    if not env.pg.running():
        env.pg.start()
    else:
        env.pg.restart("immediate")
    rows = env.wait_finished(runs, 120)
    assert {row.status for row in rows} == {"completed"} and worker.running()
    assert env.effects() == 201


# --- connections -----------------------------------------------------------------------------------------------------------

def refusals(env):
    return len(re.findall(r"FATAL:.*(?:too many connections for role|too many clients already|remaining connection slots)", env.pg.log_text()))


def warnings(worker):
    return [line for line in worker.text().splitlines() if '"level":"warn"' in line or '"level":"error"' in line]


def test_no_connection_is_to_be_had(own_env):
    """The role's limit sinks to none under a worker, while another one starts: both wait, with backoff, say so once, and go on by themselves."""
    env = own_env
    first = env.worker(pool_size=8)
    env.wait_finished(env.enqueue("t.effect", env.args("warm")))
    env.db.q(f"ALTER ROLE {WORKER_ROLE} CONNECTION LIMIT 0")
    env.db.q(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{WORKER_ROLE}'")
    second = env.worker(pool_size=8)
    runs = env.enqueue_many([("t.effect", env.args(f"k{i}", starts="k")) for i in range(100)])
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > 12, 30)
    seconds, tries = time.monotonic() - begun, refusals(env)
    # Two control connections and a pool each: 100 ms, 200 ms … 5 s, so about eight tries in these seconds, and not many more in a long time.
    assert 4 <= tries <= 2 * 3 * (8 + seconds / 2.5), f"{tries} tries in {seconds:.0f} s"
    for worker in (first, second):
        told = [line for line in warnings(worker) if "53300" in line or "too many connections" in line]
        assert worker.running() and 1 <= len(told) <= 3, "\n".join(warnings(worker))
    env.db.q(f"ALTER ROLE {WORKER_ROLE} CONNECTION LIMIT -1")
    rows = env.wait_finished(runs, 60)
    assert {(row.status, row.attempt, row.failure) for row in rows} == {("completed", 1, None)}
    assert env.effects() == 101 and env.starts("k") == 100
    print(f"{tries} connections tried by two workers in {seconds:.0f} s")


def test_fewer_connections_than_the_pool_wants(own_env):
    """max_connections leaves a worker two connections beside its two control connections: slower, and one warning."""
    env = own_env
    env.pg.restart(max_connections=12, superuser_reserved_connections=3, max_wal_senders=0)
    held = [env.db.connect(WORKER_ROLE) for _ in range(4)]
    worker = env.worker(pool_size=8)
    runs = env.enqueue_many([("t.effect", env.args(f"k{i}", [["effect"], ["sleep", 0.02]], starts="k")) for i in range(100)])
    begun = time.monotonic()
    rows = env.wait_finished(runs, 120)
    seconds, tries = time.monotonic() - begun, refusals(env)
    assert {(row.status, row.attempt, row.failure) for row in rows} == {("completed", 1, None)} and env.effects() == 100
    assert 100 <= env.starts("k") < 110                              # one that slept in a shared transaction is begun again, alone
    assert tries <= 8 * (8 + seconds / 2.5), f"{tries} tries in {seconds:.0f} s"
    told = [line for line in warnings(worker) if "53300" in line]
    assert len(told) <= 3, "\n".join(told)
    for connection in held:
        connection.close()
    print(f"{tries} connections refused in {seconds:.0f} s, {len(told)} warnings")
