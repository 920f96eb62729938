"""The packages that are made of the tree: a Debian package, a rock; where what makes them is installed."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.procs import ROOT
from support.servers import clean_environment, umavez_bin


def run(*argv, **options):
    done = subprocess.run([str(word) for word in argv], env={**clean_environment(), "MAKEFLAGS": ""}, capture_output=True, text=True,
                          timeout=540, **options)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.skipif(not (shutil.which("dh") and shutil.which("dpkg-buildpackage")), reason="debhelper is not installed")
def test_the_debian_package(tmp_path):
    run("make", "-s", "-C", ROOT, "deb", f"PACKAGES={tmp_path}")                # and lintian has nothing to say, where it is
    package, = tmp_path.glob("umavez_*.deb")
    root, control = tmp_path / "root", tmp_path / "control"
    run("dpkg-deb", "-x", package, root)
    run("dpkg-deb", "-e", package, control)
    assert run(root / "usr/bin/umavez", "version", cwd=tmp_path).startswith("umavez ")
    (root / "etc/umavez/tasks").rmdir()                                         # an empty one, for the tasks of whoever installs it
    shutil.copytree(ROOT / "tasks/payments", root / "etc/umavez/tasks/payments")
    run(root / "usr/bin/umavez", "check", "--config", root / "etc/umavez/umavez.lua", "--tasks-dir", root / "etc/umavez/tasks", cwd=tmp_path)
    assert (control / "conffiles").read_text() == "/etc/umavez/umavez.lua\n"
    assert re.search(r"^Depends: .*lua-argparse.*libluajit", (control / "control").read_text(), re.M)
    unit, = root.rglob("umavez.service")
    text = unit.read_text()
    assert "ExecStart=/usr/bin/umavez worker\n" in text and "User=umavez\n" in text and "DynamicUser" not in text
    assert (root / "usr/lib/sysusers.d/umavez.conf").read_text().startswith("u umavez ")
    assert list(root.rglob("umavez.1.gz")) and os.access(control / "postinst", os.X_OK)


needs_luarocks = pytest.mark.skipif(not shutil.which("luarocks"), reason="luarocks is not installed")


def rock(tree, **env):
    """`luarocks make` into a tree of the test's own; lua-argparse is Debian's, not a rock. Gives what it said."""
    done = subprocess.run(["luarocks", "--lua-version=5.1", f"--tree={tree}", "make", "--deps-mode=none"], cwd=ROOT, capture_output=True, text=True,
                          env={**clean_environment(), "MAKEFLAGS": "", "HOME": str(tree), **env}, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_luarocks
def test_the_rock_has_library_and_program(tmp_path):
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    tree.mkdir(), elsewhere.mkdir()
    rock(tree, BUILD=str(Path(umavez_bin()).parent))
    library = {str(path.relative_to(ROOT / "lua")) for path in (ROOT / "lua").rglob("*.lua")}
    assert library <= {str(path.relative_to(tree / "share/lua/5.1")) for path in (tree / "share/lua/5.1").rglob("*.lua")}
    umavez = tree / "bin/umavez"
    assert run(umavez, "version", cwd=elsewhere).startswith("umavez ")
    (tree / "share/lua/5.1/a_rock.lua").write_text("return 'a rock of the same tree'")
    (elsewhere / "script.lua").write_text("print(require('a_rock')) print(package.searchpath('umavez.migrate', package.path)) print(arg[1])")
    said = run(umavez, "exec", "script.lua", "two words", cwd=elsewhere).splitlines()
    assert said[0] == "a rock of the same tree" and said[1].startswith(f"{tree}/lib/luarocks/") and said[2] == "two words"
    shutil.copytree(ROOT / "tasks/webhooks", elsewhere / "tasks/webhooks")
    assert "2 tasks, 0 faults" in run(umavez, "check", cwd=elsewhere)


@needs_luarocks
def test_the_rock_without_the_programs_libraries_has_the_lua_library(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    said = rock(tree, BUILD=str(tmp_path / "build"), CPPFLAGS="-nostdinc")      # a compiler that finds no header
    assert "only the Lua library is installed" in said
    assert (tree / "share/lua/5.1/umavez/manifest.lua").exists() and not (tree / "bin/umavez").exists()


def test_the_composition_names_what_there_is():
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert set(services) == {"postgres", "valkey", "migrate", "worker"}
    commands = run(umavez_bin(), "help")
    for name in ("migrate", "worker"):
        service = services[name]
        assert f"\n   {service['command'][0]} " in commands
        assert set(service["depends_on"]) < set(services)
        known = set(re.findall(r"^\| `\w+` \|.*?\| `([A-Z_]+)` \|", (ROOT / "docs/configuration.md").read_text(), re.M))
        assert set(service["environment"]) <= known, "variables of settings"
        for volume in service["volumes"]:
            assert (ROOT / volume.split(":")[0]).is_dir(), volume
    assert services["worker"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    image = (ROOT / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", image, re.M):
        assert all((ROOT / source).exists() for source in sources.split()), sources
    assert f"WORKDIR {os.path.dirname(services['worker']['volumes'][0].split(':')[1].rsplit('/', 1)[0])}\n" in image


def commands():
    return set(re.findall(r"^   (\w+) ", run(umavez_bin(), "help").split("commands:")[1].split("exit codes")[0], re.M))


def test_the_composition_starts_what_it_says():
    """The hosts of its URLs are its services, its head's commands and files exist, and stopping waits for the drain."""
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
    text = (ROOT / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    for name in ("migrate", "worker"):
        for url in services[name]["environment"].values():
            assert re.match(r"\w+://(?:[^@/]*@)?(\w+)", url).group(1) in services, url
    user = services["postgres"]["environment"]
    assert services["worker"]["environment"]["DATABASE_URL"] == "postgresql://{POSTGRES_USER}:{POSTGRES_PASSWORD}@postgres/{POSTGRES_DB}".format(**user)
    settings = (ROOT / "docs/configuration.md").read_text()
    drain = int(re.search(r"^\| `drain_timeout` \|.*?`(\d+)s`", settings, re.M).group(1))
    assert int(services["worker"]["stop_grace_period"].rstrip("s")) > drain + 10
    head = [line[1:].strip() for line in text.splitlines() if line.startswith("#   ")]
    for line in head:
        for command in re.findall(r"(?:run --rm|exec -T) (\w+) (\w+)", line):
            assert command[0] in services and (command[1] in commands() or command[1] == "psql"), line
        for path in re.findall(r"\S+\.sql", line):
            assert (ROOT / path).exists(), line
        for service in re.findall(r"--scale (\w+)=", line):
            assert service in services, line
    assert len(head) == 5


def test_the_image_is_made_of_what_there_is(tmp_path):
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M))
    steps = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    known = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in steps} <= known
    stages, made = [], set()
    for word, rest in steps:
        if word == "FROM":
            assert re.fullmatch(r"debian:\$\{DEBIAN\}-slim(?: AS \w+)?", rest), rest
            stages.append(rest.partition(" AS ")[2])
        elif word == "RUN":
            subprocess.run(["sh", "-n"], input=rest, text=True, check=True)
            made |= set(re.findall(r"mv \S+ (/\S+)", rest))
            for target, variable in re.findall(r"\bmake (\w+) (\w+)=", rest):
                makefile = (ROOT / "Makefile").read_text()
                assert f"\n{target}:" in makefile and f"\n{variable} ?=" in makefile, rest
        elif word == "COPY" and rest.startswith("--from="):
            stage, source, _ = rest.split()
            assert stage[len("--from="):] in stages and source in made, rest
        elif word == "USER":
            assert f"u {rest} " in (ROOT / "contrib/debian/umavez.sysusers").read_text()
    last = dict(steps)
    assert last["ENTRYPOINT"] == '["umavez"]' and re.match(r'\["(\w+)"\]', last["CMD"]).group(1) in commands()
    ignored = (ROOT / ".dockerignore").read_text().split()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        assert not set(sources.split()) & set(ignored), "left out by .dockerignore"
