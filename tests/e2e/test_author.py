"""`umavez test`: what the author of a task gets, from outside."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.http import Door, new_key
from support.procs import ROOT, remove_dir, wait_until
from support.servers import Database, clean_environment, umavez_bin

NEW = ["refund.lua", "refund_spec.lua", "manifest.lua"]
MANIFEST = """
return { tasks = {
  note   = { owner = "platform", key = { "name" }, retention = "1h" },
  plain  = { owner = "tenant", history = false, retry = { max_attempts = 2, base = "1m" } },
  leaky  = { owner = "platform", key = { "name" } },
  chain  = { owner = "platform", queue = "links" },
} }
"""
HANDLERS = {
    "note": 'return function(ctx, args) ctx.sql:exec("INSERT INTO notes (name) VALUES ($1)", args.name) return { name = args.name } end',
    "plain": """
local clock = require("clock")
return function(ctx, args)
  if args.wait then return ctx:retry { after = "5m" } end
  if args.bad then error("the handler's own fault") end
  ctx.sql:exec("INSERT INTO notes (name) VALUES ($1)", clock.now())
end""",
    "leaky": """
local done = 0
return { prepare = function() done = done + 1 end, effect = function() return { done = done } end }""",
    "chain": """
return function(ctx, args)
  ctx.sql:exec("INSERT INTO notes (name) VALUES ($1)", "link " .. args.left)
  if args.left > 0 then ctx:enqueue("app.chain", { left = args.left - 1 }) end
  ctx:enqueue("somebody.elses", { a = { b = 1, c = 2 } })
end""",
}
SCHEMA = """
CREATE TABLE notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL,
                    shout text GENERATED ALWAYS AS (upper(name)) STORED);
