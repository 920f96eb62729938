"""Group I of the cases: tasks in Lua.

I01's code that does not come back to the loop is found by a supervisor: test_watch.py. Here are the time-outs of handlers that let the
loop live.

Rows of the cases here: I01, I02, I03, I04, I05, I06, I07, I08, I09, I10.
"""
import time

import pytest

from lab import GATES, OWNERS, PLATFORM, SLACK, TASKS

NEVER = "SELECT test_wait('never', 60000)"


@OWNERS
def test_I01_time_out_of_a_handler_that_waits(lab, owner):
    endless = [f'ctx.sql:one("{NEVER}")', "ctx:sleep('60s')", "repeat ctx.sql:one('SELECT pg_sleep(0.02)') until false",
               "pcall(ctx.sleep, ctx, '60s') repeat pcall(ctx.sql.one, ctx.sql, 'SELECT pg_sleep(0.05)') until false"]
    lab.latch("never", "a")
    lab.worker(pool_size=20)
    others = lab.enqueue_many(owner.task("run"), [{"n": n, "lua": "effect() wait('a') return {}"} for n in range(8)], owner)
    runs = [lab.enqueue(owner.task("brief"), {"e1": lua, "lua": "start() effect() " + lua}, owner) for lua in endless]
    for lua, run in zip(endless, runs):
        end = lab.done(run, 2 * (1 + 5) + 10)
        assert (end.status, end.outcome["code"], end.attempt, end.deliveries) == ("failed_permanent", "timeout", 2, 2), lua
        row = lab.row(owner.task("brief"), owner, lua)
        assert (row.status, row.outcome, lab.effects(lua)) == ("failed_permanent", end.outcome, 0)
    assert lab.starts() == 2 * len(endless)
    lab.open("a")
    assert {(lab.done(other).status, lab.finished(other).deliveries) for other in others} == {("completed", 1)}
    assert lab.effects() == 8


def test_I01_time_out_is_logged_with_task_and_run(lab):
    lab.latch("never")
    worker = lab.worker()
    run = lab.enqueue("e2.t_brief", {"e1": "E1", "lua": f'ctx.sql:one("{NEVER}")'})
    lab.done(run, 30)
    lines = [line for line in worker.text().splitlines() if run in line]
    assert any("timeout" in line and "e2.t_brief" in line for line in lines), worker.tail()


@OWNERS
def test_I01_a_timed_out_statement_is_cancelled_on_the_server(lab, owner):
    lab.latch("never")
    lab.worker(pool_size=2)
    run = lab.enqueue(owner.task("brief"), {"e1": "E1", "lua": f'effect() ctx.sql:one("{NEVER}")'}, owner)
    assert lab.done(run, 30).outcome["code"] == "timeout"
    lab.until(lambda: not [s for s in lab.sessions() if s.state == "active" and "test_wait" in s.query], 10 + SLACK, "the statement's end")
    # Its connection serves the next one: it was cancelled, not cut.
    pids = {s.pid for s in lab.sessions()}
    end = lab.done(lab.enqueue(owner.task("run"), {"lua": "effect() return { pid = ctx.sql:one('SELECT pg_backend_pid() AS pid').pid }"}, owner))
    assert end.outcome["pid"] in pids


@OWNERS
def test_I01_time_out_of_prepare(lab, owner):
    endless = ["ctx:sleep('60s')", "pcall(ctx.sleep, ctx, '60s') repeat pcall(ctx.sleep, ctx, '20ms') until false"]
    lab.env.tasks.add("e2.halves", owner="platform" if owner is PLATFORM else "tenant", key=["e1"], timeout="1s", lease="2s",
                      retry={"max_attempts": 2, "base": "100ms", "cap": "1s"}, handler=(TASKS / "lab_split.lua").read_text())
    lab.worker()
    for lua in endless:
        end = lab.done(lab.enqueue("e2.halves", {"e1": lua, "prepare": lua, "effect": "return {}"}, owner), 30)
        assert (end.status, end.outcome["code"], end.deliveries) == ("failed_permanent", "timeout", 2), lua
        assert "prepare" in end.outcome["message"]


