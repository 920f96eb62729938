"""What clients and an onlooker saw while it happened, and the rules that only this history can show. Part of the auditor (auditor.py).

A test that wants them makes `env.history = History(env)`; then clients record each answer, `watch()` looks at ledger and queue all the time, handlers write
their starts into the file `starts`, and a worker is killed by `kill`.
"""
import json
import os
import threading
import time

import psycopg2

from .http import FAILURE, PROBLEM, Closed, Connection, door_key

SLACK = float(os.environ.get("UMAVEZ_TEST_SLACK", "5"))     # what a busy machine may add to a bound
PROMPT = 1.0                                                # seconds from the end of a dead worker's lease to the next delivery
LOOK = 0.05                                                 # seconds between two looks

SETTLED = ("success", "failure")

# kind of rule -> what it says; the auditor adds these to its own
HISTORY_RULES = {
    "answers_equal": "settled answers of a key are all equal",
    "acknowledged": "an acknowledged success has its completed row and its effect, and each completed row of a client's key was acknowledged",
    "conflict": "a conflict changes nothing: no effect, and the key's row is another request's",
    "attempts": "attempts of a key begin at 1 and rise by one",
    "prompt": "after a kill the next delivery starts within a second, counted from the end of the lease where no supervisor gives it back",
    "settled_stays": "what is settled in the ledger stays as it is",
    "never_in_progress": "once a key is settled no later request is told that it is in progress",
    "tenancy": "nobody is given an outcome of another owner, or of another key",
    "ends": "every accepted run has ended",
    "whole": "a run has all of its effects, or none",
}


class Answer:
    """One request and what came of it. kind: success, failure, conflict, in_progress, refused (any other problem), lost (no answer)."""

    def __init__(self, task, tenant, key, number, begun, ended, kind, status=0, body=b"", replay=False):
        self.task, self.tenant, self.key, self.number = task, tenant, key, number
        self.begun, self.ended, self.kind, self.status, self.body, self.replay = begun, ended, kind, status, body, replay

    @property
    def owner_key(self):
        return self.task, self.tenant, self.key

    @property
    def digest(self):
        return door_key(self.task, self.key, self.tenant).hex()

    def __repr__(self):
        return f"<{self.kind} {self.status} of {self.owner_key} #{self.number} {self.begun:.3f}-{self.ended:.3f} {self.body[:160]!r}>"


def kind_of(response):
    if 200 <= response.status < 300:
        return "success"
    problem = response.json.get("type", "") if response.get("Content-Type") == "application/problem+json" else ""
    if problem.startswith(FAILURE):
        return "failure"
    return {PROBLEM + "key_reused": "conflict", PROBLEM + "in_progress": "in_progress"}.get(problem, "refused")


