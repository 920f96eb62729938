"""`umavez dev`: private servers that start, stay, come back after a crash, and go."""
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg2
import pytest

from support.procs import alive, remove_dir, wait_until
from support.servers import clean_environment, umavez_bin


class Dev:
    def __init__(self, cwd):
        self.cwd = cwd

    def __call__(self, *argv, code=0):
        done = subprocess.run([str(umavez_bin()), "dev", *argv], env=clean_environment(), cwd=self.cwd, text=True,
                              capture_output=True, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def status(self, code=0):
        return json.loads(self("--status", "--json", code=code))

    def query(self, sql):
        connection = psycopg2.connect(self.status()["postgres"]["url"])
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql)
            rows = cursor.fetchall() if cursor.description else []
        connection.close()
        return rows


@pytest.fixture
def dev():
    directory = Path(tempfile.mkdtemp(prefix="uvd-", dir="/tmp"))
    servers = Dev(directory)
    yield servers
    if (directory / ".umavez").exists():
        servers("--stop")
    remove_dir(directory)


def pids(dev):
    status = dev.status()
    return status["postgres"]["pid"], status["valkey"]["pid"]


def test_start_twice_stop_and_keep_the_data(dev):
    lines = dev().splitlines()
    assert [line.split("=")[0] for line in lines] == ["export DATABASE_URL", "export VALKEY_URL"]
    before = pids(dev)
    dev()
    assert pids(dev) == before
    dev.query("CREATE TABLE kept ()")
    dev("--stop")
    assert not any(alive(pid) for pid in before)
    assert "pid" not in dev.status(code=1)["postgres"]
    dev("--stop")
    dev()
    dev.query("SELECT * FROM kept")
    dev("--reset")
    with pytest.raises(psycopg2.Error):
        dev.query("SELECT * FROM kept")


def test_after_a_crash_and_two_at_once(dev):
    dev()
    for pid in pids(dev):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), 10, "killed")
    both = [subprocess.Popen([str(umavez_bin()), "dev"], cwd=dev.cwd, env=clean_environment(),
                             stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [child.wait(120) for child in both] == [0, 0]
    assert dev.query("SELECT 1") == [(1,)]


def test_stale_pid_files_of_another_process(dev):
    dev()
    before = pids(dev)
    dev("--stop")
    other = str(os.getpid())
    (dev.cwd / ".umavez/postgres/data/postmaster.pid").write_text(other + "\n")
    (dev.cwd / ".umavez/valkey/valkey.pid").write_text(other + "\n")
    assert "pid" not in dev.status(code=1)["valkey"]
    dev()
    assert not set(pids(dev)) & {*before, int(other)}


def test_a_path_too_long_for_a_socket(dev):
    dev.cwd = dev.cwd / ("long" * 25)
    dev.cwd.mkdir()
    dev()
    assert dev.query("SELECT 1") == [(1,)]
    short = os.readlink(dev.cwd / ".umavez/run")
    assert os.path.isdir(short)
    dev("--stop")
    assert not os.path.exists(short)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's servers run as somebody else")
def test_a_folder_that_the_servers_user_cannot_enter(dev):
    dev.cwd.chmod(0o700)
    dev()
    assert dev.query("SELECT 1") == [(1,)]
    assert os.stat(f"/proc/{pids(dev)[0]}").st_uid != 0
