"""The packages that are made of the tree: a Debian package, a rock; where what makes them is installed."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.procs import ROOT
from support.servers import clean_environment


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
