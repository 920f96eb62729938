"""What is measured of umavez: draining a backlog, duplicates, latency, and what an idle worker costs."""
import time

from support.procs import wait_until

from .world import cpu_us, memory_mb, tree_cpu_us

EFFECTS_SO_FAR = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM bench_effects_id_seq"
FINISHED_SPAN = "SELECT extract(epoch FROM max(finished_at) - min(finished_at))::float8 FROM umavez.finished_runs"
NONE_LEFT = "SELECT NOT EXISTS (SELECT FROM umavez.runs)"


def _ready(worker):
    worker.wait_event("worker_ready", 30)


def _stop(workers):
    return [f"worker ended with {status}" for status in (w.terminate() for w in workers) if status != 0]


def _wait_empty(db, workers, effects, timeout):
    """Until so many effects were begun (a sequence is read: it costs nothing) and then no run is left."""
    def alive():
        for worker in workers:
            if not worker.running():
                raise AssertionError(f"a worker has ended:\n{worker.tail()}")
        return True
    wait_until(lambda: alive() and db.val(EFFECTS_SO_FAR) >= effects, timeout, lambda: f"{effects} effects:\n{workers[0].tail()}", 0.02)
    wait_until(lambda: alive() and db.val(NONE_LEFT), timeout, lambda: f"an empty queue:\n{workers[0].tail()}", 0.02)


def backlog(world, runs, workers=1, gate=True, alone=False, **settings):
    """Runs a second of a backlog, from the first effect to the last settlement. alone: of a task with batch = 1, a transaction each."""
    with world.database() as db:
        db.q("SELECT bench_enqueue(%s)", runs)
        if alone:
            db.q("UPDATE umavez.runs SET task = 'bench.alone'")
        world.settle(db)
        before = world.meter()
        crew = [world.worker(db, gate, **settings) for _ in range(workers)]
        try:
            _wait_empty(db, crew, runs, 120)
            own = sum(cpu_us(w.pid) for w in crew)
            rss = max(memory_mb(w.pid, "VmHWM") for w in crew)
        finally:
            trouble = _stop(crew)
        seconds = db.val("""SELECT extract(epoch FROM (SELECT max(finished_at) FROM umavez.finished_runs)
                                                     - (SELECT min(created_at) FROM bench_effects))::float8""")
        what = f"umavez, {workers} worker{'s' if workers > 1 else ''}{'' if gate else ', no gate'}{', batch = 1' if alone else ''}"
        row = {"what": what, "runs": runs, "per_s": runs / seconds if seconds else 0, **world.cost(before, runs), "worker_cpu": own / runs, "rss": rss}
        row = world.check(db, row, effects=runs, queued=0, finished=runs)
        if trouble:
            row.update(ok=False, why="; ".join(trouble))
        return row


def replays(world, runs, keys):
    """Duplicates by key a second, from a warm gate: each ends as a replay, by an acknowledgement that the ledger verifies."""
    with world.database() as db:
        db.q("SELECT bench_enqueue_keyed(%s, %s)", keys, keys)
        worker = world.worker(db)
        try:
            _wait_empty(db, [worker], keys, 60)
        finally:
            trouble = _stop([worker])
        db.q("CREATE TABLE bench_first AS SELECT run_id FROM umavez.finished_runs")
        db.q("SELECT bench_enqueue_keyed(%s, %s)", runs, keys)
        world.settle(db)
        before = world.meter()
        worker = world.worker(db)
        try:
            _wait_empty(db, [worker], keys, 120)
            own = cpu_us(worker.pid)
        finally:
            trouble += _stop([worker])
        seconds = db.val(FINISHED_SPAN + " WHERE replay")
        row = {"what": "umavez, duplicates", "runs": runs, "per_s": runs / seconds if seconds else 0, **world.cost(before, runs),
               "worker_cpu": own / runs}
        row = world.check(db, row, effects=keys, queued=0, finished=keys + runs, replays=runs)
        if trouble:
            row.update(ok=False, why="; ".join(trouble))
        return row


def latency(world, runs, interval_s=0.02, gate=True):
    """Milliseconds from enqueueing to the effect's commit, one run each `interval_s` to a sleeping worker.

    Both moments are the database's: umavez.finished_runs.enqueued_at is the clock at the INSERT of the enqueueing transaction, and
    pg_xact_commit_timestamp the clock when the effect's transaction wrote its commit record (before that is flushed).
    """
    with world.database() as db:
        world.settle(db)
        worker = world.worker(db, gate)
        client = db.connect()
        try:
            _ready(worker)
            with client.cursor() as cursor:
                for n in range(1, runs + 11):                 # ten to warm up
                    due = time.monotonic() + interval_s
                    cursor.execute("SELECT umavez.enqueue('bench.insert', jsonb_build_object('account', %s), bench_tenant(%s), bench_run_id(%s))", (n, n, n))
                    time.sleep(max(0, due - time.monotonic()))
            _wait_empty(db, [worker], runs + 10, 60)
        finally:
            client.close()
            trouble = _stop([worker])
        times = sorted(r[0] for r in db.q("""
            SELECT (extract(epoch FROM pg_xact_commit_timestamp(e.xmin) - f.enqueued_at) * 1000)::float8
              FROM bench_effects e JOIN umavez.finished_runs f USING (run_id) WHERE e.run_id > bench_run_id(10)"""))
        row = {"what": "latency" + ("" if gate else ", no gate"), "runs": len(times), "times": times}
        row = world.check(db, row, effects=runs + 10, queued=0, finished=runs + 10)
        if trouble:
            row.update(ok=False, why="; ".join(trouble))
        return row


def idle(world, seconds):
    """What a worker with nothing to do costs: its own CPU and PostgreSQL's in per cent of a core, its memory, transactions a second."""
    with world.database() as db:
        worker = world.worker(db)
        try:
            _ready(worker)
            time.sleep(min(2, seconds))
            transactions = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            db.q("SELECT pg_stat_clear_snapshot()")
            own, server, first = cpu_us(worker.pid), tree_cpu_us(world.pg.pid), db.val(transactions)
            begun = time.monotonic()
            time.sleep(seconds)
            elapsed = time.monotonic() - begun
            own, server = cpu_us(worker.pid) - own, tree_cpu_us(world.pg.pid) - server
            rss, count = memory_mb(worker.pid, "VmRSS"), db.val(transactions) - first
        finally:
            trouble = _stop([worker])
        return {"what": "idle", "runs": 0, "cpu": own / elapsed / 1e4, "pg_cpu_share": server / elapsed / 1e4, "rss": rss,
                "transactions": count / elapsed, "ok": not trouble, "why": "; ".join(trouble) or None}