@OWNERS
def test_I01_the_deadline_reaches_ctx(lab, owner):
    """What is left goes down while the handler waits; each start has the whole time-out; both halves have one of their own."""
    look = "{ left = ctx:remaining(), till = ctx.deadline - os.time() }"        # os.time counts whole seconds
    lab.env.tasks.add("e2.halves", owner="platform" if owner is PLATFORM else "tenant", key=["e1"], timeout="30s",
                      handler=(TASKS / "lab_split.lua").read_text())
    lab.worker()
    lua = f"effect() local first = {look} ctx:sleep('300ms') return {{ first = first, second = {look} }}"
    seen = lab.done(lab.enqueue(owner.task("run"), {"lua": lua}, owner)).outcome
    assert 0 < seen["second"]["left"] <= seen["first"]["left"] - 0.29 and seen["first"]["left"] <= 20
    assert 0 < seen["first"]["till"] <= 22
    lab.allow("settled_effect")
    halves = lab.done(lab.enqueue("e2.halves", {"e1": "E1", "prepare": f"return {look}", "effect": f"return {{ prepare = prepared, effect = {look} }}"}, owner))
    for half in ("prepare", "effect"):
        assert 20 < halves.outcome[half]["left"] <= 30 and 20 < halves.outcome[half]["till"] <= 32, halves.outcome


REFUSED = [
    "COMMIT", "commit", "CoMmIt WORK", "/* x */ rollback", "/* a /* b */ c */ COMMIT", "-- x\nEND", "BEGIN", "START TRANSACTION", "SAVEPOINT s",
    "RELEASE s", "RELEASE SAVEPOINT s", "ROLLBACK TO s", "ROLLBACK TO SAVEPOINT s", "ABORT", "END WORK", "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'",
    "ROLLBACK PREPARED 'x'", "SELECT 1; COMMIT", ";COMMIT", "  \t\r\n COMMIT", "SELECT 1;; COMMIT", "SELECT ';'; COMMIT", "SELECT $$;$$; COMMIT", "SELECT $a$ $$ $a$; ROLLBACK",
    "SELECT E'\\\\'';'; COMMIT", "SELECT 'a' -- '\n; COMMIT", "COMMIT AND CHAIN", "\fCOMMIT", "COPY effects TO STDOUT", "COPY effects FROM STDIN",
]
ALLOWED = ["SELECT ';COMMIT'", "SELECT $$; COMMIT $$", "SELECT 1;", "SELECT 1; -- COMMIT", "SELECT 1 /* ; COMMIT */", "SELECT 1 AS \"commit; begin\"",
           "SELECT 1 AS commit", "WITH x AS (SELECT 1) SELECT * FROM x", "(SELECT 1)", "/* COMMIT */ SELECT 1", "VALUES (1)", "TABLE effects",
           "SELECT E'\\\\';", "EXPLAIN SELECT 1", "SELECT 'it''s; COMMIT'"]


def statement_log(lab):
    """The lines that the server has logged of this database's statements."""
    return "\n".join(line for line in lab.env.pg.log_text().splitlines() if f"@{lab.env.db.name} " in line or not line.startswith("20"))


def refuses(lab, owner, statements, kind="run"):
    """Each statement is a Lua error, is not sent, and leaves the transaction as it was."""
    lab.sql(f"ALTER DATABASE {lab.env.db.name} SET log_statement = 'all'")
    worker = lab.worker()
    lua = """effect()
             local ok, problem = pcall(ctx.sql.exec, ctx.sql, args.text)
             local good = ctx.sql:one("SELECT 'control_' || $1 AS it, count(*)::int AS n FROM effects WHERE run_id = $2::text::uuid", args.mark, ctx.run_id)
             return { ok = ok, message = type(problem) == 'table' and problem.message or tostring(problem), n = good.n, it = good.it }"""
    runs = {}
    for n, text in enumerate(statements):
        mark = f"mark{n:03d}x"
        # The mark goes where no statement changes its sense by it.
        marked = text + f" /* {mark} */" if not text.rstrip().endswith("\n") else text
        runs[text] = (mark, lab.enqueue(owner.task(kind), {"lua": lua, "text": marked, "mark": mark}, owner))
    ends = {text: (mark, lab.done(run)) for text, (mark, run) in runs.items()}
    log = statement_log(lab)
    for text, (mark, end) in ends.items():
        assert end.status == "completed", (text, end.outcome)
        assert end.outcome["ok"] is False and end.outcome["n"] == 1, (text, end.outcome)
        assert mark + " */" not in log, f"{text!r} was sent"
        assert len(end.outcome["message"]) > 15, (text, end.outcome)
    assert "control_" in log, "the log shows no statements: it proves nothing"
    return worker, {text: end.outcome["message"] for text, (_, end) in ends.items()}


