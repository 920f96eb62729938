"""Group G of the cases: the HTTP door.

The tasks are steps.lua (a request's body lists what the handler does), once for a tenant (`/t/…`) and once for the platform (`/p/…`). WARMTH: a
duplicate meets a warm gate, one that was flushed in between, or none at all.
"""
import hashlib
import hmac
import json
import os
import threading
import time
from email.utils import parsedate_to_datetime

import pytest

from support.http import Closed, Connection, Door, chunked, door_fingerprint, door_key, make_token, new_key, request_octets, start_door, timed
from support.procs import wait_until

WARMTH = pytest.mark.parametrize("gate", ["warm", "cold", "absent"])
GATES = pytest.mark.parametrize("gate", ["valkey", "absent"])
OWNERS = pytest.mark.parametrize("owner", ["t", "p"], ids=["tenant", "platform"])
SECRET = "it is a secret"
SLACK = float(os.environ.get("UMAVEZ_TEST_SLACK", "5"))   # what a busy machine may add to a bound

ROUTES = {
    "do": {"path": "/do"},
    "twin": {"path": "/twin"},
    "brief": {"path": "/brief", "wait": "1s"},
    "patient": {"path": "/patient", "wait": "60s"},
    "uuid": {"path": "/uuid", "key_form": "uuid"},
    "optional": {"path": "/optional", "key": "optional"},
    "refund": {"path": "/orders/{order_id}/refunds"},
    "put": {"path": "/orders/{order_id}", "method": "PUT"},
    "small": {"path": "/small", "max_body": 300},
    "look": {"path": "/look/{id}", "method": "GET"},
    "queue": {"path": "/queue", "mode": "enqueue"},
}


def add_tasks(env):
    for letter, owner in (("t", "tenant"), ("p", "platform")):
        for name, http in ROUTES.items():
            fields = {"method": "POST", **http, "path": f"/{letter}{http['path']}"}
            env.tasks.add(f"d.{letter}_{name}", owner=owner, lease="20s", timeout="20s", http=fields)
    for name, http in (("hook", {"path": "/webhooks/github", "key": {"header": "X-GitHub-Delivery"},
                                 "signature": {"header": "X-Hub-Signature-256", "prefix": "sha256=", "secret_env": "DOOR_TEST_SECRET"}}),
                       ("open", {"path": "/open", "auth": "none"})):
        env.tasks.add(f"d.{name}", owner="platform", lease="20s", timeout="20s", http={"method": "POST", **http})


def make_door(env, owner="t", gate="valkey", /, **settings):
    add_tasks(env)
    if gate == "absent":
        settings["valkey_url"] = None
    return Door(env, tenant=1 if owner == "t" else None, **settings)


def cool(env, gate):
    """Between two requests: what the gate shall be for the second."""
    if gate == "cold":
        env.valkey.flush()


def warm(door, gate, task, key, state="C"):
    """The copy comes after the answer: waits for it, where the duplicate shall meet it."""
    if gate == "warm":
        wait_until(lambda: getattr(door.gate(task, key), "state", None) == state, 20, "the outcome's copy in the gate")


# --- G01 --------------------------------------------------------------------------------------------------------------------------

BAD_KEYS = {
    "missing": [], "empty": [b""], "empty string": [b'""'], "twice": [b"a", b"a"], "twice, two keys": [b"a", b"b"], "list": [b"a, b"],
    "list of strings": [b'"a", "b"'], "list without blank": [b"a,b"], "256 characters": [b"k" * 256], "256 in quotes": [b'"' + b"k" * 256 + b'"'],
    "control": [b"a\x01b"], "tab": [b"a\tb"], "del": [b"a\x7f"], "latin-1": [b"\xe7"], "utf-8": ["ç".encode()], "utf-8 in quotes": ['"ç"'.encode()],
    "open quote": [b'"abc'], "behind the quote": [b'"abc"x'], "parameter": [b'"abc";p=1'], "bad escape": [b'"a\\b"'], "escaped end": [b'"a\\"'],
    "blank inside": [b"a b"], "quote inside": [b'a"b'], "backslash": [b"a\\b"], "blank only": [b"   "],
}


@OWNERS
@GATES
def test_G01_bad_keys_touch_nothing(env, owner, gate):
    door = make_door(env, owner, gate)
    body = env.args("E1")
    for name, values in BAD_KEYS.items():
        answer = door.post(f"/{owner}/do", body, headers=[("Idempotency-Key", v) for v in values])
        assert answer.status == 400, (name, answer)
        if answer.get("Content-Type") is not None:        # a control character may be refused with the whole head
            wanted = ("key_missing",) if name == "missing" else ("key_invalid", "bad_request")
            assert answer.problem in wanted and answer.json["status"] == 400, (name, answer)
        assert not answer.replayed
    assert door.post(f"/{owner}/do", body, key="k", token=None).status == 401
    assert door.untouched() and env.effects() == 0 and env.starts("E1") == 0
    for n, key in enumerate((b"k" * 255, b'"' + b"q" * 255 + b'"', b"!#$%&'()*+-./:;<=>?@[]^_`{|}~", b'"a, \\"b\\" \\\\"')):
        answer = door.post(f"/{owner}/do", env.args(f"ok{n}"), key=key)
        assert answer.status == 200 and not answer.replayed, (key, answer)


@GATES
def test_G01_on_routes_of_every_kind(env, gate):
    """What runs, what only enqueues, an optional key, another method, a path with parameters, a key in the sender's header."""
    door = make_door(env, "t", gate, env={"DOOR_TEST_SECRET": SECRET})
    body = json.dumps(env.args("E1")).encode()
    signature = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    for method, target, name in (("POST", "/t/queue", "Idempotency-Key"), ("POST", "/t/optional", "Idempotency-Key"), ("PUT", "/t/orders/7", "Idempotency-Key"),
                                 ("POST", "/t/orders/7/refunds", "Idempotency-Key"), ("POST", "/webhooks/github", "X-GitHub-Delivery")):
        hook = target.startswith("/webhooks")
        for what, values in BAD_KEYS.items():
            if what == "missing" and target == "/t/optional":
                continue
            answer = door.send(method, target, body, token=None if hook else door.token,
                               headers=[(name, v) for v in values] + ([("X-Hub-Signature-256", signature)] if hook else []))
            assert answer.status == 400 and not answer.replayed, (target, what, answer)
    assert door.untouched() and env.effects() == 0 and env.live() == 0


