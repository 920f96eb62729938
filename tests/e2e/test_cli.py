"""The command line from outside: J07 (migrations), and what a user sees of each command."""
import json
import os
import shutil
import signal
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.procs import ROOT, wait_until
from support.servers import Database, clean_environment, umavez_bin


class Cli:
    def __init__(self, url, cwd, **env):
        self.env, self.cwd = {**clean_environment(), "DATABASE_URL": url, **env}, cwd

    def start(self, *argv):
        return subprocess.Popen([str(umavez_bin()), *argv], env=self.env, cwd=self.cwd, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *argv, code=0):
        """Runs a command that must end with `code`; gives its standard output, and keeps standard error in `err`."""
        child = self.start(*argv)
        out, self.err = child.communicate(timeout=60)
        assert child.returncode == code, f"{argv}: {child.returncode}\n{out}{self.err}"
        assert "traceback" not in self.err and "fault of umavez" not in self.err, self.err
        return out

    def json(self, *argv, **options):
        return json.loads(self(*argv, "--json", **options))


@pytest.fixture
def empty(pg):
    """A database without anything of ours."""
    admin, name = Database(pg, "postgres"), "uv_" + uuid.uuid4().hex[:10]
    admin.q(f"CREATE DATABASE {name} TEMPLATE template0")
    database = Database(pg, name)
    yield database
    database.drop()
    admin.close()


@pytest.fixture
def cli(empty, tmp_path):
    return Cli(empty.url("postgres"), tmp_path)


@pytest.fixture
def ready(db, tmp_path):
    """The command line on a migrated database."""
    return Cli(db.url("postgres"), tmp_path)


@pytest.fixture
def sql_dir(cli, tmp_path):
    """The program's migrations, to be changed."""
    copy = tmp_path / "sql"
    shutil.copytree(ROOT / "sql", copy)
    cli.env["UMAVEZ_TEST_SQL_DIR"] = str(copy)
    return copy


def numbered(sql_dir):
    return sorted(p.name for p in sql_dir.glob("[0-9]*.sql"))


# --- J07 -----------------------------------------------------------------------------------------------------------

def test_J07_twenty_migrate_at_once(cli, empty):
    with ThreadPoolExecutor(20) as pool:
        errors = list(pool.map(lambda _: cli_err(cli), range(20)))
    steps = [s["name"] for s in cli.json("migrate", "--status")["steps"]]
    for step in steps:
        applied = "applied the functions" if step == "functions" else f"applied {step}"
        assert sum(applied in e for e in errors) == 1, step
    assert empty.val("SELECT count(*) FROM umavez.migrations") == len(steps)
    cli("migrate")
    assert "up to date" in cli.err


def cli_err(cli):
    child = cli.start("migrate")
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    return err


