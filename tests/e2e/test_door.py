"""The HTTP door beyond group G: issue 3's scenario, tokens, webhooks, enqueueing, health, limits, drain, and what hostile clients send."""
import collections
import hashlib
import hmac
import json
import os
import random
import re
import socket
import subprocess
import threading
import time

import pytest

from support.http import Closed, Connection, Door, chunked, door_fingerprint, door_key, make_token, new_key, request_octets, start_door, timed, wait_ready
from support.procs import ROOT, wait_until
from support.proxy import PgProxy
from support.servers import clean_environment, umavez_bin
from test_g_door import GATES, OWNERS, SECRET, SLACK, add_tasks, cool, door_connections, make_door, warm

EXAMPLES = {"UMAVEZ_TASKS_DIR": str(ROOT / "tasks")}


def cli(env, *argv, **more):
    done = subprocess.run([str(umavez_bin()), *argv], capture_output=True, text=True, timeout=60, cwd=env.log_dir,
                          env={**clean_environment(), "DATABASE_URL": env.db.url("postgres"), "UMAVEZ_TASKS_DIR": str(env.tasks.dir), **more})
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- the scenario -----------------------------------------------------------------------------------------------------------------

@GATES
def test_scenario_of_the_issue(env, gate):
    """Pay, retry, a race of 50, the key with another body, a business error and its replay, no key; with the example tasks."""
    for path in sorted((ROOT / "tasks").glob("*/schema.sql")):
        env.db.q(path.read_text())
    env.audit.allow("settled_effect")
    token = cli(env, "token", "create", "--tenant", "1", "--scope", "payments.pix").strip()
    door = Door(env, env=EXAMPLES, **({"valkey_url": None} if gate == "absent" else {}))
    door.token = token
    payments = lambda: env.db.val("SELECT count(*) FROM payments")           # noqa: E731
    # pay, and retry
    k = [new_key() for _ in range(5)]
    body = {"end_to_end_id": "E1", "amount_cents": 10000}
    first = door.post("/payments", body, key=k[1])
    assert (first.status, first.replayed, first.get("Content-Type")) == (201, False, "application/json")
    assert first.json["payment_id"] == env.db.val("SELECT id FROM payments")
    again = door.post("/payments", body, key=f'"{k[1]}"')
    assert (again.status, again.body, again.replayed, payments()) == (201, first.body, True, 1)
    # 50 at once
    answers = door.race(50, "/payments", {"end_to_end_id": "E2", "amount_cents": 20000}, key=k[2])
    assert [a.status for a in answers] == [201] * 50 and len({a.body for a in answers}) == 1
    assert sum(a.replayed for a in answers) == 49 and payments() == 2
    # the key with another body
    reused = door.post("/payments", {**body, "amount_cents": 1}, key=k[1])
    assert (reused.status, reused.problem, payments()) == (422, "key_reused", 2)
    # a business error, and its replay
    big = {"end_to_end_id": "E3", "amount_cents": 500001}
    refused = door.post("/payments", big, key=k[3])
    assert (refused.status, refused.replayed, refused.json["type"]) == (422, False, "urn:umavez:failure:limit_exceeded")
    again = door.post("/payments", big, key=k[3])
    assert (again.status, again.body, again.replayed, payments()) == (422, refused.body, True, 2)
    assert door.post("/payments", {**big, "amount_cents": 500000}, key=k[4]).status == 201
    # no key, a bad one
    for key, problem in ((None, "key_missing"), ("a, b", "key_invalid"), ("", "key_invalid"), ("k1", "key_invalid"), (k[1][:-1], "key_invalid")):
        answer = door.post("/payments", body, key=key)
        assert (answer.status, answer.problem) == (400, problem), key
    assert payments() == 3
    env.wait_finished([str(r.run_id) for r in env.db.q("SELECT run_id FROM umavez.runs")])
    assert env.db.val("SELECT count(*) FROM receipts") == 3                   # enqueued in the payments' transactions


# --- requests and arguments -------------------------------------------------------------------------------------------------------

ECHO = 'return function(ctx, args) return { status = 200, body = { args = args, key = tostring(ctx.key ~= nil) } } end'


@OWNERS
def test_path_parameters_reach_args(env, owner):
    for name, path, method in (("refund", "/orders/{order_id}/refunds", "POST"), ("line", "/orders/{order_id}/lines/{line}", "PUT"),
                               ("all", "/orders/all/refunds", "POST"), ("del", "/orders/{order_id}", "DELETE"), ("get", "/orders/{order_id}", "GET")):
        env.tasks.add(f"d.{name}", owner="tenant" if owner == "t" else "platform", handler=ECHO, http={"method": method, "path": path})
    env.audit.allow("settled_effect")
    door = Door(env, tenant=1 if owner == "t" else None)
    args = lambda answer: (answer.status, answer.json.get("args"))            # noqa: E731
    assert args(door.post("/orders/7/refunds", {"n": 1}, key="a")) == (200, {"n": 1, "order_id": "7"})
    assert args(door.post("/orders/7/refunds", {"order_id": "8"}, key="b")) == (200, {"order_id": "7"})     # the path's stands
    assert args(door.post("/orders/all/refunds", {}, key="c")) == (200, {})                                 # the literal goes first
    assert args(door.post("/orders/a%2Fb%20%C3%A7/refunds", {}, key="d")) == (200, {"order_id": "a/b ç"})
    assert args(door.send("PUT", "/orders/1/lines/2", {"x": 9007199254740993}, key="e"))[1].keys() == {"x", "order_id", "line"}
    assert args(door.send("DELETE", "/orders/7", key="f")) == (200, {"order_id": "7"})
    assert args(door.get("/orders/7")) == (200, {"order_id": "7"})
    assert args(door.get("/orders/7", key="a, b")) == (200, {"order_id": "7"})                              # safe methods ignore the key
    answer = door.send("PATCH", "/orders/7", {}, key="g")
    assert (answer.status, sorted(answer.get("Allow").split(", "))) == (405, ["DELETE", "GET"])
    for bad in ("%", "%2", "%zz", "%00", "%ff", "%C3"):
        assert (door.post(f"/orders/{bad}/refunds", {}, key="h").problem, door.post(f"/orders/{bad}/refunds", {}, key="h").status) == ("bad_request", 400)
    assert door.post("/orders//refunds", {}, key="h").status == 404