@OWNERS
@WARMTH
def test_G01_bare_and_quoted_are_one_key(env, owner, gate):
    door = make_door(env, owner, gate)
    body = env.args("E1")
    first = door.post(f"/{owner}/do", body, key="abc-1")
    assert first.status == 200 and not first.replayed
    warm(door, gate, f"d.{owner}_do", "abc-1")
    for value in (b'"abc-1"', b"abc-1", b"  abc-1  ", b' "abc-1" '):
        cool(env, gate)
        again = door.post(f"/{owner}/do", body, key=value)
        assert (again.status, again.body, again.replayed) == (200, first.body, True), value
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)
    other = door.post(f"/{owner}/do", env.args("E2"), key='"abc\\"1"')
    assert other.status == 200 and not other.replayed


@OWNERS
def test_G01_a_route_that_wants_uuids(env, owner):
    door = make_door(env, owner)
    key = new_key()
    for bad in ("abc", key[:-1], key + "0", key.replace("-", ""), "{" + key + "}", key[:-1] + "g", "urn:uuid:" + key):
        answer = door.post(f"/{owner}/uuid", env.args("E1"), key=bad)
        assert (answer.status, answer.problem) == (400, "key_invalid"), bad
    assert door.untouched()
    assert door.post(f"/{owner}/uuid", env.args("E1"), key=key).status == 200
    assert door.post(f"/{owner}/uuid", env.args("E1"), key=f'"{key}"').replayed
    assert env.effects("E1") == 1


# --- G02 --------------------------------------------------------------------------------------------------------------------------

ANSWER = {"status": 201, "body": {"b": 1, "a": [1.5, "ç😀", None, {"z": 0, "y": False}], "big": 9007199254740991},
          "headers": {"Location": "/payments/1", "ETag": '"v1"', "Link": "</x>; rel=next", "Content-Language": "pt-BR",
                      "Set-Cookie": "a=b", "Date": "yesterday", "X-Request-Id": "7"}}


@OWNERS
@WARMTH
def test_G02_a_replay_has_the_same_octets(env, owner, gate):
    door = make_door(env, owner, gate)
    body = env.args("E1", [["effect"], ["return", ANSWER]])
    first = door.post(f"/{owner}/do", body, key="k1")
    assert (first.status, first.replayed, first.get("Content-Type")) == (201, False, "application/json")
    assert first.json == ANSWER["body"] and first.get("Content-Length") == str(len(first.body))
    warm(door, gate, f"d.{owner}_do", "k1")
    kept = ("Content-Type", "Content-Length", "Location", "ETag", "Link", "Content-Language")
    assert [first.get(n) for n in kept[2:]] == ["/payments/1", '"v1"', "</x>; rel=next", "pt-BR"]
    for _ in range(3):
        cool(env, gate)
        again = door.post(f"/{owner}/do", body, key="k1")
        assert (again.status, again.body, again.replayed) == (201, first.body, True)
        assert [again.get(n) for n in kept] == [first.get(n) for n in kept]
        for name in ("Set-Cookie", "X-Request-Id"):
            assert first.get(name) is None and again.get(name) is None
        assert "yesterday" not in (again.all("Date") + first.all("Date"))
    row = door.ledger(f"d.{owner}_do", "k1")
    assert (row.status, row.attempt, env.effects("E1"), env.starts("E1")) == ("completed", 1, 1, 1)


@OWNERS
@WARMTH
def test_G02_other_answers_and_their_replays(env, owner, gate):
    """A plain table (200), a body that is no object, no body at all (204), an own content type."""
    door = make_door(env, owner, gate)
    env.audit.allow("settled_effect")
    for n, (outcome, status, body, kind) in enumerate([
            ({"b": 1, "a": 2}, 200, {"a": 2, "b": 1}, "application/json"),
            ({}, 200, {}, "application/json"),
            ({"status": 202, "payment": 7}, 202, {"payment": 7}, "application/json"),
            ({"status": 200, "body": [1, "x", None]}, 200, [1, "x", None], "application/json"),
            ({"status": 200, "body": "text"}, 200, "text", "application/json"),
            ({"status": 404, "body": {"why": "no"}, "headers": {"content-type": "application/hal+json"}}, 404, {"why": "no"}, "application/hal+json"),
            ({"status": 204}, 204, None, None),
            ({"status": 200, "headers": {"Location": "/x\r\nX-Evil: 1"}}, 200, {}, "application/json")]):
        request = env.args(None, [["return", outcome]])
        first = door.post(f"/{owner}/do", request, key=f"k{n}")
        warm(door, gate, f"d.{owner}_do", f"k{n}")
        cool(env, gate)
        again = door.post(f"/{owner}/do", request, key=f"k{n}")
        assert (first.status, again.status, first.replayed, again.replayed) == (status, status, False, True), outcome
        assert first.body == again.body and (first.json == body if body is not None else first.body == b"")
        assert first.get("Content-Type") == again.get("Content-Type")
        if kind:
            assert first.get("Content-Type") == kind
        assert first.get("X-Evil") is None


def expires_in(answer):
    return parsedate_to_datetime(answer.get("Idempotency-Key-Expires")).timestamp() - time.time()


