"""What a service manager sees: systemd's datagrams from a supervisor, the unit file, and the health pages of its door."""
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time

import pytest

from support import procs
from support.http import Closed, Connection, wait_ready
from support.procs import wait_until
from support.servers import umavez_bin

UNIT = procs.ROOT / "contrib" / "umavez.service"


class Manager:
    """The receiving end of sd_notify."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.told = []

    def read(self, timeout=0.0):
        """The assignments that have come, each a "NAME=value"; waits at most so long for the first."""
        new = []
        while select.select([self.socket], [], [], 0 if new else timeout)[0]:
            new += self.socket.recv(65536).decode().split("\n")
        self.told += new
        return new

    def wait(self, pattern, after=0, timeout=60):
        """Waits for an assignment that matches, behind the first `after` ones; gives its place."""
        def look():
            self.read(0.05)
            return next((i + 1 for i, line in enumerate(self.told) if i >= after and re.fullmatch(pattern, line)), None)
        return wait_until(look, timeout, lambda: f"{pattern} behind {after} in {self.told}") - 1

    def close(self):
        self.socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, env):
    name = str(env.log_dir / "notify") if request.param == "path" else "@uv-" + os.urandom(6).hex()
    new = Manager(name.replace("@", "\0", 1))
    new.name = name
    yield new
    new.close()


def variables(pid):
    return {pair.split(b"=", 1)[0].decode() for pair in open(f"/proc/{pid}/environ", "rb").read().split(b"\0") if pair}


def test_the_service_manager_is_told(env, manager):
    worker = env.worker(workers=2, env={"NOTIFY_SOCKET": manager.name})
    ready = manager.wait("READY=1")
    assert any(line.startswith("STATUS=starting") for line in manager.told[:ready])
    assert worker.events("child_ready"), "READY comes with the first child that is"
    worker.wait_children(2)
    manager.wait("STATUS=working: 2 of 2 children ready, generation 1, 0 runs in flight")
    for child in worker.children():
        assert not variables(child) & {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
    assert not any("WATCHDOG" in line for line in manager.told)                # nobody asked for it
    # a reload
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    worker.process.send_signal(signal.SIGHUP)
    at = manager.wait("RELOADING=1", after=ready + 1)
    stamp = int(manager.told[at + 1].split("=")[1])
    assert manager.told[at + 1].startswith("MONOTONIC_USEC=") and before <= stamp <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    manager.wait("READY=1", after=at)
    assert worker.events("reloaded")
    # one that fails ends, too
    env.tasks.add("t.late", lease="7 parsecs")
    worker.process.send_signal(signal.SIGHUP)
    at = manager.wait("RELOADING=1", after=len(manager.told))
    manager.wait("READY=1", after=at)
    assert worker.events("reload_failed")
    worker.process.send_signal(signal.SIGTERM)
    at = manager.wait("STOPPING=1")
    assert re.fullmatch(r"EXTEND_TIMEOUT_USEC=\d{8,}", manager.told[at + 1])
    assert worker.process.wait(60) == 0


def test_ready_comes_with_the_database(own_env):
    own_env.pg.stop()
    manager = own_env.closing(Manager(str(own_env.log_dir / "notify")))
    worker = own_env.worker(workers=2, env={"NOTIFY_SOCKET": str(own_env.log_dir / "notify")})
    manager.wait("STATUS=starting.*")
    worker.wait_event("postgres_down")
    assert "READY=1" not in manager.told and worker.running()
    own_env.pg.start()
    manager.wait("READY=1")


def test_the_watchdog_is_fed_while_the_loop_turns(env):
    manager = env.closing(Manager(str(env.log_dir / "notify")))
    worker = env.worker(workers=1, env={"NOTIFY_SOCKET": str(env.log_dir / "notify"), "WATCHDOG_USEC": "400000"})
    worker.wait_children(1)
    at = manager.wait("WATCHDOG=1")
    manager.wait("WATCHDOG=1", after=at + 1)
    worker.freeze()
    manager.read()
    assert manager.read(1.0) == [], "a loop that does not turn says nothing"
    worker.thaw()
    manager.wait("WATCHDOG=1", after=len(manager.told))
    # Of another process: not ours to feed.
    other = env.closing(Manager(str(env.log_dir / "other")))
    env.worker(workers=1, env={"NOTIFY_SOCKET": str(env.log_dir / "other"), "WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}).wait_children(1)
    other.wait("READY=1")
    other.read(1.0)
    assert "WATCHDOG=1" not in other.told


def test_a_socket_that_is_none_disturbs_nobody(env):
    for name in ("/nowhere/at/all", "vsock:2:1234", "@"):
        worker = env.worker(workers=1, env={"NOTIFY_SOCKET": name})
        worker.wait_children(1)
        assert worker.terminate() == 0


def test_the_unit_file(tmp_path):
    text = UNIT.read_text()
    assert re.search(r"^Type=notify$", text, re.M) and re.search(r"^ExecReload=/bin/kill -HUP \$MAINPID$", text, re.M)
    codes = re.search(r"^RestartPreventExitStatus=(.*)$", text, re.M).group(1).split()
    assert codes == ["2", "3"], "usage, configuration"
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "umavez.service"
    unit.write_text(text.replace("/usr/local/bin/umavez", str(umavez_bin())))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.strip() == "", done.stderr
    broken = tmp_path / "broken.service"
    broken.write_text(unit.read_text().replace("WatchdogSec=30s", "WatchdogSec=soon"))
    told = subprocess.run(["systemd-analyze", "verify", "--man=no", str(broken)], capture_output=True, text=True, timeout=60)
    assert "soon" in told.stderr, "the check checks"


# --- the health pages ---------------------------------------------------------------------------------------------------------------------

def page(port, path, method="GET"):
    with Connection(port) as connection:
        return connection.request(method, path)


@pytest.mark.parametrize("settings", [{"workers": 2}, {}], ids=["supervised", "alone"])
def test_health_follows_the_database(own_env, settings):
    own_env.pg.stop()
    worker = own_env.worker(http_listen="127.0.0.1:0", drain_timeout="60s", **settings)
    port = int(worker.wait_event("door_open")["port"])

    def both():
        try:
            return page(port, "/healthz").status, page(port, "/readyz")
        except (OSError, Closed):
            return None
    wait_until(both, 60, "the door answers")
    alive, ready = both()
    assert (alive, ready.status, ready.json) == (200, 503, {"ready": False, "reason": "postgresql_away"})
    own_env.pg.start()
    wait_ready(port, worker)
    for path in ("/healthz", "/readyz"):
        head, get = page(port, path, "HEAD"), page(port, path)
        assert (head.status, head.body, get.status, head.get("Content-Length")) == (200, b"", 200, str(len(get.body)))
        assert page(port, path, "POST").status == 405
    own_env.pg.stop()
    wait_until(lambda: page(port, "/readyz").status == 503, 60, "the door knows that PostgreSQL is away")
    assert page(port, "/healthz").status == 200
    own_env.pg.start()
    wait_ready(port, worker)


def test_a_draining_worker_is_not_ready(env):
    env.signal("at", "go")
    worker = env.worker(http_listen="127.0.0.1:0", drain_timeout="60s")
    port = int(worker.wait_event("door_open")["port"])
    wait_ready(port, worker)
    with Connection(port) as connection:
        assert connection.request("GET", "/readyz").status == 200
        run = env.enqueue("t.effect", env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]]))
        env.wait_reached("at")
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_event("worker_draining")
        answer = connection.request("GET", "/readyz")
        assert (answer.status, answer.json) == (503, {"ready": False, "reason": "draining"})
    env.set("go")
    env.wait_finished([run])
    assert worker.process.wait(60) == 0
