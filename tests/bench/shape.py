"""What the speed depends on: connections, tenants, the size of args; and how long a run takes at a given load.

Rows of the first three carry `group` and `base` as growth.py's do; those of the load carry `load` and `waits`.
"""
import contextlib
import threading
import time

from support.procs import wait_until

from .drain import EFFECTS_SO_FAR, FINISHED_SPAN, _stop, _wait_empty

FILL = """INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, run_at)
          SELECT bench_run_id(g), 'bench.insert', 1 + g %% %s, jsonb_build_object('amount', 100, 'account', g, 'note', repeat('x', %s)), 'default', 2,
                 clock_timestamp() FROM generate_series(1, %s) g"""
SMALLEST = 40                                                         # octets of args beside the note
MORE_TENANTS = "INSERT INTO public.tenants (id) SELECT g FROM generate_series(1, %s) g ON CONFLICT DO NOTHING"


def _drain(world, runs, row, tenants=100, octets=100, **settings):
    """Draining runs of so many tenants with args of so many octets: row with its figures."""
    with world.database() as db:
        db.q(MORE_TENANTS, tenants)
        db.q(FILL, tenants, max(0, octets - SMALLEST), runs)
        world.settle(db)
        before, worker = world.meter(), world.worker(db, **settings)
        try:
            _wait_empty(db, [worker], runs, 300)
        finally:
            trouble = _stop([worker])
        seconds = db.val(FINISHED_SPAN)
        row = {**row, "rate": runs / seconds if seconds else 0, **world.cost(before, runs), "worker_cpu": 0}
        row = world.check(db, row, effects=runs, queued=0, finished=runs)
        return row if not trouble else {**row, "ok": False, "why": "; ".join(trouble)}


def connections(world, runs, size):
    """A backlog with a pool of so many connections."""
    row = {"what": f"{size} connection{'s' if size > 1 else ''}", "group": "connections for handlers", "base": "16 connections", "x": size}
    return _drain(world, runs, row, pool_size=size)


def spread(world, runs, tenants):
    """A backlog of so many tenants."""
    row = {"what": f"{tenants:,} tenant{'s' if tenants > 1 else ''}", "group": "tenants", "base": "100 tenants"}
    return _drain(world, runs, row, tenants=tenants)


def size(world, runs, octets):
    """A backlog whose args have so many octets."""
    row = {"what": f"{octets:,} octets", "group": "size of args", "base": "100 octets"}
    return _drain(world, runs, row, octets=octets)


@contextlib.contextmanager
def steady(db, per_second):
    """Enqueues bench.insert at a steady rate, by a session of its own, until the block ends."""
    ended = threading.Event()

    def enqueue():
        client = db.connect()
        begun, sent = time.monotonic(), 0
        with client.cursor() as cursor:
            while not ended.is_set():
                due = int((time.monotonic() - begun) * per_second) - sent
                if due > 0:
                    cursor.execute("""SELECT count(umavez.enqueue('bench.insert', jsonb_build_object('amount', 100, 'account', g), bench_tenant(g), bench_run_id(g)))
                                        FROM generate_series(%s, %s) g""", (sent + 1, sent + due))
                    sent += due
                ended.wait(0.01)
        client.close()
    sender = threading.Thread(target=enqueue)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def load(world, seconds, per_second):
    """From enqueueing to the end of the transaction, at a steady load; the first second is left out."""
    with world.database() as db:
        world.settle(db)
        worker = world.worker(db)
        try:
            worker.wait_event("worker_ready", 30)
            with steady(db, per_second):
                time.sleep(seconds + 1)
            wait_until(lambda: worker.running() and db.val("SELECT NOT EXISTS (SELECT FROM umavez.runs)"), 120, "an empty queue", 0.05)
        finally:
            trouble = _stop([worker])
        times = sorted(r.ms for r in db.q("""SELECT (extract(epoch FROM finished_at - enqueued_at) * 1000)::float8 AS ms FROM umavez.finished_runs
                                              WHERE enqueued_at >= (SELECT min(enqueued_at) FROM umavez.finished_runs) + interval '1 second'"""))
        done = db.val(EFFECTS_SO_FAR)
        row = {"what": f"{per_second:,} a second", "load": per_second, "runs": len(times), "loaded": times}
        row = world.check(db, row, effects=done, queued=0, finished=done)
        return row if not trouble else {**row, "ok": False, "why": "; ".join(trouble)}


def parts(names, runs, smoke):
    """(name, function of a world) of the parts that are asked for."""
    chosen = []
    if "connections" in names:
        chosen += [(f"{n} connections", lambda w, n=n: connections(w, runs, n)) for n in ((1, 16) if smoke else (1, 2, 4, 8, 16, 32, 64))]
    if "spread" in names:
        chosen += [(f"{n} tenants", lambda w, n=n: spread(w, runs, n)) for n in ((100, 500) if smoke else (1, 100, 10000))]
    if "args" in names:
        chosen += [(f"{n} octets", lambda w, n=n: size(w, runs, n)) for n in (100, 1000, 10000)]
    if "load" in names:
        chosen += [(f"load {n}", lambda w, n=n: load(w, 1 if smoke else 5, n)) for n in ((100,) if smoke else (250, 500, 1000, 2000, 4000))]
    return chosen