class History:
    def __init__(self, env):
        self.env = env
        self.answers = []
        self.rows = {}              # (tenant, key digest) -> [(when, id, status, attempt, outcome, xmin)], when it changed
        self.deliveries = {}        # run_id -> [(when, worker_id)], when it changed
        self.kills = []             # (when, worker_id, {run_id: lease's end})
        self.fails_before_start = False     # attempts may be used up by a prepare step, without a start
        self.starts = env.log_dir / "starts"
        self.starts.touch()
        self._stop = threading.Event()
        self._thread = None

    # --- clients -------------------------------------------------------------------------------------------------------------

    def ask(self, door, path, task, key, body, timeout):
        """One request to a door, recorded: the Answer."""
        begun, kind, response = time.monotonic(), "lost", None
        try:
            with Connection(door.port, timeout) as connection:
                connection.send(door.octets("POST", path, body, key=key))
                response = connection.read("POST")
                kind = kind_of(response)
        except (OSError, Closed):
            pass
        answer = Answer(task, door.tenant, key, body.get("number", 0), begun, time.monotonic(), kind,
                        *((response.status, response.body, response.replayed) if response else ()))
        self.answers.append(answer)
        return answer

    # --- the onlooker ----------------------------------------------------------------------------------------------------------

    def watch(self):
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self):
        """Ends the watching, after a last look."""
        if self._thread:
            self._stop.set()
            self._thread.join(30)
            self._thread = None

    def _watch(self):
        connection, last = None, False
        while not last:
            last = self._stop.is_set()
            try:
                if connection is None:
                    connection = self.env.db.connect()
                with connection.cursor() as cursor:
                    cursor.execute("""SELECT extract(epoch FROM clock_timestamp())::float8, tenant_id, encode(idempotency_key, 'hex'), id, status, attempt,
                                             outcome::text, xmin::text
                                      FROM (SELECT tenant_id, idempotency_key, id, status, attempt, outcome, xmin FROM umavez.idempotency_keys
                                            UNION ALL SELECT NULL, idempotency_key, id, status, attempt, outcome, xmin
                                            FROM umavez.platform_idempotency_keys) k""")
                    self.look_at_rows(cursor.fetchall())
                    cursor.execute("""SELECT extract(epoch FROM clock_timestamp())::float8, run_id::text, worker_id::text FROM umavez.runs
                                      WHERE state = 'running'""")
                    self.look_at_runs(cursor.fetchall())
            except psycopg2.Error:
                if connection is not None:
                    connection.close()
                connection = None
            self._stop.wait(LOOK)
        if connection is not None:
            connection.close()

    def look_at_rows(self, rows):
        now = {(tenant, key): (at, *rest) for at, tenant, key, *rest in rows}
        for name in set(self.rows) - set(now):
            if self.rows[name][-1][1] is not None:
                self.rows[name].append((self.rows[name][-1][0], None, None, None, None, None))      # gone
        for name, row in now.items():
            seen = self.rows.setdefault(name, [])
            if not seen or seen[-1][1:] != row[1:]:
                seen.append(row)

    def look_at_runs(self, runs):
        for at, run_id, worker_id in runs:
            seen = self.deliveries.setdefault(run_id, [])
            if not seen or seen[-1][1] != worker_id:
                seen.append((at, worker_id))

    def kill(self, worker_id, kill, supervised=False):
        """Notes what the worker holds, and kills it. A supervisor gives that back at once; else the next delivery waits for the leases' end."""
        held = self.env.db.q("""SELECT run_id::text, extract(epoch FROM lease_until)::float8 AS until FROM umavez.runs
                                WHERE state = 'running' AND worker_id = %s::uuid""", worker_id)
        kill()
        when = self.env.db.val("SELECT extract(epoch FROM clock_timestamp())::float8")
        self.kills.append((when, worker_id, {row.run_id: when if supervised else row.until for row in held}))

    def noted(self):
        """What handlers noted, in order: (start or alive, the database's time or 0, run_id, tenant or None, key, attempt)."""
        found = []
        for line in self.starts.read_text().splitlines():
            what, at, run_id, tenant, key, attempt = line.split(" ")
            found.append((what, 0 if at == "-" else float(at), run_id, None if tenant == "-" else int(tenant), key, int(attempt)))
        return found

    def started(self):
        """run_ids of the handlers' starts."""
        return [run_id for what, _, run_id, *_ in self.noted() if what == "start"]

    def waited_for(self):
        """Seconds from the end of a dead worker's lease (or from the kill, whichever is later) to the next delivery, of each run that it held."""
        waits = {}
        for when, worker_id, held in self.kills:
            for run_id, until in held.items():
                next_at = min([at for at, by in self.deliveries.get(run_id, []) if by != worker_id and at >= when - LOOK], default=None)
                ended = self.env.db.val("SELECT extract(epoch FROM finished_at)::float8 FROM umavez.finished_runs WHERE run_id = %s::uuid", run_id)
                times = [t for t in (next_at, ended) if t is not None]
                waits[run_id] = min(times) - max(when, until) if times else None
        return waits