@OWNERS
@WARMTH
@pytest.mark.parametrize("failing", [False, True], ids=["completed", "failed"])
def test_G02_expiry_of_the_key_is_advertised(env, owner, gate, failing):
    """On first answers and on replays, from the ledger and from the gate's copy, whose own TTL is shorter here."""
    env.tasks.add("d.keeps", owner={"t": "tenant", "p": "platform"}[owner], retention="2h", lease="2s", http={"path": "/keeps"})
    env.tasks.add("d.optional", owner="tenant", http={"path": "/optional", "key": "optional"})
    settings = {"valkey_url": None} if gate == "absent" else {"replay_cache": "10m"}
    door = Door(env, tenant=1 if owner == "t" else None, **settings)
    body = env.args("E1", [["fail", {"code": "no"}]] if failing else None)
    first = door.post("/keeps", body, key="k")
    began = expires_in(first)
    assert first.status == (422 if failing else 200) and 7200 - 60 < began <= 7201
    warm(door, gate, "d.keeps", "k", "F" if failing else "C")
    for _ in range(2):
        cool(env, gate)
        again = door.post("/keeps", body, key="k")
        assert (again.replayed, again.body) == (True, first.body) and abs(expires_in(again) - began) < 60
    if gate == "warm":
        digest = door_key("d.keeps", "k", door.tenant)
        assert 0 < env.gate.pttl(digest, door.tenant) <= 600_000
        env.valkey("PEXPIRE", env.gate.name(digest, door.tenant), 300_000)
        again = door.post("/keeps", body, key="k")
        assert again.replayed and abs(expires_in(again) - began) < 60
        assert env.gate.pttl(digest, door.tenant) <= 300_000, "the ledger answered, and renewed the copy"
    if owner == "t":                                   # nobody can repeat it, so nothing expires
        assert door.post("/optional", env.args("E2")).get("Idempotency-Key-Expires") is None


def test_G02_a_copy_of_another_format_counts_as_absent(env):
    """An entry of another version (a neighbour's that is older or newer): the ledger answers, and a copy of ours replaces it."""
    door = make_door(env)
    body = json.dumps(env.args("E1")).encode()
    first = door.post("/t/do", body, key="k")
    warm(door, "warm", "d.t_do", "k")
    now, digest = door.gate("d.t_do", "k"), door_key("d.t_do", "k", 1)
    former = f"uv1:C:{now.fingerprint}:{now.dbid}:{now.ledger_id:019d}:{now.attempt:010d}:{'0' * 32}:{now.run_id}:"
    mac = hmac.new(env.gate.secret(), f"t1:{digest.hex()}:{former}{now.outcome}".encode(), hashlib.sha256).hexdigest()
    env.gate.put(digest, f"{former}{mac}:{now.outcome}", 1, px=60_000)
    again = door.post("/t/do", body, key="k")
    assert (again.status, again.body, again.replayed) == (200, first.body, True) and again.get("Idempotency-Key-Expires")
    warm(door, "warm", "d.t_do", "k")


# --- G03 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@WARMTH
def test_G03_a_business_error_is_stored_and_replayed(env, owner, gate):
    door = make_door(env, owner, gate)
    detail = {"status": 422, "code": "limit_exceeded", "message": "amount is above 5000.00", "limit_cents": 500000}
    body = env.args("E1", [["effect"], ["fail", detail]], amount_cents=500001)
    first = door.post(f"/{owner}/do", body, key="k1")
    assert (first.status, first.replayed, first.get("Content-Type")) == (422, False, "application/problem+json")
    wanted = {"type": "urn:umavez:failure:limit_exceeded", "status": 422, "code": "limit_exceeded", "detail": "amount is above 5000.00",
              "limit_cents": 500000}
    assert wanted.items() <= first.json.items() and first.json["title"]
    warm(door, gate, f"d.{owner}_do", "k1", "F")
    for _ in range(2):
        cool(env, gate)
        again = door.post(f"/{owner}/do", body, key="k1")
        assert (again.status, again.body, again.replayed, again.get("Content-Type")) == (422, first.body, True, "application/problem+json")
    row = door.ledger(f"d.{owner}_do", "k1")
    assert (row.status, row.attempt, row.outcome, env.effects("E1"), env.starts("E1")) == ("failed_permanent", 1, detail, 0, 1)


@OWNERS
def test_G03_statuses_of_failures(env, owner):
    """Without a status 422; with one that one; an outcome that cannot be stored is the application's fault: 500, stored."""
    door = make_door(env, owner)
    for n, (steps, status, code) in enumerate([
            ([["fail", {"code": "no"}]], 422, "no"),
            ([["fail", {"status": 402, "code": "no money", "message": "x"}]], 402, "no money"),
            ([["fail", {"status": 99, "code": "odd"}]], 422, "odd"),
            ([["effect"], ["return", {"text": "x" * 5000}]], 500, "outcome_too_large"),
            ([["effect"], ["return", 7]], 500, "outcome_invalid")]):
        body = env.args(f"E{n}", steps)
        first = door.post(f"/{owner}/do", body, key=f"k{n}")
        assert (first.status, first.json["code"], first.replayed) == (status, code, False), first
        assert first.json["type"] == "urn:umavez:failure:" + code.replace(" ", "%20")
        again = door.post(f"/{owner}/do", body, key=f"k{n}")
        assert (again.status, again.body, again.replayed, env.effects(f"E{n}"), env.starts(f"E{n}")) == (status, first.body, True, 0, 1)


# --- G04 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@WARMTH
def test_G04_a_reused_key_is_refused_and_not_answered(env, owner, gate):
    door = make_door(env, owner, gate)
    body = env.args("E1", [["effect"], ["return", {"status": 201, "secret": "of the first"}]], amount=100)
    first = door.post(f"/{owner}/do", body, key="k1")
    assert first.status == 201
    warm(door, gate, f"d.{owner}_do", "k1")
    before = door.ledger(f"d.{owner}_do", "k1")
    entry = door.gate(f"d.{owner}_do", "k1")
    text = json.dumps(body).encode()
    for target, other in ((f"/{owner}/do", {**body, "amount": 101}), (f"/{owner}/do?x=1", body), (f"/{owner}/do", text + b" "),
                          (f"/{owner}/do", text.replace(b'": ', b'":'))):
        cool(env, gate)
        refused = door.post(target, other, key="k1")
        assert (refused.status, refused.problem, refused.replayed) == (422, "key_reused", False), (target, other)
        assert b"of the first" not in refused.body and refused.get("Location") is None
        assert door.ledger(f"d.{owner}_do", "k1") == before
    if gate == "warm":
        assert door.gate(f"d.{owner}_do", "k1").raw == entry.raw
    cool(env, gate)
    again = door.post(f"/{owner}/do", text, key="k1")
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)