@OWNERS
def test_I02_transaction_statements_are_refused(lab, owner):
    _, messages = refuses(lab, owner, REFUSED)
    # The message names the rule.
    assert all("is refused: " in message or "more than one statement" in message for message in messages.values()), messages


@OWNERS
def test_I02_unswallowed_refusal_undoes_the_run(lab, owner):
    lab.worker()
    for kind, text in (("once", "COMMIT"), ("once", "SELECT 1; COMMIT")):
        end = lab.done(lab.enqueue(owner.task(kind), {"e1": text, "lua": f"start() effect() ctx.sql:exec('{text}') return {{}}"}, owner))
        assert (end.status, lab.effects(), end.outcome["code"]) == ("failed_permanent", 0, "error")


@OWNERS
def test_I02_harmless_statements_pass(lab, owner):
    lab.worker()
    runs = [(text, lab.enqueue(owner.task("run"), {"lua": "effect() ctx.sql:query(args.text) return {}", "text": text}, owner)) for text in ALLOWED]
    for text, run in runs:
        end = lab.done(run)
        assert end.status == "completed", (text, end.outcome)


SESSION = ["SET search_path = pg_catalog", "set session statement_timeout = 5", "SET TIME ZONE 'America/Sao_Paulo'", "RESET ALL", "RESET search_path", "LISTEN c", "UNLISTEN *",
           "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE ALL", "DECLARE c CURSOR WITH HOLD FOR SELECT 1", "DECLARE c NO SCROLL CURSOR WITH HOLD FOR SELECT 1", "CREATE TEMP TABLE x (n int)",
           "CREATE TEMPORARY TABLE x (n int)", "CREATE LOCAL TEMP TABLE x (n int)", "CREATE TEMP TABLE x AS SELECT 1", "SELECT 1 INTO TEMP x", "CREATE TEMP SEQUENCE x", "CREATE TEMP VIEW x AS SELECT 1",
           "SET ROLE postgres", "SET SESSION AUTHORIZATION DEFAULT", "RESET ROLE", "DISCARD ALL", "LOAD 'auto_explain'", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
           "SELECT 1; SET x.y = 1", "SET TRANSACTION READ ONLY"]


@OWNERS
def test_I03_session_statements_are_refused(lab, owner):
    refuses(lab, owner, SESSION)


LEFT = {
    "set_config": ("SELECT set_config('app.left', 'mine', false)", "SELECT coalesce(current_setting('app.left', true), '') IN ('') AS clean"),
    "search_path": ("SELECT set_config('search_path', 'pg_catalog', false)", "SELECT current_setting('search_path') LIKE '%public%' AS clean"),
    "time zone": ("SELECT set_config('timezone', 'America/Sao_Paulo', false)", "SELECT current_setting('timezone') = 'UTC' AS clean"),
    "role": ("SELECT set_config('role', 'umavez_worker', false)", "SELECT current_user = session_user AS clean"),
    "statement_timeout": ("SELECT set_config('statement_timeout', '1', false), pg_sleep(0)", "SELECT current_setting('statement_timeout') = '0' AS clean"),
    "advisory lock": ("SELECT pg_advisory_lock(7)", "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objid = 7) AS clean"),
    "shared advisory lock": ("SELECT pg_advisory_lock_shared(7)", "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objid = 7) AS clean"),
    "umavez.tenant_id": ("SELECT set_config('umavez.tenant_id', '49', false)", "SELECT coalesce(current_setting('umavez.tenant_id', true), '') IN ('', '1') AS clean"),
    "temporary table": ("SELECT make_temp()", "SELECT to_regclass('pg_temp.left_over') IS NULL AS clean"),
    "temporary view": ("SELECT make_temp_view()", "SELECT to_regclass('pg_temp.left_over') IS NULL AS clean"),
    "temporary type": ("SELECT make_temp_type()", "SELECT to_regtype('pg_temp.left_over') IS NULL AS clean"),
    "temporary function": ("SELECT make_temp_function()", "SELECT to_regproc('pg_temp.left_over') IS NULL AS clean"),
    "prepared statement": ("SELECT make_prepared()", "SELECT NOT EXISTS (SELECT FROM pg_prepared_statements WHERE name = 'left_over') AS clean"),
    "listen": ("SELECT make_listen()", "SELECT NOT EXISTS (SELECT FROM pg_listening_channels() c WHERE c = 'left_over') AS clean"),
    "cursor": ("SELECT make_cursor()", "SELECT NOT EXISTS (SELECT FROM pg_cursors WHERE name = 'left_over') AS clean"),
}
MAKERS = """
CREATE FUNCTION make_temp() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE left_over (n int); END $$;
CREATE FUNCTION make_temp_view() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP VIEW left_over AS SELECT 1; END $$;
CREATE FUNCTION make_temp_type() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE DOMAIN pg_temp.left_over AS int CHECK (value < 9); END $$;
CREATE FUNCTION make_temp_function() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE FUNCTION pg_temp.left_over() RETURNS int LANGUAGE sql AS 'SELECT 1'; END $$;
CREATE FUNCTION make_prepared() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'PREPARE left_over AS SELECT 1'; END $$;
CREATE FUNCTION make_listen() RETURNS void LANGUAGE plpgsql AS $$ BEGIN LISTEN left_over; END $$;
CREATE FUNCTION make_cursor() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DECLARE left_over CURSOR WITH HOLD FOR SELECT 1'; END $$;
"""


