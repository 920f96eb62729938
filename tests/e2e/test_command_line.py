"""The command line from outside: each command, exit codes, --json, and what a user's mistakes look like.

0 done, 1 an operation failed, 2 usage, 3 configuration or manifest, 4 database unreachable, not migrated or newer.
"""
import json
import os
import shutil
import subprocess
import uuid

import pytest

from lab import OWNERS, clean_environment
from support import procs
from support.servers import umavez_bin
from support.worker import parse_line

COMMANDS = ["worker", "dev", "new", "test", "migrate", "enqueue", "runs", "show", "retry", "cancel", "discard", "forget", "queues", "pause", "resume", "schedules", "workers", "audit", "purge", "top", "doctor",
            "token", "openapi", "check", "describe", "exec", "repl", "demo", "version", "help"]


def umavez(*argv, input=None, cwd=None, **env):
    """`umavez ARGV` without any server: code, out, err."""
    done = subprocess.run([str(umavez_bin()), *map(str, argv)], env={**clean_environment(), **env}, input=input, capture_output=True, text=True, timeout=60,
                          cwd=cwd or procs.base_dir())
    return done.returncode, done.stdout, done.stderr


def is_message(err):
    """A message for a person: no Lua traceback, no path of our sources, no bare table."""
    assert err.strip(), "nothing on stderr"
    for trace in ("traceback", "[C]", "stack", ".lua:", "table: 0x", "nil value"):
        assert trace not in err, err


def mistake(result, code, *words):
    assert result[0] == code, result
    assert not result[1].strip(), "a failed command wrote to stdout: " + result[1]
    is_message(result[2])
    for word in words:
        assert word in result[2], (word, result[2])


# --- help, version, usage -------------------------------------------------------------------------------------------------------------

def test_cli_help_lists_every_command():
    for argv in ([], ["help"], ["--help"], ["-h"]):
        code, out, err = umavez(*argv)
        assert (code, err) == (0, ""), argv
        for command in COMMANDS:
            assert f"\n   {command} " in out.replace("\t", " ") or f" {command} " in out, command
        assert "exit codes" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_cli_help_of_a_command(command):
    for argv in ((command, "--help"), ("help", command)):
        code, out, err = umavez(*argv)
        assert (code, err) == (0, "")
        assert f"umavez {command}" in out and "example" in out.lower(), out
        assert not [line for line in out.splitlines() if len(line) > 120]


def test_cli_version():
    code, out, err = umavez("version")
    assert code == 0 and out.startswith("umavez ") and err == ""
    code, out, _ = umavez("version", "--json")
    assert code == 0 and json.loads(out)["umavez"]
    assert umavez("--version")[0] == 0