@OWNERS
@GATES
def test_G04_whatever_state_the_key_is_in(env, owner, gate):
    """Reused while the first is at work (then it waits first), after a recorded failure, after a failure that may be retried."""
    door = make_door(env, owner, gate)
    env.signal("at", "go")
    first = door.later(f"/{owner}/do", env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]]), key="k1")
    env.wait_reached("at")
    other = door.later(f"/{owner}/do", env.args("E1", amount=2), key="k1")
    env.set("go")
    assert (first.result().status, other.result().status, other.result().problem) == (200, 422, "key_reused")
    failed = env.args("E2", [["fail", {"code": "no"}]])
    assert door.post(f"/{owner}/do", failed, key="k2").status == 422
    reused = door.post(f"/{owner}/do", {**failed, "more": 1}, key="k2")
    assert (reused.status, reused.problem, b'"no"' in reused.body) == (422, "key_reused", False)
    broken = env.args("E3", [["effect"], ["attempt", 1, ["error", "first"]]])
    assert door.post(f"/{owner}/do", broken, key="k3").status == 500
    reused = door.post(f"/{owner}/do", {**broken, "more": 1}, key="k3")
    assert (reused.status, reused.problem) == (422, "key_reused")
    assert door.post(f"/{owner}/do", broken, key="k3").status == 200
    assert [env.effects(k) for k in ("E1", "E2", "E3")] == [1, 0, 1]


@OWNERS
@GATES
def test_G04_after_the_retention_the_key_is_new(env, owner, gate):
    """Ended by the database's clock, purged or not: another request is no reuse, the same one is done again."""
    door = make_door(env, owner, gate)
    env.audit.allow("effect_once", "replays_equal", "ledger_run", "effect_settled")
    table = "umavez.idempotency_keys" if owner == "t" else "umavez.platform_idempotency_keys"
    body = env.args("E1", [["effect"], ["return", {"status": 201}]])
    for n, request in enumerate((body, {**body, "amount": 2}, {**body, "amount": 2})):
        answer = door.post(f"/{owner}/do", request, key="k1")
        assert (answer.status, answer.replayed, env.effects("E1")) == (201, False, n + 1), n
        row = door.ledger(f"d.{owner}_do", "k1")
        assert (row.status, row.attempt) == ("completed", 1)
        assert bytes(row.request_fingerprint) == door_fingerprint("POST", f"/{owner}/do", json.dumps(request).encode())
        if gate == "valkey":
            warm(door, "warm", f"d.{owner}_do", "k1")
        env.db.q(f"UPDATE {table} SET expires_at = clock_timestamp() - interval '1 second', created_at = created_at - interval '1 hour'")
        env.valkey.flush()


# --- G05 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
def test_G05_a_duplicate_waits_for_the_answer(env, owner, gate):
    door = make_door(env, owner, gate)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"], ["return", {"status": 201, "n": 1}]])
    first = door.later(f"/{owner}/do", body, key="k1")
    env.wait_reached("at")
    duplicates = [door.later(f"/{owner}/do", body, key="k1") for _ in range(5)]
    wait_until(lambda: env.valkey is None or len(door_connections(door)) >= 6, 20, "six requests are under way")
    assert not any(f.done() for f in duplicates)
    assert env.lock_waits() == []
    env.set("go")
    one = first.result()
    assert (one.status, one.replayed) == (201, False)
    for future in duplicates:
        assert (future.result().status, future.result().body, future.result().replayed) == (201, one.body, True)
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)


@OWNERS
@GATES
def test_G05_a_duplicate_at_another_worker(env, owner, gate):
    door = make_door(env, owner, gate)
    other_worker, port = start_door(env, **({"valkey_url": None} if gate == "absent" else {}))
    other = Door(env, tenant=door.tenant, port=port, worker=other_worker)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"], ["return", {"status": 201, "n": 1}]])
    first = door.later(f"/{owner}/patient", body, key="k1")
    env.wait_reached("at")
    bounded = other.post(f"/{owner}/brief", env.args("E2"), key="k1")          # another route, another key
    assert bounded.status == 200
    duplicates = [other.later(f"/{owner}/patient", body, key="k1") for _ in range(3)]
    reused = other.later(f"/{owner}/patient", {**body, "x": 1}, key="k1")
    wait_until(lambda: len(door_connections(other)) >= 4, 20, "four requests are under way")
    assert not any(f.done() for f in duplicates) and env.lock_waits() == []
    env.set("go")
    one = first.result()
    assert (one.status, one.replayed) == (201, False)
    assert {(f.result().status, f.result().body, f.result().replayed) for f in duplicates} == {(201, one.body, True)}
    assert (reused.result().status, reused.result().problem) == (422, "key_reused")
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)


def door_connections(door):
    """Established connections to the door, as the kernel has them."""
    found = []
    for line in open("/proc/net/tcp"):
        fields = line.split()
        if fields[0] != "sl" and int(fields[1].split(":")[1], 16) == door.port and fields[3] == "01":
            found.append(fields)
    return found


@OWNERS
@GATES
def test_G05_the_wait_is_bounded(env, owner, gate):
    door = make_door(env, owner, gate)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    first = door.later(f"/{owner}/brief", body, key="k1")
    env.wait_reached("at")
    for _ in range(2):
        refused, seconds = timed(lambda: door.post(f"/{owner}/brief", body, key="k1"))
        assert (refused.status, refused.problem, refused.replayed) == (409, "in_progress", False)
        assert refused.get("Retry-After").isdigit() and int(refused.get("Retry-After")) >= 1
        assert 0.9 <= seconds < 1 + SLACK
    env.set("go")
    assert first.result().status == 200
    again = door.post(f"/{owner}/brief", body, key="k1")
    assert (again.body, again.replayed, env.effects("E1"), env.starts("E1")) == (first.result().body, True, 1, 1)


