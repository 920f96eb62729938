"""What it costs as it grows: enqueueing beside a bare INSERT and COPY; draining beside many queued runs and many ledger rows; a foreign
transaction that holds the vacuum horizon back; a database that is a millisecond away; a tenant's few runs beside another's many.

Rows carry `group` (their table) and `base` (the row of the same pass that theirs is divided by).
"""
import os
import re
import resource
import subprocess
import time

from support.procs import wait_until

from .delay import Delay
from .drain import EFFECTS_SO_FAR, _stop
from .report import percentile
from .shape import steady

ROW = "task, tenant_id, args, queue, priority, run_at, run_id"
VALUES = """'bench.insert', 1 + (:n % 100), '{"amount": 100, "account": 7}', 'default', 2, clock_timestamp(), gen_random_uuid()"""
COPIED = f"""SELECT 'bench.insert', 1 + g % 100, jsonb_build_object('amount', 100, 'account', g), 'default', 2, clock_timestamp(), bench_run_id(g)
               FROM generate_series(1, {{n}}) g"""
SESSIONS = 16


# --- enqueueing ------------------------------------------------------------------------------------------------------------------

def _bare_table(db):
    """The queue's twin: its columns, checks, indexes and foreign key, and nobody who looks at it."""
    db.q("CREATE TABLE bare (LIKE umavez.runs INCLUDING ALL)")
    db.q("ALTER TABLE bare ADD FOREIGN KEY (tenant_id) REFERENCES public.tenants (id)")


def _counted(world, db, row, table, wanted):
    found = db.val(f"SELECT count(*) FROM {table}")
    row.update(ok=found == wanted, why=None if found == wanted else f"{found} rows in {table}, expected {wanted}")
    return row


