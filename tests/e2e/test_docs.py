"""Every snippet of README and docs is run: here, or by the test that the page names; what cannot be run says why, and is listed."""
import json
import re
import shlex
import subprocess
import sys

import pytest

from lab import Lab
from support import snippets
from support.http import Connection
from support.procs import ROOT, wait_until
from support.servers import clean_environment, free_port, umavez_bin
from test_author import Project, new, project, server  # noqa: F401

def test_every_snippet_is_accounted_for(capsys):
    assert list(snippets.faults()) == []
    listed = [f"not run: {snippet}: {snippet.not_run}" for snippet in snippets.every() if snippet.not_run]
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(listed) + "\n")
    assert len(listed) < 8


# --- pages that are walked through ------------------------------------------------------------------------------------------------------

@pytest.fixture
def tree(tmp_path):
    """A copy of the tree, built."""
    done = subprocess.run(f"git -C '{ROOT}' ls-files -z 2>/dev/null || (cd '{ROOT}' && find . -type f -not -path './build*' -not -path './.git*' -print0)", shell=True, capture_output=True)
    subprocess.run(["tar", "-C", ROOT, "--null", "-T", "-", "--ignore-failed-read", "-cf", tmp_path / "tree.tar"], input=done.stdout, check=True, stderr=subprocess.DEVNULL)
    copy = tmp_path / "tree"
    (copy / "build").mkdir(parents=True)
    subprocess.run(["tar", "-C", copy, "-xf", tmp_path / "tree.tar"], check=True)
    (copy / "build" / "umavez").symlink_to(umavez_bin())
    yield copy
    subprocess.run([umavez_bin(), "dev", "--stop"], cwd=copy, env=clean_environment(), capture_output=True)
    subprocess.run([umavez_bin(), "test", "--stop"], cwd=copy, env=clean_environment(), capture_output=True)


