"""Requests that Hypothesis makes from /openapi.json, against a real worker with the example tasks and a test's routes of every kind.

Every answer must be one that the description lists, with the content type and the schema that it gives; an error is a problem whose members are
right; never a 500; the worker lives. What the first answer of a key settled, a repetition gets octet for octet. Derandomized: the same requests
each time; UMAVEZ_TEST_SEED starts from another seed, UMAVEZ_LONG=1 makes many more.
"""
import collections
import hashlib
import hmac
import json
import os
import re
import shutil
import uuid
from urllib.parse import quote

import hypothesis
import hypothesis.configuration
import jsonschema
import pytest
from hypothesis import strategies as st

from support.http import PROBLEM, Closed, Door, chunked, make_token, request_octets
from support.procs import ROOT, base_dir, wait_until
from test_g_door import SECRET, add_tasks

hypothesis.configuration.set_hypothesis_home_dir(str(base_dir() / "hypothesis"))      # not into the checkout

# Answers with what the handler was given, as far as it surely fits an outcome.
HANDLER = """return function(ctx, args)
  local n = 0
  for _ in pairs(args) do n = n + 1 end
  if args.refuse == true then return ctx:fail { code = "refused", message = "as asked" } end
  return { status = args.created == true and 201 or 200, body = { members = n, text = type(args.text) == "string" and #args.text < 200 and args.text or nil } }
end"""

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "get", "P@ST"]
# What the server can say before it knows the route: to a target, a method or a head that is not the description's.
BEFORE_ROUTES = {"400", "404", "405", "413", "414", "431", "501", "505"}

texts = st.text(max_size=30)
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-2 ** 80, 2 ** 80))
values = st.recursive(st.none() | st.booleans() | numbers | texts, lambda v: st.lists(v, max_size=4) | st.dictionaries(texts, v, max_size=4), max_leaves=12)
# A header's value: what HTTP lets through, and what it does not.
header_texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xff, blacklist_characters="\x7f"), max_size=60)
hostile_texts = st.text(st.characters(max_codepoint=0xff, blacklist_characters="\r\n\0"), max_size=300)
keys = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7e, blacklist_characters='",\\ '), min_size=1, max_size=255)


def mostly(usual, *others):
    return st.integers(0, 9).flatmap(lambda n: usual if n < 8 else st.one_of(*others))


Sent = collections.namedtuple("Sent", "method target headers body framing wild")      # wild: the head or the target is not the description's


def json_octets(value, ascii_only):
    return json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


@st.composite
def bodies(draw, operation):
    if "requestBody" not in operation:
        return draw(mostly(st.none(), st.binary(max_size=50)))
    members = draw(st.dictionaries(texts, values, max_size=4))
    members.update(draw(st.fixed_dictionaries({}, optional={
        "end_to_end_id": texts | values, "amount_cents": st.integers(0, 600000) | values, "txid": values, "paid_at": values | st.just("2026-01-01T00:00:00Z"),
        "refuse": st.booleans(), "created": st.booleans(), "text": texts})))
    if operation["operationId"] == "payments.pix" and draw(st.booleans()):
        members.update(end_to_end_id="E" + draw(keys)[:30], amount_cents=draw(st.integers(1, 1000000)), txid=None, paid_at=None)
    good = json_octets(members, draw(st.booleans()))
    broken = st.one_of(
        st.binary(max_size=60), values.map(lambda v: json_octets(v, False)), st.integers(0, len(good)).map(lambda n: good[:n]),
        st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)).map(lambda at: good[:at[0]] + bytes([at[1]]) + good[at[0] + 1:]),
        st.sampled_from([b"", b"{}{}", b'{"a":1,"a":2}', b'{"a":"\\u0000"}', b'{"a":1e999999}', b'{"a":[1e131071,1e131071]}', b"[" * 300, b'{"a":' * 200,
                         b'\xef\xbb\xbf{}', b'{"a":"\\ud800"}', b" " * 3000 + b"{}", b'{"' + b"k" * 70000 + b'":1}']))
    return draw(mostly(st.just(good), broken))


@st.composite
def targets(draw, path):
    """The path with its parameters, and a query; and whether it may lead elsewhere."""
    wild = draw(st.integers(0, 9)) == 9

    def parameter(_):
        if wild:
            return draw(st.one_of(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7e), max_size=20),
                                  st.sampled_from(["", "%", "%2", "%00", "%ff", "%ed%a0%80", "..", "%2e%2e%2f", "a/b", "a//b", "?", "#", "*", "\\"])))
        if path == "/runs/{run_id}":
            return str(draw(st.uuids()))
        return quote(draw(st.text(st.characters(min_codepoint=1, blacklist_categories=("Cs",)), min_size=1, max_size=15)), safe="")
    target = re.sub(r"{\w+}", parameter, path)
    if wild:
        target = draw(st.sampled_from([target, target + "/", "/" + target, target.upper(), "http://x" + target, "ftp://x" + target, target[1:], target + "%20",
                                       target + "x" * 9000]))
    query = draw(mostly(st.none(), st.just(""), st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7e, blacklist_characters="#\\"), max_size=30),
                        st.sampled_from(["wait=0", "wait=00", "wait=-1", "wait=x", "wait=61", "wait=9" * 40, "wait=", "wait", "wait=0&wait=0"])))
    return (target if query is None else f"{target}?{query}"), wild