def enqueue_single(world, runs, bare):
    """One row a transaction from 16 sessions: umavez.enqueue, or a bare INSERT of the same row."""
    per = max(1, runs // SESSIONS)
    with world.database() as db:
        _bare_table(db)
        world.settle(db)
        call = (f"INSERT INTO bare ({ROW}) VALUES ({VALUES});" if bare else
                """SELECT umavez.enqueue('bench.insert', '{"amount": 100, "account": 7}', 1 + (:n % 100));""")
        path = world.file("enqueue.sql", "\\set n :n + 1\n" + call + "\n")
        before, client = world.meter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([world.pg_bin("pgbench"), "-n", "-M", "prepared", "-c", str(SESSIONS), "-j", "1", "-t", str(per), "-D", "n=0", "-f", path,
                               db.url("postgres")], capture_output=True, text=True, env=world.environment)
        rate = re.search(r"tps = ([\d.]+) \(without", done.stdout)
        what = "a bare INSERT" if bare else "umavez.enqueue"
        if done.returncode or not rate:
            return {"what": what, "ok": False, "why": (done.stderr or done.stdout).strip()[-400:]}
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        row = {"what": what, "group": f"enqueueing from {SESSIONS} sessions", "base": "a bare INSERT", "rate": float(rate.group(1)),
               **world.cost(before, per * SESSIONS), "worker_cpu": (used.ru_utime + used.ru_stime - client.ru_utime - client.ru_stime) * 1e6 / (per * SESSIONS)}
        return _counted(world, db, row, "bare" if bare else "umavez.runs", per * SESSIONS)


def enqueue_bulk(world, runs, bare):
    """Many in one statement: umavez.enqueue_many in arrays of 1000, or COPY of the same rows from a file."""
    with world.database() as db:
        _bare_table(db)
        connection = db.connect()
        try:
            with connection.cursor() as cursor:
                if bare:
                    path = world.logs / "rows"
                    with open(path, "w") as file:
                        cursor.copy_expert(f"COPY ({COPIED.format(n=runs)}) TO STDOUT", file)
                world.settle(db)
                before, begun = world.meter(), time.monotonic()
                if bare:
                    with open(path) as file:
                        cursor.copy_expert(f"COPY bare ({ROW}) FROM STDIN", file)
                else:
                    cursor.execute("SELECT bench_enqueue(%s)", (runs,))
                seconds = time.monotonic() - begun
        finally:
            connection.close()
        row = {"what": "COPY into the bare table" if bare else "umavez.enqueue_many", "group": "enqueueing in bulk", "base": "COPY into the bare table",
               "rate": runs / seconds, **world.cost(before, runs), "worker_cpu": 0}
        return _counted(world, db, row, "bare" if bare else "umavez.runs", runs)


# --- beside many rows --------------------------------------------------------------------------------------------------------------

def _drain_some(world, db, worker, runs):
    """Runs a second of the next `runs` of a longer queue; a tenth more before them, to warm up."""
    warm = runs // 10
    wait_until(lambda: worker.running() and db.val(EFFECTS_SO_FAR) >= warm + runs, 300, lambda: f"{warm + runs} effects:\n{worker.tail()}", 0.02)
    worker.kill()
    times = [r.at for r in db.q("SELECT extract(epoch FROM created_at)::float8 AS at FROM bench_effects ORDER BY created_at OFFSET %s LIMIT %s", warm, runs)]
    return runs / (times[-1] - times[0])


def _exact(db, row):
    """What a killed worker has left: as many effects as finished runs, each once."""
    effects, distinct, finished = db.q("""SELECT (SELECT count(*) FROM bench_effects) AS effects,
                                                 (SELECT count(DISTINCT run_id) FROM bench_effects) AS distinct_effects,
                                                 (SELECT count(*) FROM umavez.finished_runs) AS finished""")[0]
    good = effects == distinct == finished
    row.update(ok=good, why=None if good else f"{effects} effects, {distinct} distinct, {finished} finished runs")
    return row


SETTLED = """INSERT INTO umavez.idempotency_keys (tenant_id, idempotency_key, request_fingerprint, status, outcome, expires_at)
             SELECT 1 + g %% 100, sha256(int8send(-g)), sha256('f'), 'completed', '{"ok": true}', now() + interval '1 day' FROM generate_series(1, %s) g"""


def _draining(world, runs, row, queued, settled):
    """The next `runs` of a queue of `queued`, beside so many settled keys: row with its figures."""
    with world.database() as db:
        if settled:
            db.q(SETTLED, settled)
        db.q(f"INSERT INTO umavez.runs ({ROW}) " + COPIED.format(n=queued))
        world.settle(db)
        before, worker = world.meter(), world.worker(db)
        try:
            rate = _drain_some(world, db, worker, runs)
        finally:
            worker.kill()
        return _exact(db, {**row, "rate": rate, **world.cost(before, max(1, db.val(EFFECTS_SO_FAR))), "worker_cpu": 0})


def depth(world, runs, queued):
    """The next `runs` of a queue of so many."""
    queued = max(queued, 2 * runs)
    row = {"what": f"{queued:,} runs queued", "group": "draining a deep queue", "base": f"{2 * runs:,} runs queued", "x": queued}
    return _draining(world, runs, row, queued, 0)


def ledger(world, runs, rows):
    """Draining beside so many settled keys."""
    row = {"what": f"{rows:,} more keys", "group": "draining beside a big ledger", "base": "0 more keys"}
    return _draining(world, runs, row, 2 * runs, rows)


# --- the vacuum horizon --------------------------------------------------------------------------------------------------------------

def horizon(world, seconds, per_second, held):
    """A steady load; another session's transaction keeps what is dead from being vacuumed, or not. The first and the last fifth."""
    with world.database() as db:
        world.settle(db)
        worker, other = world.worker(db), db.connect(autocommit=False)
        if held:
            with other.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SELECT txid_current()")
        cpu = []
        with steady(db, per_second):
            for _ in range(5):
                first, count = world.meter(), db.val(EFFECTS_SO_FAR)
                time.sleep(seconds / 5)
                cpu.append((world.meter()["pg"] - first["pg"]) / max(1, db.val(EFFECTS_SO_FAR) - count))
        backlog = db.val("SELECT count(*) FROM umavez.runs")
        wait_until(lambda: db.val("SELECT count(*) FROM umavez.runs") == 0, 120, "an empty queue", 0.1)
        other.rollback()
        other.close()
        trouble = _stop([worker])
        times = [r.ms for r in db.q("""SELECT (extract(epoch FROM finished_at - enqueued_at) * 1000)::float8 AS ms FROM umavez.finished_runs ORDER BY enqueued_at""")]
        fifth = max(1, len(times) // 5)
        start, end = sorted(times[:fifth]), sorted(times[-fifth:])
        row = {"what": f"{'held for' if held else 'free for'} {seconds} s at {per_second}/s", "cpu_start": cpu[0], "cpu_end": cpu[-1], "cpu_steps": cpu, "backlog": backlog,
               "p50_start": percentile(start, 0.5), "p50_end": percentile(end, 0.5), "p99_start": percentile(start, 0.99), "p99_end": percentile(end, 0.99)}
        return world.check(db, row, effects=len(times), queued=0, finished=len(times)) if not trouble else {**row, "ok": False, "why": "; ".join(trouble)}


# --- far away ------------------------------------------------------------------------------------------------------------------------

def remote(world, runs, trip_ms):
    """A backlog through a proxy that delays each way by half of `trip_ms`; 0: the same proxy without delay."""
    with world.database() as db, Delay(world.pg.socket_dir / f".s.PGSQL.{world.pg.port}", trip_ms / 2) as proxy:
        db.q("SELECT bench_enqueue(%s)", runs)
        world.settle(db)
        before, worker = world.meter(), world.worker(db, url=db.url(host=proxy.directory, port=proxy.port))
        trouble = []
        try:
            wait_until(lambda: worker.running() and db.val("SELECT NOT EXISTS (SELECT FROM umavez.runs)"), 300, lambda: f"an empty queue:\n{worker.tail()}", 0.05)
        finally:
            trouble += _stop([worker])
        seconds = db.val("""SELECT extract(epoch FROM (SELECT max(finished_at) FROM umavez.finished_runs) - (SELECT min(created_at) FROM bench_effects))::float8""")
        row = {"what": f"{trip_ms} ms away", "group": "a backlog through a proxy", "base": "0 ms away", "rate": runs / seconds, **world.cost(before, runs), "worker_cpu": 0}
        row = world.check(db, row, effects=runs, queued=0, finished=runs)
        return row if not trouble else {**row, "ok": False, "why": "; ".join(trouble)}


# --- tenants in turn -------------------------------------------------------------------------------------------------------------------

BIG, SMALL, TEN = 1, 2, 10
FLOOD = """INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, lane, priority, run_at)
           SELECT bench_run_id(g), 'bench.insert', %s, jsonb_build_object('amount', 100, 'account', g), 'default', umavez.lane_of('default', 'bench.insert', %s),
                  2, clock_timestamp() FROM generate_series(1, %s) g"""


def tenants(world, rounds, backlog, fair):
    """A tenant enqueues ten runs, waits for their effects, and again, `rounds` times, while another has so many runs queued: from enqueueing each of
    the ten to the end of its transaction. The other's backlog must outlast the measurement, where tenants are served in turn."""
    name = f"ten runs beside {backlog:,} of another tenant{'' if fair else ', not fair'}" if backlog else "ten runs of a tenant alone"
    with world.database() as db:
        if fair:
            db.q("""SELECT umavez.declare_limits('[{"kind": "queue", "name": "default", "fair": true}]')""")
        db.q(FLOOD, BIG, BIG, backlog)
        world.settle(db)
        worker = world.worker(db)
        try:
            wait_until(lambda: worker.running() and (backlog == 0 and worker.events("worker_ready") or db.val(EFFECTS_SO_FAR) > 0), 60,
                       lambda: f"the worker to work:\n{worker.tail()}", 0.01)
            for n in range(rounds):
                db.q("""SELECT umavez.enqueue('bench.insert', jsonb_build_object('account', g), %s, bench_run_id(1000000000 + g))
                          FROM generate_series(%s, %s) g""", SMALL, n * TEN + 1, n * TEN + TEN)
                wait_until(lambda: worker.running() and db.val("SELECT NOT EXISTS (SELECT FROM umavez.runs WHERE run_id = ANY (ARRAY(SELECT bench_run_id(1000000000 + g)"
                                                                " FROM generate_series(%s, %s) g)))", n * TEN + 1, n * TEN + TEN), 300, "the ten to end", 0.005)
            left = db.val("SELECT count(*) FROM umavez.runs")
        finally:
            trouble = _stop([worker])
        times = sorted(r[0] for r in db.q("""SELECT (extract(epoch FROM f.finished_at - f.enqueued_at) * 1000)::float8
                                              FROM umavez.finished_runs f WHERE f.tenant_id = %s""", SMALL))
        row = _exact(db, {"what": name, "tenants": True, "runs": len(times), "waits": times, "left": left})
        if backlog and fair and left == 0 and rounds > 2:
            trouble.append("the backlog did not last: take a longer one (BENCH_DEPTHS)")
        if len(times) != rounds * TEN:
            trouble.append(f"{len(times)} runs of the small tenant, expected {rounds * TEN}")
        if trouble:
            row.update(ok=False, why="; ".join(filter(None, [row["why"], *trouble])))
        return row


def parts(names, runs, smoke):
    """(name, function of a world) of the parts that are asked for."""
    sizes = [int(n) for n in os.environ.get("BENCH_DEPTHS", "100000,1000000").split(",")]
    keys = [int(n) for n in os.environ.get("BENCH_KEYS", "1000000").split(",")]
    seconds = int(os.environ.get("BENCH_HORIZON", "60"))
    if smoke:
        sizes, keys, seconds = [2000], [2000], 5
    chosen = []
    if "enqueue" in names:
        chosen += [(f"enqueue, bare {bare}", lambda w, b=bare: enqueue_single(w, runs, b)) for bare in (True, False)]
        chosen += [(f"bulk, bare {bare}", lambda w, b=bare: enqueue_bulk(w, runs if smoke else 10 * runs, b)) for bare in (True, False)]
    if "depth" in names:
        chosen += [(f"depth {n}", lambda w, n=n: depth(w, runs, n)) for n in (0, *sizes)]
    if "ledger" in names:
        chosen += [(f"ledger {n}", lambda w, n=n: ledger(w, runs, n)) for n in (0, *keys)]
    if "horizon" in names:
        chosen += [(f"horizon held {held}", lambda w, h=held: horizon(w, seconds, 100 if smoke else 1000, h)) for held in (False, True)]
    if "remote" in names:
        chosen += [(f"remote {ms}", lambda w, ms=ms: remote(w, runs, ms)) for ms in (0, 1)]
    if "tenants" in names:
        chosen.append(("tenants, alone", lambda w: tenants(w, 2 if smoke else 20, 0, True)))
        chosen += [(f"tenants, {n}", lambda w, n=n: tenants(w, 2 if smoke else 20, n, True)) for n in sizes]
        chosen.append(("tenants, not fair", lambda w: tenants(w, 1, sizes[0], False)))
    return chosen