@pytest.mark.parametrize("argv,words", [
    (["wroker"], ["wroker", "worker"]), (["zzzzzz"], ["zzzzzz"]), (["help", "enqeue"], ["enqeue", "enqueue"]), (["enqueue"], ["task"]),
    (["enqueue", "a.b", "{}", "more"], ["more"]), (["enqueue", "--nonsense"], ["--nonsense"]), (["show"], ["run_id"]), (["show", "not-a-uuid"], ["not-a-uuid"]),
    (["retry"], ["--task"]), (["retry", "--task", "a.b"], ["--failed"]), (["retry", "0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c", "--task", "a.b", "--failed"], ["RUN_ID"]), (["retry", "x"], ["x"]),
    (["runs", "--state", "odd"], ["odd", "failed_permanent"]), (["runs", "--limit", "0"], ["--limit"]), (["runs", "--limit", "many"], ["--limit"]),
    (["runs", "--tenant", "x"], ["--tenant", "x"]), (["exec"], ["FILE"]), (["migrate", "--status", "--dry-run"], ["--status"]),
    (["enqueue", "a.b", "{"], ["JSON"]), (["enqueue", "a.b", "[1]"], ["object"]), (["enqueue", "a.b", "7"], ["object"]), (["enqueue", "a.b", ""], ["JSON"]),
    (["enqueue", "a.b", '{"a":1}{}'], ["JSON"]), (["enqueue", "a.b", '{"a":"\\ud800"}'], ["JSON"]), (["enqueue", "a.b", "{}", "--tenant", "seven"], ["seven"]),
    (["top", "--interval", "nan"], ["--interval", "nan"]), (["top", "--interval", "0x10"], ["--interval"]), (["schedules", "--next", "many"], ["--next", "many"]),
    (["doctor", "--long-transaction", "soon"], ["--long-transaction", "soon"]), (["audit", "--limit", "1e999"], ["--limit"]), (["cancel", "0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c", "--wait", "x"], ["--wait", "x"]),
    (["test", "--output", "foo"], ["--output", "foo", "junit"]), (["test", "--output", "jnit"], ["junit"]), (["test", "--output", "gone.lua"], ["gone.lua"]), (["test", "--filter", "["], ["--filter", "["]),
    (["test", "nowhere_spec.lua"], ["nowhere_spec.lua"]), (["test", "--schema", "gone.sql"], ["--schema", "gone.sql"]),
    (["token", "create", "--scope", "*"], ["--tenant"]), (["token", "create", "--tenant", "x", "--scope", "*"], ["--tenant", "x"]), (["token", "create", "--platform"], ["--scope"]),
    (["token", "create", "--platform", "--scope", "a.b,c.d"], ["--scope", "a.b,c.d"]), (["token", "create", "--platform", "--scope", "payments.*"], ["payments.*"]), (["token", "create", "--platform", "--scope", ""], ["--scope"]),
    (["token", "list", "--tenant", "7"], ["--tenant", "create"]), (["token", "revoke"], ["number"]), (["token", "revoke", "mine"], ["number"]), (["token", "list", "3"], ["revoke"]),
    (["enqueue", "a.b", "{}", "--run-id", "7"], ["7"]), (["enqueue", "a.b", "{}", "--priority", "5"], ["5"]), (["enqueue", "--file", "x", "a.b"], ["--file"]),
], ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None)
def test_cli_usage_mistakes(argv, words):
    # None of them needs a database to be seen.
    mistake(umavez(*argv, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none"), 2, *words)


# --- settings ---------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("command", ["worker", "check", "runs", "migrate"])
@pytest.mark.parametrize("name,value,words", [("UMAVEZ_POOL_SISE", "3", ["UMAVEZ_POOL_SIZE"]), ("UMAVEZ_POOL_SIZE", "many", ["pool_size", "many"]), ("UMAVEZ_LEASE", "30 parsecs", ["lease", "30 parsecs"]),
                                              ("UMAVEZ_LOG_LEVEL", "loud", ["log_level", "loud"]), ("UMAVEZ_POOL_SIZE", "-1", ["pool_size"])])
def test_cli_settings_from_the_environment(command, name, value, words, tmp_path):
    mistake(umavez(command, **{name: value, "UMAVEZ_TASKS_DIR": str(tmp_path)}), 3, *words)


@pytest.mark.parametrize("text,words", [("return { pool_sise = 3 }", ["pool_sise", "pool_size"]), ("return { pool_size = {} }", ["pool_size"]), ("return { lease = 'soon' }", ["lease", "soon"]),
                                        ("return 7", ["umavez.lua"]), ("return {", ["umavez.lua"]), ("error('x')", ["umavez.lua"])])
def test_cli_settings_from_the_file(text, words, tmp_path):
    (tmp_path / "umavez.lua").write_text(text)
    (tmp_path / "tasks").mkdir()
    code, out, err = umavez("check", cwd=tmp_path)
    assert code == 3 and not out.strip(), (code, out, err)
    for word in words:
        assert word in err, err
    for trace in ("traceback", "[C]", "table: 0x"):
        assert trace not in err, err


def test_cli_flags_go_over_the_environment_and_the_file(tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / name / "g").mkdir(parents=True)
        (tmp_path / name / "g" / "manifest.lua").write_text(f"return {{ tasks = {{ {name} = {{ owner = 'tenant' }} }} }}")
        (tmp_path / name / "g" / f"{name}.lua").write_text("return function() end")
    (tmp_path / "umavez.lua").write_text("return { tasks_dir = 'one' }")
    assert "g.one" in umavez("check", "--json", cwd=tmp_path)[1]
    assert "g.two" in umavez("check", "--json", cwd=tmp_path, UMAVEZ_TASKS_DIR="two")[1]
    assert "g.three" in umavez("check", "--json", "--tasks-dir", "three", cwd=tmp_path, UMAVEZ_TASKS_DIR="two")[1]


# --- check --------------------------------------------------------------------------------------------------------------------------------

BROKEN = {
    "colours": ("return { tasks = { red = { owner = 'tennant', leese = '30s', timeout = 20, retry = { max_attemps = 3, base = 'soon' } } } }",
                [("red", "owner", "tennant", "tenant"), ("red", "leese", "lease"), ("red", "timeout", "20"), ("red", "max_attemps", "max_attempts"), ("red", "base", "soon")]),
    "keys": ("return { tasks = { none = { owner = 'tenant', key = {} }, odd = { owner = 'tenant', key = 'e1' }, bad = { owner = 'tenant', key = { 7 } }, fine = { owner = 'platform' } } }",
             [("none", "key"), ("odd", "key"), ("bad", "key")]),
    "syntax": ("return { tasks = ", [("syntax/manifest.lua",)]),
    "nothing": ("", [("nothing/manifest.lua",)]),
    "number": ("return 7", [("number/manifest.lua", "7")]),
    "forbidden": ("io.open('/etc/passwd') return { tasks = {} }", [("forbidden/manifest.lua", "io")]),
    "raises": ("error('mine')", [("raises/manifest.lua", "mine")]),
    "nohandler": ("return { tasks = { lost = { owner = 'tenant' } } }", [("lost", "lost.lua")]),
    "badhandler": ("return { tasks = { broken = { owner = 'tenant' }, notfn = { owner = 'tenant' } } }", [("broken",), ("notfn", "function")]),
    "routes": ("return { tasks = { buy = { owner = 'tenant', http = { path = '/shop/{a}' } }, pay = { owner = 'tenant', http = { path = '/shop/{b}' } }, put = { owner = 'tenant', http = { path = '/shop/{b}', method = 'PUT' } } } }",
               [("routes.pay", "http.path", "routes.buy", "POST /shop/{b}")]),
    "ownerless": ("return { tasks = { lonely = { lease = '1s' } } }", [("lonely", "owner")]),
}


@pytest.fixture
def broken(tmp_path):
    for folder, (text, _) in BROKEN.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "manifest.lua").write_text(text)
    for task in ("colours/red", "keys/none", "keys/odd", "keys/bad", "keys/fine", "ownerless/lonely", "routes/buy", "routes/pay", "routes/put"):
        (tmp_path / f"{task}.lua").write_text("return function() end")
    (tmp_path / "badhandler" / "broken.lua").write_text("return function( end")
    (tmp_path / "badhandler" / "notfn.lua").write_text("return 7")
    return tmp_path


def names_all_faults(text):
    for folder, (_, faults) in BROKEN.items():
        for fault in faults:
            lines = [line for line in text.splitlines() if folder in line and all(word in line for word in fault)]
            assert lines, f"no line of {folder} with {fault} in:\n{text}"
    for trace in ("traceback", "[C]:", "table: 0x"):
        assert trace not in text, text


def test_cli_check_names_all_faults_at_once(broken):
    code, out, err = umavez("check", "--tasks-dir", broken)
    assert code == 3
    names_all_faults(err)
    assert "keys.fine" not in err and "routes.put" not in err


def test_cli_check_as_json(broken):
    code, out, _ = umavez("check", "--tasks-dir", broken, "--json")
    found = json.loads(out)
    assert code == 3 and len(found["faults"]) >= sum(len(faults) for _, faults in BROKEN.values())
    fault = next(fault for fault in found["faults"] if "leese" in json.dumps(fault))
    assert {"file", "task", "field", "found", "expected"} <= set(fault), fault
    assert fault["field"] == "leese" and fault["task"].endswith("red") and fault["file"].endswith("colours/manifest.lua")


def test_cli_check_of_good_manifests(tmp_path):
    code, out, err = umavez("check", "--tasks-dir", procs.ROOT / "tasks")
    assert (code, err) == (0, ""), err
    code, out, _ = umavez("check", "--tasks-dir", procs.ROOT / "tasks", "--json")
    found = json.loads(out)
    assert code == 0 and found["faults"] == []
    assert {"payments.pix", "receipts.send", "webhooks.receive", "maintenance.purge"} <= set(found["tasks"])
    mistake(umavez("check", "--tasks-dir", tmp_path / "nowhere"), 3, "nowhere") if False else None


def test_cli_worker_refuses_broken_manifests(broken, lab):
    done = lab.cli("worker", "--no-supervise", UMAVEZ_TASKS_DIR=str(broken))
    assert done.code == 3
    names_all_faults(done.err)
    supervised = lab.cli("worker", UMAVEZ_TASKS_DIR=str(broken))
    assert supervised.code == 3
    faults = [event["message"] for event in map(parse_line, supervised.err.splitlines()) if event.get("event") == "worker_fault"]
    names_all_faults("\n".join(faults))
    assert lab.sessions() == []


def test_cli_describe_names_the_nearest_task():
    for slip in ("pix", "payments.pxi", "payments"):
        mistake(umavez("describe", slip, "--tasks-dir", procs.ROOT / "tasks"), 1, slip, 'did you mean "payments.pix"')


# --- the database -------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("argv", [["migrate"], ["enqueue", "a.b"], ["runs"], ["show", str(uuid.uuid4())], ["retry", str(uuid.uuid4())],
                                  ["queues"], ["pause", "q"], ["workers"], ["top", "--once"], ["cancel", str(uuid.uuid4())]], ids=lambda argv: argv[0])
