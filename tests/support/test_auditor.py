"""The auditor must be able to fail: each of its rules is broken once, on purpose, in a world that is right otherwise."""
import uuid

import psycopg2
import pytest

from support.auditor import RULES
from support.keys import fingerprint, key_digest

NOBODY = "00000000-0000-4000-8000-00000000000f"


class World:
    """A completed run of key k1 of tenant 1 with its replay, and a failed platform run, as umavez would leave them."""

    def __init__(self, env):
        self.env, self.db = env, env.db
        self.args = {"key": "k1"}
        self.digest = key_digest("t.effect", "k1")
        self.first, self.replay, self.failed = (str(uuid.uuid4()) for _ in range(3))
        self.ledger("umavez.idempotency_keys", self.digest, "completed", '{"ok": true}', tenant=1)
        self.ledger("umavez.platform_idempotency_keys", key_digest("t.prun", run_id=self.failed), "failed_permanent", '{"code": "error"}')
        self.finish(self.first, "completed", False, '{"ok": true}')
        self.finish(self.replay, "completed", True, '{"ok": true}')
        self.finish(self.failed, "failed_permanent", False, '{"code": "error"}', task="t.prun", tenant=None,
                    digest=key_digest("t.prun", run_id=self.failed))
        self.effect(self.first)
        self.env.accepted.update({self.first: "t.effect", self.replay: "t.effect", self.failed: "t.prun"})
        row = self.env.ledger("t.effect", "k1")
        self.entry = env.gate.entry("t.effect", self.args, self.digest, 1, state="C", ledger_id=row.id, attempt=1, outcome='{"ok": true}',
                                    run_id=self.first)
        env.gate.put(self.digest, self.entry, 1, px=60_000)

    def ledger(self, table, digest, status, outcome, tenant=None):
        columns, values = ("tenant_id, ", "%s, ") if tenant else ("", "")
        self.db.q(f"""INSERT INTO {table} ({columns}idempotency_key, request_fingerprint, status, outcome, expires_at)
                      VALUES ({values}%s, %s, %s, %s::jsonb, now() + interval '1 day')""",
                  *([tenant] if tenant else []), psycopg2.Binary(digest), psycopg2.Binary(fingerprint("t.effect", self.args)), status, outcome)

    def finish(self, run_id, status, replay, outcome, task="t.effect", tenant=1, digest=None):
        self.db.q("""INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, args, deliveries, attempt,
                                                       idempotency_key, enqueued_at)
                     VALUES (%s::uuid, %s, %s, 'default', 2, %s, %s, %s::jsonb, %s::jsonb, 1, 1, %s, now())""",
                  run_id, task, tenant, status, replay, outcome, None if status == "completed" else "{}", psycopg2.Binary(digest or self.digest))

    def effect(self, run_id, key="k1"):
        self.db.q("INSERT INTO effects (run_id, task, tenant_id, key) VALUES (%s::uuid, 't.effect', 1, %s)", run_id, key)

    def live(self, run_id, state="available"):
        lease = ("now() + interval '1 min'", f"'{NOBODY}'") if state == "running" else ("NULL", "NULL")
        self.db.q(f"""INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, state, run_at, lease_until, worker_id)
                      VALUES (%s::uuid, 't.effect', 1, '{{}}', 'default', 2, %s, now(), {lease[0]}, {lease[1]})""", run_id, state)


@pytest.fixture
def world(env):
    yield World(env)
    env.audit.allow(*RULES)   # what the test broke stays broken


def test_a_right_world_passes(world):
    assert world.env.audit.check() == []
    assert world.env.audit.quiesce() == []


def second_effect(w):
    w.effect(w.first)


def second_effect_of_a_replay(w):
    w.effect(w.replay)


def effect_of_nobody(w):
    w.effect(NOBODY, "k9")


def effect_of_a_failed_run(w):
    w.db.q("DELETE FROM effects")
    w.effect(w.failed)


def effect_without_ledger_row(w):
    w.db.q("DELETE FROM umavez.idempotency_keys")