def test_J07_killed_in_the_middle(cli, empty, sql_dir):
    n = len(numbered(sql_dir)) + 1
    (sql_dir / f"{n:04d}_slow.sql").write_text(
        "CREATE TABLE umavez.half (x int);\n"
        "SELECT pg_sleep(600) WHERE to_regclass('public.slow') IS NOT NULL;\n")
    empty.q("CREATE TABLE public.slow ()")
    child = cli.start("migrate")
    wait_until(lambda: empty.val("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                 "AND wait_event = 'PgSleep'"), 60, "the slow step runs")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert empty.val("SELECT to_regclass('umavez.half')") is None
    empty.q("DROP TABLE public.slow")
    status = cli.json("migrate", "--status", code=4)
    assert [s["name"] for s in status["steps"] if "applied_at" not in s] == [f"{n:04d}_slow.sql", "functions"]
    cli("migrate")
    assert empty.val("SELECT to_regclass('umavez.half')") is not None
    cli("migrate", "--status")


def test_J07_changed_history(cli, sql_dir, empty):
    cli("migrate")
    name = numbered(sql_dir)[0]
    with open(sql_dir / name, "a") as file:
        file.write("-- a later thought\n")
    before = empty.q("SELECT * FROM umavez.migrations ORDER BY 1")
    cli("migrate", code=4)
    assert name in cli.err and "changed after it was applied" in cli.err
    cli("runs", code=4)
    assert empty.q("SELECT * FROM umavez.migrations ORDER BY 1") == before


def test_J07_newer_database(cli, sql_dir):
    cli("migrate")
    names = numbered(sql_dir)
    os.remove(sql_dir / names[-1])
    for command in ("migrate",), ("migrate", "--status"), ("runs",), ("worker",):
        (cli.cwd / "tasks").mkdir(exist_ok=True)
        cli(*command, code=4)
        assert names[-1][:4] in cli.err and names[-2][:4] in cli.err and "newer" in cli.err


def test_J07_no_tenants_table(cli, empty):
    cli("migrate")
    assert "public.tenants" in cli.err and "minimal one was made" in cli.err
    assert empty.val("SELECT count(*) FROM information_schema.columns WHERE table_name = 'tenants'") == 1


def test_J07_own_tenants_table(cli, empty):
    empty.q("CREATE SCHEMA app; CREATE TABLE app.clubs (id bigint PRIMARY KEY, name text)")
    cli("migrate", "--tenants-table", "app.clubs")
    assert "minimal" not in cli.err
    assert empty.val("SELECT to_regclass('public.tenants')") is None
    assert empty.val("SELECT confrelid::regclass::text FROM pg_constraint "
                     "WHERE conname = 'idempotency_keys_tenant_id_fkey'") == "app.clubs"
    cli("migrate", "--tenants-table", "app.clubs; drop table x", code=3)


def test_J07_functions_are_applied_whole_when_one_changes(cli, empty, sql_dir):
    cli("migrate")
    (sql_dir / "functions" / "99_more.sql").write_text(
        "CREATE OR REPLACE FUNCTION umavez.more() RETURNS int LANGUAGE sql AS 'SELECT 1';")
    status = cli.json("migrate", "--status", code=4)
    assert [s["name"] for s in status["steps"] if "applied_at" not in s] == ["functions"]
    assert "umavez.more" in cli("migrate", "--dry-run")
    assert empty.val("SELECT to_regproc('umavez.more')") is None
    cli("migrate")
    assert empty.val("SELECT umavez.more()") == 1


def test_J07_a_failing_statement_is_named(cli, sql_dir):
    n = len(numbered(sql_dir)) + 1
    (sql_dir / f"{n:04d}_bad.sql").write_text("SELECT 1;\n\nSELECT no_such_column;\n")
    cli("migrate", code=1)
    assert f"{n:04d}_bad.sql" in cli.err and "line 3" in cli.err and "42703" in cli.err


# --- errors that a user sees ---------------------------------------------------------------------------------------

def test_wrong_usage(ready):
    for argv, word in [(["enqueu"], "enqueue"), (["runs", "--state", "dead"], "failed_permanent"),
                       (["runs", "--limit", "x"], "--limit"), (["show", "7"], "UUID"), (["show"], "run_id"),
                       (["enqueue", "t", "[1]"], "object"), (["enqueue", "t", "{"], "not JSON"),
                       (["enqueue"], "TASK"), (["retry"], "RUN_ID"), (["enqueue", "t", "{}", "--tenant", "x"], "--tenant"),
                       (["help", "wrker"], "worker"), (["exec"], "FILE")]:
        ready(*argv, code=2)
        assert word in ready.err, (argv, ready.err)


def test_settings(ready):
    config = ready.cwd / "umavez.lua"
    for text, words in [("return { pool_siz = 3 }", ["umavez.lua", "pool_size"]),
                        ("return { pool_size = 'many' }", ["umavez.lua", "many"]), ("return {", ["umavez.lua"]),
                        ("return 7", ["table", "number"]), ("return { 1 }", ["position"]),
                        ("os.exit(0)", ["umavez.lua", "os"])]:
        config.write_text(text)
        ready("runs", code=3)
        assert all(w in ready.err for w in words), (text, ready.err)
    config.write_text("return { database_url = 'postgresql://nobody@127.0.0.1:1/none' }")
    ready("runs")                                      # the environment wins over the file
    ready("runs", "--database-url", "postgresql://x:sec%20ret@127.0.0.1:1/none", code=4)   # and a flag over that
    assert "127.0.0.1" in ready.err and "sec" not in ready.err
    ready.env["UMAVEZ_POOL_SIZ"] = "3"
    ready("runs", code=3)
    assert "UMAVEZ_POOL_SIZE" in ready.err


def test_not_migrated(cli):
    cli("runs", code=4)
    assert "umavez migrate" in cli.err


@pytest.mark.parametrize("flags", [["--no-supervise"], ["--workers", "2"]], ids=["alone", "supervised"])
def test_worker_waits_for_a_database_that_is_away(cli, flags):
    (cli.cwd / "tasks").mkdir()
    cli.env["DATABASE_URL"] = "postgresql://who:sec%20ret@127.0.0.1:1/none"
    child = cli.start("worker", *flags)
    first = next(line for line in child.stderr if "event=supervisor_started" not in line)
    assert "event=database_away" in first and "127.0.0.1" in first
    down = next(line for line in child.stderr if "event=postgres_down" in line)
    assert "level=warn" in down and "127.0.0.1" in down and "waited for" in down
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    _, rest = child.communicate(timeout=30)
    assert child.returncode == 0 and "sec" not in first + rest


# --- commands ------------------------------------------------------------------------------------------------------

def test_help_of_every_command(ready):
    overview = ready("help")
    names = [line.split()[0] for line in overview.split("commands:\n")[1].split("\n\n")[0].splitlines()]
    assert len(names) >= 11
    for name in names:
        text = ready("help", name)
        assert "exit codes:" in text and ("examples:" in text)
        assert ready(name, "--help") == text + "" if name != "help" else True


def test_enqueue_runs_show(ready, db):
    run_id = ready("enqueue", "some.task", '{"amount":12345678901234567890.10}', "--tenant", "1").strip()
    assert ready("enqueue", "some.task", '{"amount":12345678901234567890.10}', "--tenant", "1", "--run-id", run_id).strip() == run_id
    ready("enqueue", "some.task", '{"amount":1}', "--tenant", "1", "--run-id", run_id, code=1)
    assert "UV003" in ready.err
    assert ready.json("enqueue", "other.task")["run_id"] != run_id
    assert "12345678901234567890.10" in db.val("SELECT args::text FROM umavez.runs WHERE run_id = %s", run_id)
    listed = [json.loads(line) for line in ready("runs", "--json").splitlines()]
    assert {r["task"] for r in listed} == {"some.task", "other.task"}
    assert [r["run_id"] for r in map(json.loads, ready("runs", "--tenant", "1", "--json").splitlines())] == [run_id]
    assert ready("runs", "--tenant", "platform", "--task", "some.task", "--json") == ""
    assert len(ready("runs", "--limit", "1", "--json").splitlines()) == 1
    shown = ready.json("show", run_id)
    assert (shown["state"], shown["tenant_id"], "args" in shown) == ("available", "1", False)
    assert "12345678901234567890.10" in ready("show", run_id, "--args")
    ready("enqueue", "some.task", "{}", "--tenant", "999999", code=1)
    ready("show", str(uuid.uuid4()), code=1)


def test_enqueue_at(ready, db):
    run_id = ready("enqueue", "t", "{}", "--at", "2100-01-01 00:00:00+00", "--queue", "late", "--priority", "4").strip()
    row = db.one("SELECT run_at::text, queue, priority FROM umavez.runs WHERE run_id = %s", run_id)
    assert (row.run_at[:10], row.queue, row.priority) == ("2100-01-01", "late", 4)
    ready("enqueue", "t", "{}", "--at", "tomorow", code=1)


def test_enqueue_file(ready, db):
    file = ready.cwd / "runs.jsonl"
    lines = [json.dumps({"task": "t.bulk", "args": {"n": n}, "tenant_id": 1 + n % 3}) for n in range(1200)]
    lines += ['{"task":"t.bulk","args":{"exact":0.10000000000000000000001}}', "", '{ "task" : "t.bulk" } ',
              '{"task":"t.bulk","run_id":null}', '{"task":"t.bulk","run_id":"%s"}' % uuid.uuid4()]
    file.write_text("\n".join(lines))
    assert ready.json("enqueue", "--file", str(file)) == {"lines": 1204, "enqueued": 1204, "known": 0}
    assert ready.json("enqueue", "--file", str(file)) == {"lines": 1204, "enqueued": 0, "known": 1204}
    db.q("DELETE FROM umavez.runs WHERE (args->>'n')::int >= 700")          # as if it had been interrupted
    assert ready.json("enqueue", "--file", str(file))["enqueued"] == 500
    assert db.val("SELECT count(*) FROM umavez.runs WHERE args::text LIKE '%0.10000000000000000000001%'") == 1


def test_enqueue_file_with_bad_lines(ready, db):
    file = ready.cwd / "bad.jsonl"
    file.write_text('{"task":"t"}\n{"task":\n[1]\n{"args":{}}\n{"task":"t","tenant":1}\n{"task":"t","run_id":"x"}\n')
    ready("enqueue", "--file", str(file), code=1)
    for number, word in (2, "offset"), (3, "array"), (4, "task"), (5, "tenant_id"), (6, "UUID"):
        line = next(text for text in ready.err.splitlines() if f"bad.jsonl:{number}:" in text)
        assert word in line
    assert "bad.jsonl:1:" not in ready.err and db.val("SELECT count(*) FROM umavez.runs") == 0


def test_retry(ready, db):
    def fail(task):
        run_id = ready("enqueue", task, "{}").strip()
        db.q("SELECT umavez.end_run(%s, 'failed_permanent', '{\"code\":\"x\"}', '{\"code\":\"x\",\"message\":\"y\",\"traceback\":\"stack\"}')", run_id)
        return run_id
    first, second, third = fail("t.a"), fail("t.a"), fail("t.b")
    shown = ready("show", first)
    assert "failed_permanent" in shown and "x: y" in shown and "stack" in shown
    assert {json.loads(line)["code"] for line in ready("runs", "--state", "failed_permanent", "--json").splitlines()} == {"x"}
    assert ready.json("retry", third)["retried"] == 1
    ready("retry", third, code=1)
    assert ready.json("retry", "--task", "t.a", "--failed")["retried"] == 2
    assert {str(r.run_id) for r in db.q("SELECT run_id FROM umavez.runs")} == {first, second, third}


def test_exec(ready):
    script = ready.cwd / "s.lua"
    script.write_text('local pg = require("umavez.pg"); local db = pg.connect(os.getenv("DATABASE_URL"))\n'
                      'print(db:one("SELECT 6 * $1::int AS n", 7).n, ...); return 5')
    assert ready("exec", "s.lua", "a", "--b", code=5).split() == ["42", "a", "--b"]
