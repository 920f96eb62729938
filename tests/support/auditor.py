"""The auditor: after a test, in SQL, Valkey and the clients' history (history.py) alone, is what umavez left behind right?

Shares no code with the product. A test that breaks a rule on purpose says so by `env.audit.allow(rule)`; the rules' names are those of RULES.
"""
import psycopg2

from .history import HISTORY_RULES, HistoryRules
from .keys import parse_entry
from .procs import wait_until

RULES = {
    "effect_once": "at most one effect per (owner, task, key) (off: the test lets a retention pass)",
    "effect_settled": "each effect belongs to exactly one completed run that is no replay, and to its ledger row",
    "settled_effect": "each completed run that is no replay has an effect (off: handlers without one)",
    "ledger_run": "each completed ledger row belongs to a finished run (off: no history, or a foreign program)",
    "accounted": "each accepted run is either live or finished, never both or neither",
    "replays_equal": "runs of one key end with one outcome (off: an operator retried, or a retention passed)",
    "processing": "no processing row is left (off: a foreign program's)",
    "leases": "no run holds a lease when no worker lives (off: a worker was killed)",
    "open_sessions": "no worker's session is inside a transaction when no run is running",
    "sessions": "no session outlives its worker (off: a pooler's)",
    "gate_ttl": "every gate entry has a TTL",
    "gate_tokens": "no processing entry of an ended run is left (off: Valkey or the worker was away when the run ended; the entry's TTL ends it)",
    "gate_truth": "every authentic settled entry of this database says what the ledger says",
    "exit_status": "workers end with 0 on SIGTERM",
    "worker_death": "no worker ended by itself, no sanitizer spoke",
    **HISTORY_RULES,
}

# Ends that never touch the ledger: their runs have an outcome of their own.
OUTSIDE_LEDGER = ("key_missing", "key_error", "key_reused", "owner_mismatch", "unknown_task", "worker_lost")