@GATES
def test_G05_waiting_duplicates_hold_no_connection(env, gate):
    """The door's half of F09: a pool of two, fifty duplicates of a slow request, and others that go past them."""
    door = make_door(env, "t", gate, pool_size=2)
    env.signal("at", "go")
    slow = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    first = door.later("/t/patient", slow, key="k1")
    env.wait_reached("at")
    results = []
    racers = threading.Thread(target=lambda: results.extend(door.race(50, "/t/patient", slow, key="k1")))
    racers.start()
    wait_until(lambda: len(door_connections(door)) >= 50, 30, "the duplicates wait")
    begun = time.monotonic()
    for n in range(100):
        assert door.post("/t/do", env.args(f"other{n}", starts=None), key=f"o{n}").status == 200
    assert time.monotonic() - begun < 2 + 6 * SLACK
    env.set("go")
    racers.join(60)
    assert {(r.status, r.body, r.replayed) for r in results} == {(200, first.result().body, True)} and len(results) == 50
    assert env.effects() == 101


# --- G06 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
@pytest.mark.parametrize("how", ["close", "reset"])
def test_G06_the_client_goes_away(env, owner, gate, how):
    door = make_door(env, owner, gate)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"], ["return", {"status": 201, "n": 1}]])
    gone = door.connect()
    gone.send(door.octets("POST", f"/{owner}/do", body, key="k1"))
    env.wait_reached("at")
    waiting = door.connect()                       # a duplicate that goes while it waits
    waiting.send(door.octets("POST", f"/{owner}/do", body, key="k1"))
    for connection in (gone, waiting):
        getattr(connection, how)()
    env.set("go")
    wait_until(lambda: door.ledger(f"d.{owner}_do", "k1"), 20, "the work is committed")
    again = door.post(f"/{owner}/do", body, key="k1")
    assert (again.status, again.json, again.replayed) == (201, {"n": 1}, True)
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)


# --- G07 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
def test_G07_postgresql_is_down(own_env, owner, gate):
    env = own_env
    door = make_door(env, owner, gate)
    body = env.args("E1", [["effect"], ["return", {"status": 201}]])
    assert door.post(f"/{owner}/do", env.args("warm"), key="warm").status == 200
    env.pg.stop("fast")
    for target, key in ((f"/{owner}/do", "k1"), (f"/{owner}/do", "k2")):
        refused, seconds = timed(lambda: door.post(target, body, key=key))
        assert (refused.status, refused.problem, refused.replayed) == (503, "unavailable", False)
        assert int(refused.get("Retry-After")) >= 1 and seconds < 2 + SLACK
    assert door.get("/healthz", token=None).status == 200
    ready = door.get("/readyz", token=None)
    assert (ready.status, ready.json) == (503, {"ready": False, "reason": "postgresql_away"})
    assert door.get("/runs/" + new_key()).status == 503
    env.pg.start()
    from support.http import wait_ready
    wait_ready(door.port, door.worker)
    answer = door.post(f"/{owner}/do", body, key="k1")
    assert (answer.status, answer.replayed, env.effects("E1")) == (201, False, 1)


def test_G07_postgresql_dies_under_a_request(own_env):
    env = own_env
    door = make_door(env)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    first = door.later("/t/do", body, key="k1")
    env.wait_reached("at")
    env.pg.stop("immediate")
    assert first.result().status in (500, 503) and first.result().problem in ("internal_error", "unavailable", "unknown_outcome")
    env.pg.start()
    from support.http import wait_ready
    wait_ready(door.port, door.worker)
    env.signal("at", "go")
    env.set("go")
    assert door.post("/t/do", body, key="k1").status == 200
    assert env.effects("E1") == 1


@pytest.mark.parametrize("then", ["thaw", "terminate"])
def test_G07_postgresql_hangs(own_env, then):
    """All its processes stopped (the door's half of F07): 503 within 15 s, for requests at every stage; then all is well, or SIGTERM ends the worker."""
    env = own_env
    env.audit.allow("gate_tokens", "exit_status", "worker_death") if then == "terminate" else None
    door = make_door(env, drain_timeout="1s")
    env.signal("at", "go")
    assert door.post("/t/do", env.args("warm"), key="warm").status == 200
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    working = door.later("/t/do", body, key="k1")
    env.wait_reached("at")
    waiting = door.later("/t/do", body, key="k1")
    unknown = make_token(env)
    env.pg.freeze()
    try:
        asking = [door.later("/t/do", body, key=f"x{n}", token=t) for n, t in enumerate((door.token, unknown))]
        if then == "terminate":
            door.worker.process.terminate()
            assert door.worker.process.wait(40) is not None
        for future in asking:
            try:
                assert future.result(15 + 2 * SLACK).status in (503, 409)
            except (Closed, OSError):
                if then != "terminate":        # a client that came too late found nobody
                    raise
    finally:
        env.pg.thaw()
        env.set("go")
    if then == "thaw":
        from support.http import wait_ready
        wait_ready(door.port, door.worker)
        assert {f.result(60).status for f in (working, waiting)} <= {200, 409, 500, 503}
        assert door.post("/t/do", body, key="k1").status == 200
        assert (env.effects("E1"), env.effects("warm")) == (1, 1)
    else:
        for future in (working, waiting):
            try:
                assert future.result(10).status in (200, 503, 409, 500)
            except (Closed, OSError):
                pass
        assert "Sanitizer" not in door.worker.text() and "umavez: bug" not in door.worker.text(), door.worker.tail(60)


# --- G08 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
@pytest.mark.parametrize("fault", [["error", "SECRET detail"], ["sql", "SELECT 1/0"], ["retry", {"code": "later"}]], ids=["error", "sql", "retry"])
def test_G08_an_error_is_not_an_answer(env, owner, gate, fault):
    door = make_door(env, owner, gate)
    body = env.args("E1", [["effect"], ["attempt", 1, fault], ["return", {"status": 201}]])
    first = door.post(f"/{owner}/do", body, key="k1")
    assert (first.status, first.problem, first.replayed) == (500, "internal_error", False)
    assert b"SECRET" not in first.body and first.json["run_id"]
    row = door.ledger(f"d.{owner}_do", "k1")
    assert (row.status, row.attempt, env.effects("E1")) == ("failed_retryable", 1, 0)
    second = door.post(f"/{owner}/do", body, key="k1")
    assert (second.status, second.replayed) == (201, False)
    row = door.ledger(f"d.{owner}_do", "k1")
    assert (row.status, row.attempt, env.effects("E1"), env.starts("E1")) == ("completed", 2, 1, 2)
    assert door.post(f"/{owner}/do", body, key="k1").replayed