def test_an_optional_key(env):
    door = make_door(env)
    body = env.args("E1")
    for _ in range(2):                                                        # without a key each is an operation of its own
        answer = door.post("/t/optional", body)
        assert answer.status == 200 and not answer.replayed
    env.audit.allow("effect_once")
    assert env.effects("E1") == 2
    first = door.post("/t/optional", env.args("E2"), key="k")
    assert door.post("/t/optional", env.args("E2"), key="k").body == first.body and env.effects("E2") == 1
    assert door.post("/t/optional", body, key="a, b").status == 400


def test_numbers_and_hostile_args(env):
    """Numbers stay exact; what jsonb cannot hold, or blows up, is refused; a broken traceparent is not passed on."""
    env.tasks.add("d.echo", handler=ECHO, http={"path": "/echo"})
    env.tasks.add("d.no", handler='return function(ctx) return ctx:fail { code = "no" } end', http={"path": "/no"})
    env.audit.allow("settled_effect")
    door = Door(env)
    text = b'{"a":9007199254740993,"b":0.1,"c":123456789012345678901234567890,"d":1e300,"e":-0}'
    assert b"9007199254740993" in door.post("/echo", text, key="k").body
    for n, bad in enumerate((b'{"a":1e200000}', b'{"a":1e-20000}', b'{"a":[' + b",".join([b"1e131071"] * 100) + b"]}")):
        for path in ("/echo", "/no"):
            answer = door.post(path, bad, key=f"b{n}")
            assert (answer.status, answer.problem) == (400, "body_invalid"), (path, bad[:40])
    for n, trace in enumerate((b"\xff\xfe", b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01", b"x" * 60, b"")):
        assert door.post("/no", {"n": n}, key=f"t{n}", headers=[("traceparent", trace)]).status == 422
    good = f"00-{'a' * 32}-{'b' * 16}-01"
    door.post("/no", {}, key="good", headers=[("traceparent", good)])
    assert [r.traceparent for r in env.db.q("SELECT traceparent FROM umavez.finished_runs WHERE traceparent IS NOT NULL")] == [good]


# --- tokens -----------------------------------------------------------------------------------------------------------------------

def test_tokens(env):
    door = make_door(env)
    body = env.args("E1")

    def status(token, target="/t/do", **more):
        answer = door.post(target, body, key="k1", token=token, **more)
        assert answer.problem and not answer.replayed
        if answer.status == 401:
            assert answer.get("WWW-Authenticate") == "Bearer"
        return answer.status
    assert status(None) == 401
    assert status("uv_" + "0" * 64) == 401
    for value in ("", "Bearer", "Bearer ", "Basic dTpw", f"Token {door.token}", f"Bearer {door.token} x", f"Bearer {door.token},", door.token,
                  "Bearer " + "x" * 5000):
        assert status(None, headers=[("Authorization", value)]) == 401, value
    assert status(None, headers=[("Authorization", f"Bearer {door.token}")] * 2) == 401                     # two headers
    assert status(None, headers=[("Authorization", "Bearer x"), ("Authorization", f"Bearer {door.token}")]) == 401
    assert status(make_token(env, 1, ["d.t_twin"])) == 403                                                  # another scope
    assert status(make_token(env, None)) == 403                                                             # the platform's
    assert status(door.token, "/p/do") == 403
    assert status(make_token(env, 1, expires="2020-01-01")) == 401                                          # expired
    assert door.untouched() and env.effects() == 0
    assert door.post("/t/do", body, key="k1", token=make_token(env, 1, ["x", "d.t_do"])).status == 200
    assert door.post("/t/do", body, key="k1", token=None, headers=[("authorization", f"bearer  {door.token}")]).replayed


def test_a_route_with_its_own_scope(env):
    env.tasks.add("d.scoped", http={"path": "/scoped", "scope": "payments:write"})
    door = Door(env, scopes=("payments:write",))
    assert door.post("/scoped", env.args("E1"), key="k").status == 200
    assert door.post("/scoped", env.args("E1"), key="k", token=make_token(env, 1, ["d.scoped"])).status == 403


def test_tokens_on_the_command_line(env):
    door = make_door(env)
    made = json.loads(cli(env, "token", "create", "--tenant", "2", "--scope", "d.t_do", "--name", "shop", "--json"))
    assert re.fullmatch(r"uv_[0-9a-f]{64}", made["token"])
    assert cli(env, "token", "create", "--platform", "--scope", "*").startswith("uv_")
    stored = env.db.one("SELECT digest, scopes, tenant_id FROM umavez.tokens WHERE id = %s", made["id"])
    assert (bytes(stored.digest), stored.scopes, stored.tenant_id) == (hashlib.sha256(made["token"].encode()).digest(), ["d.t_do"], 2)
    listed = cli(env, "token", "list")
    assert "shop" in listed and made["token"] not in listed and made["token"][3:20] not in listed
    assert door.post("/t/do", env.args("E1"), key="k", token=made["token"]).status == 200
    assert env.db.val("SELECT tenant_id FROM effects") == 2
    cli(env, "token", "revoke", str(made["id"]))
    begun = time.monotonic()
    wait_until(lambda: door.post("/t/do", env.args("E1"), key="k", token=made["token"]).status == 401, 20, "the revocation")
    assert time.monotonic() - begun < 2.5 + SLACK
    for worker in env.all_workers:
        assert made["token"] not in worker.text() and door.token not in worker.text()


# --- webhooks ---------------------------------------------------------------------------------------------------------------------

def sign(body, secret=SECRET):
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@GATES
def test_signed_webhooks(env, gate):
    door = make_door(env, "p", gate, env={"DOOR_TEST_SECRET": SECRET})
    body = json.dumps(env.args("E1"), indent=2).encode()                       # the octets are signed, not the JSON

    def hook(signature, delivery="d-1", octets=body, more=()):
        headers = [("X-Hub-Signature-256", signature)] if signature is not None else []
        if delivery is not None:
            headers.append(("X-GitHub-Delivery", delivery))
        return door.post("/webhooks/github", octets, token=None, headers=headers + list(more))
    good = sign(body)
    for bad in (None, "", "sha256=", good[:-1], good + "0", good[:-1] + ("0" if good[-1] != "0" else "1"), good[7:], sign(body, "another"),
                "sha1=" + good[7:], sign(body + b" "), "sha256=" + "g" * 64):
        answer = hook(bad)
        assert (answer.status, answer.problem) == (401, "signature_invalid"), bad
    assert (hook(good, None).status, hook(good, None).problem) == (400, "key_missing")
    assert door.untouched() and env.effects() == 0
    first = hook(good)
    assert (first.status, first.replayed) == (200, False)
    again = hook(good.replace("sha256=", "sha256=").lower())
    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    assert hook(good, more=[("Idempotency-Key", "other")]).replayed             # the sender's header is the key
    assert hook(good, "d-2").status == 200
    env.audit.allow("effect_once")
    assert env.effects("E1") == 2
    assert door.post("/open", env.args("E2"), key="k", token=None).status == 200  # auth = "none", said in the manifest
    assert SECRET not in door.worker.text()


def test_a_webhook_without_its_secret_is_closed(env):
    door = make_door(env, "p")
    body = json.dumps(env.args("E1")).encode()
    for secret in ("", SECRET):
        answer = door.post("/webhooks/github", body, token=None, headers=[("X-GitHub-Delivery", "d"), ("X-Hub-Signature-256", sign(body, secret))])
        assert answer.status == 401
    assert door.untouched()


def test_a_tenants_task_needs_a_token(env):
    """Without a token nothing says whose the run would be: the manifest is refused, and nothing starts."""
    for name, http in (("none", {"path": "/none", "auth": "none"}),
                       ("signed", {"path": "/signed", "signature": {"header": "X-S", "secret_env": "X"}})):
        env.tasks.add(f"d.{name}", owner="tenant", http=http)
    done = subprocess.run([str(umavez_bin()), "check"], capture_output=True, text=True, timeout=60,
                          env={**clean_environment(), "UMAVEZ_TASKS_DIR": str(env.tasks.dir)})
    assert done.returncode == 3 and "http.auth" in done.stdout + done.stderr and "http.signature" in done.stdout + done.stderr


# --- enqueueing -------------------------------------------------------------------------------------------------------------------

@OWNERS
@GATES
def test_enqueue_mode(env, owner, gate):
    door = make_door(env, owner, gate)
    env.audit.allow("ledger_run", "replays_equal")                              # the answer 202 has a ledger row and no run of its own
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"], ["return", {"n": 1}]])
    answers = door.race(10, f"/{owner}/queue", body, key="k1")
    first = answers[0]
    assert {(a.status, a.body, a.get("Location")) for a in answers} == {(202, first.body, first.get("Location"))}
    assert sum(a.replayed for a in answers) == 9
    run = first.json["run_id"]
    assert first.get("Location") == f"/runs/{run}"
    env.accepted[run] = f"d.{owner}_queue"
    env.wait_reached("at")
    state = door.get(first.get("Location"))
    assert (state.status, state.json["state"], state.json["run_id"], "outcome" in state.json) == (200, "running", run, False)
    again = door.post(f"/{owner}/queue", body, key="k1")
    assert (again.status, again.body, again.get("Location"), again.replayed) == (202, first.body, first.get("Location"), True)
    reused = door.post(f"/{owner}/queue", {**body, "x": 1}, key="k1")
    assert (reused.status, reused.problem) == (422, "key_reused")
    # ?wait= answers when it has ended, or when the time is over
    state, seconds = timed(lambda: door.get(f"/runs/{run}?wait=1"))
    assert state.json["state"] == "running" and 0.9 <= seconds < 1 + SLACK
    waiting = threading.Timer(0.3, env.set, ["go"])
    waiting.start()
    state, seconds = timed(lambda: door.get(f"/runs/{run}?wait=30"))
    assert (state.status, state.json["state"], state.json["outcome"], state.json["replay"]) == (200, "completed", {"n": 1}, False)
    assert seconds < 5 + SLACK
    assert door.post(f"/{owner}/queue", body, key="k1").json == {"run_id": run}
    assert (env.effects("E1"), env.starts("E1"), env.db.val("SELECT count(*) FROM umavez.finished_runs WHERE task LIKE %s", "d.%queue")) == (1, 1, 1)
    # its own owner only
    for stranger in (door.as_owner(2), door.as_owner(None if owner == "t" else 1)):
        answer = stranger.get(f"/runs/{run}")
        assert (answer.status, answer.problem) == (404, "not_found")
    assert door.get(f"/runs/{new_key()}").status == 404
    assert door.get(f"/runs/{run}", token=None).status == 401
    assert door.get("/runs/7").status == 404
    assert door.post(f"/runs/{run}", {}).get("Allow") == "GET"
    for query in ("wait=61", "wait=-1", "wait=x", "wait=", "x=1", "wait=1&x=2", "wait=99999999999999999999"):
        assert door.get(f"/runs/{run}?{query}").status == 400, query


def test_enqueue_mode_runs_that_fail(env):
    door = make_door(env)
    env.audit.allow("ledger_run", "settled_effect", "replays_equal")
    run = door.post("/t/queue", env.args("E1", [["fail", {"code": "no", "message": "nope"}]]), key="k").json["run_id"]
    state = door.get(f"/runs/{run}?wait=30")
    assert (state.json["state"], state.json["outcome"]["code"]) == ("failed_permanent", "no")


def test_serves_only_the_door(env):
    """--no-queue: requests are answered, the queue is left to others."""
    add_tasks(env)
    worker = env.worker(arguments=["--http", "127.0.0.1:0", "--no-queue"])
    port = int(worker.wait_event("door_open")["port"])
    wait_ready(port, worker)
    door = Door(env, port=port, worker=worker)
    env.audit.allow("ledger_run", "replays_equal")
    run = door.post("/t/queue", env.args("E1"), key="k").json["run_id"]
    assert door.post("/t/do", env.args("E2"), key="k").status == 200
    assert door.get(f"/runs/{run}?wait=1").json["state"] == "available"
    env.worker()
    assert door.get(f"/runs/{run}?wait=30").json["state"] == "completed"


# --- health, description ----------------------------------------------------------------------------------------------------------

def test_health_and_description(env):
    door = make_door(env)
    for path, body in (("/healthz", b"alive\n"), ("/readyz", b"ready\n")):
        answer = door.get(path, token=None)
        assert (answer.status, answer.body, answer.get("Cache-Control")) == (200, body, "no-store")
        head = door.send("HEAD", path, token=None)
        assert (head.status, head.body, head.get("Content-Length")) == (200, b"", str(len(body)))
        assert door.post(path, {}, token=None).get("Allow") == "GET, HEAD"
    served = door.get("/openapi.json", token=None)
    assert (served.status, served.get("Content-Type")) == (200, "application/json")
    page = served.json
    assert page == json.loads(cli(env, "openapi"))
    assert page["openapi"].startswith("3.1") and page["info"]["title"] and page["info"]["version"]
    routes = {(path, method) for path, methods in page["paths"].items() for method in methods}
    assert ("/t/do", "post") in routes and ("/t/orders/{order_id}", "put") in routes and ("/webhooks/github", "post") in routes and len(routes) == 24 + 5
    for path, methods in page["paths"].items():
        for method, op in methods.items():
            names = {p["name"] for p in op["parameters"] if p["in"] == "path"}
            assert names == set(re.findall(r"{(\w+)}", path)) and all(p["required"] for p in op["parameters"] if p["in"] == "path")
            assert op["responses"] and all(r["description"] for r in op["responses"].values())
            assert ("requestBody" in op) == (method != "get")
            for scheme in op["security"]:
                assert set(scheme) <= set(page["components"]["securitySchemes"])
    for reference in re.findall(r'"\$ref": ?"#/([^"]+)"', json.dumps(page)):
        node = page
        for name in reference.split("/"):
            node = node[name]
    ids = [op["operationId"] for methods in page["paths"].values() for op in methods.values()]
    assert len(set(ids)) == len(ids)


# --- limits, drain ----------------------------------------------------------------------------------------------------------------

@GATES
def test_overload_is_refused_early(env, gate):
    door = make_door(env, "t", gate, http_max_requests=4, pool_size=2)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    held = [door.later("/t/do", env.args(f"E{n}", body["steps"]), key=f"k{n}") for n in range(4)]
    env.wait_reached("at", 2)
    wait_until(lambda: len(door_connections(door)) >= 4, 20, "four requests")
    wait_until(lambda: door.post("/t/do", env.args("E9"), key="k9").status == 503, 20, "the overload")
    for _ in range(20):
        refused, seconds = timed(lambda: door.post("/t/do", env.args("E9"), key="k9"))
        assert (refused.status, refused.problem) == (503, "overloaded") and int(refused.get("Retry-After")) >= 1
    assert door.get("/healthz", token=None).status == 200
    env.set("go")
    assert [f.result().status for f in held] == [200] * 4
    assert door.post("/t/do", env.args("E8"), key="k8").status == 200


@OWNERS
@GATES
def test_drain(env, owner, gate):
    """SIGTERM during a request: its answer still arrives; what waits gets 503; new connections are refused; exit 0."""
    door = make_door(env, owner, gate)
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"], ["return", {"status": 201}]])
    first = door.later(f"/{owner}/do", body, key="k1")
    env.wait_reached("at")
    waiting = [door.later(f"/{owner}/do", body, key="k1") for _ in range(3)]
    idle = door.connect()
    assert idle.request("GET", "/healthz").status == 200
    wait_until(lambda: len(door_connections(door)) >= 5, 20, "the duplicates wait")
    door.worker.process.terminate()
    for future in waiting:
        assert (future.result().status, future.result().problem) == (503, "draining") and int(future.result().get("Retry-After")) >= 1
    wait_until(lambda: refused(door.port), 20, "new connections are refused")
    answer = door.send("POST", f"/{owner}/do", body, key="k2", on=idle)
    assert (answer.status, answer.problem) == (503, "draining")
    assert not first.done()
    env.set("go")
    assert (first.result().status, first.result().replayed, first.result().get("Connection")) == (201, False, "close")
    assert door.worker.process.wait(30) == 0
    assert env.effects("E1") == 1 and door.ledger(f"d.{owner}_do", "k1").status == "completed"


def refused(port):
    try:
        Connection(port, 2).close()
        return False
    except OSError:
        return True


def test_drain_timeout_gives_the_key_back(env):
    """SIGTERM, and the handler is not done in time: rolled back, 503, and the next worker does it at once."""
    door = make_door(env, drain_timeout="500ms")
    env.signal("at", "go")
    body = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    first = door.later("/t/do", body, key="k1")
    env.wait_reached("at")
    door.worker.process.terminate()
    assert (first.result().status, first.result().problem) == (503, "draining")
    assert door.worker.process.wait(30) == 0 and env.effects("E1") == 0
    env.set("go")
    fresh = Door(env)
    answer, seconds = timed(lambda: fresh.post("/t/do", body, key="k1"))
    assert (answer.status, env.effects("E1")) == (200, 1) and seconds < 2 + SLACK
    assert door.ledger("d.t_do", "k1").attempt == 1


@GATES
def test_concurrency_of_a_task(env, gate):
    """The manifest's `concurrency` holds at the door: the others wait for their turn, at most `wait`."""
    env.tasks.add("d.two", concurrency=2, lease="20s", http={"path": "/two", "wait": "30s"})
    env.tasks.add("d.one", concurrency=1, lease="20s", http={"path": "/one", "wait": "300ms"})
    door = make_door(env, "t", gate)
    env.signal("at", "go")
    requests = [door.later("/two", env.args(f"E{n}", [["effect"], ["reach", "at"], ["wait", "go"]]), key=f"k{n}") for n in range(6)]
    env.wait_reached("at", 2)
    one = door.later("/one", env.args("F1", [["effect"], ["reach", "at"], ["wait", "go"]]), key="f1")
    env.wait_reached("at", 3)
    refused = door.post("/one", env.args("F2"), key="f2")
    assert (refused.status, refused.problem) == (503, "overloaded") and int(refused.get("Retry-After")) >= 1
    assert door.post("/t/do", env.args("E9"), key="k9").status == 200              # other tasks go on
    assert (env.reached("at"), sum(f.done() for f in requests)) == (3, 0)
    env.set("go")
    assert [f.result().status for f in requests + [one]] == [200] * 7
    assert env.effects() == 8 and door.post("/one", env.args("F2"), key="f2").status == 200


@OWNERS
@pytest.mark.parametrize("gate", ["warm", "cold", "absent"])
def test_a_replay_needs_no_slot(env, owner, gate):
    """All of a task's slots are taken by handlers: replays, reused keys and a second sender of a key are answered all the same; a new operation is not."""
    env.tasks.add("d.one", owner="tenant" if owner == "t" else "platform", concurrency=1, lease="20s", http={"path": "/one", "wait": "1s"})
    door = make_door(env, owner, gate)
    env.signal("at", "go")
    body, failed, long = env.args("E1"), env.args("E2", [["fail", {"code": "no"}]]), env.args("E3", [["effect"], ["reach", "at"], ["wait", "go"]])
    first, no = door.post("/one", body, key="k1"), door.post("/one", failed, key="k2")
    warm(door, gate, "d.one", "k1")
    warm(door, gate, "d.one", "k2", "F")
    held = door.later("/one", long, key="k3")
    env.wait_reached("at")
    for _ in range(2):
        cool(env, gate)
        again = door.post("/one", body, key="k1")
        assert (again.status, again.body, again.replayed) == (200, first.body, True)
        again = door.post("/one", failed, key="k2")
        assert (again.status, again.body, again.replayed) == (422, no.body, True)
        reused = door.post("/one", {**body, "x": 1}, key="k1")
        assert (reused.status, reused.problem) == (422, "key_reused")
    assert door.post("/one", long, key="k3").problem == "in_progress"
    refused = door.post("/one", env.args("E4"), key="k4")
    assert (refused.status, refused.problem) == (503, "overloaded") and door.ledger("d.one", "k4") is None
    assert env.gate is None or door.gate("d.one", "k4") is None
    assert (env.starts("E4"), held.done()) == (0, False)
    env.set("go")
    assert held.result().status == 200 and door.post("/one", env.args("E4"), key="k4").status == 200
    assert [env.effects(k) for k in ("E1", "E2", "E3", "E4")] == [1, 0, 1, 1]


@OWNERS
@pytest.mark.parametrize("wait", ["0s", "20ms", "1s"])
def test_a_settled_key_is_never_in_progress(env, owner, wait):
    """The gate still holds the entry of a holder that is dead, or whose copy was lost: PostgreSQL is asked before a client is told to wait."""
    task = env.tasks.add("d.now", owner="tenant" if owner == "t" else "platform", lease="20s", timeout="20s",
                         http={"method": "POST", "path": "/now", "wait": wait})
    door = Door(env, tenant=1 if owner == "t" else None)
    body, key = env.args("E1"), new_key()
    first = door.post("/now", body, key=key)
    digest = door_key(task, key, door.tenant)
    finger = door_fingerprint("POST", "/now", json.dumps(body, ensure_ascii=False).encode()).hex()
    for _ in range(5):
        wait_until(lambda: door.gate(task, key).state == "C", 20, "the copy, which the dead holder's entry replaces")
        env.gate.put(digest, env.gate.entry(task, {}, digest, door.tenant, fingerprint_hex=finger), door.tenant, px=20_000)
        again = door.post("/now", body, key=key)
        assert (again.status, again.body, again.replayed) == (first.status, first.body, True), again
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)
    running = env.args("E2", [["reach", "at"], ["wait", "go"], ["effect"]])
    env.signal("at", "go")
    held = door.later("/now", running, key="held")
    env.wait_reached("at")
    assert door.post("/now", running, key="held").problem == "in_progress"
    env.set("go")
    assert held.result(60).status == 200


@GATES
def test_whoever_waits_for_a_slot_hears_that_its_key_was_answered(env, gate):
    """Two equal requests wait for a slot of this worker, and another worker answers a third one: both get that answer, and no handler starts."""
    env.tasks.add("d.one", concurrency=1, lease="20s", http={"path": "/one", "wait": "30s"})
    door = make_door(env, "t", gate)
    env.signal("at", "go")
    held = door.later("/one", env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]]), key="k1")
    env.wait_reached("at")
    waiting = [door.later("/one", env.args("E2"), key="k2") for _ in range(2)]
    wait_until(lambda: len(door_connections(door)) >= 3, 20, "three requests are under way")
    other = Door(env, **({"valkey_url": None} if gate == "absent" else {}))
    first = other.post("/one", env.args("E2"), key="k2")
    assert first.status == 200
    env.set("go")
    answers = [f.result() for f in waiting]
    assert {(a.status, a.body) for a in answers} == {(200, first.body)} and held.result().status == 200
    assert (env.effects("E2"), env.starts("E2")) == (1, 1)