@OWNERS
@pytest.mark.parametrize("ending", ["return {}", "return ctx:fail { code = 'declined', message = 'no' }", "error('x')"], ids=["completes", "declares a failure", "errors"])
def test_I03_state_left_by_functions_is_gone(lab, owner, ending):
    lab.sql(MAKERS)
    lab.worker(pool_size=1)       # one connection: what a run leaves behind the next one finds
    for what, (leave, look) in LEFT.items():
        one = lab.enqueue(owner.task("once"), {"e1": what, "lua": f"effect() ctx.sql:query(args.leave) {ending}", "leave": leave}, owner)
        first = lab.done(one)
        # pg_cursors and others may be refused by the server itself: then nothing is left either.
        if "fail" in ending or "error" in ending:
            assert first.status == "failed_permanent", what
        else:
            assert first.status == "completed" or first.outcome["code"] == "sql", (what, first.outcome)
        if "lock" in what:
            lab.until(lambda: lab.value("SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND objsubid = 1)"), 1 + lab.SLACK / 5, "lock 7 to be free")
        end = lab.done(lab.enqueue(owner.task("run"), {"lua": "effect() return { clean = ctx.sql:one(args.look).clean }", "look": look}, owner))
        assert (end.status, end.outcome) == ("completed", {"clean": True}), what


def test_I03_lost_connection_state_after_a_crash(lab):
    # The lock's owner is killed while it holds it: the server frees it, the key's next run gets on.
    lab.latch("a")
    worker = lab.worker(pool_size=1)
    run = lab.enqueue("e2.t_key", {"e1": "E1", "lua": "start() effect() ctx.sql:query('SELECT pg_advisory_lock(7)') reached('a') wait('a') return {}"})
    lab.reached("a")
    worker.kill()
    lab.until(lambda: lab.value("SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND objsubid = 1)"), 5, "lock 7 to be free")
    lab.open("a")
    lab.worker()
    assert lab.done(run).status == "completed"


KEEPER = """local kept
return function(ctx, args)
  ctx.sql:exec("INSERT INTO effects (run_id, task, tenant_id, key) VALUES ($1::text::uuid, $2, $3, $4)", ctx.run_id, ctx.task, ctx.tenant_id, ctx.run_id)
  if not kept then kept = { ctx = ctx, sql = ctx.sql } return {} end
  local problems = {}
  local calls = {
    query = function() return kept.ctx.sql:query("SELECT 'stale_mark'") end, one = function() return kept.sql:one("SELECT 'stale_mark'") end,
    exec = function() return kept.sql:exec("INSERT INTO effects (run_id, task, key) VALUES (gen_random_uuid(), 'stale_mark', 'stale_mark')") end,
    savepoint = function() return kept.sql:savepoint(function() end) end,
    enqueue = function() return kept.ctx:enqueue("e2.t_run", {}) end, sleep = function() return kept.ctx:sleep("1ms") end,
    fail = function() return kept.ctx:fail { code = "stale_mark" } end, retry = function() return kept.ctx:retry {} end,
  }
  for name, call in pairs(calls) do
    local ok, problem = pcall(call)
    problems[name] = ok and "NO ERROR" or (type(problem) == "table" and problem.message or tostring(problem))
  end
  ctx.sql:one("SELECT 1")
  return problems
end
"""