def test_cli_database_that_is_not_there(argv, pg):
    mistake(umavez(*argv, DATABASE_URL="postgresql://who:pw_SECRET@127.0.0.1:1/none", UMAVEZ_TASKS_DIR=str(procs.ROOT / "tasks"), UMAVEZ_VALKEY_URL=""), 4, "127.0.0.1")
    url = f"postgresql://postgres@/nowhere?host={pg.socket_dir}&port={pg.port}"
    mistake(umavez(*argv, DATABASE_URL=url, UMAVEZ_TASKS_DIR=str(procs.ROOT / "tasks"), UMAVEZ_VALKEY_URL=""), 4, "nowhere")
    assert "SECRET" not in umavez(*argv, DATABASE_URL="postgresql://who:pw_SECRET@127.0.0.1:1/none")[2]
    if argv != ["migrate"]:
        url = f"postgresql://postgres@/postgres?host={pg.socket_dir}&port={pg.port}"
        mistake(umavez(*argv, DATABASE_URL=url, UMAVEZ_TASKS_DIR=str(procs.ROOT / "tasks"), UMAVEZ_VALKEY_URL=""), 4, "migrate")


def test_cli_migrate_status_and_dry_run(lab):
    done = lab.cli("migrate", "--status")
    assert done.code == 0 and "0001" in done.out
    found = json.loads(lab.cli("migrate", "--status", "--json").out)
    assert found["missing"] == 0 and found["steps"][0]["applied_at"]
    assert lab.cli("migrate").code == 0
    dry = lab.cli("migrate", "--dry-run")
    assert dry.code == 0 and "CREATE" not in dry.out