@OWNERS
@GATES
def test_half_closed_clients_are_answered(env, owner, gate):
    """The sender closes its side and reads on: what runs is answered when it ends; what only waits, at once, with a problem that names why."""
    env.tasks.add("d.one", owner="tenant" if owner == "t" else "platform", concurrency=1, lease="60s", timeout="60s", http={"path": "/one", "wait": "60s"})
    env.tasks.add("d.slow", owner="tenant" if owner == "t" else "platform", lease="60s", timeout="60s", http={"path": "/slow", "wait": "60s"})
    door = make_door(env, owner, gate)
    env.signal("at", "go")

    def half_closed(method, target, body=None, **options):
        c = door.connect()
        c.send(door.octets(method, target, body, **options))
        c.socket.shutdown(socket.SHUT_WR)
        return c
    steps = [["effect"], ["reach", "at"], ["wait", "go"], ["return", {"status": 201}]]
    body = env.args("E1", steps)
    first = half_closed("POST", "/slow", body, key="k1")
    env.wait_reached("at")
    slot = door.later("/one", env.args("E2", steps), key="k2")
    env.wait_reached("at", 2)
    for target, args, key, status, problem in (("/slow", body, "k1", 409, "in_progress"), ("/one", env.args("E3"), "k3", 503, "overloaded")):
        with half_closed("POST", target, args, key=key) as c:
            answer, seconds = timed(c.read)
        assert (answer.status, answer.problem, answer.json["status"]) == (status, problem, status), answer
        assert int(answer.get("Retry-After")) >= 1 and seconds < 30     # not after the wait
    queued = door.post(f"/{owner}/queue", env.args("E4", steps), key="k4").json["run_id"]
    env.audit.allow("ledger_run", "replays_equal")
    env.wait_reached("at", 3)
    with half_closed("GET", f"/runs/{queued}?wait=60") as c:
        answer, seconds = timed(lambda: c.read("GET"))
    assert (answer.status, answer.json["state"]) == (200, "running") and seconds < 30
    fresh = make_token(env, door.tenant)                       # a look-up under way
    with half_closed("POST", f"/{owner}/do", env.args("E5"), key="k5", token=fresh) as c:
        assert c.read().status == 200
    env.set("go")
    with first:
        assert (first.read().status, slot.result().status) == (201, 201)
    wait_until(lambda: env.live() == 0, 30, "the queue is empty")
    assert [env.effects(k) for k in ("E1", "E2", "E3", "E4", "E5")] == [1, 1, 0, 1, 1]


