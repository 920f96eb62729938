"""Group D of the cases: outcomes and JSON."""

import json

import pytest

from lab import GATES, OWNERS


def end_of(lab, owner, lua, kind="key", timeout=20, **args):
    return lab.done(lab.enqueue(owner.task(kind), {"e1": "E1", "lua": lua, **args}, owner), timeout)


def refused(lab, owner, end, code):
    assert (end.status, end.outcome["code"], end.deliveries) == ("failed_permanent", code, 1), end
    assert end.outcome["message"]
    row, = lab.ledger(owner)
    assert (row.status, row.attempt, row.outcome, lab.effects(), lab.starts()) == ("failed_permanent", 1, end.outcome, 0, 1)


@OWNERS
@GATES
@pytest.mark.parametrize("letters,fits", [(4085, True), (4086, True), (4087, True), (4088, False), (4089, False), (100000, False)])
def test_D01_size_of_an_outcome(lab, owner, gate, letters, fits):
    lab.gate(gate)
    lab.worker()
    end = end_of(lab, owner, f"start() effect() return {{ s = string.rep('x', {letters}) }}")
    if not fits:
        return refused(lab, owner, end, "outcome_too_large")
    assert (end.status, end.outcome) == ("completed", {"s": "x" * letters})
    assert lab.value(f"SELECT octet_length(outcome::text) FROM {owner.table}") == letters + 9
    assert lab.effects() == 1


@OWNERS
@pytest.mark.parametrize("lua,fits", [
    ("{ s = string.rep('é', 2043) }", True), ("{ s = string.rep('é', 2044) }", False),                   # octets, not characters
    ("{ s = string.rep('\\n', 2043) }", True), ("{ s = string.rep('\\n', 2044) }", False),            # escapes as PostgreSQL writes them
    ("{ s = string.rep('\\1', 681) }", True), ("{ s = string.rep('\\1', 682) }", False),
    ("{ n = 1e300, s = string.rep('x', 3779) }", True), ("{ n = 1e300, s = string.rep('x', 3780) }", False),   # numeric is written out
    ("{ a = { 1, 2, 3 }, s = string.rep('x', 4071) }", True), ("{ a = { 1, 2, 3 }, s = string.rep('x', 4072) }", False)])
def test_D01_size_is_that_of_jsonb_text(lab, owner, lua, fits):
    lab.worker()
    end = end_of(lab, owner, f"start() effect() return {lua}")
    if not fits:
        return refused(lab, owner, end, "outcome_too_large")
    assert end.status == "completed" and lab.effects() == 1
    assert 4090 < lab.value(f"SELECT octet_length(outcome::text) FROM {owner.table}") <= 4096


@OWNERS
@GATES
@pytest.mark.parametrize("lua", ["{ s = 'a\\0b' }", "{ ['a\\0b'] = 1 }", "{ deep = { { s = '\\0' } } }", "{ s = '\\0' }", "{ ['\\0'] = true }"])
def test_D02_nul(lab, owner, gate, lua):
    lab.gate(gate)
    lab.worker()
    refused(lab, owner, end_of(lab, owner, f"start() effect() return {lua}"), "outcome_invalid")


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
@pytest.mark.parametrize("what", INVALID)
def test_D03_what_json_cannot_hold(lab, owner, what):
    worker = lab.worker()
    refused(lab, owner, end_of(lab, owner, f"start() effect() return {INVALID[what]}"), "outcome_invalid")
    assert end_of(lab, owner, "effect('again') return {}", kind="run").status == "completed"
    assert worker.running(), "the worker died of it"


@OWNERS
@pytest.mark.parametrize("what", ["0xff", "itself", "function"])
def test_D03_in_a_declared_failure(lab, owner, what):
    # The failure stands, and what is recorded of it can be stored.
    lab.worker()
    end = end_of(lab, owner, f"start() effect() return ctx:fail {{ code = 'declined', message = 'no', data = {INVALID[what]} }}")
    row, = lab.ledger(owner)
    assert (end.status, row.status, lab.effects(), lab.starts()) == ("failed_permanent", "failed_permanent", 0, 1)
    assert row.outcome == end.outcome and end.outcome["code"]


@OWNERS
@GATES
@pytest.mark.parametrize("lua", ["", "return", "return nil", "return {}"])
def test_D04_nothing_is_an_empty_object(lab, owner, gate, lua):
    lab.gate(gate)
    lab.worker()
    ends = [end_of(lab, owner, "start() effect() " + lua) for _ in (1, 2)]
    assert [(end.status, end.outcome, end.replay) for end in ends] == [("completed", {}, False), ("completed", {}, True)]
    assert lab.value(f"SELECT outcome::text FROM {owner.table}") == "{}"
    assert (lab.effects(), lab.starts()) == (1, 1)


