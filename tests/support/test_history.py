"""The rules that go by the clients' history must be able to fail, too: each is broken once, in a world that is right otherwise."""
import json
import uuid

import psycopg2
import pytest

from support.auditor import RULES
from support.history import HISTORY_RULES, Answer, History, kind_of
from support.http import FAILURE, PROBLEM, Response, door_fingerprint, door_key
from support.procs import wait_until

OTHER = str(uuid.UUID(int=7))


class World:
    """One request of tenant 1, answered, repeated, and refused with another body; one finished run of the queue; a kill with its redelivery."""

    def __init__(self, env):
        self.env, self.db = env, env.db
        env.history = self.history = History(env)
        self.digest = door_key("t.effect", "k1", 1)
        self.request, self.queued, self.held = (str(uuid.uuid4()) for _ in range(3))
        self.outcome = {"tenant": 1, "key": "k1", "run": self.request}
        self.db.q("""INSERT INTO umavez.idempotency_keys (tenant_id, idempotency_key, request_fingerprint, status, outcome, expires_at)
                     VALUES (1, %s, %s, 'completed', %s::jsonb, now() + interval '1 day')""",
                  psycopg2.Binary(self.digest), psycopg2.Binary(door_fingerprint("POST", "/do", b"{}")), json.dumps(self.outcome))
        for run_id, outcome in ((self.request, self.outcome), (self.queued, {"tenant": 1, "key": "k2"})):
            self.finish(run_id, outcome)
        self.effect(self.request, "k1")
        self.effect(self.request, "k1/2")
        body = json.dumps(self.outcome).encode()
        self.answer("in_progress", 0, 1, b'{"type": "urn:umavez:problem:in_progress"}', 409)
        self.answer("success", 0, 2, body)
        self.answer("success", 3, 4, body, replay=True)
        self.answer("conflict", 3, 4, b"{}", 422, number=2)
        self.answer("lost", 5, 6, b"", 0)
        self.env.accepted[self.queued] = "t.effect"
        self.clock = 1000
        self.start(self.request, 1)
        self.start(self.queued, 1, "k2")
        self.start(self.queued, 1, "k2")
        self.start(self.queued, 2, "k2", alive=False)        # lost at once
        self.start(self.queued, 3, "k2")
        self.start(self.queued, 1, "k2", at=1000.5)          # a stopped worker goes on, and writes what it was told long ago
        self.saw("processing", 1)
        self.saw("completed", 1)
        self.history.kills.append((100.0, "dead", {self.queued: 101.0}))
        self.history.deliveries[self.queued] = [(99.0, "dead"), (101.5, "alive")]

    def finish(self, run_id, outcome, tenant=1, status="completed"):
        self.db.q("""INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, args, deliveries,
                                                       attempt, idempotency_key, enqueued_at)
                     VALUES (%s::uuid, 't.effect', %s, 'default', 2, %s, false, %s::jsonb, %s::jsonb, 1, 1, %s, now())""",
                  run_id, tenant, status, json.dumps(outcome), None if status == "completed" else "{}", psycopg2.Binary(self.digest))

    def effect(self, run_id, key):
        self.db.q("INSERT INTO effects (run_id, task, tenant_id, key, value) VALUES (%s::uuid, 't.effect', 1, %s, '{\"number\": 1}')", run_id, key)

    def answer(self, kind, begun, ended, body, status=200, *, number=1, replay=False, tenant=1):
        self.history.answers.append(Answer("t.effect", tenant, "k1", number, begun, ended, kind, status, body, replay))

    def start(self, run_id, attempt, key="k1", *, alive=True, at=None):
        self.clock += 1
        lines = [f"start - {run_id} 1 {key} {attempt}"] + ([f"alive {at or self.clock} {run_id} 1 {key} {attempt}"] if alive else [])
        with self.history.starts.open("a") as file:
            file.write("\n".join(lines) + "\n")

    def saw(self, status, attempt, *, row=5, xmin="1"):
        seen = [] if status is None else [(1.0, 1, self.digest.hex(), row, status, attempt, json.dumps(self.outcome), xmin + status)]
        self.history.look_at_rows(seen)


@pytest.fixture
def world(env):
    yield World(env)
    env.audit.allow(*RULES)   # what the test broke stays broken


def test_a_right_world_passes(world):
    assert [problem for rule in HISTORY_RULES for problem in getattr(world.env.audit, rule)()] == []


def test_without_a_history_nothing_is_said(world):
    different_answer(world)
    world.env.history = None
    assert [problem for rule in HISTORY_RULES for problem in getattr(world.env.audit, rule)()] == []


def different_answer(w):
    w.answer("success", 7, 8, json.dumps({**w.outcome, "more": 1}).encode())


def failure_beside_success(w):
    w.answer("failure", 7, 8, json.dumps(w.outcome).encode(), 422)


def other_status(w):
    w.answer("success", 7, 8, json.dumps(w.outcome).encode(), 201)


def success_without_row(w):
    w.db.q("DELETE FROM umavez.idempotency_keys")


def success_of_a_failed_row(w):
    w.db.q("UPDATE umavez.idempotency_keys SET status = 'failed_permanent'")


def success_of_another_run(w):
    w.db.q("UPDATE umavez.idempotency_keys SET outcome = outcome || %s::jsonb", json.dumps({"run": OTHER}))


def success_without_effect(w):
    w.db.q("DELETE FROM effects")


def row_that_nobody_heard_of(w):
    w.history.answers = [a for a in w.history.answers if a.kind != "success"]