@pytest.mark.parametrize("first", ["completed", "failed"])
def test_I04_kept_ctx(lab, first):
    text = KEEPER if first == "completed" else KEEPER.replace("return {} end", "error('first') end", 1)
    lab.env.tasks.add("e2.t_keeper", owner="tenant", handler=text, retry={"max_attempts": 1})
    lab.sql(f"ALTER DATABASE {lab.env.db.name} SET log_statement = 'all'")
    lab.worker()
    one = lab.done(lab.enqueue("e2.t_keeper", {}, lab.tenant))
    assert one.status == ("completed" if first == "completed" else "failed_permanent")
    two = lab.done(lab.enqueue("e2.t_keeper", {}, lab.other_tenant))
    assert two.status == "completed"
    assert len(two.outcome) == 8 and all("run is over" in problem for problem in two.outcome.values()), two.outcome
    assert "stale_mark" not in statement_log(lab).replace("INSERT INTO umavez", "")
    assert lab.sql("SELECT tenant_id FROM effects WHERE run_id = %s::uuid", two.run_id) == [(2,)]
    assert lab.value("SELECT count(*) FROM umavez.runs") == 0


COROUTINES = """
  start()
  local trail = {}
  local function saw(what) trail[#trail + 1] = what end
  local walk = coroutine.wrap(function(a)
    saw(a)
    effect()
    local b = coroutine.yield("one")
    saw(b)
    local inner = coroutine.wrap(function()
      local n = ctx.sql:one("SELECT 40 + 2 AS n").n
      coroutine.yield(n)
      ctx:sleep("5ms")
      coroutine.yield(ctx.sql:one("SELECT 'deep' AS t").t)
    end)
    saw(inner())
    coroutine.yield("two")
    saw(inner())
    for row in (function() local rows, i = ctx.sql:query("SELECT g AS n FROM generate_series(1, 3) g"), 0
                return function() i = i + 1 ctx.sql:one("SELECT 1") return rows[i] end end)() do saw(row.n) end
    return "three"
  end)
  saw(walk("first"))
  saw(walk("second"))
  saw(walk())
  local co = coroutine.create(function() ctx.sql:one("SELECT pg_sleep(0.01)") error("inner", 0) end)
  local ok, problem = coroutine.resume(co)
  saw(tostring(ok)) saw(tostring(problem)) saw(coroutine.status(co))
  return { trail = trail }
"""


@OWNERS
def test_I05_own_coroutines(lab, owner):
    lab.worker()
    runs = lab.enqueue_many(owner.task("run"), [{"lua": COROUTINES, "n": n} for n in range(10)], owner)
    for run in runs:
        end = lab.done(run)
        assert end.status == "completed", end.outcome
        assert end.outcome["trail"] == ["first", "one", "second", 42, "two", "deep", 1, 2, 3, "three", "false", "inner", "dead"]
    assert (lab.effects(), lab.starts()) == (10, 10)


@OWNERS
def test_I05_where_no_yield_can_pass(lab, owner):
    # Waiting inside a C function that calls Lua is explained, or works: never a hang, never a broken worker.
    worker = lab.worker()
    for lua in ("table.sort({ 3, 1, 2 }, function(a, b) ctx.sql:one('SELECT 1') return a < b end)", "string.gsub('abc', '.', function() ctx.sql:one('SELECT 1') end)",
                "local it = setmetatable({}, { __tostring = function() ctx.sql:one('SELECT 1') return '' end }) tostring(it)"):
        end = lab.done(lab.enqueue(owner.task("once"), {"e1": lua, "lua": f"effect() {lua} return {{}}"}, owner), 40)
        assert end.status in ("completed", "failed_permanent") and worker.running(), lua
        assert lab.effects(lua) == (end.status == "completed")
        if end.status == "failed_permanent":
            assert end.outcome["code"] == "error" and len(end.outcome["message"]) > 20, (lua, end.outcome)


FAIL = "{ code = 'declined', message = 'no' }"
DECLARED = ["return ctx:fail " + FAIL, f"pcall(ctx.fail, ctx, {FAIL}) return {{}}", f"pcall(ctx.fail, ctx, {FAIL}) return {{ code = 'fine' }}",
            f"ctx:fail {FAIL} effect('after') return {{}}", f"pcall(ctx.fail, ctx, {FAIL}) pcall(effect, 'after') return {{}}", f"pcall(ctx.fail, ctx, {FAIL}) error('other')",
            f"pcall(ctx.fail, ctx, {FAIL}) pcall(ctx.retry, ctx, {{}}) return {{}}", f"pcall(ctx.fail, ctx, {FAIL}) pcall(ctx.fail, ctx, {{ code = 'second' }}) return {{}}",
            f"coroutine.wrap(function() ctx:fail {FAIL} end)() return {{}}"]