def effect_of_another_tenant(w):
    w.db.q("UPDATE effects SET tenant_id = 2")


def completed_without_effect(w):
    w.db.q("DELETE FROM effects")


def ledger_row_without_run(w):
    w.ledger("umavez.platform_idempotency_keys", key_digest("t.peffect", "k7"), "completed", "{}")


def two_runs_settled_one_row(w):
    w.db.q("UPDATE umavez.finished_runs SET replay = false WHERE run_id = %s::uuid", w.replay)


def lost_run(w):
    w.env.accepted[NOBODY] = "t.effect"


def live_and_finished(w):
    w.live(w.first)


def finished_twice(w):
    w.finish(w.replay, "completed", True, '{"ok": true}')


def replay_differs(w):
    w.db.q("UPDATE umavez.finished_runs SET outcome = '{\"ok\": 1}' WHERE run_id = %s::uuid", w.replay)


def replay_of_nothing(w):
    w.db.q("UPDATE umavez.finished_runs SET idempotency_key = %s WHERE run_id = %s::uuid", psycopg2.Binary(b"x" * 32), w.replay)


def processing_left(w):
    w.ledger("umavez.idempotency_keys", key_digest("t.effect", "k8"), "processing", "{}", tenant=2)


def lease_left(w):
    w.live(NOBODY, "running")


def entry_without_ttl(w):
    w.env.gate.put(w.digest, w.entry, 1)


def list_without_ttl(w):
    w.env.valkey("RPUSH", w.env.gate.name(key_digest("t.effect", "k5"), 1), "x")


def token_of_an_ended_run(w):
    w.env.gate.put(w.digest, w.env.gate.entry("t.effect", w.args, w.digest, 1, run_id=w.first), 1, px=60_000)


def gate_says_another_outcome(w):
    row = w.env.ledger("t.effect", "k1")
    w.env.gate.put(w.digest, w.env.gate.entry("t.effect", w.args, w.digest, 1, state="C", ledger_id=row.id, attempt=1, outcome='{"ok": false}'), 1, px=60_000)


def gate_says_what_is_not_in_the_ledger(w):
    digest = key_digest("t.effect", "k6")
    w.env.gate.put(digest, w.env.gate.entry("t.effect", {"key": "k6"}, digest, 1, state="C", ledger_id=9, attempt=1), 1, px=60_000)


@pytest.mark.parametrize("rule,violation", [
    ("effect_once", second_effect), ("effect_once", second_effect_of_a_replay), ("effect_settled", effect_of_nobody),
    ("effect_settled", effect_of_a_failed_run), ("effect_settled", effect_without_ledger_row), ("effect_settled", effect_of_another_tenant),
    ("settled_effect", completed_without_effect), ("ledger_run", ledger_row_without_run), ("ledger_run", two_runs_settled_one_row),
    ("accounted", lost_run), ("accounted", live_and_finished), ("accounted", finished_twice), ("replays_equal", replay_differs),
    ("replays_equal", replay_of_nothing), ("processing", processing_left), ("leases", lease_left), ("gate_ttl", entry_without_ttl),
    ("gate_ttl", list_without_ttl), ("gate_tokens", token_of_an_ended_run), ("gate_truth", gate_says_another_outcome),
    ("gate_truth", gate_says_what_is_not_in_the_ledger)])
def test_each_rule_is_able_to_fail(world, rule, violation):
    violation(world)
    assert getattr(world.env.audit, rule)(), f"{rule} did not see {violation.__name__}"
    world.env.audit.allow(*(set(RULES) - {rule}))
    assert world.env.audit.check(), "the rule is not part of check()"


def test_sessions_are_seen(world):
    """One in a transaction while workers live; one that outlives them."""
    connection = world.db.connect(role="app_worker", autocommit=False)
    connection.cursor().execute("SELECT 1")
    assert world.env.audit.open_sessions()
    connection.rollback()
    assert not world.env.audit.open_sessions()
    connection.close()