# --- enqueue, runs, show, retry ---------------------------------------------------------------------------------------------------------------

@OWNERS
def test_cli_enqueue_and_run(lab, owner):
    tenant = ["--tenant", owner.tenant_id] if owner.tenant_id else []
    args = {"lua": "effect() return { n = args.n, s = args.s }", "n": 9007199254740993, "s": "é😀\n"}
    done = lab.cli("enqueue", owner.task("run"), json.dumps(args), *tenant)
    assert done.code == 0 and done.err == "", done
    run = str(uuid.UUID(done.out.strip()))
    assert lab.live(run).args == args
    assert (lab.live(run).tenant_id, lab.live(run).priority, lab.live(run).queue) == (owner.tenant_id, 2, "default")
    chosen = str(uuid.uuid4())
    for _ in (1, 2):
        done = lab.cli("enqueue", owner.task("run"), json.dumps(args), *tenant, "--run-id", chosen, "--priority", 1, "--queue", "default", "--json")
        assert done.code == 0 and json.loads(done.out) == {"run_id": chosen}
    other = lab.cli("enqueue", owner.task("run"), "{}", *tenant, "--run-id", chosen)
    assert other.code == 1
    is_message(other.err)
    later = lab.cli("enqueue", owner.task("run"), json.dumps(args), *tenant, "--at", "2999-01-01 00:00:00+00").out.strip()
    assert str(lab.live(later).run_at).startswith("2999-01-01")
    lab.worker()
    assert lab.done(run).outcome == {"n": 9007199254740993, "s": "é😀\n"}
    assert lab.done(chosen).status == "completed"
    assert lab.value("SELECT count(*) FROM umavez.runs") == 1
    lab.sql("DELETE FROM umavez.runs")