@OWNERS
@pytest.mark.parametrize("lua", ["'x'", "''", "7", "0", "false", "true", "{ 1, 2 }", "{ {} }", "print", "coroutine.create(print)"])
def test_D04_other_kinds_of_results(lab, owner, lua):
    lab.worker()
    refused(lab, owner, end_of(lab, owner, f"start() effect() return {lua}"), "outcome_invalid")


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
@pytest.mark.parametrize("lua,text", [("args.l", "[]"), ("args.o", "{}"), ("args.n", "null")])
def test_D06_parts_of_args(lab, owner, lua, text):
    lab.worker()
    end = end_of(lab, owner, f"effect() return {{ it = {lua} }}", l=[], o={}, n=None)
    assert (end.status, lab.value(f"SELECT (outcome->'it')::text FROM {owner.table}")) == ("completed", text)


NUMBERS = {"123456789012345": "123456789012345", "9007199254740991": "9007199254740991", "-9007199254740991": "-9007199254740991",
           "0.1": "0.1", "1e300": "1" + "0" * 300, "100000000000000": "100000000000000", "0.1 + 0.2": "0.30000000000000004",
           "1e-7": "0.0000001", "5e-324": None, "1.7976931348623157e308": None, "1 / 3": "0.3333333333333333",
           "1e21": "1000000000000000000000", "2251799813685249.5": "2251799813685249.5", "9007199254740993LL": "9007199254740993",
           "-9223372036854775807LL": "-9223372036854775807"}


@OWNERS
@pytest.mark.parametrize("lua", NUMBERS)
def test_D07_numbers_are_exact(lab, owner, lua):
    lab.worker()
    for how in ("first", "gate", "ledger"):
        if how == "ledger":
            lab.flush_gate()
        end = end_of(lab, owner, f"start() effect() return {{ n = {lua} }}")
        assert (end.status, end.replay) == ("completed", how != "first")
        stored = lab.value("SELECT outcome->>'n' FROM umavez.finished_runs WHERE run_id = %s", end.run_id)
        if NUMBERS[lua]:
            assert stored == NUMBERS[lua], how
        else:
            assert float(stored) == float(lua), how
        assert "e+" not in lab.value(f"SELECT outcome::text FROM {owner.table}")
    assert lab.starts() == 1


@OWNERS
@pytest.mark.parametrize("number", [123456789012345, 9007199254740993, 0.1, 1e300, -0.5, 12345678901234567890])
def test_D07_numbers_of_args_come_back(lab, owner, number):
    lab.worker()
    end = end_of(lab, owner, "effect() return { n = args.n }", n=number)
    assert (end.status, lab.value("SELECT (outcome->'n') = (SELECT to_jsonb(%s::numeric)) FROM " + owner.table, number)) == ("completed", True)


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
@pytest.mark.parametrize("lua", ["error()", "error(nil)", "error({})", "error({ code = 'x' })", "error(setmetatable({}, { __tostring = error }))",
                                 "error(print)", "error(7)", "error('')", "error(string.rep('\\0', 1000000))",
                                 "error(setmetatable({}, { __tostring = function() return 5 end }))", "local function f() return f() + 1 end f()"])
def test_D08_odd_error_values(lab, owner, lua):
    worker = lab.worker()
    run = lab.enqueue(owner.task("later"), {"e1": "E1", "lua": "start() effect() " + lua}, owner)
    lab.failed_once(run)
    row, = lab.ledger(owner)
    assert (row.status, row.attempt, row.outcome["code"], lab.live(run).deliveries) == ("failed_retryable", 1, "error", 1)
    assert isinstance(row.outcome["message"], str) and worker.running() and lab.effects() == 0


@OWNERS
@pytest.mark.parametrize("lua", ["ctx:fail { code = string.rep('c', 100000), message = string.rep('m', 100000) }",
                                 "ctx:fail { code = 'x', message = '\\0\\255' }", "ctx:fail { code = 'x' }", "ctx:fail {}", "ctx:fail()",
                                 "ctx:fail('words')"])
def test_D08_odd_declared_failures(lab, owner, lua):
    lab.worker()
    end = end_of(lab, owner, "start() effect() return " + lua)
    row, = lab.ledger(owner)
    assert (end.status, row.status, row.outcome, lab.effects()) == ("failed_permanent", "failed_permanent", end.outcome, 0)
    assert end.outcome["code"] and lab.value(f"SELECT octet_length(outcome::text) FROM {owner.table}") <= 4096
