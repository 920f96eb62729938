"""Env: one test's world. A database, a Valkey, tasks, workers; enqueue, wait, look."""
import json
import time
import uuid

import psycopg2

from . import procs
from .auditor import Auditor
from .keys import Gate, fingerprint, key_digest
from .procs import wait_until
from .servers import Valkey
from .taskset import TaskSet
from .worker import Worker

# A gap of a server's life that a test made itself: the harness asks again.
AWAY = (psycopg2.OperationalError, psycopg2.InterfaceError)


class Env:
    """Made by the fixtures `env` (a cluster shared with other tests) and `own_env` (a cluster to be killed)."""

    def __init__(self, cluster, *, own_cluster=False, valkey=None):
        """valkey: somebody else's, who destroys it."""
        self.pg, self.own_cluster, self.own_valkey = cluster, own_cluster, valkey is None
        self.db = cluster.database()
        self.valkey = valkey or Valkey().start()
        self.history = None         # a History, where a test has clients of its own
        self.gate = Gate(self.valkey, self.db)
        self.worker_url = self.db.url()     # of a pooler, where all workers shall go through one
        self.tasks = TaskSet()
        self.log_dir = procs.private_dir("wk-")
        self.all_workers = []
        self.accepted = {}          # run_id -> task: what enqueue has answered for
        self.closers = []           # proxies, poolers, standbys: ended after the workers
        self.audit = Auditor(self)

    # --- workers -----------------------------------------------------------------------------------------------------------

    def worker(self, *, database_url=None, valkey_url="own", env=None, arguments=(), **settings):
        """Starts a worker. database_url and valkey_url: of a proxy or pooler; valkey_url None: no gate; arguments: of the command line."""
        new = Worker(f"w{len(self.all_workers) + 1}", database_url=database_url or self.worker_url,
                     valkey_url=self.valkey.url if valkey_url == "own" else valkey_url,
                     tasks_dir=self.tasks.dir, log_dir=self.log_dir, env=env, arguments=arguments, **settings)
        self.all_workers.append(new)
        return new

    def workers(self, count, **settings):
        """Several workers: processes without supervisor, or with workers=N in the settings supervisors with so many children each."""
        return [self.worker(**settings) for _ in range(count)]

    def closing(self, thing):
        """Registers something with close(), destroy() or stop() for the teardown."""
        self.closers.append(thing)
        return thing

    # --- enqueue -----------------------------------------------------------------------------------------------------------

    def args(self, key=None, steps=None, starts="key", **more):
        """Args of the step interpreter; starts: the sequence that counts handler starts ("key": named like the key; None: none)."""
        args = dict(more)
        if key is not None:
            args["key"] = key
        if starts == "key":
            starts = str(key) if key is not None else None
        if starts:
            self.count(starts)
            args["starts"] = starts
        if steps is not None:
            args["steps"] = steps
        return args

    def enqueue(self, task="t.effect", args=None, *, tenant="auto", run_id=None, run_at=None, queue=None, priority=None, connection=None):
        """One run; returns its run_id. tenant "auto": 1, or none for a platform task."""
        tenant = self.tenant(task, tenant)
        sql = """SELECT umavez.enqueue(%s, %s::jsonb, tenant_id => %s, run_id => %s::uuid, run_at => %s::timestamptz,
                                       queue => %s, priority => %s)"""
        values = (task, json.dumps(args or {}, ensure_ascii=False), tenant, run_id, run_at, queue, priority)
        if connection is not None:
            with connection.cursor() as cursor:
                cursor.execute(sql, values)
                new = cursor.fetchone()[0]
        else:
            new = self.db.val(sql, *values)
        self.accepted[str(new)] = task
        return str(new)

    def enqueue_many(self, runs):
        """Bulk: (task, args) or (task, args, tenant) each; returns the run_ids, made here."""
        rows, ids = [], []
        for task, args, *rest in runs:
            tenant = self.tenant(task, rest[0] if rest else "auto")
            ids.append(str(uuid.uuid4()))
            rows.append({"task": task, "args": args, "run_id": ids[-1], **({"tenant_id": tenant} if tenant is not None else {})})
        self.db.q("SELECT umavez.enqueue_many(%s::jsonb)", json.dumps(rows, ensure_ascii=False))
        self.accepted.update((i, row["task"]) for i, row in zip(ids, rows))
        return ids

    def tenant(self, task, tenant="auto"):
        if tenant != "auto":
            return tenant
        folder, name = task.split(".")
        declared = self.tasks.folders.get(folder, {}).get(name, {"owner": "tenant"})
        return 1 if declared["owner"] == "tenant" else None

    # --- look --------------------------------------------------------------------------------------------------------------

    def run(self, run_id):
        """The live run, or None."""
        return self.db.one("SELECT * FROM umavez.runs WHERE run_id = %s::uuid", run_id)

    def finished(self, run_id):
        """The finished run, or None."""
        return self.db.one("SELECT * FROM umavez.finished_runs WHERE run_id = %s::uuid", run_id)

    def finished_all(self, run_ids=None):
        if run_ids is None:
            return self.db.q("SELECT * FROM umavez.finished_runs")
        return self.db.q("SELECT * FROM umavez.finished_runs WHERE run_id = ANY(%s::uuid[])", list(run_ids))

    def live(self):
        return self.db.val("SELECT count(*) FROM umavez.runs")

    def wait_finished(self, run_ids=None, timeout=60):
        """Waits until the runs (default: all accepted) are finished; returns their rows. Bridges a server that is away."""
        if isinstance(run_ids, str):
            return self.wait_finished([run_ids], timeout)[0]
        wanted = list(self.accepted if run_ids is None else run_ids)

        def count():
            try:
                return self.db.val("SELECT count(*) FROM umavez.finished_runs WHERE run_id = ANY(%s::uuid[])", wanted)
            except AWAY:
                return -1
        wait_until(lambda: count() == len(wanted), timeout, lambda: f"{count()} of {len(wanted)} runs finished;" + self.report(), 0.05)
        return self.finished_all(wanted)

    def report(self):
        """What a failure's reader wants to see."""
        try:
            live = self.db.q("""SELECT task, state, deliveries, busy, round(extract(epoch FROM run_at - clock_timestamp())::numeric, 1) AS due_s,
                                       round(extract(epoch FROM lease_until - clock_timestamp())::numeric, 1) AS lease_s, left(failure::text, 200) AS failure
                                FROM umavez.runs LIMIT 5""")
        except AWAY as error:
            live = [error]
        logs = "".join(f"\n--- {w.name} ({'runs' if w.running() else w.process.returncode}):\n{w.tail(15)}" for w in self.all_workers[-4:])
        return f" live: {live}{logs}"

    def effects(self, key=None, task=None):
        """The number of effects, of one key or of all."""
        return self.db.val("SELECT count(*) FROM effects WHERE (%s::text IS NULL OR key = %s) AND (%s::text IS NULL OR task = %s)", key, key, task, task)

    def digest(self, task, key=None, run_id=None):
        return key_digest(task, run_id=run_id) if run_id else key_digest(task, *(key if isinstance(key, tuple) else (key,)))

    def ledger(self, task, key=None, *, tenant="auto", run_id=None):
        """The ledger's row of a key (with its xmin and ctid), or None."""
        tenant = self.tenant(task, tenant)
        digest = psycopg2.Binary(self.digest(task, key, run_id))
        if tenant is None:
            return self.db.one("SELECT *, xmin::text, ctid::text FROM umavez.platform_idempotency_keys WHERE idempotency_key = %s", digest)
        return self.db.one("SELECT *, xmin::text, ctid::text FROM umavez.idempotency_keys WHERE tenant_id = %s AND idempotency_key = %s", tenant, digest)

    def ledger_rows(self):
        """All rows of both ledgers, the platform's with tenant_id NULL."""
        columns = "id, idempotency_key, request_fingerprint, status, attempt, outcome, outcome::text AS outcome_text, expires_at"
        return self.db.q(f"SELECT tenant_id, {columns} FROM umavez.idempotency_keys UNION ALL SELECT NULL, {columns} FROM umavez.platform_idempotency_keys")

    def fingerprint(self, task, args):
        return fingerprint(task, args)

    def lock_waits(self):
        """Worker sessions that wait for a lock now."""
        return self.db.q("""SELECT pid, wait_event, query FROM pg_stat_activity
                            WHERE datname = current_database() AND usename = 'app_worker' AND wait_event_type = 'Lock'""")

    # --- signals and counts (sequences: no rollback undoes them) ---------------------------------------------------------------

    def count(self, name):
        self.db.q(f'CREATE SEQUENCE IF NOT EXISTS starts."{name}"')

    def starts(self, name):
        """How often handlers with args.starts = name have started. A crash of PostgreSQL may lose or skip some."""
        return self.db.val(f'SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM starts."{name}"')

    def signal(self, *names):
        """Makes signals for the steps `reach` and `wait`."""
        for name in names:
            self.db.q(f'CREATE SEQUENCE IF NOT EXISTS signals."{name}"')

    def set(self, name):
        self.db.q(f"SELECT nextval('signals.\"{name}\"')")

    def reached(self, name):
        """How often the signal was reached."""
        return self.db.val(f'SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM signals."{name}"')

    def wait_reached(self, name, count=1, timeout=60):
        wait_until(lambda: self.reached(name) >= count, timeout, lambda: f"signal {name} reached {count} times;" + self.report())

    # --- teardown ------------------------------------------------------------------------------------------------------------

    def close(self, failed=False):
        """Ends the workers, audits (unless the test has failed already), removes everything."""
        problems = []
        try:
            if not failed:
                problems += self.audit.quiesce()
                for worker in self.all_workers:
                    if worker.running():
                        status = worker.terminate()
                        if status != 0 and not self.audit.allows("exit_status"):
                            problems.append(f"worker {worker.name} ended with {status} on SIGTERM:\n{worker.tail()}")
                problems += self.audit.check()
            if not self.audit.allows("worker_death"):
                problems += [c for c in (w.complaint() for w in self.all_workers) if c]
        finally:
            warnings = "".join(f"\n{w.name}: {line}" for w in self.all_workers for line in w.text().splitlines()
                               if '"level":"info"' not in line and '"event":"run_' not in line)[:4000]
            for worker in self.all_workers:
                worker.kill()
            for thing in reversed(self.closers):
                getattr(thing, "close", None) and thing.close() or getattr(thing, "destroy", lambda: None)()
            if self.valkey and self.own_valkey:
                self.valkey.destroy()
            if self.own_cluster:
                self.db.close()
                self.pg.destroy()
            else:
                self.db.drop()
            self.tasks.destroy()
            procs.remove_dir(self.log_dir)
        assert not problems, "the auditor found:\n- " + "\n- ".join(problems) + warnings