CREATE TABLE kinds (name text PRIMARY KEY);
INSERT INTO kinds VALUES ('built in');
INSERT INTO notes (name) VALUES ('from the schema');
"""


class Project:
    def __init__(self, directory, server):
        self.directory, self.server = Path(directory), server
        tasks = self.directory / "tasks" / "app"
        tasks.mkdir(parents=True)
        (tasks / "manifest.lua").write_text(MANIFEST)
        for name, text in HANDLERS.items():
            (tasks / f"{name}.lua").write_text(text)
        (tasks / "schema.sql").write_text(SCHEMA)
        (tasks.parent / "clock.lua").write_text('return { now = function() return "real" end }\n')

    def spec(self, body, name="app_spec.lua"):
        (self.directory / "tasks" / name).write_text(
            'local t = require("umavez.testing")\ndescribe("app", function()\n' + body + "\nend)\n")

    def start(self, *argv):
        env = {**clean_environment(), **({"UMAVEZ_TEST_DATABASE_URL": self.server} if self.server else {})}
        return subprocess.Popen([str(umavez_bin()), "test", *argv], cwd=self.directory, env=env, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def __call__(self, *argv, code=0):
        child = self.start(*argv)
        out, _ = child.communicate(timeout=240)
        assert child.returncode == code, out
        return out


@pytest.fixture
def server(pg):
    admin = Database(pg, "postgres")
    yield admin
    admin.close()


@pytest.fixture
def project(server, tmp_path):
    return Project(tmp_path, server.url("postgres"))


def databases(server):
    return server.q("SELECT datname FROM pg_database WHERE datname ~ '^umavez_test_[0-9]'")


def test_the_example_tasks_are_tested(server):
    env = {**clean_environment(), "UMAVEZ_TEST_DATABASE_URL": server.url("postgres")}
    done = subprocess.run([str(umavez_bin()), "test", "--output", "TAP"], cwd=ROOT, env=env, text=True, capture_output=True,
                          timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert len(lines) >= 13 and "not ok" not in done.stdout, done.stdout
    for point in ("before effect", "before commit", "after commit"):
        assert any(f"worker dies {point}" in line for line in lines), done.stdout


def test_each_test_begins_with_the_schemas_rows(project):
    one = """
  it("test %d", function()
    assert.same({ { name = "from the schema" } }, t.db:query("SELECT name FROM notes"))
    t:run("app.note", { name = "n" })
    t:enqueue("app.note", { name = "left in the queue" })
    assert.equal(2, t.db:one("SELECT id FROM notes WHERE name = 'n'").id)
    assert.equal("N", t.db:one("SELECT shout FROM notes WHERE name = 'n'").shout)
    assert.equal(1, #t.db:query("SELECT FROM kinds"))
    t.db:exec("DELETE FROM kinds")
    assert.equal(1, #t.db:query("SELECT FROM umavez.runs"))
  end)"""
    project.spec("".join(one % i for i in range(3)))
    assert "3 successes" in project()


def test_the_applications_schema_comes_first(project):
    """A tenants table of the application's own, which umavez's keys refer to; tenants that only the application can make."""
    (project.directory / "app.sql").write_text("""
      CREATE SCHEMA app;
      CREATE TABLE app.accounts (id bigint PRIMARY KEY, name text NOT NULL);
      INSERT INTO app.accounts VALUES (7, 'the schema''s');""")
    project.spec("""
  it("knows its tenants", function()
    t:run("app.plain", {}, { tenant = 7 })
    local ok, err = pcall(t.run, t, "app.plain", {}, { tenant = 8 })
    assert.is_false(ok)
    assert.matches("the tenant 8 is not there, and cannot be made: .*name.*insert it in the spec", err)
    t.db:exec("INSERT INTO app.accounts VALUES (8, 'mine')")
    t:run("app.plain", {}, { tenant = 8 })
    assert.equal(2, t.db:one("SELECT count(DISTINCT tenant_id) AS n FROM umavez.idempotency_keys").n)
  end)""")
    assert "1 success" in project("--schema", "app.sql", "--tenants-table", "app.accounts")
    assert "cannot read the schema file nowhere.sql" in project("--schema", "nowhere.sql", code=2)


def test_outcomes_and_faults_of_handlers(project):
    project.spec("""
  it("gives outcome and run, whatever the history", function()
    local outcome, run = t:run("app.plain", {}, { tenant = 9 })
    assert.same({}, outcome)
    assert.equal("completed", run.status)
    assert.equal(1, run.attempt)
    assert.is_false(run.replay)
  end)
  it("raises the handler's fault", function()
    local ok, err = pcall(t.run, t, "app.plain", { bad = true }, { tenant = 9 })
    assert.is_false(ok)
    assert.matches("app.plain ended with the code error: .*the handler's own fault", err)
    assert.matches("traceback: ", err)
  end)
  it("goes on after a fault that was expected", function()
    local outcome, run = t:run("app.plain", { bad = true }, { tenant = 9, may_fail = true })
    assert.is_nil(outcome)
    assert.equal("retry", run.status)
    assert.equal("error", run.failure.code)
    assert.same({ completed = 0, failed = 0, retry = 0 }, t:drain())
    t:travel("2m")
    assert.same({ completed = 0, failed = 1, retry = 0 }, t:drain { may_fail = true })
  end)
  it("takes ctx:retry as no fault", function()
    local outcome, run = t:run("app.plain", { wait = true }, { tenant = 9 })
    assert.is_nil(outcome)
    assert.equal("retry", run.failure.code)
    t:assert_enqueued("app.plain", { wait = true })
  end)
  it("lets specs stub what handlers call", function()
    stub(require("clock"), "now").returns("stubbed")
    t:run("app.plain", {}, { tenant = 9 })
    t:assert_effects_once("SELECT count(*) FROM notes WHERE name = 'stubbed'")
  end)
  it("names the mistake", function()
    assert.error_matches(function() t:run("app.nota") end, "there is no task app.nota; did you mean \\"app.note\\"")
    assert.error_matches(function() t:run("app.plain") end, "tenant = 7")
    assert.error_matches(function() t:crash_at("sometimes") end, "before_effect, before_commit, after_commit, found sometimes")
    assert.error_matches(function() t:travel(25) end, "found 25")
  end)""")
    assert "6 successes" in project()


def test_queue_and_time(project):
    project.spec("""
  it("drains what tasks enqueue, in their own queues", function()
    t:run("app.chain", { left = 2 })
    assert.equal("links", t:assert_enqueued("app.chain", { left = 1 }).queue)
    t:assert_enqueued("somebody.elses", { a = { c = 2 } })
    assert.equal(2, t:drain().completed)
    assert.equal(3, #t.db:query("SELECT FROM notes WHERE name LIKE 'link %'"))
    assert.equal(3, #t.db:query("SELECT FROM umavez.runs WHERE task = 'somebody.elses' AND queue = 'default'"))
  end)
  it("travels past delays and retention", function()
    t:enqueue("app.note", { name = "later" }, { after = "10m" })
    assert.equal(0, t:drain().completed)
    t:travel("11m")
    assert.equal(1, t:drain().completed)
    local _, _, again = t:deliver_twice("app.note", { name = "later" })
    assert.is_true(again.replay)
    t:travel("2h")
    local _, run = t:run("app.note", { name = "later" })
    assert.is_false(run.replay)
  end)
  it("delivers the run of a task without a key again", function()
    local _, _, again = t:deliver_twice("app.plain", {}, { tenant = 4 })
    assert.is_true(again.replay)
    t:assert_effects_once("SELECT FROM notes WHERE name = 'real'")
  end)""")
    assert "3 successes" in project()


def test_crashes_are_real(project):
    project.spec("""
  for _, point in ipairs { "before_effect", "before_commit" } do
    it(point, function()
      t:crash_at(point)
      local outcome, run = t:run("app.note", { name = point })
      assert.equal(point, run.crashed)
      assert.equal(2, run.deliveries)
      assert.same({ name = point }, outcome)
      t:assert_effects_once("SELECT FROM notes WHERE name = $1", point)
    end)
  end
  it("after_commit", function()
    t:crash_at("after_commit")
    local outcome, run = t:run("app.note", { name = "x" })
    assert.is_true(run.replay)
    assert.same({ name = "x" }, outcome)
    t:assert_effects_once("SELECT FROM notes WHERE name = 'x'")
  end)
  it("shows an effect outside of the transaction", function()
    t:crash_at("before_commit")
    local outcome = t:run("app.leaky", { name = "l" })
    assert.equal(1, outcome.done) -- counted in another process, too: a real one
  end)
  it("says when the point was not reached", function()
    t:crash_at("before_commit")
    local ok, err = pcall(t.run, t, "app.plain", { bad = true }, { tenant = 1 })
    assert.is_false(ok)
    assert.matches("never came to before_commit: it is put off %(.*own fault", err)
  end)""")
    assert "5 successes" in project()


def test_failed_assertions_fail_with_what_was_found(project):
    project.spec("""
  it("enqueued", function() t:enqueue("app.note", { name = "other" }) t:assert_enqueued("app.note", { name = "x" }) end)
  it("none", function() t:assert_effects_once("SELECT FROM notes WHERE name = 'x'") end)
  it("two", function() t.db:exec("INSERT INTO notes (name) VALUES ('b')") t:assert_effects_once("SELECT count(*) FROM notes") end)""")
    out = project(code=1)
    assert "0 successes / 3 failures / 0 errors" in out
    assert 'no run of app.note with {"name":"x"} is in the queue; there is:' in out
    assert 'app.note {"name": "other"}, due' in out
    assert "expected one effect, found none" in out and "expected one effect, found 2" in out


def test_a_call_that_runs_no_test_is_no_success(project):
    project.spec('  it("books a payment", function() end)')
    assert "1 success" in project("--filter", "books a")
    out = project("--filter", "boks a", code=1)
    assert "no test's name matches --filter 'boks a'" in out, out
    (project.directory / "tasks" / "empty_spec.lua").write_text("")
    assert "nothing was run" in project("tasks/empty_spec.lua", code=1)


def test_a_fault_in_a_manifest_or_schema_runs_nothing(project):
    project.spec('it("is not run", function() error("began") end)')
    (project.directory / "tasks" / "app" / "schema.sql").write_text("SELECT 1;\nCREATE TABLE (;\n")
    assert "schema.sql, the statement in line 2 failed" in project(code=1)
    (project.directory / "tasks" / "app" / "manifest.lua").write_text("return { tasks = { note = {} } }")
    out = project(code=3)
    assert "field owner: is missing" in out and "began" not in out


def test_databases_are_dropped_and_those_of_a_killed_call_by_the_next(server, project):
    project.spec('it("waits", function() local f = io.open("started", "w") f:close() while true do os.execute("sleep 0.2") end end)', "slow_spec.lua")
    slow = project.start()
    wait_until(lambda: (project.directory / "started").exists() or slow.poll() is not None, 60, "started")
    assert len(databases(server)) == 1
    os.kill(slow.pid, signal.SIGKILL)
    slow.communicate()
    (project.directory / "tasks" / "slow_spec.lua").unlink()
    project.spec('it("runs", function() t:run("app.note", { name = "n" }) end)')
    wait_until(lambda: not server.q("SELECT FROM pg_stat_activity WHERE datname ~ '^umavez_test_[0-9]'"), 60, "gone")
    project()
    assert databases(server) == []


def test_an_interrupted_call_ends_and_drops_its_database(server, project):
    project.spec("""
  it("begins", function()
    local f = io.open("started", "w") f:close()
    while true do t:run("app.note", { name = "n" }) end
  end)""")
    child = project.start()
    wait_until(lambda: (project.directory / "started").exists() or child.poll() is not None, 60, "started")
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    assert child.returncode != 0 and "interrupted" in out, out
    assert databases(server) == []


def test_its_own_server_stays_for_the_next_call():
    directory = Path(tempfile.mkdtemp(prefix="uvt-", dir="/tmp"))
    try:
        project = Project(directory, None)
        project.spec('it("runs", function() t:run("app.note", { name = "n" }) end)')
        project()
        pid_file = directory / ".umavez" / "test" / "postgres" / "data" / "postmaster.pid"
        pid = pid_file.read_text().splitlines()[0]
        assert "1 success" in project("--filter", "runs")
        assert pid_file.read_text().splitlines()[0] == pid
        assert "0 successes" in project("--filter", "nothing is called so", code=1)
        assert "is stopped" in project("--stop")
        assert not pid_file.exists()
    finally:
        subprocess.run([str(umavez_bin()), "test", "--stop"], cwd=directory, stderr=subprocess.DEVNULL)
        remove_dir(directory)


# --- umavez new ------------------------------------------------------------------------------------------------------

class New:
    def __init__(self, directory, server):
        self.directory, self.env = directory, {**clean_environment(), "UMAVEZ_TEST_DATABASE_URL": server.url("postgres")}

    def __call__(self, *argv, code=0):
        done = subprocess.run([str(umavez_bin()), *argv], cwd=self.directory, env=self.env, text=True, capture_output=True, timeout=240)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def files(self):
        return {str(path.relative_to(self.directory)): path.read_text() for path in sorted(self.directory.rglob("*.lua"))}


@pytest.fixture
def new(server, tmp_path):
    return New(tmp_path, server)


def test_new_tasks_pass_check_and_their_own_specs(new):
    out = new("new", "task", "payments.refund")
    assert list(new.files()) == ["tasks/payments/" + name for name in sorted(NEW)]
    assert "umavez test tasks/payments/refund_spec.lua" in out
    new("new", "task", "payments.charge_back", "--owner", "platform")
    new("new", "task", "alone")
    done = json.loads(new("new", "task", "a.b.c", "--json"))
    assert done == {"task": "a.b.c", "files": ["tasks/a/b/c.lua", "tasks/a/b/c_spec.lua", "tasks/a/b/manifest.lua"]}
    assert "5 tasks, 0 faults" in new("check")
    assert "8 successes / 0 failures / 0 errors" in new("test")


def test_new_writes_nothing_where_something_is_in_the_way(new):
    new("new", "task", "payments.refund")
    before = new.files()
    assert "there is a task payments.refund already" in new("new", "task", "payments.refund", code=1)
    assert "there is a task maintenance.purge already" in new("new", "task", "maintenance.purge", code=1)
    (new.directory / "tasks/payments/other.lua").write_text("return 1")
    assert "tasks/payments/other.lua is there already; nothing was written" in new("new", "task", "payments.other", code=1)
    (new.directory / "tasks/payments/other.lua").unlink()
    for name in ("payments.", ".refund", "pay-ments.refund", "payments.end", "payments.9", ""):
        assert "letters, digits and _" in new("new", "task", name, code=2)
    assert new.files() == before


def test_new_says_what_to_add_to_a_manifest_that_it_cannot_read(new):
    folder = new.directory / "tasks" / "payments"
    folder.mkdir(parents=True)
    (folder / "manifest.lua").write_text("local tasks = {}\nreturn { tasks = tasks }\n")
    before = new.files()
    out = new("new", "task", "payments.refund", code=1)
    assert "add this to its tasks" in out and 'refund = {\n  description = "what payments.refund is for"' in out
    assert new.files() == before
    entry = out[out.index("refund = {"):].strip()
    (folder / "manifest.lua").write_text(f"local tasks = {{ {entry} }}\nreturn {{ tasks = tasks }}\n")
    new("new", "task", "payments.refund")
    assert sorted(path.name for path in folder.iterdir()) == sorted(NEW)
    assert "2 successes" in new("test")


# --- args in manifests -----------------------------------------------------------------------------------------------

ORDER = {"id": {"type": "string"}, "n": {"type": "integer", "required": True, "min": 1, "max": 9},
         "kind": {"type": "string", "enum": ["in", "out"]},
         "items": {"type": "array", "items": {"type": "object", "fields": {"sku": {"type": "string", "required": True, "pattern": "^%u+$"}}}}}
WRONG = [({}, "n", "nothing", "a whole number from 1 to 9"), ({"n": 10}, "n", "10", "a whole number from 1 to 9"),
         ({"n": 1, "kind": "x"}, "kind", '"x"', 'one of "in", "out"'),
         ({"n": 1, "items": [{"sku": "A"}, {"sku": "b"}]}, "items[1].sku", '"b"', "a string that matches the pattern ^%u+$")]


def test_args_of_queued_runs_are_checked_before_the_handler(project):
    (project.directory / "tasks" / "app" / "manifest.lua").write_text("""return { tasks = {
      note = { owner = "platform", key = { "name" }, args = { name = { type = "string", required = true, max = 5 } } },
      leaky = { owner = "platform", args = { name = { type = "string", required = true } } },
    } }""")
    project.spec("""
  it("fails for good, with path, found and expected", function()
    local first, second, again = t:deliver_twice("app.note", { name = "longer" })
    assert.same({ code = "args_invalid", path = "name",
      message = "args.name: found a string of 6 characters, expected a string of at most 5 characters",
      found = "a string of 6 characters", expected = "a string of at most 5 characters" }, first)
    assert.same(first, second)
    assert.is_true(again.replay)
    assert.equal("failed_permanent", again.status)
    assert.equal(0, t.db:one("SELECT count(*) AS n FROM notes WHERE name = 'longer'").n)
  end)
  it("does not begin prepare", function()
    assert.equal("args_invalid", t:run("app.leaky", {}).code)
    assert.equal(1, t:run("app.leaky", { name = "x" }).done)
  end)
  it("answers a duplicate of what is settled, whatever the manifest says today", function()
    t:run("app.note", { name = "short" })
    local declared = require("umavez.context").tasks["app.note"].args
    finally(function() declared.name.max = 5 end)
    declared.name.max = 4
    local outcome, run = t:run("app.note", { name = "short" })
    assert.is_true(run.replay)
    assert.same({ name = "short" }, outcome)
    assert.equal("args_invalid", t:run("app.note", { name = "other" }).code)
  end)""")
    assert "3 successes" in project()


def test_args_of_requests_are_checked(env):
    env.tasks.add("d.pay", owner="tenant", args=ORDER, http={"method": "POST", "path": "/orders/{id}"})
    env.tasks.add("d.queue", owner="tenant", args=ORDER, http={"method": "POST", "path": "/queue", "mode": "enqueue"})
    env.audit.allow("ledger_run", "replays_equal", "settled_effect")  # the answer 202 has a ledger row and no run of its own
    door = Door(env, tenant=1)
    for target in ("/orders/7", "/queue"):
        for body, path, found, expected in WRONG:
            key = new_key()
            answer = door.post(target, body, key=key)
            assert (answer.status, answer.json["type"]) == (422, "urn:umavez:failure:args_invalid"), answer
            found = re.sub(r'^"(.)"$', "a string of 1 character", found)                # texts may be secrets
            assert {k: answer.json[k] for k in ("code", "path", "found", "expected")} == {
                "code": "args_invalid", "path": path, "found": found, "expected": expected}
            again = door.post(target, body, key=key)
            assert (again.status, again.replayed, again.body) == (422, True, answer.body)
    assert env.db.val("SELECT count(*) FROM umavez.runs") == 0
    assert env.db.val("SELECT count(*) FROM umavez.finished_runs WHERE task = 'd.queue' AND status = 'completed'") == 0
    assert door.post("/queue", {"n": 9, "items": [{"sku": "AB"}]}, key=new_key()).status == 202
    described = door.get("/openapi.json").json["paths"]["/orders/{id}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert described["required"] == ["n"] and set(described["properties"]) == {"n", "kind", "items"}
    assert described["properties"]["n"] == {"type": "integer", "minimum": 1, "maximum": 9}
    assert described["properties"]["items"]["items"]["properties"]["sku"]["pattern"] == "^[A-Z]+$"


def test_the_command_line_checks_args_where_it_has_the_manifests(env, tmp_path):
    env.tasks.add("d.pay", owner="platform", args=ORDER)

    def enqueue(*argv, code, tasks=env.tasks.dir):
        done = subprocess.run([str(umavez_bin()), "enqueue", *argv], cwd=tmp_path, text=True, capture_output=True, timeout=60,
                              env={**clean_environment(), "DATABASE_URL": env.db.url("postgres"), "UMAVEZ_TASKS_DIR": str(tasks)})
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    for args, path, found, expected in WRONG:
        out = enqueue("d.pay", json.dumps(args), code=1)
        assert f"the manifest of d.pay does not take these args: args.{path}: found {found}, expected {expected}" in out
    lines = tmp_path / "runs.jsonl"
    lines.write_text("".join(json.dumps({"task": "d.pay", "args": args}) + "\n" for args in [{"n": 1}, {"n": 0}]) + '{"task":"d.pay"}\n')
    out = enqueue("--file", str(lines), code=1)
    assert "2 bad lines, nothing was enqueued" in out
    assert "runs.jsonl:2: args.n: found 0, expected a whole number from 1 to 9" in out and "runs.jsonl:3: args.n: found nothing" in out
    assert env.db.val("SELECT count(*) FROM umavez.runs") == 0
    enqueue("d.pay", '{"n":1}', code=0)
    enqueue("d.pay", '{"n":0}', code=0, tasks=tmp_path / "there are none")


def test_describe(tmp_path):
    def describe(*argv, code=0):
        done = subprocess.run([str(umavez_bin()), "describe", *argv], cwd=ROOT, text=True, capture_output=True, timeout=60,
                              env=clean_environment())
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    out = describe("payments.pix")
    for words in ("book a payment that the bank has notified", "args.end_to_end_id: runs with the same value are one operation",
                  "7d: so long an outcome is kept", "up to 8 attempts, after 1s, doubling, at most 10m",
                  "POST /payments, a token that allows payments.pix, Idempotency-Key required (a UUID)",
                  "amount_cents: a whole number of at least 1, required"):
        assert words in out, out
    plain = json.loads(describe("payments.pix", "--json"))
    assert plain["key"] == ["end_to_end_id"] and plain["retention"] == "7d" and plain["retry"]["max_attempts"] == 8
    assert plain["args_schema"]["required"] == ["amount_cents", "end_to_end_id"]
    assert 'did you mean "payments.pix"' in describe("payments.pics", code=1)


def test_patterns_mean_the_same_to_lua_and_in_the_description(tmp_path):
    """Random patterns and texts: what string.find takes, the translation takes (Python's re stands in for ECMA-262's)."""
    rng = random.Random(4)
    items = ["%a", "%d", "%l", "%u", "%w", "%s", "%x", "%p", "%D", "%S", ".", "a", "B", "7", "-", "%-", "%.", "[a-c]", "[^%d]", "[%w_-]", "[]x]", "{", "|", "\\"]
    alphabet = "aBc7 .-_]{|\\\tx"
    cases = []
    for _ in range(3000):
        pattern = "".join(rng.choice(items) + rng.choice(["", "", "*", "+", "?", "-"]) for _ in range(rng.randrange(1, 4)))
        pattern = rng.choice(["", "^"]) + pattern + rng.choice(["", "$"])
        cases.append([pattern, ["".join(rng.choice(alphabet) for _ in range(rng.randrange(6))) for _ in range(8)]])
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (tmp_path / "translate.lua").write_text("""
      local json, regexp = require("umavez.json"), require("umavez.regexp")
      local out = json.array {}
      for i, case in ipairs(json.decode(io.open("cases.json"):read("*a"))) do
        local found = json.array {}
        for k, text in ipairs(case[2]) do found[k] = text:find(case[1]) ~= nil end
        out[i] = { regexp = regexp.from_pattern(case[1]), found = found }
      end
      print(json.encode(out))""")
    done = subprocess.run([str(umavez_bin()), "exec", "translate.lua"], cwd=tmp_path, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for (pattern, texts), answer in zip(cases, json.loads(done.stdout)):
        python = re.compile(answer["regexp"].replace("$", "\\Z") if pattern.endswith("$") and not pattern.endswith("%$") else answer["regexp"])
        assert [python.search(text) is not None for text in texts] == answer["found"], (pattern, answer["regexp"], texts)


# --- type stubs ------------------------------------------------------------------------------------------------------

TYPES = ROOT / "lua" / "umavez" / "types"


def stub_class(name):
    """The fields of a class in the stubs: those that must be there, and those that may."""
    for path in TYPES.glob("*.lua"):
        found = re.search(rf"^---@class {re.escape(name)}\n((?:---@field .*\n)*)", path.read_text(), re.M)
        if found:
            fields = re.findall(r"---@field (\w+)(\??)", found.group(1))
            return {f for f, mark in fields if not mark}, {f for f, mark in fields if mark}
    raise AssertionError(name)


def stub_functions(owner):
    return {name for path in TYPES.glob("*.lua") for name in re.findall(rf"^function {owner}[.:](\w+)\(", path.read_text(), re.M)}


def test_the_type_stubs_name_what_there_is(project):
    (project.directory / "tasks" / "app" / "plain.lua").write_text("""
      local function names(t)
        local out = require("umavez").array {}
        for name in pairs(t) do out[#out + 1] = name end
        return out
      end
      return function(ctx)
        local ok, err = pcall(ctx.sql.savepoint, ctx.sql, function()
          ctx.sql:exec("INSERT INTO kinds VALUES ('built in')")
        end)
        return { ctx = names(ctx), methods = names(debug.getmetatable(ctx).__index), sql = names(debug.getmetatable(ctx.sql).__index),
                 log = names(debug.getmetatable(ctx.log).__index), module = names(require("umavez")), error = names(err) }
      end""")
    project.spec("""
  it("finds them", function()
    local outcome, run = t:run("app.plain", {}, { tenant = 9 })
    outcome.run, outcome.testing, outcome.db = {}, {}, {}
    for name in pairs(run) do table.insert(outcome.run, name) end
    for name in pairs(t) do table.insert(outcome.testing, name) end
    for name in pairs(getmetatable(t.db).__index) do table.insert(outcome.db, name) end
    local f = io.open("names.json", "w") f:write(require("umavez.json").encode(outcome)) f:close()
  end)""")
    project()
    found = {key: {name for name in names if not name.startswith("__")}
             for key, names in json.loads((project.directory / "names.json").read_text()).items()}
    must, may = stub_class("umavez.Ctx")
    assert must <= found["ctx"] <= must | may and may == {"tenant_id", "traceparent"}
    assert found["methods"] == stub_functions("Ctx")
    assert found["sql"] == stub_functions("Sql")
    assert found["log"] == stub_functions("Log")
    assert found["db"] == stub_functions("Connection")
    assert found["module"] == stub_functions("M") | {"null"}
    assert found["testing"] == stub_functions("Testing") | {"attach", "db"}
    for key, name in (("run", "umavez.testing.Run"), ("error", "umavez.Error")):
        must, may = stub_class(name)
        assert must <= found[key] <= must | may, (key, found[key])


def test_the_type_stubs_are_lua():
    for path in sorted(TYPES.glob("*.lua")):
        done = subprocess.run([str(umavez_bin()), "exec", str(path)], text=True, capture_output=True, timeout=60)
        assert done.returncode in (0, 1) and not done.stderr, (path, done.stderr)


# --- umavez repl -----------------------------------------------------------------------------------------------------

def test_repl(env):
    def repl(text, code=0):
        done = subprocess.run([str(umavez_bin()), "repl"], input=text, text=True, capture_output=True, timeout=60,
                              env={**clean_environment(), "DATABASE_URL": env.db.url("postgres")})
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr

    out, err = repl("""1 + 1
x = { a = 1, "b", { umavez.null } }

x
for i = 1, 2 do
  print("turn " .. i)
end
sql("SELECT 1 AS one, 'x' AS two UNION ALL SELECT 2, NULL ORDER BY 1")
db:one("SELECT ARRAY[1,2] AS a")
(function() return 1, nil, "z" end)()
sys.sleep(5)
""")
    assert err == "" and out == """2
{ "b", { null }, a = 1 }
turn 1
turn 2
one  two
  1  x
  2  -
{ a = { 1, 2 } }
1
nil
"z"
"""
    out, err = repl('sql("SELECT oops")\nerror({ message = "mine" })\n=\n"goes on"\n', code=1)
    assert 'column "oops" does not exist (SQLSTATE 42703)' in err and "mine" in err and "near '='" in err
    assert out == '"goes on"\n'
    assert "'end' expected" in repl("function f()\n", code=1)[1]
    out, _ = repl('enqueue("t.prun", { n = 1 }, { after = "1 hour" })\nhelp\n')
    assert out.startswith('"') and "enqueue(" in out
    assert env.db.one("SELECT task, args, run_at > now() + interval '50 minutes' FROM umavez.runs") == ("t.prun", {"n": 1}, True)
    env.db.q("DELETE FROM umavez.runs")
    assert repl("1\n" * 3)[0] == "1\n" * 3


# --- docs ------------------------------------------------------------------------------------------------------------

def test_the_guides_snippets_run(new):
    """docs/testing.md against the example tasks, and the args of docs/manifest.md."""
    blocks = re.findall(r"```lua\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.S)
    whole, fragments = [b for b in blocks if "describe(" in b], [b for b in blocks if "describe(" not in b]
    assert whole and fragments
    text = "\n".join(whole) + 'describe("docs", function()\n' + "".join(
        f'it("fragment {i}", function()\n{body}end)\n' for i, body in enumerate(fragments)) + "end)\n"
    (new.directory / "docs_spec.lua").write_text(text)
    out = new("test", "--tasks-dir", str(ROOT / "tasks"), "docs_spec.lua")
    assert f"{len(blocks)} successes / 0 failures / 0 errors" in out
    declared, = re.findall(r"```lua\n(args = .*?)```", (ROOT / "docs" / "manifest.md").read_text(), re.S)
    folder = new.directory / "tasks" / "docs"
    folder.mkdir(parents=True)
    (folder / "manifest.lua").write_text(f'return {{ tasks = {{ a = {{ owner = "platform", {declared} }} }} }}')
    (folder / "a.lua").write_text("return function() end")
    assert "0 faults" in new("check")
