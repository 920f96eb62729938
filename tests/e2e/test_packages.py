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