def test_cli_enqueue_refused_by_the_database(lab):
    for argv in (["e2.t_run", "{}", "--tenant", 999999], ["e2.t_run", "{}", "--at", "someday"], ["e2.t_run", '{"a":"\\u0000"}', "--tenant", 1],
                 ["e2.t_run", "{}", "--tenant", "99999999999999999999"]):
        done = lab.cli("enqueue", *argv)
        assert done.code in (1, 2) and done.out == "", (argv, done)
        is_message(done.err)
    assert lab.value("SELECT count(*) FROM umavez.runs") == 0


def test_cli_enqueue_unknown_task(lab):
    # Any name may be put into the queue (its worker may come later), but a person is told when nobody has ever registered it.
    worker = lab.worker()
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.tasks") > 0, 20, "the worker to register its tasks")
    done = lab.cli("enqueue", "e2.t_rum", "{}", "--tenant", 1)
    assert "e2.t_rum" in done.err and "e2.t_run" in done.err, done
    is_message(done.err)
    assert lab.cli("enqueue", "e2.t_run", '{"lua": "effect() return {}"}', "--tenant", 1).err == ""
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.finished_runs WHERE task = 'e2.t_run'") == 1, 20, "the good run")
    assert worker.running()
    lab.sql("DELETE FROM umavez.runs")


def test_cli_unknown_task_at_the_worker(lab):
    lab.worker()
    run = lab.enqueue("e2.gone", {"k": 1})
    row = lab.until(lambda: (r := lab.live(run)) and r.failure and r, 20, "the unknown task to be noticed")
    assert row.failure["code"] == "unknown_task" and "e2.gone" in json.dumps(row.failure)
    lab.sql("DELETE FROM umavez.runs")
    del lab.env.accepted[run]


GOOD = [{"task": "e2.t_run", "args": {"lua": "effect() return {}", "n": n}, "tenant_id": 1 + n % 3} for n in range(1200)]