PREPARED = """local calls = 0
return {
  prepare = function(ctx, args)
    calls = calls + 1
    if calls == 1 and args.raise then error("SECRET detail") end
    if calls == 1 and args.fail then return ctx:fail { code = "not_today" } end
    return { calls = calls }
  end,
  effect = function(ctx, args, prepared)
    ctx.sql:exec("INSERT INTO effects (run_id, task, tenant_id, key, attempt) VALUES ($1::text::uuid, $2, 1, 'E1', 1)", ctx.run_id, ctx.task)
    return { status = 201, calls = prepared.calls }
  end,
}"""


@GATES
def test_G08_an_error_before_the_transaction(env, gate):
    """In `prepare`: nothing stands in the ledger, and the same key runs again."""
    env.tasks.add("d.prepared", handler=PREPARED.replace("args.raise", 'args["raise"]'), http={"path": "/prepared"})
    door = make_door(env, "t", gate)
    body = {"raise": True}
    first = door.post("/prepared", body, key="k1")
    assert (first.status, first.problem, first.replayed, b"SECRET" in first.body) == (500, "internal_error", False, False)
    assert door.ledger("d.prepared", "k1") is None and env.effects() == 0
    second = door.post("/prepared", body, key="k1")
    assert (second.status, second.json, second.replayed, env.effects("E1")) == (201, {"calls": 2}, False, 1)
    again = door.post("/prepared", body, key="k1")
    assert (again.status, again.body, again.replayed) == (201, second.body, True)


@GATES
def test_G08_a_refusal_before_the_transaction_is_an_answer(env, gate):
    """ctx:fail in `prepare`: recorded and replayed like one in the effect. Only a gate keeps a duplicate from `prepare`."""
    env.tasks.add("d.prepared", handler=PREPARED.replace("calls == 1 and args.fail", "args.fail"), http={"path": "/prepared"})
    env.audit.allow("settled_effect")
    door = make_door(env, "t", gate)
    first = door.post("/prepared", {"fail": True}, key="k1")
    assert (first.status, first.json["type"], first.replayed) == (422, "urn:umavez:failure:not_today", False)
    again = door.post("/prepared", {"fail": True}, key="k1")
    assert (again.status, again.body, again.replayed, env.effects()) == (422, first.body, True, 0)
    assert (door.ledger("d.prepared", "k1").status, door.ledger("d.prepared", "k1").attempt) == ("failed_permanent", 1)
    assert door.post("/prepared", {"fail": False}, key="k2").json == {"calls": 3 if gate == "absent" else 2}


def test_G08_errors_never_become_final(env):
    """Twenty errors: still retryable; the client decides when it is enough. A time-out is such an error."""
    door = make_door(env)
    env.audit.allow("settled_effect")
    body = env.args("E1", [["error", "always"]])
    assert {door.post("/t/do", body, key="k1").status for _ in range(20)} == {500}
    assert (door.ledger("d.t_do", "k1").status, door.ledger("d.t_do", "k1").attempt) == ("failed_retryable", 20)
    env.tasks.add("d.hasty", timeout="300ms", lease="2s", http={"path": "/hasty"})
    hasty = Door(env)
    late = hasty.post("/hasty", env.args("E2", [["attempt", 1, ["sleep", 30]]]), key="k2")
    assert (late.status, late.problem) == (500, "internal_error")
    assert hasty.post("/hasty", env.args("E2", [["attempt", 1, ["sleep", 30]]]), key="k2").status == 200


# --- G09 --------------------------------------------------------------------------------------------------------------------------

@WARMTH
def test_G09_two_routes_two_tenants(env, gate):
    door = make_door(env, "t", gate)
    two, platform = door.as_owner(2), door.as_owner(None)
    body = env.args("E1")
    answers = []
    for who, target in ((door, "/t/do"), (door, "/t/twin"), (two, "/t/do"), (two, "/t/twin"), (platform, "/p/do"), (platform, "/p/twin")):
        answers.append(who.post(target, body, key="k1"))
        assert answers[-1].status == 200 and not answers[-1].replayed
    assert len({a.json["run"] for a in answers}) == 6
    assert env.effects("E1") == 6 and env.db.val("SELECT count(DISTINCT (tenant_id, task)) FROM effects") == 6
    cool(env, gate)
    for n, (who, target) in enumerate(((door, "/t/do"), (door, "/t/twin"), (two, "/t/do"), (two, "/t/twin"), (platform, "/p/do"), (platform, "/p/twin"))):
        again = who.post(target, body, key="k1")
        assert again.replayed and again.body == answers[n].body
    rows = env.ledger_rows()
    assert len(rows) == 6 and sum(r.tenant_id is None for r in rows) == 2
    wanted = {(t, door_key(task, "k1", t)) for t, task in ((1, "d.t_do"), (1, "d.t_twin"), (2, "d.t_do"), (2, "d.t_twin"), (None, "d.p_do"), (None, "d.p_twin"))}
    assert {(r.tenant_id, bytes(r.idempotency_key)) for r in rows} == wanted
    assert {bytes(r.request_fingerprint) for r in rows if r.tenant_id == 1} == {door_fingerprint("POST", t, json.dumps(body).encode()) for t in ("/t/do", "/t/twin")}