@st.composite
def requests(draw, operations, tokens):
    path, documented, operation = draw(st.sampled_from(operations))
    target, wild = draw(targets(path))
    method = draw(mostly(st.just(documented), st.sampled_from(METHODS)))
    wild = wild or method != documented
    body = draw(bodies(operation))
    headers = []
    for parameter in operation["parameters"]:
        if parameter["in"] != "header":
            continue
        name = parameter["name"]
        if name == "X-Hub-Signature-256":
            good = "sha256=" + hmac.new(SECRET.encode(), body or b"", hashlib.sha256).hexdigest()
            values_ = draw(mostly(st.just([good]), st.just([]), st.just([good.upper()]), st.just([good[:-1]]), st.just([good, good]), st.tuples(header_texts)))
        elif parameter["schema"].get("format") == "uuid":
            values_ = draw(mostly(st.uuids().map(lambda u: [str(u)]), st.just([]), st.tuples(keys), st.uuids().map(lambda u: [f'"{u}"', str(u)])))
        else:
            quoted = keys.map(lambda k: ['"' + k + '"'])
            values_ = draw(mostly(st.tuples(keys) | quoted, st.just([]), st.tuples(header_texts), st.tuples(hostile_texts), st.tuples(keys, keys),
                                  st.sampled_from([['""'], ['"a"b'], ['"a\\'], ["k" * 256], ['"' + "k" * 255 + '"'], ["a, b"], ["\xe7"]])))
        headers += [(name, v) for v in values_]
    if operation["security"]:
        own = tokens[target[1:2]] if target[1:3] in ("t/", "p/") else tokens["t"]
        headers += [("Authorization", v) for v in draw(mostly(
            st.just([f"Bearer {own}"]), st.just([]), st.just(["Bearer " + "0" * 64]), st.sampled_from(sorted(tokens.values())).map(lambda t: [f"Bearer {t}"]),
            st.just([f"bearer   {own}"]), st.just([f"Bearer {own}"] * 2), hostile_texts.map(lambda t: ["Bearer " + t]), st.tuples(hostile_texts)))]
    if body is not None:
        kinds = ["application/json; charset=utf-8", "APPLICATION/JSON", "application/problem+json", "text/plain", "application/jsonp", "", ";", "application/"]
        headers += [("Content-Type", v) for v in draw(mostly(st.just(["application/json"]), st.sampled_from(kinds).map(lambda k: [k]), st.just([]),
                                                             st.tuples(hostile_texts)))]
    for name in draw(st.lists(st.sampled_from(["traceparent", "Accept", "Prefer", "X-Forwarded-For", "Cookie", "X-" + "y" * 20000]), max_size=1)):
        headers.append((name, draw(hostile_texts)))
        wild = wild or len(name) > 100
    # An octet that no head may hold, before or behind a blank that is trimmed, is the server's to refuse.
    wild = wild or any(ord(c) < 0x20 or ord(c) == 0x7f for _, v in headers for c in v) or not re.fullmatch(r"[\x21-\x7e]+", target)
    framing = draw(st.sampled_from(["length"] * 8 + ["chunked", "chunks"]))
    return (path, documented, operation), Sent(method, target, tuple(headers), body, framing, wild)


def octets(sent):
    headers = list(sent.headers)
    if sent.body is None or sent.framing == "length":
        return request_octets(sent.method, sent.target, headers, sent.body)
    cut = len(sent.body) // 2 if sent.framing == "chunks" else len(sent.body)
    pieces = [p for p in (sent.body[:cut], sent.body[cut:]) if p]
    return request_octets(sent.method, sent.target, headers + [("Transfer-Encoding", "chunked")], None) + chunked(*pieces)