def test_connections_are_limited(env):
    door = make_door(env, http_max_connections=20)
    held = [door.connect() for _ in range(40)]
    time_limit = time.monotonic() + 20
    dead = 0
    for c in held:
        try:
            if c.request("GET", "/healthz").status != 200:
                dead += 1
        except (Closed, OSError):
            dead += 1
        assert time.monotonic() < time_limit + SLACK * 4
    assert 15 <= dead <= 25
    for c in held:
        c.close()
    wait_until(lambda: not refused_or_closed(door), 20, "connections are free again")


def refused_or_closed(door):
    try:
        return door.get("/healthz", token=None).status != 200
    except (Closed, OSError):
        return True


# --- hostile clients --------------------------------------------------------------------------------------------------------------

def test_smuggling_and_garbage(env):
    """Each is answered rightly or refused; none makes an effect, none ends the worker, the next request is served."""
    door = make_door(env)
    auth = f"Authorization: Bearer {door.token}\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\n".encode()
    body = json.dumps(env.args("E1")).encode()
    line = b"POST /t/do HTTP/1.1\r\nHost: x\r\n" + auth
    length = b"Content-Length: %d\r\n" % len(body)
    shapes = [
        line + length + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body),
        line + b"Transfer-Encoding: chunked\r\n" + length + b"\r\n" + chunked(body),
        line + length + length + b"\r\n" + body,
        line + length + b"Content-Length: 0\r\n\r\n" + body,
        line + b"Content-Length: +%d\r\n\r\n" % len(body) + body,
        line + b"Content-Length: -1\r\n\r\n" + body,
        line + b"Content-Length: 0x%x\r\n\r\n" % len(body) + body,
        line + b"Content-Length: 99999999999999999999999\r\n\r\n" + body,
        line + b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked(body),
        line + b"Transfer-Encoding: xchunked\r\n\r\n" + chunked(body),
        line + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body),
        line + b"Transfer-Encoding: chunked\r\n\r\n" + b"-5\r\n" + body + b"\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked\r\n\r\n" + b"fffffffffffffffff\r\n" + body + b"\r\n0\r\n\r\n",
        line + b"Transfer-Encoding: chunked\r\n\r\n" + b"zz\r\n" + body + b"\r\n0\r\n\r\n",
        line + b"Transfer-Encoding : chunked\r\n\r\n" + chunked(body),
        line + b"Content-Length : %d\r\n\r\n" % len(body) + body,
        line + b"X: a\r\n b: c\r\n" + length + b"\r\n" + body,
        line + b"X-Nul: a\0b\r\n" + length + b"\r\n" + body,
        b"POST /t/do\0x HTTP/1.1\r\nHost: x\r\n" + auth + length + b"\r\n" + body,
        b"POST /t/do HTTP/1.1\r\n" + auth + length + b"\r\n" + body,                      # no Host
        b"POST /t/do HTTP/1.1\r\nHost: x\r\nHost: y\r\n" + auth + length + b"\r\n" + body,
        b"POST  /t/do HTTP/1.1\r\nHost: x\r\n" + auth + length + b"\r\n" + body,
        b"POST /t/do HTTP/2.0\r\nHost: x\r\n" + auth + length + b"\r\n" + body,
        b"POST /t/do HTTP/1.1 x\r\nHost: x\r\n" + auth + length + b"\r\n" + body,
        b"POST ftp://x/t/do HTTP/1.1\r\nHost: x\r\n" + auth + length + b"\r\n" + body,
        b"POST t/do HTTP/1.1\r\nHost: x\r\n" + auth + length + b"\r\n" + body,
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100, os.urandom(500), b"GET\r\n\r\n", b"\r\n" * 50, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a" * 30000, b"A" * 100000,
    ]
    for shape in shapes:
        with door.connect(timeout=20) as c:
            try:
                c.send(shape)
                c.socket.shutdown(socket.SHUT_WR)
                answer = c.read()
                assert answer.status >= 400, (shape[:200], answer)
            except (Closed, OSError):
                pass
        assert door.get("/healthz", token=None).status == 200, shape[:200]
    assert env.effects() == 0, env.db.q("SELECT * FROM effects")
    # correct ones that look odd
    with door.connect() as c:                                                   # pipelined
        bodies = [json.dumps(env.args(f"P{n}")).encode() for n in range(5)]
        c.send(b"".join(door.octets("POST", "/t/do", b, key=f"p{n}") for n, b in enumerate(bodies)))
        runs = [c.read().json["run"] for _ in bodies]
        assert len(set(runs)) == 5
    with door.connect() as c:                                                   # absolute URI
        c.send(door.octets("POST", f"http://door.test:{door.port}/t/do", body, key="absolute"))
        assert c.read().status == 200
    with door.connect() as c:                                                   # HTTP/1.0, closes
        c.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert c.read().status == 200 and c.closed()
    assert env.effects("E1") == 1 and env.effects() == 6


