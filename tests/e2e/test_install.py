"""`make install` and `make uninstall`: what they put below PREFIX is whole, works without the tree it came from, and goes again."""
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.procs import ROOT, wait_until
from support.servers import clean_environment, umavez_bin
from test_cli import Cli, empty  # noqa: F401

# Prints the folders that the program reads Lua from, and where each loaded module of ours comes from.
WHERE = """
print(package.path)
for _, name in ipairs { "umavez.cli.main", "umavez.migrate", "umavez.manifest" } do
  require(name)
  print(package.searchpath(name, package.path))
end
"""


def make(target, stage, prefix="/opt/umavez"):
    done = subprocess.run(["make", "-s", "-C", ROOT, f"BUILD={Path(umavez_bin()).parent}", target, f"DESTDIR={stage}", f"PREFIX={prefix}"],
                          env={**clean_environment(), "MAKEFLAGS": ""}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(f"{stage}{prefix}")


def files(folder):
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if not path.is_dir()}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The prefix of a fresh installation, whose program the other helpers then use."""
    prefix = make("install", tmp_path / "stage")
    monkeypatch.setenv("UMAVEZ_BIN", str(prefix / "bin" / "umavez"))
    return prefix


def test_what_is_installed_works_without_its_tree(installed, empty, tmp_path):  # noqa: F811
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cli = Cli(empty.url("postgres"), elsewhere, VALKEY_URL="")
    assert cli("version").startswith("umavez ")
    (elsewhere / "where.lua").write_text(WHERE)
    where = cli("exec", "where.lua")
    assert str(ROOT / "lua") not in where and where.count(f"{installed}/share/umavez/lua/") >= 5, where

    shutil.copytree(ROOT / "tasks" / "webhooks", elsewhere / "tasks" / "webhooks")
    cli("check")
    assert "maintenance.purge" in cli("describe", "maintenance.purge")          # comes with the program, not with these tasks
    cli("migrate")
    empty.q((elsewhere / "tasks" / "webhooks" / "schema.sql").read_text())
    cli("enqueue", "webhooks.receive", '{"delivery":"d-1","event":"ping","payload":{}}')
    worker = cli.start("worker", "--workers", "1")
    try:
        wait_until(lambda: empty.val("SELECT count(*) FROM webhooks") == 1 or worker.poll() is not None, 60, "the run's effect")
    finally:
        worker.send_signal(signal.SIGTERM)
        log = worker.communicate(timeout=60)[1]
    assert worker.returncode == 0, log
    assert empty.val("SELECT count(*) FROM webhooks") == 1, log


def test_what_is_installed_is_whole(installed):
    there = files(installed)
    share = {"share/umavez/" + str(path.relative_to(ROOT)) for folder, ends in [("lua", "lua"), ("sql", "sql"), ("tasks", "lua"), ("tasks", "sql")]
             for path in (ROOT / folder).rglob("*." + ends)}
    docs = {f"share/doc/umavez/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert share | docs | {"bin/umavez", "share/man/man1/umavez.1", "lib/systemd/system/umavez.service"} <= there
    assert not {path for path in installed.rglob("*") if path.is_file() and path.stat().st_mode & 0o022}, "others may write"
    assert not {path for path in there if "/tests/" in path or "__pycache__" in path}
    unit = (installed / "lib/systemd/system/umavez.service").read_text()
    assert "ExecStart=/opt/umavez/bin/umavez worker\n" in unit and "/usr/local" not in unit.replace("/opt/umavez", "")
    assert ".SS umavez worker" in (installed / "share/man/man1/umavez.1").read_text()


def test_uninstall_takes_away_what_install_has_put_there_and_nothing_else(installed, tmp_path):
    others = [installed / "bin/another", installed / "share/man/man1/another.1", tmp_path / "stage/etc/umavez/umavez.lua"]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    make("uninstall", tmp_path / "stage")
    assert files(tmp_path / "stage") == {os.path.relpath(path, tmp_path / "stage") for path in others}