class HistoryRules:
    """The rules; each gives its problems as texts. Without a history there is nothing to say."""

    @property
    def history(self):
        return self.env.history

    def _ledger(self):
        return {(row.tenant_id, bytes(row.idempotency_key).hex()): row for row in self.env.ledger_rows()}

    def _keys(self):
        """owner_key -> its answers in the order of their ends."""
        keys = {}
        for answer in sorted(self.history.answers, key=lambda a: a.ended):
            keys.setdefault(answer.owner_key, []).append(answer)
        return keys

    def answers_equal(self):
        if not self.history:
            return []
        problems = []
        for key, answers in self._keys().items():
            different = {(a.kind, a.status, a.body) for a in answers if a.kind in SETTLED}
            if len(different) > 1:
                problems.append(f"answers of {key} differ: {sorted(different)[:3]}")
        return problems

    def acknowledged(self):
        if not self.history:
            return []
        problems, ledger = [], self._ledger()
        effects = {str(row.run_id) for row in self.env.db.q("SELECT DISTINCT run_id FROM effects")}
        for key, answers in self._keys().items():
            row = ledger.get((key[1], answers[0].digest))
            for answer in answers:
                if answer.kind != "success":
                    continue
                run = json.loads(answer.body).get("run")
                if row is None or row.status != "completed" or row.outcome.get("run") != run:
                    problems.append(f"an acknowledged success without its completed row: {answer}, ledger {row}")
                elif run not in effects:
                    problems.append(f"an acknowledged success without its effect: {answer}")
            if row is not None and row.status == "completed" and not any(a.kind == "success" for a in answers):
                problems.append(f"a completed row that no client was told of: {key} {row}, answers {answers[:4]}")
        return problems

    def conflict(self):
        if not self.history:
            return []
        numbers = {str(row.run_id): row.number for row in self.env.db.q("SELECT run_id, (value ->> 'number')::int AS number FROM effects")}
        ledger, problems = self._ledger(), []
        for answer in self.history.answers:
            row = ledger.get((answer.tenant, answer.digest)) if answer.kind == "conflict" else None
            if row is not None and row.status == "completed" and numbers.get(row.outcome.get("run")) == answer.number:
                problems.append(f"a conflict was told to the request that stands in the ledger: {answer} {row}")
            if answer.kind == "conflict" and row is None:
                problems.append(f"a conflict with nothing: {answer}")
        return problems + self._rows("a run that ended with key_reused has an effect (run_id, key)", """
            SELECT e.run_id, e.key FROM effects e JOIN umavez.finished_runs f ON f.run_id = e.run_id WHERE f.outcome ->> 'code' = 'key_reused'""")

    def attempts(self):
        if not self.history:
            return []
        problems, begun, last = [], {}, {}
        for what, _, run_id, tenant, key, attempt in sorted(self.history.noted(), key=lambda note: (note[0] == "alive", note[1])):
            name = self.env.accepted.get(run_id, "door"), tenant, key
            if what == "start":         # one that was lost before its transaction could answer has used its attempt up, too
                begun.setdefault(name, set()).add(attempt)
                continue
            before = last.get(name, 0)
            gap = set(range(max(before, 1), attempt + 1)) - begun[name]
            if attempt < before or (gap and not self.history.fails_before_start):
                problems.append(f"attempt {attempt} of {name} came behind attempt {before} (run {run_id})")
            last[name] = attempt
        for name, seen in self.history.rows.items():
            for (_, id_a, _, attempt_a, *_), (_, id_b, _, attempt_b, *_) in zip(seen, seen[1:]):
                if id_a is not None and id_a == id_b and attempt_b < attempt_a:
                    problems.append(f"the ledger's attempt of {name} fell from {attempt_a} to {attempt_b}")
        return problems

    def prompt(self):
        if not self.history:
            return []
        return [f"run {run_id} of a killed worker " + ("was never delivered again" if wait is None else f"waited {wait:.2f} s for its next delivery")
                for run_id, wait in self.history.waited_for().items() if wait is None or wait > PROMPT + SLACK]

    def settled_stays(self):
        if not self.history:
            return []
        problems = []
        for name, seen in self.history.rows.items():
            for before, after in zip(seen, seen[1:]):
                if before[2] in ("completed", "failed_permanent"):
                    problems.append(f"the settled row of {name} has changed: {before} to {after}")
        return problems

    def never_in_progress(self):
        if not self.history:
            return []
        problems = []
        for key, answers in self._keys().items():
            settled = min((a.ended for a in answers if a.kind in SETTLED), default=None)
            problems += [f"in progress after {key} was settled at {settled:.3f}: {a}" for a in answers
                         if a.kind == "in_progress" and settled is not None and a.begun > settled]
        return problems

    def tenancy(self):
        if not self.history:
            return []
        problems = []
        for answer in self.history.answers:
            if answer.kind in SETTLED:
                body = json.loads(answer.body)
                if (body.get("tenant"), body.get("key")) != (answer.tenant, answer.key):
                    problems.append(f"an answer that is somebody else's: {answer}")
        return problems + self._rows("an outcome that is another owner's (run_id, tenant, outcome)", """
            SELECT run_id, tenant_id, outcome FROM umavez.finished_runs
            WHERE outcome ? 'key' AND (outcome ->> 'tenant')::bigint IS DISTINCT FROM tenant_id""")

    def ends(self):
        if not self.history:
            return []
        return self._rows("an accepted run has not ended (run_id, task, state, deliveries)",
                          "SELECT run_id, task, state, deliveries FROM umavez.runs WHERE run_id = ANY(%s::uuid[])", list(self.env.accepted))

    def whole(self):
        if not self.history:
            return []
        return self._rows("a run with some of its effects only (run_id, effects)",
                          "SELECT run_id, count(*) FROM effects GROUP BY 1 HAVING count(*) <> 2")
