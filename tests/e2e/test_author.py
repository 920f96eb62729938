"""`umavez test`: what the author of a task gets, from outside."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

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
        assert "0 successes" in project("--filter", "nothing is called so")
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
    assert "4 successes / 0 failures / 0 errors" in new("test")


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
    assert "1 success" in new("test")