def test_clients_that_vanish_at_every_stage(env):
    """A request cut behind each octet (closed or reset); then at each stage of its work. Nothing is left open or at work."""
    door = make_door(env, http_header_timeout="60s")
    body = json.dumps(env.args("E1")).encode()
    data = door.octets("POST", "/t/do", body, key="k1")
    for n, cut in enumerate(list(range(0, len(data), 7)) + [len(data) - 1]):
        c = door.connect()
        c.send(data[:cut])
        (c.reset if n % 2 else c.close)()
    assert env.effects() == 0
    env.audit.allow("effect_once")
    for n in range(60):                                                         # whole requests whose senders do not wait
        c = door.connect()
        c.send(door.octets("POST", "/t/do" if n % 3 else "/t/queue", env.args("V", None), key=f"v{n}"))
        if n % 2:
            time.sleep(0.002 * (n % 10))
        (c.reset if n % 4 < 2 else c.close)()
    env.audit.allow("ledger_run", "replays_equal")
    wait_until(lambda: len(door_connections(door)) == 0, 30, "all connections are gone")
    assert door.post("/t/do", body, key="k1").status == 200
    wait_until(lambda: env.live() == 0, 30, "the queue is empty")
    for n in range(60):
        answer = door.post("/t/do" if n % 3 else "/t/queue", env.args("V", None), key=f"v{n}")
        assert answer.status in (200, 202)
    wait_until(lambda: env.live() == 0, 30, "the queue is empty")
    assert env.effects("V") == 60


