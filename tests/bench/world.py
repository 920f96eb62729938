"""Private servers with durability on, a fresh database for each measurement, and the meters: CPU, write-ahead log, checks."""
import contextlib
import os
import time
from pathlib import Path

from support import procs
from support.servers import Cluster, Valkey, clean_environment, pg_bin, umavez_bin
from support.worker import Worker

HERE = Path(__file__).resolve().parent
TEMPLATE = "bench_template"
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
SETTINGS = {**DURABLE, "shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum_naptime": "1min", "log_lock_waits": "off"}
SHOWN = ("server_version", "shared_buffers", "max_wal_size", "max_connections", "wal_sync_method")
_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def _stat(pid):
    """Fields of /proc/PID/stat after the command's name: state, ppid, …; utime is [11]."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()


def tree_cpu_us(pid):
    """CPU microseconds of a process, its ended children and its live ones."""
    ticks = sum(map(int, _stat(pid)[11:15]))
    for child in procs.children_of(pid):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _stat(child)[11:13]))
    return ticks * _TICK_US


def cpu_us(pid):
    """CPU microseconds of a process, exactly: nanoseconds of all its threads from the scheduler."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e3


def memory_mb(pid, field):
    """VmRSS or VmHWM (the most so far) in MB."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":")) / 1024


def busy_share(seconds=1.0):
    """The share of all CPU time that somebody uses, 0 to 1."""
    def read():
        with open("/proc/stat") as file:
            values = list(map(int, file.readline().split()[1:9]))
        return sum(values), values[3] + values[4]
    (total, idle), _ = read(), time.sleep(seconds)
    total2, idle2 = read()
    return 1 - (idle2 - idle) / max(1, total2 - total)


class World:
    def __init__(self, pool_size=None, smoke=False, **settings):
        self.pool_size, self.smoke = pool_size, smoke
        self.pg = Cluster.create(settings={**SETTINGS, **settings})
        self.pg.start()
        self.valkey = Valkey(**{"enable-debug-command": "no"}).start()
        self.logs = procs.private_dir("bench-")
        self.environment = clean_environment()
        self._count = 0
        admin = self.pg.database("postgres")
        admin.q(f"CREATE DATABASE {TEMPLATE} TEMPLATE uv_template")
        admin.close()
        db = self.pg.database(TEMPLATE)
        db.q((HERE / "schema.sql").read_text())
        self.versions = {name: db.val(f"SHOW {name}") for name in SHOWN}
        self.versions["valkey"] = next(line.split(":")[1] for line in self.valkey("INFO", "server").decode().splitlines()
                                       if line.startswith(("valkey_version", "redis_version")))
        db.q("VACUUM ANALYZE")
        db.close()

    def close(self):
        self.pg.destroy()
        self.valkey.destroy()
        procs.remove_dir(self.logs)

    pg_bin = staticmethod(pg_bin)

    def file(self, name, text):
        path = self.logs / name
        path.write_text(text)
        return str(path)

    @contextlib.contextmanager
    def database(self):
        """A database of one measurement's own, and an empty Valkey."""
        self._count += 1
        name = f"bench_{self._count}"
        admin = self.pg.database("postgres")
        admin.q(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        admin.close()
        self.valkey.flush()
        db = self.pg.database(name)
        try:
            yield db
        finally:
            db.drop()

    def settle(self, db):
        """Before a measurement: nothing of the preparation is left to be written or vacuumed."""
        if not self.smoke:
            db.q("VACUUM ANALYZE")
            db.q("CHECKPOINT")

    def worker(self, db, gate=True, url=None, **settings):
        """A worker as a user starts it: default settings, but for the pool's size where the benchmark was given one. url: another way to db."""
        self._count += 1
        if self.pool_size:
            settings["pool_size"] = self.pool_size
        return Worker(f"worker-{self._count}", database_url=url or db.url(), valkey_url=self.valkey.url if gate else "", tasks_dir=HERE / "tasks",
                      log_dir=self.logs, **{"poll_interval": "1s", **settings})

    # --- meters ------------------------------------------------------------------------------------------------------------

    def meter(self):
        admin = self.pg.database("postgres")
        wal = admin.val("SELECT wal_bytes FROM pg_stat_wal")
        admin.close()
        return {"pg": tree_cpu_us(self.pg.pid), "valkey": cpu_us(self.valkey.process.pid), "wal": int(wal)}

    def cost(self, before, runs):
        """CPU microseconds and octets of WAL a run since `before`."""
        after = self.meter()
        return {"pg_cpu": (after["pg"] - before["pg"]) / runs, "valkey_cpu": (after["valkey"] - before["valkey"]) / runs,
                "wal": (after["wal"] - before["wal"]) / runs}

    def check(self, db, row, effects, queued, runs=None, finished=None, replays=0):
        """Counts what was really done; row["ok"] and row["why"] tell. runs: how many distinct effects there must be (default: effects)."""
        why = []

        def expect(what, sql, wanted):
            found = db.val(sql)
            if found != wanted:
                why.append(f"{found} {what}, expected {wanted}")

        expect("effects", "SELECT count(*) FROM bench_effects", effects)
        expect("distinct effects", "SELECT count(DISTINCT run_id) FROM bench_effects", effects)
        expect("completed ledger rows", """SELECT count(*) FROM umavez.idempotency_keys WHERE status = 'completed' AND outcome = '{"ok": true}'""",
               effects)
        expect("ledger rows that are not settled", "SELECT count(*) FROM umavez.idempotency_keys WHERE status <> 'completed'", 0)
        expect("runs left in the floor's queue", "SELECT count(*) FROM bench_queue", queued)
        expect("runs left", "SELECT count(*) FROM umavez.runs", 0)
        if finished is not None:
            expect("finished runs", "SELECT count(DISTINCT run_id) FROM umavez.finished_runs WHERE status = 'completed'", finished)
            expect("replays with the outcome", """SELECT count(*) FROM umavez.finished_runs WHERE replay AND outcome = '{"ok": true}'""", replays)
        for name, wanted in DURABLE.items():
            if db.val(f"SHOW {name}") != wanted:
                why.append(f"{name} is {db.val(f'SHOW {name}')}")
        row.update(ok=not why, why="; ".join(why) or None)
        return row


__all__ = ["World", "busy_share", "cpu_us", "memory_mb", "tree_cpu_us", "umavez_bin"]
