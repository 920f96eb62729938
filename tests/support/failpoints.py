"""Failpoints from the test's side: arm some in a worker of the build of `make failpoints`, wait until it stands at one, tell it what to do.

    points = Failpoints()
    worker = env.worker(env=points.armed("commit-sent@m.tenant:pause"))
    hit = points.wait()
    worker.kill()                        # or hit.answer("go"), hit.answer("cut-pg-read")
"""
import re
import select
import socket
import threading
import time

from . import procs
from .servers import umavez_bin

HEADER = procs.ROOT / "runtime" / "base" / "failpoint.h"


def names():
    """Name -> what stands there, from the list in C."""
    return dict(re.findall(r'^ +X\([A-Z_]+, "([a-z-]+)", "([^"]+)"\)', HEADER.read_text(), re.M))


def failpoints_bin():
    """Beside the program under test: build-failpoints/umavez for build/umavez."""
    folder = umavez_bin().resolve().parent
    return folder.with_name(folder.name + "-failpoints") / "umavez"


class Hit:
    """A worker that stands at a point, its loop blocked, until answer() or its death."""

    def __init__(self, connection):
        self.connection = connection
        self.name, pid, self.task = connection.makefile("r").readline().split()
        self.pid = int(pid)

    def answer(self, action="go"):
        try:
            self.connection.sendall(action.encode() + b"\n")
        except OSError:
            pass                            # it has been killed
        self.connection.close()


class Failpoints:
    def __init__(self):
        self.dir = procs.private_dir("fp-")
        self.path = self.dir / "s"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.path.chmod(0o777)
        self.listener.listen(16)
        self.hits = []

    def armed(self, *points):
        """The environment of a worker: each point is NAME[@TASK]:ACTION[:NTH]."""
        return {"UMAVEZ_FAILPOINTS": ",".join([f"socket={self.path}", *points])}

    def wait(self, worker=None, timeout=60):
        deadline = time.monotonic() + timeout
        while not select.select([self.listener], [], [], 0.1)[0]:
            assert worker is None or worker.running(), f"the worker has ended before it came to its failpoint:\n{worker.tail()}"
            assert time.monotonic() < deadline, f"no failpoint hit within {timeout} s" + (f":\n{worker.tail()}" if worker else "")
        hit = Hit(self.listener.accept()[0])
        self.hits.append(hit)
        return hit

    def release(self):
        """From now on whoever comes to a point is told to go on at once: a supervisor's next child is armed as the first one was."""
        def let_go():
            while True:
                try:
                    self.hits.append(Hit(self.listener.accept()[0]))
                except OSError:
                    return
                self.hits[-1].answer()
        threading.Thread(target=let_go, daemon=True).start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        for hit in self.hits:
            hit.connection.close()
        self.listener.close()
        procs.remove_dir(self.dir)