def test_slow_senders_are_ended(env):
    door = make_door(env, http_header_timeout="1s", http_body_timeout="1s", http_idle_timeout="1s")
    silent, head, sending, idle = (door.connect() for _ in range(4))
    head.send(b"POST /t/do HTTP/1.1\r\nHost: x\r\n")
    sending.send(request_octets("POST", "/t/do", door.headers("k", more=[("Content-Length", 100)])) + b"{")
    assert idle.request("GET", "/healthz").status == 200

    def drip():
        try:
            while True:
                head.send(b"X: y\r\n")
                time.sleep(0.1)
        except OSError:
            pass
    threading.Thread(target=drip, daemon=True).start()
    for c in (silent, idle):
        assert c.closed(10 + SLACK)
    for c in (head, sending):
        c.socket.settimeout(10 + SLACK)
        try:
            assert c.read().status == 408
        except Closed:
            pass
    assert door.untouched() and door.post("/t/do", env.args("E1"), key="k").status == 200


@GATES
def test_many_keep_alive_connections(env, long, gate):
    """Hundreds (with UMAVEZ_LONG=1 a thousand, beside two thousand slow ones) of clients: nothing is lost; p99 and memory are printed."""
    good, slow = (1000, 2000) if long else (200, 200)
    door = make_door(env, "t", gate, http_max_connections=good + slow + 100, http_max_connections_per_address=good + slow + 100,
                     http_header_timeout="300s", http_idle_timeout="300s")
    before = door.worker.rss_kb()
    slow_ones = [door.connect().send(b"POST /t/do HTTP/1.1\r\nHost: x\r\nX: ") for _ in range(slow)]
    clients = [door.connect() for _ in range(good)]
    requests = [door.octets("POST", "/t/do", env.args(f"c{n}", starts=None), key=f"c{n}") for n in range(good)]
    for round_ in range(2):                                     # all at once: executed, then replayed
        begun = time.monotonic()
        for client, request in zip(clients, requests):
            client.send(request)
        for client in clients:
            answer = client.read()
            assert (answer.status, answer.replayed) == (200, round_ == 1), answer
        print(f"{gate}: {good} at once, {'replays' if round_ else 'first'}: {good / (time.monotonic() - begun):.0f} a second")
        for connection in slow_ones:
            connection.send(b"x")
    per = (door.worker.rss_kb() - before) / (good + slow)
    took = []
    for n in range(good):                                       # one after another, as new operations, beside all these connections
        request = door.octets("POST", "/t/do", env.args(f"d{n}", starts=None), key=f"d{n}")
        begun = time.monotonic()
        clients[n].send(request)
        assert clients[n].read().status == 200
        took.append(1000 * (time.monotonic() - begun))
    took.sort()
    print(f"{gate}: beside {good + slow} connections p50 {took[good // 2]:.1f} ms, p99 {took[good * 99 // 100]:.1f} ms; {per:.1f} KiB a connection")
    assert env.effects() == 2 * good and per < 100
    for connection in clients + slow_ones:
        connection.close()


