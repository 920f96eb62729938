"""Group C of the cases: keys and fingerprints. C09's vectors and number lines are tests/unit's and tests/support's.

Rows of the cases here: C01, C02, C03, C04, C05, C06, C07, C08.
"""

import json

import pytest

from lab import GATES, OWNERS, WARMTH, digest, fingerprint

EFFECT = "start() effect() return { task = ctx.task, tenant = ctx.tenant_id }"


@OWNERS
@GATES
def test_C01_key_parts_are_framed(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    lua = "start() effect(ctx.run_id) return {}"
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", "x")]
    singles = [1, "1", True, "true"]
    wanted = {digest(owner.task("ab"), *pair) for pair in pairs if "" not in pair} | {digest(owner.task("a"), one) for one in singles}
    runs = [lab.enqueue(owner.task("ab"), {"a": a, "b": b, "lua": lua}, owner) for a, b in pairs if "" not in (a, b)]
    runs += [lab.enqueue(owner.task("a"), {"a": one, "lua": lua}, owner) for one in singles]
    ends = [lab.done(run, 20) for run in runs]
    assert {(end.status, end.replay) for end in ends} == {("completed", False)}
    assert {bytes(row.idempotency_key) for row in lab.ledger(owner)} == wanted
    assert (lab.effects(), lab.starts()) == (len(runs), len(runs))


@OWNERS
def test_C01_more_parts_that_could_collide(lab, owner):
    lab.worker()
    lua = "start() effect(ctx.run_id) return {}"
    singles = [0, "0", False, "false", 10, "10", "1e1", 0.1, "0.1", "null", "nil", " 1", "1 ", "A", "a", "é", "e\u0301",
               100000000000000, "100000000000000", "1e+14", -1, "-1", 1e300, "\u0001", "😀"]
    ends = [lab.done(lab.enqueue(owner.task("a"), {"a": one, "lua": lua}, owner), 20) for one in singles]
    assert {(end.status, end.replay) for end in ends} == {("completed", False)}
    assert {bytes(row.idempotency_key) for row in lab.ledger(owner)} == {digest(owner.task("a"), one) for one in singles}
    assert lab.effects() == len(singles)


@OWNERS
def test_C01_one_number_written_twice(lab, owner):
    lab.worker()
    lua = json.dumps("start() effect(ctx.run_id) return {}")
    numbers = {1: ("1", "1.0"), 100: ("100", "1e2"), 0.1: ("0.1", "0.10"), 0: ("0", "-0")}
    for number, texts in numbers.items():
        ends = [lab.done(lab.enqueue_text(owner.task("a"), '{"a": %s, "lua": %s}' % (text, lua), owner)) for text in texts]
        assert [(end.status, end.replay) for end in ends] == [("completed", False), ("completed", True)], number
    assert [bytes(row.idempotency_key) for row in lab.ledger(owner)] == [digest(owner.task("a"), number) for number in numbers]


@OWNERS
def test_C01_nested_paths(lab, owner):
    lab.worker()
    lua = "start() effect(ctx.run_id) return {}"
    runs = [lab.enqueue(owner.task("deep"), {"order": {"id": i}, "step": s, "lua": lua}, owner)
            for i, s in [(1, "a"), (1, "b"), ("1", "a"), (1, "a")]]
    ends = [lab.done(run, 20) for run in runs]
    assert [end.status for end in ends] == ["completed"] * 4
    assert sum(end.replay for end in ends) == 1
    assert {bytes(row.idempotency_key) for row in lab.ledger(owner)} == {digest(owner.task("deep"), i, s) for i, s in [(1, "a"), (1, "b"), ("1", "a")]}


@OWNERS
@GATES
def test_C02_two_tasks_with_one_business_key(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    args = {"e1": "E1", "lua": EFFECT}
    for replay in (False, True):      # the second time with a warm gate, where there is one
        for kind in ("key", "twin"):
            end = lab.done(lab.enqueue(owner.task(kind), args, owner), 20)
            assert (end.status, end.replay, end.outcome["task"]) == ("completed", replay, owner.task(kind))
    assert {bytes(row.idempotency_key) for row in lab.ledger(owner)} == {digest(owner.task(kind), "E1") for kind in ("key", "twin")}
    assert (lab.effects(), lab.starts()) == (2, 2)


@GATES
def test_C03_owners_do_not_share_keys(lab, gate):
    lab.gate(gate)
    lab.worker()
    lua = "start() effect() return { tenant = ctx.tenant_id, secret = 'of ' .. tostring(ctx.tenant_id) }"
    owners = [lab.tenant, lab.other_tenant, lab.platform]
    for replay in (False, True):
        for who in owners:
            end = lab.done(lab.enqueue(who.task("key"), {"e1": "E1", "lua": lua}, who), 20)
            assert (end.status, end.replay) == ("completed", replay)
            assert end.outcome.get("tenant") == who.tenant_id
    rows = lab.sql("SELECT tenant_id FROM umavez.idempotency_keys ORDER BY 1")
    assert [row[0] for row in rows] == [lab.tenant.tenant_id, lab.other_tenant.tenant_id]
    platform, = lab.ledger(lab.platform)
    assert "tenant_id" not in platform._fields and platform.outcome == {"secret": "of nil"}
    assert (lab.effects(), lab.starts()) == (3, 3)
    # The gate keeps them apart as well.
    if gate != "absent":
        assert len(lab.gate_keys()) == 3


MISSING = {"absent": {}, "null": {"e1": None}, "object": {"e1": {}}, "full object": {"e1": {"a": 1}}, "array": {"e1": []},
           "full array": {"e1": [1]}, "empty string": {"e1": ""}}


def no_key(lab, owner, kind, cases):
    """Each case's args give no key: ends as failed_permanent with the code, and leaves no trace."""
    runs = [(code, args, lab.enqueue(owner.task(kind), args, owner)) for code, args in cases]
    for code, args, run in runs:
        end = lab.done(run)
        assert (end.status, end.outcome["code"], end.replay, end.args, end.idempotency_key) == ("failed_permanent", code, False, args, None), args
    assert (lab.starts(), lab.ledger(owner), lab.gate_keys()) == (0, [], [])


@OWNERS
@GATES
def test_C04_declared_key_is_missing(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    no_key(lab, owner, "key", [("key_missing", {**args, "lua": EFFECT, "kept": 7}) for args in MISSING.values()])


@OWNERS
def test_C04_one_part_is_missing(lab, owner):
    lab.worker()
    no_key(lab, owner, "deep", [("key_missing", {**args, "lua": EFFECT}) for args in (
        {"order": {"id": 1}}, {"step": "x"}, {"order": 1, "step": "x"}, {"order": [1], "step": "x"}, {"order": {"id": None}, "step": "x"},
        {"order": {"id": 1}, "step": None}, {"order.id": 1, "step": "x"}, {"order": {"id": 1}, "step": ""})])


@OWNERS
def test_C04_key_function_without_a_key(lab, owner):
    # What a function of args gives must be a string: nothing is missing, another type is its author's error.
    lab.worker()
    no_key(lab, owner, "fn", [(code, {**args, "lua": EFFECT}) for args, code in (
        ({}, "key_missing"), ({"k": None}, "key_missing"), ({"k": ""}, "key_missing"), ({"k": {}}, "key_error"), ({"k": True}, "key_error"), ({"boom": True}, "key_error"))])


@OWNERS
def test_C04_key_function_with_a_key(lab, owner):
    lab.worker()
    args = {"k": "K1", "lua": "start() effect('K1') return {}"}
    ends = [lab.done(lab.enqueue(owner.task("fn"), args, owner), 20) for _ in (1, 2)]
    assert [(end.status, end.replay) for end in ends] == [("completed", False), ("completed", True)]
    row, = lab.ledger(owner)
    assert bytes(row.idempotency_key) == digest(owner.task("fn"), "K1", function=True)


SAME = {"order and 1.0": ('"x": 1, "y": {"p": 2, "q": [1, 2]}', '"y": {"q": [1.0, 2.00], "p": 2.0}, "x": 1.0'),
        "exponent": ('"x": 100', '"x": 1e2'), "escapes": ('"x": "Aé"', '"x": "\\u0041\\u00e9"'),
        "spaces": ('"x":{"a":[ ]}', '"x" : { "a" : [] }'), "zeros": ('"x": 0.5', '"x": 0.500'),
        "big integer": ('"x": 9007199254740993', '"x": 9007199254740993.0'), "minus zero": ('"x": 0', '"x": -0.0')}
OTHER = {"string for number": ('"x": 1', '"x": "1"'), "null for absent": ('"x": null', '"y": 1'), "array order": ('"x": [1, 2]', '"x": [2, 1]'),
         "empty kinds": ('"x": {}', '"x": []'), "past a double": ('"x": 9007199254740992', '"x": 9007199254740993'),
         "decimals": ('"x": 0.1', '"x": 0.10000000000000000001'), "case": ('"x": "a"', '"x": "A"'),
         "normal forms": ('"x": "\\u00e9"', '"x": "e\\u0301"'), "false for null": ('"x": false', '"x": null')}


@OWNERS
@WARMTH
def test_C05_same_request_written_otherwise(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    task = owner.task("key")
    for n, (what, pair) in enumerate(SAME.items()):
        texts = ['{"e1": "%s", "lua": %s, %s}' % (what, json.dumps(EFFECT), text) for text in pair]
        first = lab.done(lab.enqueue_text(task, texts[0], owner))
        if gate == "cold":
            lab.flush_gate()
        second = lab.done(lab.enqueue_text(task, texts[1], owner))
        assert (first.status, second.status, second.replay) == ("completed", "completed", True), what
        assert (second.outcome, lab.starts(), lab.effects()) == (first.outcome, n + 1, n + 1), what
        assert bytes(lab.ledger(owner)[-1].request_fingerprint) == fingerprint(task, json.loads(texts[0])), what


@OWNERS
def test_C06_other_request_that_looks_alike(lab, owner):
    lab.worker()
    for n, (what, pair) in enumerate(OTHER.items()):
        texts = ['{"e1": "%s", "lua": %s, %s}' % (what, json.dumps(EFFECT), text) for text in pair]
        first, second = [lab.done(lab.enqueue_text(owner.task("key"), text, owner)) for text in texts]
        assert (first.status, second.status, second.outcome.get("code")) == ("completed", "failed_permanent", "key_reused"), what
        assert lab.starts() == n + 1, what


@OWNERS
@pytest.mark.parametrize("how", ["warm gate", "after FLUSHALL", "Valkey off", "restarted worker"])
@pytest.mark.parametrize("ending", ["return { secret = 'S3CRET' }", "return ctx:fail { code = 'declined', message = 'S3CRET' }"],
                         ids=["completed", "failed_permanent"])
def test_C06_key_reused(lab, owner, how, ending):
    task = owner.task("key")
    if how == "Valkey off":
        lab.gate("absent")
    worker = lab.worker()
    args = {"e1": "E1", "lua": "start() effect() " + ending, "amount": 100}
    first = lab.done(lab.enqueue(task, args, owner), 20)
    if how == "after FLUSHALL":
        lab.flush_gate()
    elif how == "restarted worker":
        lab.settled_entry(task, owner, "E1")       # a worker that ends at once may take the copy with it
        worker.terminate()
        lab.worker()
    row, entry = lab.ledger(owner)[0], lab.settled_entry(task, owner, "E1") if how in ("warm gate", "restarted worker") else None
    second = lab.done(lab.enqueue(task, {**args, "amount": 101}, owner), 20)
    reused(lab, owner, row, second)
    if entry:
        assert lab.gate_entry(task, owner, "E1").raw == entry.raw
    again = lab.done(lab.enqueue(task, args, owner), 20)
    assert (again.status, again.replay, again.outcome) == (first.status, True, first.outcome)
    assert lab.starts() == 1
    if how == "warm gate":
        shown = json.loads(lab.cli("show", second.run_id, "--json").out)
        assert shown["key_held_by"]["run_id"] == first.run_id and shown["key_held_by"]["state"] == first.status
        assert shown["ledger"]["id"] == str(row.id) and shown["key_parts"] == ["e1"]
        text = lab.cli("show", second.run_id).out
        assert f"key held by     run {first.run_id}" in text and "made of e1" in text and "S3CRET" not in text.split("ledger")[0], text


def reused(lab, owner, row, end):
    assert (end.status, end.replay, end.outcome["code"]) == ("failed_permanent", False, "key_reused")
    assert "S3CRET" not in json.dumps([end.outcome, end.failure])
    after, = lab.ledger(owner)
    assert (after.xmin, after.ctid, after.status, after.outcome) == (row.xmin, row.ctid, row.status, row.outcome)


@OWNERS
@GATES
def test_C06_key_reused_during_the_first_handler(lab, owner, gate):
    lab.latch("a")
    lab.gate(gate)
    lab.worker()
    args = {"e1": "E1", "lua": "start() effect() reached('a') wait('a') return { secret = 'S3CRET' }", "amount": 100}
    first = lab.enqueue(owner.task("key"), args, owner)
    lab.reached("a")
    second = lab.enqueue(owner.task("key"), {**args, "amount": 101}, owner)
    lab.busy(second)
    assert lab.lock_waits() == []
    lab.open("a")
    assert lab.done(first, 20).status == "completed"
    row, = lab.ledger(owner)
    reused(lab, owner, row, lab.done(second, 20))
    assert (lab.starts(), lab.effects()) == (1, 1)


@OWNERS
def test_C06_key_reused_after_a_retryable_failure(lab, owner):
    lab.worker()
    task, lua = owner.task("later"), "start() effect() error('S3CRET')"
    first = lab.enqueue(task, {"e1": "E1", "lua": lua, "amount": 100}, owner)
    lab.failed_once(first)
    row, = lab.ledger(owner)
    assert row.status == "failed_retryable"
    reused(lab, owner, row, lab.done(lab.enqueue(task, {"e1": "E1", "lua": lua, "amount": 101}, owner), 20))
    assert lab.live(first).state == "available"


@OWNERS
def test_C06_narrowed_fingerprint(lab, owner):
    lab.worker()
    lua = "start() effect() return {}"
    task = owner.task("narrow")
    ends = [lab.done(lab.enqueue(task, {"e1": "E1", "lua": lua, "amount": amount, "note": note}, owner), 20)
            for amount, note in [(100, "a"), (100, "b"), (101, "a")]]
    assert [(end.status, end.replay) for end in ends] == [("completed", False), ("completed", True), ("failed_permanent", False)]
    assert (ends[2].outcome["code"], lab.starts()) == ("key_reused", 1)


@OWNERS
@GATES
def test_C07_integers_beyond_a_double(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    lab.sql("CREATE TABLE seen (n bigint, text text)")
    lua = "start() effect(ctx.run_id) ctx.sql:exec('INSERT INTO seen VALUES ($1, $2)', args.a, args.text) return { a = args.a }"
    numbers = [9007199254740992, 9007199254740993, -9007199254740992, -9007199254740993, 9223372036854775806, 9223372036854775807]
    ends = [lab.done(lab.enqueue(owner.task("a"), {"a": n, "text": str(n), "lua": lua}, owner)) for n in numbers]
    assert [(end.status, end.replay, end.outcome) for end in ends] == [("completed", False, {"a": n}) for n in numbers]
    assert {(row.n, row.text) for row in lab.sql("SELECT * FROM seen")} == {(n, str(n)) for n in numbers}
    assert {bytes(row.idempotency_key) for row in lab.ledger(owner)} == {digest(owner.task("a"), n) for n in numbers}
    assert (lab.effects(), lab.starts()) == (6, 6)


@OWNERS
def test_C07_handler_tells_them_apart(lab, owner):
    lab.worker()
    lua = "start() effect() return { apart = args.one ~= args.two, same = args.one == args.three }"
    end = lab.done(lab.enqueue(owner.task("key"), {"e1": "E1", "one": 9007199254740992, "two": 9007199254740993,
                                                   "three": 9007199254740992, "lua": lua}, owner), 20)
    assert end.outcome == {"apart": True, "same": True}


@OWNERS
@pytest.mark.parametrize("end_of_first,gate", [("error('first')", "valkey"), ("return ctx:retry { after = 0 }", "absent")])
def test_C08_handler_overwrites_its_args(lab, owner, end_of_first, gate):
    lab.gate(gate)
    lab.worker()
    task = owner.task("key")
    args = {"e1": "E1", "amount": 100, "deep": {"list": [1, 2]}, "lua": f"""
        start() local seen = {{ e1 = args.e1, amount = args.amount, list = args.deep.list, extra = args.extra }}
        effect()
        if ctx.attempt == 1 then
          args.e1 = "E2" args.amount = 1 args.deep.list[1] = 9 args.deep = nil args.extra = true args.lua = "return {{}}"
          {end_of_first}
        end
        return seen"""}
    end = lab.done(lab.enqueue(task, args, owner), 20)
    assert (end.status, end.outcome) == ("completed", {"e1": "E1", "amount": 100, "list": [1, 2]})
    row, = lab.ledger(owner)
    assert bytes(row.idempotency_key) == digest(task, "E1") and bytes(row.request_fingerprint) == fingerprint(task, args)
    assert (row.attempt, lab.effects(), lab.starts()) == (2, 1, 2)