# --- G10 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
def test_G10_bodies(env, owner, gate):
    door = make_door(env, owner, gate)
    target = f"/{owner}/do"
    body = json.dumps(env.args("E1", [["effect"], ["return", {"status": 201}]])).encode()

    def begin(method="POST", path=target, key="k", more=(), **options):
        return request_octets(method, path, door.headers(key, more=more), None, **options)

    # what touches neither ledger nor gate
    with door.connect() as c:                                     # one octet short, then the end
        c.send(begin(more=[("Content-Length", len(body))]) + body[:-1])
        c.socket.shutdown(1)
        try:
            assert c.read().status == 408                         # the library may see the end late: then the body's time-out ends it
        except Closed:
            pass
        assert c.closed()
    for path, octets, status, problem in (
            (f"/{owner}/small", b'{"x": "' + b"y" * 300 + b'"}', 413, "body_too_large"),
            (target, b"not JSON", 400, "body_invalid"), (target, b'{"a": 1', 400, "body_invalid"), (target, b"[1]", 400, "body_invalid"),
            (target, b'"text"', 400, "body_invalid"), (target, b"", 400, "body_invalid"), (target, b'{"a":1,"a":2}', 400, "body_invalid"),
            (target, b'{"a":"\\u0000"}', 400, "body_invalid"), (target, b'{"a":"\xff"}', 400, "body_invalid"),
            (target, b"[" * 5000, 400, "body_invalid"), (target, b'{"a":' * 200 + b"1" + b"}" * 200, 400, "body_invalid"),
            (target, b'{"a": 1e999999}', 400, "body_invalid"), (target, b'{"a": NaN}', 400, "body_invalid")):
        answer = door.post(path, octets, key="k")
        assert (answer.status, answer.problem) == (status, problem), octets[:40]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx", "application/", None):
        answer = door.post(target, body, key="k", content_type=kind)
        assert (answer.status, answer.problem) == (415, "unsupported_media_type"), kind
    for method in ("GET", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "HEAD", "BREW"):
        answer = door.send(method, target, key="k")
        assert answer.status in (405, 501), (method, answer)
        if answer.status == 405:
            assert answer.get("Allow") == "POST"
    for path in (f"/{owner}", f"/{owner}/do/", f"/{owner}/do/more", "//", f"/{owner}//do", f"/{owner}/DO", "/"):
        answer = door.post(path, body, key="k")
        assert (answer.status, answer.problem) == (404, "not_found"), path
    assert door.untouched() and env.effects() == 0

    # in three chunks; Expect: 100-continue; piece by piece
    with door.connect() as c:
        third = len(body) // 3
        c.send(begin(key="chunks", more=[("Transfer-Encoding", "chunked")]) + chunked(body[:third], body[third:2 * third], body[2 * third:]))
        assert c.read().status == 201
        again = door.send("POST", target, body, key="chunks", on=c)     # framing is not part of the request
        assert (again.status, again.replayed) == (201, True)
    body = json.dumps(env.args("E2", [["effect"], ["return", {"status": 201}]])).encode()
    with door.connect() as c:
        c.send(begin(key="expect", more=[("Content-Length", len(body)), ("Expect", "100-continue")]))
        assert c.read(interim=True).status == 100
        c.send(body)
        assert c.read(interim=True).status == 201
    body = json.dumps(env.args("E3", [["effect"], ["return", {"status": 201}]])).encode()
    with door.connect() as c:
        for octet in begin(key="slow", more=[("Content-Length", len(body))]) + body:
            c.send(bytes([octet]))
        assert c.read().status == 201
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json"):
        body = env.args("E" + kind[-5:])
        assert door.post(target, body, key=kind[-5:], content_type=kind).status == 200
    assert env.effects() == 6 and env.db.val("SELECT count(*) FROM (SELECT FROM effects GROUP BY key HAVING count(*) > 1) d") == 0


def test_G10_over_the_limit_of_the_server(env):
    door = make_door(env, http_max_body_bytes=2000, http_max_header_bytes=2048)
    for size in (2001, 100_000):
        answer = door.post("/t/do", b'{"x": "' + b"y" * size + b'"}', key="k")
        assert (answer.status, answer.problem) == (413, "body_too_large")
    with door.connect() as c:
        c.send(request_octets("POST", "/t/do", door.headers("k", more=[("Transfer-Encoding", "chunked")])))
        try:
            for _ in range(40):
                c.send(b"64\r\n" + b" " * 100 + b"\r\n")
            c.send(b"0\r\n\r\n")
        except OSError:
            pass
        try:
            assert c.read().status == 413
        except Closed:
            pass
    answer = door.post("/t/do", b"{}", key="k", headers=[("X-Long", "y" * 3000)])
    assert answer.status in (431, 413, 400)
    answer = door.post("/t/do?" + "q" * 9000, b"{}", key="k")
    assert answer.status in (414, 431, 400)
    assert door.untouched()


# --- G11 --------------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
def test_G11_the_worker_is_killed(env, owner, gate):
    """A client that retries every 200 ms at a worker that was there before: 409, 503 or 201; 201 soon, not after the lease."""
    door = make_door(env, owner, gate)
    env.audit.allow("gate_tokens")
    settings = {"valkey_url": None} if gate == "absent" else {}
    other_worker, port = start_door(env, **settings)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["attempt", 1, ["wait", "go"]], ["return", {"status": 201, "n": 1}]])
    first = door.later(f"/{owner}/brief", body, key="k1")
    env.wait_reached("at")
    door.worker.kill()
    killed = time.monotonic()
    with pytest.raises((Closed, OSError)):
        first.result()
    env.set("go")
    answers = []
    other = Door(env, tenant=door.tenant, port=port, worker=other_worker)
    while not answers or answers[-1].status != 201:
        assert time.monotonic() - killed < 3 + SLACK, answers     # the lease is 20 s
        answers.append(other.post(f"/{owner}/brief", body, key="k1"))
        assert answers[-1].status in (409, 503, 201)
        if answers[-1].status == 409:
            assert 1 <= int(answers[-1].get("Retry-After")) <= 20
        time.sleep(0.2)
    assert (answers[-1].json, answers[-1].replayed, env.effects("E1"), env.starts("E1")) == ({"n": 1}, False, 1, 2)


@GATES
def test_G11_killed_while_a_long_statement_runs(env, gate):
    """PostgreSQL does not end the statement before it lets go of the key."""
    door = make_door(env, "t", gate)
    env.audit.allow("gate_tokens")
    if env.db.val("SELECT current_setting('server_version_num')::int") < 140000:
        pytest.skip("PostgreSQL 13 looks for its client when the statement has ended")
    env.signal("at")
    body = env.args("E1", [["effect"], ["reach", "at"], ["sql", "SELECT pg_sleep(CASE WHEN (SELECT last_value FROM signals.at) > 1 THEN 0 ELSE 60 END)"],
                           ["return", {"status": 201}]])
    first = door.later("/t/do", body, key="k1")
    env.wait_reached("at")
    wait_until(lambda: env.db.val("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND usename = 'app_worker'"), 20, "the long statement")
    door.worker.kill()
    with pytest.raises((Closed, OSError)):
        first.result()
    fresh = Door(env, **({"valkey_url": None} if gate == "absent" else {}))
    answer, seconds = timed(lambda: fresh.post("/t/do", body, key="k1"))
    while answer.status == 409 and seconds < 2 + SLACK:
        answer, more = timed(lambda: fresh.post("/t/do", body, key="k1"))
        seconds += more
    assert (answer.status, env.effects("E1"), env.starts("E1")) == (201, 1, 2) and seconds < 2 + SLACK