def conflict_with_itself(w):
    w.answer("conflict", 7, 8, b"{}", 422, number=1)


def conflict_with_nothing(w):
    success_without_row(w)


def effect_of_a_refused_run(w):
    w.finish(OTHER, {"code": "key_reused"}, status="failed_permanent")
    w.effect(OTHER, "k1")


def attempt_skipped(w):
    w.start(w.queued, 5, "k2")


def attempt_falls(w):
    w.start(w.queued, 1, "k2")


def first_attempt_is_no_first(w):
    w.start(OTHER, 2, "k9")


def ledgers_attempt_falls(w):
    w.history.rows.clear()
    w.saw("failed_retryable", 3)
    w.saw("processing", 2)


def never_delivered_again(w):
    w.history.kills.append((100.0, "dead", {OTHER: 101.0}))


def delivered_late(w):
    w.history.deliveries[w.queued] = [(99.0, "dead"), (131.0, "alive")]
    w.db.q("DELETE FROM umavez.finished_runs WHERE run_id = %s::uuid", w.queued)


def settled_row_goes_back(w):
    w.saw("processing", 2)


def settled_row_is_written_again(w):
    w.saw("completed", 1, xmin="2")


def settled_row_vanishes(w):
    w.saw(None, 0)


def in_progress_after_success(w):
    w.answer("in_progress", 3, 4, b"{}", 409)


def answer_of_another_tenant(w):
    w.answer("success", 7, 8, json.dumps({**w.outcome, "tenant": 2}).encode())


def answer_of_another_key(w):
    w.answer("success", 7, 8, json.dumps({**w.outcome, "key": "k2"}).encode())


def run_with_another_owners_outcome(w):
    w.finish(OTHER, {"tenant": 2, "key": "k1"})


def platform_run_with_a_tenants_outcome(w):
    w.finish(OTHER, {"tenant": 2, "key": "k1"}, tenant=None)


def run_that_does_not_end(w):
    w.env.accepted[OTHER] = "t.effect"
    w.db.q("INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, run_at) VALUES (%s::uuid, 't.effect', 1, '{}', 'default', 2, now())", OTHER)


def half_of_the_effects(w):
    w.db.q("DELETE FROM effects WHERE key = 'k1/2'")


@pytest.mark.parametrize("rule,violation", [
    ("answers_equal", different_answer), ("answers_equal", failure_beside_success), ("answers_equal", other_status),
    ("acknowledged", success_without_row), ("acknowledged", success_of_a_failed_row), ("acknowledged", success_of_another_run),
    ("acknowledged", success_without_effect), ("acknowledged", row_that_nobody_heard_of), ("conflict", conflict_with_itself),
    ("conflict", conflict_with_nothing), ("conflict", effect_of_a_refused_run), ("attempts", attempt_skipped), ("attempts", attempt_falls),
    ("attempts", first_attempt_is_no_first), ("attempts", ledgers_attempt_falls), ("prompt", never_delivered_again), ("prompt", delivered_late),
    ("settled_stays", settled_row_goes_back), ("settled_stays", settled_row_is_written_again), ("settled_stays", settled_row_vanishes),
    ("never_in_progress", in_progress_after_success), ("tenancy", answer_of_another_tenant), ("tenancy", answer_of_another_key),
    ("tenancy", run_with_another_owners_outcome), ("tenancy", platform_run_with_a_tenants_outcome), ("ends", run_that_does_not_end),
    ("whole", half_of_the_effects)])
def test_each_rule_is_able_to_fail(world, rule, violation):
    violation(world)
    assert getattr(world.env.audit, rule)(), f"{rule} did not see {violation.__name__}"
    world.env.audit.allow(*(set(RULES) - {rule}))
    assert world.env.audit.check(), "the rule is not part of check()"


def test_every_rule_was_broken():
    broken = {mark.args[1][i][0] for mark in test_each_rule_is_able_to_fail.pytestmark if mark.name == "parametrize" for i in range(len(mark.args[1]))}
    assert broken == set(HISTORY_RULES)


def test_kinds_of_answers():
    def problem(kind, status=409):
        return Response(status, "", [("Content-Type", "application/problem+json")], json.dumps({"type": kind, "status": status}).encode(), b"")
    assert kind_of(Response(201, "", [], b"{}", b"")) == "success"
    assert kind_of(problem(FAILURE + "declined")) == "failure"
    assert kind_of(problem(PROBLEM + "key_reused")) == "conflict"
    assert kind_of(problem(PROBLEM + "in_progress")) == "in_progress"
    assert kind_of(problem(PROBLEM + "unavailable", 503)) == "refused"
    assert kind_of(Response(503, "", [("Content-Type", "text/plain")], b"x", b"")) == "refused"


def test_the_onlooker_sees_what_changes(env):
    """watch() notes a row's course, and a run's deliveries."""
    env.history = history = History(env)
    history.watch()
    env.signal("go")
    run = env.enqueue("t.effect", env.args("E1", [["effect"], ["wait", "go"]]))
    worker = env.worker()
    wait_until(lambda: history.deliveries.get(run), 30, "the run's delivery is seen")
    env.set("go")
    env.wait_finished([run])
    wait_until(lambda: history.rows, 30, "the row is seen")
    history.stop()
    worker_id = worker.events("worker_ready")[0]["worker_id"]
    assert [by for _, by in history.deliveries[run]] == [worker_id]
    seen, = history.rows.values()
    assert [row[2] for row in seen] == ["completed"]
    env.history = None          # this handler has one effect
