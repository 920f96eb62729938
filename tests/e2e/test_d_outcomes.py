"""Group D of the cases: outcomes and JSON.

Rows of the cases here: D01, D02, D03, D04, D05, D06, D07, D08.
"""

import json

import pytest

from lab import GATES, OWNERS


def end_of(lab, owner, lua, kind="key", timeout=30, e1="E1", **args):
    return lab.done(lab.enqueue(owner.task(kind), {"e1": e1, "lua": lua, **args}, owner), timeout)


def size(lab, owner, end):
    """Octets of the stored outcome."""
    return lab.value(f"SELECT octet_length(outcome::text) FROM {owner.table} WHERE idempotency_key = %s", end.idempotency_key)


def refused(lab, owner, cases, code, prefix="return "):
    """Each case's handler returns something that cannot be stored: one start, no effect, one permanent failure."""
    before = lab.starts()
    runs = {lua: lab.enqueue(owner.task("key"), {"e1": "refused " + lua, "lua": "start() effect() " + prefix + lua}, owner) for lua in cases}
    for lua, run in runs.items():
        end = lab.done(run)
        assert (end.status, end.outcome.get("code"), end.deliveries) == ("failed_permanent", code, 1), (lua, end)
        assert end.outcome["message"], lua
        row = lab.row(owner.task("key"), owner, "refused " + lua)
        assert (row.status, row.attempt, row.outcome, lab.effects("refused " + lua)) == ("failed_permanent", 1, end.outcome, 0), lua
    assert lab.starts() == before + len(runs)