def declared(lab, owner, cases):
    runs = {lua: lab.enqueue(owner.task("key"), {"e1": lua, "lua": "start() effect() " + lua}, owner) for lua in cases}
    for lua, run in runs.items():
        end = lab.done(run)
        assert (end.status, end.outcome["code"], end.outcome["message"]) == ("failed_permanent", "declined", "no"), lua
        row = lab.row(owner.task("key"), owner, lua)
        assert (row.status, row.outcome, row.attempt) == ("failed_permanent", end.outcome, 1), lua
    assert (lab.effects(), lab.starts()) == (0, len(runs))


@OWNERS
@GATES
def test_I06_a_declared_failure_stands(lab, owner, gate):
    lab.gate(gate)
    lab.worker()
    declared(lab, owner, DECLARED)


@OWNERS
def test_I07_parameters_are_bound_exactly(lab, owner):
    lab.sql("CREATE TABLE t (a text, b text, c int, d bigint, e float8, f boolean, g text, h numeric, i text, j text)")
    lab.worker()
    lua = """effect()
      ctx.sql:exec("INSERT INTO t (a, b, c, d, e, f, g) VALUES ($1, $2, $3, $4, $5, $6, $7)", "'); DROP TABLE t; --", nil, 7, 100000000000000, 0.1 + 0.2, true, nil)
      ctx.sql:exec("UPDATE t SET h = $1::numeric, i = $2, j = $3", 1e300, "$1 %s \\\\ \\" '", "é😀\\n")
      local row = ctx.sql:one("SELECT a, b, c, d, e, f, g, d = 100000000000000 AS same FROM t")
      return { a = row.a, b_nil = row.b == nil, c = row.c, d = row.d, e = row.e, f = row.f, g_nil = row.g == nil, same = row.same }"""
    end = lab.done(lab.enqueue(owner.task("once"), {"e1": "E1", "lua": lua}, owner))
    assert end.status == "completed", end.outcome
    assert end.outcome == {"a": "'); DROP TABLE t; --", "b_nil": True, "c": 7, "d": 100000000000000, "e": 0.1 + 0.2, "f": True, "g_nil": True, "same": True}
    row, = lab.sql("SELECT a, b, c, d::text, e::text, f, g, h = 1e300::numeric AS h, i, j FROM t")
    assert tuple(row) == ("'); DROP TABLE t; --", None, 7, "100000000000000", "0.30000000000000004", True, None, True, "$1 %s \\ \" '", "é😀\n")


PARAMETERS = [
    ("1e15", "bigint", "1000000000000000"), ("2^53", "bigint", "9007199254740992"), ("-2^53", "bigint", "-9007199254740992"), ("0", "bigint", "0"),
    ("-0.0", "float8", "-0"), ("1e-7", "float8", "1e-07"), ("5e-324", "float8", "5e-324"), ("1/3", "float8", "0.3333333333333333"), ("1e300", "float8", "1e+300"),
    ("9007199254740993LL", "bigint", "9007199254740993"), ("-9223372036854775808LL", "bigint", "-9223372036854775808"), ("false", "boolean", "false"), ("1.5", "numeric", "1.5"),
    ("100000000000000", "text", "100000000000000"), ("32767", "smallint", "32767"), ("''", "text", ""), ("'NULL'", "text", "NULL")]


@OWNERS
def test_I07_one_parameter(lab, owner):
    lab.sql("".join(f"CREATE TABLE t_{n} (v {column});" for n, (_, column, _) in enumerate(PARAMETERS)))
    lab.worker()
    runs = [lab.enqueue(owner.task("once"), {"e1": str(n), "lua": f"effect() ctx.sql:exec('INSERT INTO t_{n} VALUES ($1)', {value}) return {{}}"}, owner)
            for n, (value, _, _) in enumerate(PARAMETERS)]
    for n, (run, (value, column, text)) in enumerate(zip(runs, PARAMETERS)):
        end = lab.done(run)
        assert end.status == "completed", (value, column, end.outcome)
        assert lab.value(f"SELECT v::text FROM t_{n}") == text, (value, column)