def jsonl(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_cli_enqueue_file_and_again(lab, tmp_path):
    path = jsonl(tmp_path / "runs.jsonl", GOOD + ["", "   "])
    done = lab.cli("enqueue", "--file", path)
    assert done.code == 0 and "1200" in done.out, done
    assert lab.value("SELECT count(*) FROM umavez.runs") == 1200
    # Interrupted and called again: the same runs.
    lab.sql("DELETE FROM umavez.runs WHERE (args ->> 'n')::int >= 700")
    again = lab.cli("enqueue", "--file", path, "--json")
    assert again.code == 0 and json.loads(again.out) == {"lines": 1200, "enqueued": 500, "known": 700}
    assert lab.value("SELECT count(*) FROM umavez.runs") == 1200
    lab.worker()
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.runs") == 0, 60, "the runs to end")
    # Called once more after the runs have ended: nothing starts again.
    assert json.loads(lab.cli("enqueue", "--file", path, "--json").out)["enqueued"] == 0
    assert (lab.effects(), lab.value("SELECT count(*) FROM umavez.runs")) == (1200, 0)


def test_cli_enqueue_file_killed_in_the_middle(lab, tmp_path):
    rows = [{"task": "e2.t_run", "args": {"n": n, "pad": "x" * 2000}, "tenant_id": 1} for n in range(8000)]
    path = jsonl(tmp_path / "runs.jsonl", rows)
    process = subprocess.Popen([str(umavez_bin()), "enqueue", "--file", str(path)], env={**clean_environment(), "DATABASE_URL": lab.env.db.url("postgres"),
                                                                                       "PGAPPNAME": "killed"},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.runs") > 0 or process.poll() is not None, 60, "the first batch")
    process.kill()
    process.wait()
    # What it had sent before its end is still executed, and committed.
    lab.until(lambda: lab.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'killed'") == 0, 60, "the killed process's session to end")
    before = lab.value("SELECT count(*) FROM umavez.runs")
    done = lab.cli("enqueue", "--file", path, "--json")
    assert json.loads(done.out) == {"lines": 8000, "enqueued": 8000 - before, "known": before}
    assert lab.value("SELECT count(DISTINCT args ->> 'n') FROM umavez.runs") == lab.value("SELECT count(*) FROM umavez.runs") == 8000
    lab.sql("TRUNCATE umavez.runs")


def test_cli_enqueue_file_with_bad_lines(lab, tmp_path):
    bad = ["not json", "[1]", "7", '{"args": {}}', '{"task": ""}', '{"task": 7}', '{"task": "a.b", "tennant_id": 7}', '{"task": "a.b", "run_id": "x"}', '{"task": "a.b", "args": {"s": "\\ud800"}}',
           '{"task": "a.b"} {}', '{"task": "a.b", "args": [1]}', '{"task": "a.b", "tenant_id": "seven"}', '{"task": "a.b", "priority": 9}']
    path = jsonl(tmp_path / "runs.jsonl", GOOD[:3] + bad + GOOD[3:6])
    done = lab.cli("enqueue", "--file", path)
    assert done.code == 1 and done.out == "", done
    is_message(done.err)
    for number in range(4, 4 + len(bad)):
        assert f"runs.jsonl:{number}:" in done.err, f"line {number} ({bad[number - 4]}) is not named in:\n{done.err}"
    assert lab.value("SELECT count(*) FROM umavez.runs") == 0, "nothing is enqueued from a file with faults"


def test_cli_enqueue_file_refused_by_the_database(lab, tmp_path):
    path = jsonl(tmp_path / "runs.jsonl", GOOD[:600] + [{"task": "e2.t_run", "args": {}, "tenant_id": 999999}] + GOOD[600:700])
    done = lab.cli("enqueue", "--file", path)
    assert done.code == 1
    is_message(done.err)
    jsonl(path, GOOD[:600] + [{"task": "e2.t_run", "args": {}, "tenant_id": 9}] + GOOD[600:700])
    assert lab.cli("enqueue", "--file", path).code == 0
    assert lab.value("SELECT count(*) FROM umavez.runs") == 701
    assert lab.cli("enqueue", "--file", tmp_path / "nowhere").code == 1
    lab.sql("DELETE FROM umavez.runs")


@OWNERS
def test_cli_runs_and_show(lab, owner):
    lab.latch("a")
    lab.worker()
    tasks = {"fine": (owner.task("key"), "start() effect() return { ok = true }"), "dead": (owner.task("once"), "local function deeper() error('boom at the end', 0) end deeper()"),
             "waits": (owner.task("later"), "error('not yet')"), "runs": (owner.task("key"), "start() effect() reached('a') wait('a') return {}")}
    runs = {name: lab.enqueue(task, {"e1": name, "token": "tok_SECRET", "lua": lua}, owner) for name, (task, lua) in tasks.items()}
    lab.done(runs["fine"]), lab.done(runs["dead"]), lab.failed_once(runs["waits"]), lab.reached("a")
    lab.latch("b")
    replay = lab.enqueue(*(tasks["fine"][0], {"e1": "fine", "token": "tok_SECRET", "lua": tasks["fine"][1]}, owner))
    lab.done(replay)

    def listed(*argv):
        done = lab.cli("runs", "--json", *argv)
        assert done.code == 0, done
        return {row["run_id"]: row for row in map(json.loads, done.out.splitlines())}
    assert set(listed()) == {*runs.values(), replay}
    assert {run: row["state"] for run, row in listed().items()} == {runs["fine"]: "completed", runs["dead"]: "failed_permanent", runs["waits"]: "available", runs["runs"]: "running", replay: "completed"}
    for state, names in (("available", ["waits"]), ("running", ["runs"]), ("failed_permanent", ["dead"])):
        assert set(listed("--state", state)) == {runs[name] for name in names}
    assert set(listed("--task", owner.task("once"))) == {runs["dead"]}
    assert len(listed("--limit", 2)) == 2 and listed("--task", "no.such") == {}
    slip = lab.cli("runs", "--task", owner.task("onse"))
    assert slip.code == 0 and f'did you mean "{owner.task("once")}"' in slip.err, slip
    mine = "platform" if owner.tenant_id is None else owner.tenant_id
    assert set(listed("--tenant", mine)) == {*runs.values(), replay} and listed("--tenant", 49) == {}
    table = lab.cli("runs")
    assert table.code == 0 and all(run in table.out for run in runs.values()) and "SECRET" not in table.out

    def shown(run, *argv):
        done = lab.cli("show", run, "--json", *argv)
        assert done.code == 0, done
        return json.loads(done.out)
    fine = shown(runs["fine"])
    assert (fine["state"], fine["outcome"], fine["attempt"], fine["ledger"]["status"], fine["ledger"]["outcome"]) == ("completed", {"ok": True}, 1, "completed", {"ok": True})
    assert fine["key_digest"] and not fine.get("args")
    assert shown(replay)["replay"] is True and shown(replay)["ledger"]["id"] == fine["ledger"]["id"]
    dead = shown(runs["dead"], "--args")
    assert (dead["state"], dead["outcome"]["code"], dead["args"]["token"], dead["ledger"]["status"]) == ("failed_permanent", "error", "tok_SECRET", "failed_permanent")
    assert "boom at the end" in json.dumps(dead["failure"]) and "traceback" in json.dumps(dead["failure"]).lower()
    waits = shown(runs["waits"])
    assert waits["state"] == "available" and waits["failure"]["code"] == "error" and waits["deliveries"] == 1
    assert shown(runs["runs"])["state"] == "running"
    for name, run in runs.items():
        done = lab.cli("show", run)
        assert done.code == 0 and run in done.out and tasks[name][0] in done.out and "SECRET" not in done.out, done
    assert "boom at the end" in lab.cli("show", runs["dead"]).out
    lab.open("a")
    lab.done(runs["runs"])
    lab.allow("settled_effect")
    lab.sql("DELETE FROM umavez.runs")
    del lab.env.accepted[runs["waits"]]
    missing = lab.cli("show", uuid.uuid4())
    mistake(missing, 1, "no run")


@OWNERS
def test_cli_retry(lab, owner):
    lab.allow("replays_equal")
    worker = lab.worker()
    lua = "if start() <= 3 then error('early') end effect() return {}"
    runs = [lab.enqueue(owner.task("once"), {"e1": f"E{n}", "lua": lua}, owner) for n in range(3)]
    assert {lab.done(run).status for run in runs} == {"failed_permanent"}
    lab.settle(worker)
    one = lab.cli("retry", runs[0], "--json")
    assert one.code == 0 and json.loads(one.out) == {"retried": 1}
    assert lab.live(runs[0]).state == "available" and lab.finished(runs[0]) is None
    many = lab.cli("retry", "--task", owner.task("once"), "--failed")
    assert many.code == 0 and "2" in many.out
    lab.worker()
    assert {lab.done(run).status for run in runs} == {"completed"}
    assert lab.effects() == 3
    for argv in ([runs[0]], [str(uuid.uuid4())]):
        done = lab.cli("retry", *argv)
        assert done.code == 1
        is_message(done.err)
    none = lab.cli("retry", "--task", owner.task("once"), "--failed", "--json")
    assert none.code == 0 and json.loads(none.out) == {"retried": 0}
    slip = lab.cli("retry", "--task", owner.task("onse"), "--failed")
    mistake((slip.code, slip.out, slip.err), 1, owner.task("onse"), f'did you mean "{owner.task("once")}"')


# --- tokens -----------------------------------------------------------------------------------------------------------------------------

def test_cli_token_values_are_checked(lab):
    lab.worker().wait_event("worker_ready")
    create = ("token", "create", "--platform", "--json")
    for expires, word in (("soonish", "soonish"), ("2020-01-01", "2020-01-01"), ("30x", "30x")):
        done = lab.cli(*create, "--scope", "*", "--expires", expires)
        mistake((done.code, done.out, done.err), 2, "--expires", word)
    assert lab.value("SELECT count(*) FROM umavez.tokens") == 0
    assert lab.cli(*create, "--scope", "*", "--expires", "90d").code == 0
    assert lab.value("SELECT expires_at BETWEEN now() + interval '89 days' AND now() + interval '91 days' FROM umavez.tokens")
    assert not lab.cli(*create, "--scope", "e2.t_once", "--scope", "metrics", "--scope", "ui:write").err
    slip = lab.cli(*create, "--scope", "e2.t_onse")
    assert slip.code == 0 and 'did you mean "e2.t_once"' in slip.err, slip


# --- a role without rights ----------------------------------------------------------------------------------------------------------------

def test_cli_a_role_without_rights_is_told_which(lab):
    lab.sql("DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    for argv in (["runs"], ["enqueue", "a.b"], ["queues"]):
        done = lab.cli(*argv, role="stranger")
        mistake((done.code, done.out, done.err), 1, "42501", "GRANT umavez_operator", "docs/ledger.md")


# --- a worker that has nothing to do ----------------------------------------------------------------------------------------------------

def test_cli_a_worker_without_queue_and_door(lab):
    done = lab.cli("worker", "--no-queue", "--no-schedules")
    mistake((done.code, done.out, done.err), 3, "--no-queue", "http_listen")
    worker = lab.env.worker(arguments=["--no-queue", "--schedules", "true"], supervised=True)
    assert "--no-queue" in worker.wait_event("nothing_to_serve")["message"]
    assert worker.terminate() == 0


# --- faults at the start, with a log_file -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags", [[], ["--no-supervise"]], ids=["supervised", "alone"])
def test_cli_log_file_hides_no_fault_at_the_start(lab, broken, flags):
    log = lab.env.log_dir / "start.log"
    done = lab.cli("worker", "--log-file", str(log), *flags, UMAVEZ_TASKS_DIR=str(broken))
    assert done.code == 3 and ("manifest" in done.err and str(log) in done.err or flags), done
    names_all_faults(log.read_text())
    if flags:
        names_all_faults(done.err)
    log.unlink()
    url = f"postgresql://postgres@/postgres?host={lab.env.pg.socket_dir}&port={lab.env.pg.port}"
    done = lab.cli("worker", "--log-file", str(log), *flags, DATABASE_URL=url)
    assert done.code == 4 and "umavez migrate" in done.err and "umavez migrate" in log.read_text(), done


# --- a copy of the tree's tasks -----------------------------------------------------------------------------------------------------------

def test_cli_a_copy_of_the_tasks_folder_is_no_duplicate(tmp_path):
    shutil.copytree(procs.ROOT / "tasks", tmp_path / "tasks")
    code, out, err = umavez("check", "--json", cwd=tmp_path)
    assert code == 0 and json.loads(out)["tasks"].count("maintenance.purge") == 1, err
    purge = tmp_path / "tasks" / "maintenance" / "purge.lua"
    purge.write_text(purge.read_text() + "-- changed\n")
    code, out, err = umavez("check", cwd=tmp_path)
    assert code == 3 and "maintenance.purge" in err and "comes with umavez" in err, err


# --- exec ---------------------------------------------------------------------------------------------------------------------------------------

def test_cli_exec(tmp_path):
    script = tmp_path / "script.lua"
    script.write_text("print(arg[0], arg[1], ...) return 7")
    code, out, _ = umavez("exec", script, "a b", "--flag")
    assert code == 7 and out.split() == [str(script), "a", "b", "a", "b", "--flag"]
    script.write_text("error('mine')")
    code, _, err = umavez("exec", script)
    assert code == 1 and "mine" in err
    code, _, err = umavez("exec", tmp_path / "nowhere.lua")
    assert code != 0 and "nowhere.lua" in err


def test_cli_nothing_is_read_from_the_terminal(lab):
    # A command that waits for input nobody announced would hang a script.
    for argv in (["runs"], ["migrate"], ["check"], ["version"]):
        assert lab.cli(*argv, input="").code == 0


def test_cli_closed_output(lab):
    # `umavez runs | head -1` ends without noise.
    lab.enqueue_many("e2.t_elsewhere", [{"n": n} for n in range(500)])
    done = subprocess.run(["sh", "-c", f"'{umavez_bin()}' runs --limit 500 | head -1"], env={**clean_environment(), "DATABASE_URL": lab.env.db.url("postgres")},
                          capture_output=True, text=True, timeout=60)
    assert "traceback" not in done.stderr and done.stdout
    lab.sql("DELETE FROM umavez.runs")
    lab.env.accepted.clear()