def walk(tree, page):
    env = {**clean_environment(), "NEWUSER_PORT": str(free_port())}
    env.pop("UMAVEZ_SCHEDULES", None)
    done = subprocess.run(["tests/newuser", "--installed", page], cwd=tree, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_the_path_of_a_new_user(tree):
    out = walk(tree, "docs/quickstart.md")
    assert "| `build/umavez test tasks/shop` |" in out and "| all |" in out


@pytest.mark.timeout(300)
def test_the_readme_is_walked_through(tree):
    out = walk(tree, "README.md")
    assert "completed (replay)" in out and "HTTP/1.1 201 Created" in out


# --- tasks --------------------------------------------------------------------------------------------------------------------------------

def texts(page, language):
    return [s.text for s in snippets.of_page(page) if s.language == language and not s.run_by and not s.not_run]


@pytest.mark.parametrize("page", ["README.md", "docs/tasks.md"])
def test_the_first_task_of_the_page_is_run(project, page):  # noqa: F811
    tasks = project.directory / "tasks"
    for name in ("payments", "receipts"):
        (tasks / name).mkdir()
        for file in (ROOT / "tasks" / name).glob("*"):
            if not file.name.endswith("_spec.lua"):
                (tasks / name / file.name).write_text(file.read_text())
    named = [t for t in texts(page, "lua") if t.startswith("-- tasks/payments/")]
    assert named
    for text in named:
        (project.directory / re.match(r"-- (\S+\.lua)", text).group(1)).write_text(text)
    project.spec("""it("pays once", function()
      local first = t:deliver_twice("payments.pix", { end_to_end_id = "E1", amount_cents = 100 }, { tenant = 7 })
      assert.equal(201, first.status)
      t:assert_enqueued("receipts.send", { payment_id = first.payment_id })
      t:assert_effects_once("SELECT FROM payments WHERE end_to_end_id = $1", "E1")
    end)""")
    assert "1 success / 0 failures" in project("tasks/app_spec.lua")


def test_the_fragments_of_the_guide(project):  # noqa: F811
    blocks = [t for t in texts("docs/tasks.md", "lua") if not t.startswith("-- tasks/payments/")]
    steps, = (t for t in blocks if "prepare =" in t)
    savepoint, = (t for t in blocks if "savepoint" in t)
    typed, = (t for t in blocks if "---@param" in t)
    assert len(blocks) == 3
    app = project.directory / "tasks" / "app"
    (app / "schema.sql").write_text("CREATE TABLE quotes (price int NOT NULL); CREATE TABLE coupons (code text CONSTRAINT coupons_code_key UNIQUE);")
    (app / "manifest.lua").write_text('return { tasks = { steps = { owner = "platform" }, coupon = { owner = "platform" }, typed = { owner = "platform" } } }')
    (app / "steps.lua").write_text("local function slow_lookup() return 7 end\n" + steps)
    (app / "coupon.lua").write_text("return function(ctx, args)\n" + savepoint + "return { known = not ok }\nend")
    (app / "typed.lua").write_text(typed)
    project.spec("""it("does them", function()
      t:run("app.steps")
      assert.equal(7, t.db:one("SELECT price FROM quotes").price)
      assert.is_false(t:run("app.coupon", { code = "C" }).known)
      assert.is_true(t:run("app.coupon", { code = "C" }).known)
      t:assert_effects_once("SELECT FROM coupons")
      t:run("app.typed")
    end)""")
    assert "1 success / 0 failures" in project("tasks/app_spec.lua")
    luarc, = texts("docs/tasks.md", "json")
    assert json.loads(luarc)["workspace.library"][0].endswith("lua/umavez/types") and (ROOT / "lua/umavez/types/umavez.lua").exists()


@pytest.mark.parametrize("page", ["docs/manifest.md", "docs/schedules.md"])
def test_manifests_are_accepted(tmp_path, page):
    text, = texts(page, "lua")
    folder = tmp_path / "tasks" / "shown"
    folder.mkdir(parents=True)
    (folder / "manifest.lua").write_text(text)
    for name in re.findall(r"^    (\w+) += \{$", text, re.M):
        (folder / f"{name}.lua").write_text("return function() end")
    done = subprocess.run([umavez_bin(), "check"], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_settings_file_is_read(tmp_path):
    text, = texts("docs/configuration.md", "lua")
    (tmp_path / "umavez.lua").write_text(text)
    (tmp_path / "tasks").mkdir()
    script = tmp_path / "show.lua"
    script.write_text("local conf = require('umavez.cli.settings').load({}) print(conf.queues[1], conf.drain_timeout, conf:source('database_url'))")
    done = subprocess.run([umavez_bin(), "exec", "show.lua"], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True)
    assert done.stdout.split() == ["payments", "25000", "umavez.lua"], done.stderr


# --- SQL ----------------------------------------------------------------------------------------------------------------------------------

def test_the_ledgers_sql(db):
    enqueue, other, roles = texts("docs/ledger.md", "sql")
    db.q("INSERT INTO tenants (id) VALUES (7) ON CONFLICT DO NOTHING")
    db.q(enqueue)
    assert db.val("SELECT count(*) FROM umavez.runs") == 3
    db.q(other)
    assert db.one("SELECT status, outcome FROM umavez.idempotency_keys") == ("completed", {"status": 201})
    db.q("BEGIN; CREATE ROLE someone; CREATE ROLE web; ALTER ROLE app_worker RENAME TO app_worker_of_the_tests; " + roles + "; ROLLBACK")


def test_row_level_security(db):
    text, = texts("docs/tasks.md", "sql")
    db.q((ROOT / "tasks/payments/schema.sql").read_text())
    db.q("INSERT INTO tenants (id) VALUES (7), (8) ON CONFLICT DO NOTHING")
    db.q("INSERT INTO payments (tenant_id, end_to_end_id, amount_cents) VALUES (7, 'a', 1), (8, 'b', 1)")
    db.q("GRANT SELECT ON payments TO app_worker")
    db.q(text)
    seen = lambda tenant: db.q(f"SET ROLE app_worker; SELECT set_config('umavez.tenant_id', '{tenant}', false); SELECT tenant_id FROM payments")
    assert [r.tenant_id for r in seen(7)] == [7] and seen("") == []


# --- commands -----------------------------------------------------------------------------------------------------------------------------

def test_the_runbook(lab):
    """docs/operations.md, at three in the morning: its commands, on a worker with runs that fail."""
    lab.latch("a", "never")
    lab.worker()
    dead = [lab.enqueue("e2.t_once", {"e1": f"dead {n}", "lua": "error('the bank does not answer')"}) for n in range(3)]
    for run in dead:
        lab.done(run)
    held = lab.enqueue("e2.t_run", {"lua": "effect() reached('a') ctx.sql:one(\"SELECT test_wait('never', 60000)\") return {}"})
    lab.reached("a")
    paid = lab.enqueue("e2.t_key", {"e1": "E1", "lua": "effect() return {}"})
    lab.done(paid)
    runs, done = {"show": dead[0], "cancel": held, "forget": paid}, 0
    page = (ROOT / "docs" / "operations.md").read_text()
    for snippet in snippets.of_page("docs/operations.md"):
        if snippet.language != "console":
            continue
        for command in snippets.commands(snippet):
            program, name, *words = shlex.split(command)
            assert program == "umavez", command
            words = [runs[name] if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", w) else "e2.t_once" if w == "app.pay" else w for w in words]
            got = lab.cli(name, *words)
            assert got.code in ((0, 1, 6) if name == "doctor" else (0,)), (command, got)
            head = snippet.text.split(command + "\n")[1].splitlines()[0]
            if name in ("top", "runs", "queues", "audit"):       # the heads of the tables are those that the page shows
                shown = next(line for line in snippet.text.split(command + "\n")[1].splitlines() if line.isupper() or line.startswith(("QUEUE", "RUN ", "WHEN")))
                assert any(line.split() == shown.split() for line in got.out.splitlines()), (command, got.out)
            assert head
            done += 1
    assert done == 13 and "umavez audit" in page
    lab.open("never")
    lab.allow("effect_settled", "ledger_run", "gate_truth", "settled_effect")


def walk_commands(lab, page, containing, replace):
    """The commands of a block: as they stand, as a shell is to run them, and in which environment."""
    for line in snippets.one(page, containing).text.splitlines():
        command = line.split("  #")[0].strip()
        for old, new_ in replace.items():
            command = command.replace(old, new_)
        env = {**clean_environment(), "DATABASE_URL": lab.env.db.url("app_worker"), "VALKEY_URL": lab.env.valkey.url, "UMAVEZ_TASKS_DIR": str(lab.env.tasks.dir)}
        if " token " in command:
            env["DATABASE_URL"] = lab.env.db.url("postgres")
        yield line, re.sub(r"(^|\) )umavez ", rf"\1exec {umavez_bin()} ", command), env


def test_commands_of_the_door(lab):
    port = free_port()
    lab.sql("INSERT INTO tenants (id) VALUES (7) ON CONFLICT DO NOTHING")
    done = 0
    for line, command, env in walk_commands(lab, "docs/http.md", "--no-queue", {":8080": f":{port}"}):
        if line.startswith("./setup"):
            continue                                    # tests/e2e/test_demo.py
        child = subprocess.Popen(["sh", "-c", command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=lab.env.log_dir)
        if " worker " in line:
            def ready():
                assert child.poll() is None, child.stderr.read()
                try:
                    with Connection(port) as connection:
                        return connection.request("GET", "/readyz").status == 200
                except OSError:
                    return False
            wait_until(ready, 60, "the door")
            child.terminate()
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, (line, out, err)
        done += 1
    assert done == 4


def test_the_metrics_page_by_curl(lab, tmp_path):
    token, port = tmp_path / "metrics.token", free_port()
    token.write_text("a-token-of-the-docs-own")
    (_, worker, env), (_, curl, _) = walk_commands(lab, "docs/metrics.md", "curl", {"/etc/umavez/metrics.token": str(token), "9464": str(port)})
    child = subprocess.Popen(["sh", "-c", worker], env=env, stderr=subprocess.DEVNULL, cwd=lab.env.log_dir, start_new_session=True)
    try:
        wait_until(lambda: "umavez_database_up 1" in subprocess.run(["sh", "-c", curl], env=env, capture_output=True, text=True).stdout, 60, "the page")
    finally:
        child.terminate()
        child.wait(60)


def test_the_repls_example(lab):
    lab.enqueue_many("e2.t_elsewhere", [{"n": n} for n in range(3)])
    page = snippets.one("docs/cli.md", "umavez> ")
    typed = "".join(line[8:] + "\n" for line in page.text.splitlines() if line.startswith("umavez> "))
    done = lab.cli("repl", input=typed)
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert lines[:2] == page.text.splitlines()[1:3] and re.fullmatch(r'"[0-9a-f-]{36}"', lines[2]), done.out
    lab.sql("DELETE FROM umavez.runs")
    lab.env.accepted.clear()