@OWNERS
def test_I08_nul_in_a_parameter(lab, owner):
    lab.sql("CREATE TABLE t (v text)")
    lab.worker()
    for call, number in (("ctx.sql:exec('INSERT INTO t VALUES ($1)', 'a\\0b')", "$1"), ("ctx.sql:exec('INSERT INTO t SELECT $1 WHERE $2 > 0', 'ok', 'a\\0b')", "$2"),
                         ("ctx.sql:query('INSERT INTO t VALUES ($1) RETURNING v', '\\0')", "$1"), ("ctx.sql:one('INSERT INTO t VALUES ($1) RETURNING v', 'b\\0')", "$1")):
        end = lab.done(lab.enqueue(owner.task("once"), {"e1": call, "lua": f"start() effect() {call} return {{}}"}, owner))
        assert (end.status, end.outcome["code"], lab.effects(call)) == ("failed_permanent", "error", 0), call
        assert number in end.outcome["message"] and "NUL" in end.outcome["message"], end.outcome
        # Nothing was sent, so nothing is broken: a handler that catches it may go on.
        caught = lab.done(lab.enqueue(owner.task("once"), {"e1": "caught " + call, "lua": f"effect() pcall(function() {call} end) return {{}}"}, owner))
        assert (caught.status, lab.effects("caught " + call)) == ("completed", 1), call
    assert lab.value("SELECT count(*) FROM t") == 0


@OWNERS
def test_I08_nul_in_the_statement(lab, owner):
    lab.worker()
    end = lab.done(lab.enqueue(owner.task("once"), {"e1": "E1", "lua": "effect() ctx.sql:exec('SELECT 1 \\0; DROP TABLE effects') return {}"}, owner))
    assert (end.status, end.outcome["code"], lab.effects()) == ("failed_permanent", "error", 0)


UNIQUE = "CREATE TABLE u (n int UNIQUE, tag text); INSERT INTO u VALUES (1, 'old')"
SAVEPOINTS = {
    "one": ("""local ok = pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (2, 'in')") ctx.sql:exec("INSERT INTO u VALUES (1, 'in')") end)
               return { ok = ok }""", {"ok": False}, []),
    "its result": ("""local n = ctx.sql:savepoint(function() ctx.sql:exec("INSERT INTO u VALUES (2, 'in')") return 7 end) return { n = n }""", {"n": 7}, [2]),
    "nested": ("""local ok = {}
                  ok[1] = pcall(ctx.sql.savepoint, ctx.sql, function()
                    ctx.sql:exec("INSERT INTO u VALUES (2, 'outer')")
                    ok[2] = pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (3, 'inner')") ctx.sql:exec("INSERT INTO u VALUES (1, 'inner')") end)
                    ok[3] = pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (4, 'inner')") end)
                  end) return { ok = ok }""", {"ok": [True, False, True]}, [2, 4]),
    "outer fails": ("""local ok = {}
                  ok[1] = pcall(ctx.sql.savepoint, ctx.sql, function()
                    ok[2] = pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (3, 'inner')") end)
                    ctx.sql:exec("INSERT INTO u VALUES (1, 'outer')")
                  end) return { ok = ok }""", {"ok": [False, True]}, []),
    "lua error": ("""local ok, e = pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (2, 'in')") error("mine", 0) end)
                     return { ok = ok, e = tostring(e) }""", {"ok": False, "e": "mine"}, []),
    "swallowed inside": ("""local ok = pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (2, 'in')") pcall(ctx.sql.exec, ctx.sql, "INSERT INTO u VALUES (1, 'in')") end)
                            return { ok = ok }""", {"ok": False}, []),
    "a hundred": ("""local n = 0 for i = 1, 100 do if pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES ($1, 'in')", i) end) then n = n + 1 end end
                     return { n = n }""", {"n": 99}, list(range(2, 101))),
    "error object": ("""local ok, e = pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (1, 'in')") end)
                        return { ok = ok, sqlstate = e.sqlstate, constraint = e.constraint }""", {"ok": False, "sqlstate": "23505", "constraint": "u_n_key"}, []),
}