@OWNERS
@GATES
def test_D01_size_of_an_outcome(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    for letters in (4085, 4086, 4087):
        end = end_of(lab, owner, f"start() effect() return {{ s = string.rep('x', {letters}) }}", e1=str(letters))
        assert (end.status, end.outcome, size(lab, owner, end)) == ("completed", {"s": "x" * letters}, letters + 9)
    assert lab.effects() == 3
    refused(lab, owner, [f"{{ s = string.rep('x', {letters}) }}" for letters in (4088, 4089, 100000)], "outcome_too_large")


@OWNERS
def test_D01_size_is_that_of_jsonb_text(lab, owner):
    # Octets, not characters; escapes as PostgreSQL writes them; numeric is written out; a space after each comma and colon.
    pairs = [("{ s = string.rep('é', %d) }", 2043), ("{ s = string.rep('\\n', %d) }", 2043), ("{ s = string.rep('\\1', %d) }", 681),
             ("{ n = 1e300, s = string.rep('x', %d) }", 3779), ("{ a = { 1, 2, 3 }, s = string.rep('x', %d) }", 4071)]
    lab.worker()
    for lua, most in pairs:
        end = end_of(lab, owner, "start() effect() return " + lua % most, e1=lua)
        assert end.status == "completed" and 4090 < size(lab, owner, end) <= 4096, (lua, end)
    assert lab.effects() == len(pairs)
    refused(lab, owner, [lua % (most + 1) for lua, most in pairs], "outcome_too_large")


@OWNERS
@GATES
def test_D02_nul(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    refused(lab, owner, ["{ s = 'a\\0b' }", "{ ['a\\0b'] = 1 }", "{ deep = { { s = '\\0' } } }", "{ s = '\\0' }", "{ ['\\0'] = true }"], "outcome_invalid")


INVALID = {
    "0xff": "{ s = '\\255' }", "surrogate": "{ s = '\\237\\160\\128' }", "cut character": "{ s = '\\195' }", "overlong": "{ s = '\\192\\128' }",
    "past U+10FFFF": "{ s = '\\244\\144\\128\\128' }", "0xff in a key": "{ ['\\255'] = 1 }",
    "nan": "{ n = 0/0 }", "infinity": "{ n = 1/0 }", "minus infinity": "{ n = -1/0 }",
    "function": "{ f = print }", "coroutine": "{ c = coroutine.create(print) }", "userdata": "{ u = io.stdout }", "cdata": "{ c = require('ffi').new('int[1]') }",
    "itself": "(function() local t = {} t.t = t return t end)()", "deep cycle": "(function() local t = { {} } t[1].t = { t } return { t = t } end)()",
    "100000 levels": "(function() local t = {} for _ = 1, 100000 do t = { t } end return { t = t } end)()",
    "100000 objects": "(function() local t = {} for _ = 1, 100000 do t = { t = t } end return t end)()",
    "mixed keys": "{ 1, 2, a = 3 }", "boolean key": "{ [true] = 1 }", "table key": "{ [{}] = 1 }", "fractional key": "{ [1.5] = 1 }",
}


@OWNERS
def test_D03_what_json_cannot_hold(lab, owner):
    worker = lab.worker()
    refused(lab, owner, INVALID.values(), "outcome_invalid")
    assert end_of(lab, owner, "effect('again') return {}", kind="run").status == "completed"
    assert worker.running(), "the worker died of it"


@OWNERS
def test_D03_in_a_declared_failure(lab, owner):
    # The failure stands, and what is recorded of it can be stored.
    lab.worker()
    for what, lua in INVALID.items():
        end = end_of(lab, owner, f"start() effect() return ctx:fail {{ code = 'declined', message = 'no', data = {lua} }}", e1=what)
        row = lab.row(owner.task("key"), owner, what)
        assert (end.status, row.status, row.outcome, end.outcome["code"]) == ("failed_permanent", "failed_permanent", end.outcome, "declined"), what
    assert (lab.effects(), lab.starts()) == (0, len(INVALID))


@OWNERS
@GATES
def test_D04_nothing_is_an_empty_object(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    for n, lua in enumerate(["", "return", "return nil", "return {}"]):
        ends = [end_of(lab, owner, "start() effect() " + lua, e1=f"E{n}") for _ in (1, 2)]
        assert [(end.status, end.outcome, end.replay) for end in ends] == [("completed", {}, False), ("completed", {}, True)], lua
        assert (lab.effects(), lab.starts()) == (n + 1, n + 1)
    assert lab.sql(f"SELECT DISTINCT outcome::text FROM {owner.table}") == [("{}",)]


@OWNERS
def test_D04_other_kinds_of_results(lab, owner):
    lab.worker()
    refused(lab, owner, ["'x'", "''", "7", "0", "false", "true", "{ 1, 2 }", "{ {} }", "print", "coroutine.create(print)", "7, {}"],
            "outcome_invalid")


EXACT = {"a": False, "b": 0, "c": "", "d": {"x": 0}}


@OWNERS
@pytest.mark.parametrize("ending", ["return {t}", "return ctx:fail {{ status = 422, code = 'declined', message = '', data = {t} }}"],
                         ids=["completed", "failed_permanent"])
def test_D05_replay_is_exact(lab, owner, ending):
    worker = lab.worker()
    lua = "start() effect() " + ending.replace("{t}", "{ a = false, b = 0, c = '', d = { x = 0 } }").replace("{{", "{").replace("}}", "}")
    first = end_of(lab, owner, lua)
    text = lab.value(f"SELECT outcome::text FROM {owner.table}")
    if first.status == "completed":
        assert first.outcome == EXACT and text == '{"a": false, "b": 0, "c": "", "d": {"x": 0}}'
    else:
        assert first.outcome["code"] == "declined" and first.outcome["message"] == ""
    for how in ("gate", "ledger", "Valkey off"):
        if how == "gate":
            assert lab.settled_entry(owner.task("key"), owner, "E1").outcome == text
        elif how == "ledger":
            lab.flush_gate()
        else:
            worker.terminate()
            lab.flush_gate()
            lab.gate("absent")
            lab.worker()
        again = end_of(lab, owner, lua)
        assert (again.status, again.replay) == (first.status, True), how
        assert lab.value("SELECT outcome::text FROM umavez.finished_runs WHERE run_id = %s", again.run_id) == text, how
    assert lab.starts() == 1


@OWNERS
@GATES
def test_D06_empty_containers(lab, owner, gate):
    lab.gate(gate)
    lab.worker(queues="default")
    held = {"l": [], "o": {}, "n": None, "deep": [{"l": [], "o": {}, "n": None}, [], {}, None]}
    lua = f"""start() effect() ctx:enqueue("e2.{owner.letter}_elsewhere", args.held) return args.held"""
    end = end_of(lab, owner, lua, held=held)
    assert (end.status, end.outcome) == ("completed", held)
    child, = lab.sql("SELECT args FROM umavez.runs")
    assert child.args == held
    again = end_of(lab, owner, lua, held=held)
    assert (again.replay, again.outcome) == (True, held)
    lab.sql("DELETE FROM umavez.runs")


@OWNERS
def test_D06_parts_of_args(lab, owner):
    lab.worker()
    for lua, text in (("args.l", "[]"), ("args.o", "{}"), ("args.n", "null")):
        end = end_of(lab, owner, f"effect() return {{ it = {lua} }}", l=[], o={}, n=None, e1=lua)
        assert (end.status, lab.value("SELECT (outcome->'it')::text FROM umavez.finished_runs WHERE run_id = %s", end.run_id)) == ("completed", text)


NUMBERS = {"123456789012345": "123456789012345", "9007199254740991": "9007199254740991", "-9007199254740991": "-9007199254740991",
           "0.1": "0.1", "1e300": "1" + "0" * 300, "100000000000000": "100000000000000", "0.1 + 0.2": "0.30000000000000004",
           "1e-7": "0.0000001", "5e-324": None, "1.7976931348623157e308": None, "1 / 3": "0.3333333333333333",
           "1e21": "1000000000000000000000", "2251799813685249.5": "2251799813685249.5", "9007199254740993LL": "9007199254740993",
           "-9223372036854775807LL": "-9223372036854775807"}


@OWNERS
def test_D07_numbers_are_exact(lab, owner):
    lab.worker()
    for how in ("first", "gate", "ledger"):
        if how == "ledger":
            lab.flush_gate()
        for lua, text in NUMBERS.items():
            end = end_of(lab, owner, f"start() effect() return {{ n = {lua} }}", e1=lua)
            assert (end.status, end.replay) == ("completed", how != "first"), lua
            stored = lab.value("SELECT outcome->>'n' FROM umavez.finished_runs WHERE run_id = %s", end.run_id)
            assert stored == text if text else float(stored) == float(lua), (lua, how, stored)
    assert lab.value(f"SELECT count(*) FROM {owner.table} WHERE outcome::text LIKE '%e+%'") == 0
    assert lab.starts() == len(NUMBERS)


@OWNERS
def test_D07_numbers_of_args_come_back(lab, owner):
    lab.worker()
    for number in (123456789012345, 9007199254740993, 0.1, 1e300, -0.5, 12345678901234567890):
        end = end_of(lab, owner, "effect() return { n = args.n }", n=number, e1=str(number))
        assert end.status == "completed"
        assert lab.value("SELECT outcome->'n' = to_jsonb(%s::numeric) FROM umavez.finished_runs WHERE run_id = %s", number, end.run_id), number


@OWNERS
@GATES
def test_D08_monstrous_error_message(lab, owner, gate):
    lab.gate(gate)
    worker = lab.worker()
    lua = "start() effect() error('\\255\\0line one\\nline two\\237\\160\\128 ' .. string.rep('é', 524288), 0)"
    end = end_of(lab, owner, lua, kind="brief", timeout=40)
    # Two attempts and no more; each was charged one.
    assert (end.status, end.outcome["code"], end.attempt, end.deliveries, lab.starts()) == ("failed_permanent", "error", 2, 2, 2)
    row, = lab.ledger(owner)
    assert (row.status, row.attempt, row.outcome) == ("failed_permanent", 2, end.outcome)
    assert lab.value(f"SELECT octet_length(outcome::text) FROM {owner.table}") <= 4096
    message = end.outcome["message"]
    assert "line one" in message and "line two" in message and "\0" not in message and len(message) > 500
    assert json.dumps(message).count("\\udc") == 0
    assert lab.value("SELECT octet_length(failure::text) FROM umavez.finished_runs") <= 17000
    assert end.args["lua"] == lua and worker.running()


@OWNERS
def test_D08_odd_error_values(lab, owner):
    worker = lab.worker()
    cases = ["error()", "error(nil)", "error({})", "error({ code = 'x' })", "error(setmetatable({}, { __tostring = error }))", "error(print)", "error(7)", "error('')",
             "error(string.rep('\\0', 1000000))", "error(setmetatable({}, { __tostring = function() return 5 end }))", "local function f() return f() + 1 end f()"]
    runs = {lua: lab.enqueue(owner.task("later"), {"e1": lua, "lua": "start() effect() " + lua}, owner) for lua in cases}
    for lua, run in runs.items():
        live = lab.failed_once(run)
        row = lab.row(owner.task("later"), owner, lua)
        assert (row.status, row.attempt, row.outcome["code"], live.deliveries) == ("failed_retryable", 1, "error", 1), lua
        assert isinstance(row.outcome["message"], str), lua
    assert worker.running() and lab.effects() == 0


@OWNERS
def test_D08_odd_declared_failures(lab, owner):
    lab.worker()
    for lua in ("ctx:fail { code = string.rep('c', 100000), message = string.rep('m', 100000) }", "ctx:fail { code = 'x', message = '\\0\\255' }", "ctx:fail { code = 'x' }",
                "ctx:fail {}", "ctx:fail()", "ctx:fail('words')"):
        end = end_of(lab, owner, "start() effect() return " + lua, e1=lua)
        row = lab.row(owner.task("key"), owner, lua)
        assert (end.status, row.status, row.outcome, lab.effects()) == ("failed_permanent", "failed_permanent", end.outcome, 0), lua
        assert end.outcome["code"] and size(lab, owner, end) <= 4096, lua