class Auditor(HistoryRules):
    def __init__(self, env):
        self.env = env
        self.allowed = set()

    def allow(self, *rules):
        """Switches rules off for this test; by name, in the test's own text."""
        assert set(rules) <= set(RULES), set(rules) - set(RULES)
        self.allowed.update(rules)

    def allows(self, rule):
        return rule in self.allowed

    def quiesce(self):
        """While the workers still live: without live runs, no session of theirs may be in a transaction, hold a lock, or keep a token."""
        env = self.env
        if not env.pg.running():
            return []
        busy = ("SELECT count(*) FROM umavez.runs WHERE state = 'running'")
        if env.all_workers and any(w.running() for w in env.all_workers):
            wait_until(lambda: env.db.val(busy) == 0, 60, lambda: "no run is running at the end of the test;" + env.report())
        problems = []
        for rule, look in (("open_sessions", self.open_sessions), ("gate_tokens", self.gate_tokens)):
            if rule in self.allowed:
                continue
            try:
                wait_until(lambda: not look(), 15)
            except AssertionError:
                problems += look()
        return problems

    def check(self):
        """All rules, after the workers have ended."""
        if not self.env.pg.running():
            return ["PostgreSQL is not running: the auditor cannot look"]
        problems = []
        for rule in RULES:
            look = getattr(self, rule, None)
            if look and rule not in self.allowed:
                problems += look()
        return problems

    # --- in SQL --------------------------------------------------------------------------------------------------------------

    def _rows(self, text, sql, *params):
        rows = self.env.db.q(sql, *params)
        return [f"{text}: {tuple(row)}" for row in rows[:5]] + ([f"… and {len(rows) - 5} more of: {text}"] if len(rows) > 5 else [])

    def effect_once(self):
        return self._rows("more than one effect of a key (tenant, task, key, count)",
                          "SELECT tenant_id, task, key, count(*) FROM effects GROUP BY 1, 2, 3 HAVING count(*) > 1")

    _LEDGER = """(SELECT tenant_id, idempotency_key, status, outcome, expires_at FROM umavez.idempotency_keys
                  UNION ALL SELECT NULL, idempotency_key, status, outcome, expires_at FROM umavez.platform_idempotency_keys)"""

    def effect_settled(self):
        return self._rows("an effect without its own completed run and ledger row (run_id, task, key, run's status, replay, ledger status)", f"""
            SELECT e.run_id, e.task, e.key, f.status, f.replay, l.status AS ledger_status FROM effects e
            LEFT JOIN umavez.finished_runs f ON f.run_id = e.run_id
            LEFT JOIN {self._LEDGER} l ON l.idempotency_key = f.idempotency_key AND l.tenant_id IS NOT DISTINCT FROM f.tenant_id
            WHERE f.run_id IS NULL OR f.status <> 'completed' OR f.replay OR f.tenant_id IS DISTINCT FROM e.tenant_id OR f.task <> e.task
               OR l.status IS DISTINCT FROM 'completed'""")

    def settled_effect(self):
        return self._rows("a completed run without its effect (run_id, task)", """
            SELECT f.run_id, f.task FROM umavez.finished_runs f
            WHERE f.status = 'completed' AND NOT f.replay AND f.task NOT LIKE 'maintenance.%' AND f.task NOT LIKE '%.purge'
              AND NOT EXISTS (SELECT FROM effects e WHERE e.run_id = f.run_id)""")

    def ledger_run(self):
        return self._rows("a settled ledger row that no finished run settled (tenant, key, status, runs)", f"""
            SELECT l.tenant_id, encode(l.idempotency_key, 'hex'), l.status, count(f.run_id) FROM {self._LEDGER} l
            LEFT JOIN umavez.finished_runs f ON f.idempotency_key = l.idempotency_key AND f.tenant_id IS NOT DISTINCT FROM l.tenant_id
                  AND f.status = l.status AND NOT f.replay AND coalesce(f.outcome ->> 'code', '') <> 'key_reused'
            WHERE l.status IN ('completed', 'failed_permanent')
            GROUP BY l.tenant_id, l.idempotency_key, l.status HAVING count(f.run_id) <> 1""")

    def accounted(self):
        return self._rows("a run neither live nor finished, or both (run_id, live, finished)", """
            SELECT a.run_id, (SELECT count(*) FROM umavez.runs r WHERE r.run_id = a.run_id) AS live,
                   (SELECT count(*) FROM umavez.finished_runs f WHERE f.run_id = a.run_id) AS finished
            FROM (SELECT unnest(%s::uuid[]) AS run_id UNION SELECT run_id FROM umavez.runs UNION SELECT run_id FROM umavez.finished_runs) a
            WHERE (SELECT count(*) FROM umavez.runs r WHERE r.run_id = a.run_id)
                + (SELECT count(*) FROM umavez.finished_runs f WHERE f.run_id = a.run_id) <> 1""", list(self.env.accepted))

    def replays_equal(self):
        return self._rows("a replay that differs from the ledger (run_id, status, outcome, ledger's status, outcome)", f"""
            SELECT f.run_id, f.status, f.outcome, l.status AS ledger_status, l.outcome AS ledger_outcome FROM umavez.finished_runs f
            JOIN {self._LEDGER} l ON l.idempotency_key = f.idempotency_key AND l.tenant_id IS NOT DISTINCT FROM f.tenant_id
            WHERE (f.replay OR coalesce(f.outcome ->> 'code', '') <> ALL (%s)) AND (f.status <> l.status OR f.outcome::text <> l.outcome::text)""",
                          list(OUTSIDE_LEDGER)) + self._rows("a replay of what the ledger does not hold (run_id)", f"""
            SELECT f.run_id FROM umavez.finished_runs f WHERE f.replay AND NOT EXISTS (SELECT FROM {self._LEDGER} l
              WHERE l.idempotency_key = f.idempotency_key AND l.tenant_id IS NOT DISTINCT FROM f.tenant_id)""")

    def processing(self):
        return self._rows("a ledger row is left processing (tenant, key)",
                          f"SELECT tenant_id, encode(idempotency_key, 'hex') FROM {self._LEDGER} l WHERE status = 'processing'")

    def leases(self):
        if any(w.killed for w in self.env.all_workers):
            return []
        return self._rows("a lease is left although all workers have ended (run_id, worker)",
                          "SELECT run_id, worker_id, lease_until FROM umavez.runs WHERE state = 'running' OR worker_id IS NOT NULL OR lease_until IS NOT NULL")

    def open_sessions(self):
        return self._rows("a worker's session is inside a transaction (pid, state, query)", """
            SELECT pid, state, left(query, 120) FROM pg_stat_activity
            WHERE datname = current_database() AND usename = 'app_worker' AND state LIKE 'idle in transaction%'""")

    def sessions(self):
        """After the workers' end no session of theirs may live on."""
        def look():
            return self._rows("a session outlives its worker (pid, state, query)", """
                SELECT pid, state, left(query, 120) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_worker'""")
        try:
            wait_until(lambda: not look(), 15)
        except AssertionError:
            return look()
        return []

    # --- in Valkey -----------------------------------------------------------------------------------------------------------

    def _entries(self):
        if self.env.valkey is None or not self.env.valkey.running():
            return []
        return self.env.gate.all()

    def gate_ttl(self):
        return [f"a gate entry without TTL: {name} {raw!r}" for name, _, _, raw, pttl in self._entries() if pttl < 0]

    def gate_tokens(self):
        held = {}
        for name, owner, key, raw, _ in self._entries():
            entry = raw and parse_entry(raw, owner, key)
            if entry and entry.state == "P" and entry.valid(self.env.gate.secret()):
                held[entry.run_id] = name
        ended = self.env.db.q("SELECT run_id FROM umavez.finished_runs WHERE run_id = ANY(%s::uuid[])", list(held)) if held else []
        return [f"the token of an ended run is left: {held[row.run_id]} of run {row.run_id}" for row in ended]

    def gate_truth(self):
        entries = self._entries()
        if not entries:
            return []
        secret, dbid = self.env.gate.secret(), self.env.gate.dbid()
        ledger = {(f"t{row.tenant_id}" if row.tenant_id is not None else "p", bytes(row.idempotency_key).hex()): row for row in self.env.ledger_rows()}
        problems = []
        for name, owner, key, raw, _ in entries:
            entry = raw and parse_entry(raw, owner, key)
            if not entry or entry.state == "P" or entry.dbid != dbid or not entry.valid(secret):
                continue
            row = ledger.get((owner, key))
            status = {"C": "completed", "F": "failed_permanent"}[entry.state]
            if row is None or (row.status, row.outcome_text, bytes(row.request_fingerprint).hex(), row.id, row.attempt) != (
                    status, entry.outcome, entry.fingerprint, entry.ledger_id, entry.attempt):
                problems.append(f"the gate says what the ledger does not: {name} {raw!r}, ledger {row}")
        return problems