class Checked:
    """A door whose answers are held against its description."""

    def __init__(self, door, page):
        self.door, self.seen = door, collections.Counter()
        self.components = page["components"]                # where the schemas' references lead

    def ask(self, sent):
        with self.door.connect() as connection:
            try:
                connection.send(octets(sent))
            except OSError:
                pass                                        # refused before all of it was sent: the answer says why
            try:
                return connection.read(sent.method)
            except (Closed, OSError) as error:
                raise AssertionError(f"not answered: {octets(sent)[:3000]!r}") from error

    def check(self, operation, sent, answer):
        status = str(answer.status)
        self.seen[status] += 1
        assert answer.status < 500 or (status in ("501", "505") and sent.wild), answer
        listed = operation["responses"].get(status) or (operation["responses"].get("2XX") if status < "300" else None)
        if sent.wild:
            assert listed or status in BEFORE_ROUTES, answer
        else:
            assert listed, (answer, "is not in the description")
        if sent.method == "HEAD":
            return
        if answer.status >= 400:
            self.problem(sent, answer)
        elif listed and answer.status != 204:
            kind = answer.get("Content-Type").split(";")[0]
            assert kind in listed["content"], (answer, answer.headers)
            if kind == "application/json":
                self.schema(listed["content"][kind]["schema"], answer.json)
        if answer.status == 405:
            assert answer.get("Allow")

    def problem(self, sent, answer):
        if answer.get("Content-Type") != "application/problem+json":        # a page of the library's own: a head that it cannot read at all
            assert sent.wild and answer.status in (400, 413, 414, 431, 501, 505), answer
            return
        problem = answer.json
        self.schema({"$ref": "#/components/schemas/Problem"}, problem)
        assert problem["status"] == answer.status and problem["type"].startswith("urn:umavez:"), answer
        assert not answer.replayed or problem["type"].startswith("urn:umavez:failure:"), answer
        if problem["type"].startswith(PROBLEM) and "run_id" in problem:
            uuid.UUID(problem["run_id"])

    def schema(self, schema, instance):
        if schema is not True:
            jsonschema.Draft202012Validator({**schema, "components": self.components}).validate(instance)


def settled(operation, answer):
    """Is the answer one that the ledger holds for its key?"""
    keyed = operation["parameters"] and any(p["in"] == "header" for p in operation["parameters"])
    return keyed and (answer.status < 300 or (answer.status == 422 and answer.json["type"].startswith("urn:umavez:failure:")))


@pytest.mark.timeout(900)
def test_every_answer_is_the_descriptions(env, long):
    for folder in ("payments", "receipts"):
        env.db.q((ROOT / "tasks" / folder / "schema.sql").read_text())
        shutil.copytree(ROOT / "tasks" / folder, env.tasks.dir / folder)
    add_tasks(env)
    for name in list(env.tasks.folders["d"]):
        env.tasks.add(f"d.{name}", handler=HANDLER, **env.tasks.folders["d"][name])
    env.audit.allow("settled_effect", "ledger_run", "replays_equal", "effect_settled")
    door = Door(env, env={"DOOR_TEST_SECRET": SECRET})
    tokens = {"t": door.token, "p": make_token(env, None), "2": make_token(env, 2, ["d.t_do"])}
    page = door.get("/openapi.json", token=None).json
    operations = [(path, method.upper(), op) for path, methods in sorted(page["paths"].items()) for method, op in sorted(methods.items())]
    assert {"/payments", "/t/do", "/p/queue", "/webhooks/github", "/runs/{run_id}", "/healthz"} <= {path for path, _, _ in operations}
    checked = Checked(door, page)
    replays = collections.Counter()

    @hypothesis.settings(max_examples=20000 if long else 1000, derandomize="UMAVEZ_TEST_SEED" not in os.environ, database=None, deadline=None,
                         suppress_health_check=list(hypothesis.HealthCheck), print_blob=True)
    @hypothesis.given(requests(operations, tokens))
    def run(made):
        (_, _, operation), sent = made
        first = checked.ask(sent)
        checked.check(operation, sent, first)
        if not sent.wild and settled(operation, first) and sent.method not in ("GET", "HEAD"):
            again = checked.ask(sent)
            if any(n.lower() == "idempotency-key" or n == "X-GitHub-Delivery" for n, _ in sent.headers):
                assert (again.status, again.body, again.replayed) == (first.status, first.body, True), (first, again)
                replays[again.status] += 1
        assert door.worker.running()
    if "UMAVEZ_TEST_SEED" in os.environ:
        run = hypothesis.seed(int(os.environ["UMAVEZ_TEST_SEED"]))(run)
    run()
    # What is too rare to be left to chance: a token that may not call the task.
    payments = page["paths"]["/payments"]["post"]
    foreign = Sent("POST", "/payments", (("Authorization", f"Bearer {tokens['2']}"), ("Content-Type", "application/json"),
                                         ("Idempotency-Key", str(uuid.uuid4()))), b'{"end_to_end_id":"E1","amount_cents":1}', "length", False)
    checked.check(payments, foreign, checked.ask(foreign))
    print(dict(checked.seen), dict(replays))
    assert {"200", "201", "202", "400", "401", "403", "404", "405", "413", "415", "422"} <= set(checked.seen), checked.seen
    assert {200, 201} <= set(replays) and sum(replays.values()) > 50      # what is made differs by version of Hypothesis
    for path in ("/healthz", "/readyz"):
        assert door.get(path, token=None).status == 200
    wait_until(lambda: env.live() == 0, 60, "the queue is empty")