# --- everything at once -----------------------------------------------------------------------------------------------------------

def test_random_clients_and_faults(env, long):
    """Clients that repeat, race, vanish, dawdle and babble, while Valkey is flushed and PostgreSQL's connections are cut: one effect and one answer a key."""
    seed = int(os.environ.get("UMAVEZ_TEST_SEED", time.time()))
    seconds = 60 if long else 8
    proxy = env.closing(PgProxy(env.pg))
    add_tasks(env)
    env.audit.allow("gate_tokens")
    doors = [Door(env, database_url=proxy.url(env.db)) for _ in range(2)]
    keys, answers, faults = 60, collections.defaultdict(set), []
    bodies = [json.dumps(env.args(f"r{n}", [["effect"], ["sleep", 0.01 * (n % 4)], ["return", {"status": 201, "n": n}]], starts=None)).encode() for n in range(keys)]
    stop = time.monotonic() + seconds

    def client(number):
        chance = random.Random(seed * 1000 + number)
        connection = None
        while time.monotonic() < stop:
            door, n, what = chance.choice(doors), chance.randrange(keys), chance.randrange(10)
            data = door.octets("POST", "/t/do", bodies[n], key=f"r{n}")
            try:
                if connection is None or what > 5:
                    if connection:
                        connection.close()
                    connection = door.connect(60)
                if what < 6:
                    connection.send(data)
                    answer = connection.read()
                    if answer.status == 201:
                        answers[n].add(answer.body)
                    elif answer.status not in (409, 500, 503):
                        faults.append((n, answer))
                    continue
                connection.send(data[:chance.randrange(len(data) + 1)] if what < 9 else os.urandom(chance.randrange(300)))
                time.sleep(chance.random() * 0.02)
                chance.choice([connection.close, connection.reset])()
            except (Closed, OSError):
                pass
            connection = None
    threads = [threading.Thread(target=client, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    chance = random.Random(seed)
    while time.monotonic() < stop:
        time.sleep(0.3)
        chance.choice([env.valkey.flush, proxy.cut_all, lambda: None])()
    for thread in threads:
        thread.join(120)
    assert not faults, (seed, faults[:3])
    for n in range(keys):
        answer = doors[n % 2].post("/t/do", bodies[n], key=f"r{n}")
        tries = time.monotonic() + 30
        while answer.status != 201 and time.monotonic() < tries:
            answer = doors[n % 2].post("/t/do", bodies[n], key=f"r{n}")
        answers[n].add(answer.body)
        assert answer.status == 201 and answers[n] == {b'{"n":%d}' % n}, (seed, n, answers[n])
    assert env.effects() == keys and env.db.val("SELECT count(DISTINCT key) FROM effects") == keys, seed