# Where the worker is killed: (how the proxy is armed, starts, does the retry get a replay)
KILLS = {
    "before the claim": (lambda proxy, kill: proxy.cut_when("begin_run", then=kill), 1, False),
    "before COMMIT": (lambda proxy, kill: proxy.cut_before_commit(after="complete_request", then=kill), 2, False),
    "between COMMIT and the answer": (lambda proxy, kill: proxy.cut_after_commit(after="complete_request", then=kill), 1, True),
}


@OWNERS
@GATES
@pytest.mark.parametrize("where", KILLS)
def test_G11_kill_tests(env, owner, gate, where):
    from support.proxy import PgProxy
    arm, starts, replayed = KILLS[where]
    proxy = env.closing(PgProxy(env.pg))
    door = make_door(env, owner, gate, database_url=proxy.url(env.db))
    env.audit.allow("gate_tokens")
    assert door.post(f"/{owner}/do", env.args("warm"), key="warm").status == 200
    body = env.args("E1", [["effect"], ["return", {"status": 201, "n": 1}]])
    arm(proxy, door.worker.kill)
    with pytest.raises((Closed, OSError)):
        door.post(f"/{owner}/do", body, key="k1")
    proxy.wait_fired()
    fresh = Door(env, tenant=door.tenant, **({"valkey_url": None} if gate == "absent" else {}))
    answer, seconds = timed(lambda: fresh.post(f"/{owner}/do", body, key="k1"))
    print(f"{where}, {gate}: {1000 * seconds:.0f} ms")
    assert (answer.status, answer.json, answer.replayed) == (201, {"n": 1}, replayed), answer
    assert seconds < 1 + SLACK      # the lease is 20 s
    assert (env.effects("E1"), env.starts("E1")) == (1, starts)
    assert fresh.post(f"/{owner}/do", body, key="k1").replayed


@OWNERS
@GATES
@pytest.mark.parametrize("step", [["ctxsleep", "15s"], ["wait", "go"]], ids=["between statements", "in a statement"])
def test_G11_killed_in_the_handler(env, owner, gate, step):
    """The retry goes to a worker that has never seen the key, and does not wait for the lease of 20 s."""
    door = make_door(env, owner, gate)
    env.audit.allow("gate_tokens")
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["sql", "SELECT 1"], ["unless", "go", step], ["return", {"status": 201, "n": 1}]])
    first = door.later(f"/{owner}/do", body, key="k1")
    env.wait_reached("at")
    door.worker.kill()
    with pytest.raises((Closed, OSError)):
        first.result()
    env.set("go")
    fresh = Door(env, tenant=door.tenant, **({"valkey_url": None} if gate == "absent" else {}))
    answer, seconds = timed(lambda: fresh.post(f"/{owner}/do", body, key="k1"))
    print(f"{gate}, {step[0]}: {1000 * seconds:.0f} ms")
    assert (answer.status, answer.json, answer.replayed) == (201, {"n": 1}, False) and seconds < 1 + SLACK
    assert (env.effects("E1"), env.starts("E1")) == (1, 2)
    assert fresh.post(f"/{owner}/do", body, key="k1").replayed


@GATES
@pytest.mark.parametrize("where", KILLS)
def test_G11_kill_tests_of_a_route_that_enqueues(env, gate, where):
    """One run in the queue, whenever the worker dies, and every answer names it."""
    from support.proxy import PgProxy
    arm, _, replayed = KILLS[where]
    proxy = env.closing(PgProxy(env.pg))
    absent = {"valkey_url": None} if gate == "absent" else {}
    door = make_door(env, "t", gate, database_url=proxy.url(env.db))
    env.audit.allow("gate_tokens", "ledger_run", "replays_equal")
    assert door.post("/t/do", env.args("warm"), key="warm").status == 200
    arm(proxy, door.worker.kill)
    with pytest.raises((Closed, OSError)):
        door.post("/t/queue", env.args("E1"), key="k1")
    proxy.wait_fired()
    fresh = Door(env, **absent)
    answer, seconds = timed(lambda: fresh.post("/t/queue", env.args("E1"), key="k1"))
    print(f"{where}, {gate}: {1000 * seconds:.0f} ms")
    assert (answer.status, answer.replayed) == (202, replayed) and seconds < 1 + SLACK
    state = fresh.get(answer.get("Location") + "?wait=60")
    assert (state.status, state.json["state"], state.json["run_id"]) == (200, "completed", answer.json["run_id"])
    assert fresh.post("/t/queue", env.args("E1"), key="k1").body == answer.body
    wait_until(lambda: env.live() == 0, 60, "the queue is empty")
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)


@GATES
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
def test_G11_the_connection_is_lost_at_commit(env, gate, committed):
    """The worker lives: it finds out what became of the COMMIT, or says that it does not know; never a guess."""
    from support.proxy import PgProxy
    proxy = env.closing(PgProxy(env.pg))
    door = make_door(env, "t", gate, database_url=proxy.url(env.db))
    assert door.post("/t/do", env.args("warm"), key="warm").status == 200
    (proxy.cut_after_commit if committed else proxy.cut_before_commit)(after="complete_request")
    body = env.args("E1", [["effect"], ["return", {"status": 201, "n": 1}]])
    answer = door.post("/t/do", body, key="k1")
    assert answer.status == (201 if committed else 503), answer
    again = door.post("/t/do", body, key="k1")
    assert (again.status, again.json, again.replayed) == (201, {"n": 1}, committed)
    assert (env.effects("E1"), env.starts("E1")) == (1, 1 if committed else 2)