@OWNERS
def test_I09_savepoint(lab, owner):
    lab.worker()
    for n, (what, (lua, outcome, numbers)) in enumerate(SAVEPOINTS.items()):
        lab.sql("DROP TABLE IF EXISTS u;" + UNIQUE)
        end = lab.done(lab.enqueue(owner.task("once"), {"e1": what, "lua": "start() effect() " + lua}, owner))
        assert (end.status, end.outcome) == ("completed", outcome), what
        assert [row.n for row in lab.sql("SELECT n FROM u WHERE tag <> 'old' ORDER BY n")] == numbers, what
        assert (lab.effects(what), lab.starts(), lab.row(owner.task("once"), owner, what).attempt) == (1, n + 1, 1)


@OWNERS
def test_I09_effects_after_a_savepoint(lab, owner):
    lab.sql(UNIQUE)
    lab.worker()
    lua = """pcall(ctx.sql.savepoint, ctx.sql, function() ctx.sql:exec("INSERT INTO u VALUES (1, 'in')") end) effect() return {}"""
    end = lab.done(lab.enqueue(owner.task("once"), {"e1": "E1", "lua": lua}, owner))
    assert (end.status, lab.effects()) == ("completed", 1)


@OWNERS
def test_I09_declared_failure_inside_a_savepoint(lab, owner):
    lab.worker()
    declared(lab, owner, [f"ctx.sql:savepoint(function() effect() ctx:fail {FAIL} end) return {{}}", f"pcall(ctx.sql.savepoint, ctx.sql, function() ctx:fail {FAIL} end) return {{}}",
                          f"ctx.sql:savepoint(function() ctx.sql:savepoint(function() return ctx:fail {FAIL} end) end) return {{}}"])


POLICY = """CREATE TABLE notes (tenant_id bigint, text text);
ALTER TABLE notes ENABLE ROW LEVEL SECURITY; ALTER TABLE notes FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON notes USING (tenant_id = nullif(current_setting('umavez.tenant_id', true), '')::bigint);
INSERT INTO notes VALUES (7, 'of 7'), (8, 'of 8'), (NULL, 'of nobody')"""


@pytest.mark.parametrize("broken,gate", [(None, "absent"), (7, "valkey"), (8, "valkey"), ("platform", "absent")])
def test_I10_tenant_of_a_shared_connection(lab, broken, gate):
    lab.sql(POLICY)
    lab.gate(gate)
    lab.worker(pool_size=1)
    lua = """effect(ctx.run_id)
             local rows = ctx.sql:query("SELECT text FROM notes ORDER BY 1")
             if args.breaks and ctx.attempt == 1 then ctx.sql:exec("SELECT 1/0") end
             local texts = {} for i, row in ipairs(rows) do texts[i] = row.text end
             return { setting = ctx.sql:one("SELECT coalesce(current_setting('umavez.tenant_id', true), '') AS s").s, texts = table.concat(texts, ","), pid = ctx.sql:one("SELECT pg_backend_pid() AS p").p }"""
    pids = set()
    for who in (7, 8, "platform", 8, "platform", 7, "platform"):
        tenant = None if who == "platform" else who
        end = lab.done(lab.env.enqueue("e2.p_run" if tenant is None else "e2.t_run", {"lua": lua, "breaks": who == broken}, tenant=tenant))
        assert end.status == "completed", end.outcome
        assert (end.outcome["setting"], end.outcome["texts"]) == (("", "") if tenant is None else (str(who), f"of {who}"))
        pids.add(end.outcome["pid"])
    assert len(pids) == 1, "not one connection: the test proves nothing"


@OWNERS
def test_methods_called_with_a_dot_are_explained(lab, owner):
    calls = {"ctx.enqueue('a.b', {})": "ctx:enqueue", "ctx.sleep('1s')": "ctx:sleep", "ctx.remaining()": "ctx:remaining", "ctx.fail { code = 'x' }": "ctx:fail", "ctx.retry()": "ctx:retry",
             "ctx.sql.query('SELECT 1')": "ctx.sql:query", "ctx.sql.one('SELECT 1')": "ctx.sql:one", "ctx.sql.exec('SELECT 1')": "ctx.sql:exec", "ctx.sql.savepoint(print)": "ctx.sql:savepoint",
             "ctx.log.info('x')": "ctx.log:info"}
    lab.worker()
    runs = {call: lab.enqueue(owner.task("once"), {"e1": call, "lua": call}, owner) for call in calls}
    for call, run in runs.items():
        end = lab.done(run)
        assert end.status == "failed_permanent", (call, end)
        assert f"{calls[call]} is called with a colon" in end.failure["message"], (call, end.failure)
