"""A proxy before a unix socket that hands on what it gets after a delay, as a network does: each chunk's time counts by itself, none waits
for another. In a process of its own, so that it takes nothing from whoever measures. It waits with select(), the one call whose time-out is
not rounded to milliseconds."""
import collections
import contextlib
import multiprocessing
import select
import shutil
import socket
import tempfile
import time
from pathlib import Path

PORT = 5432


def _unix(path=None):
    made = socket.socket(socket.AF_UNIX)
    if path:
        made.connect(path)
    return made


def _serve(target, path, delay, ready):
    listener, others, late = _unix(), {}, collections.deque()      # late: (due, to, data), in order of time, since all wait equally long
    listener.bind(path)
    listener.listen(64)
    Path(path).chmod(0o777)
    ready.set()

    def drop(end):
        for one in (end, others.get(end)):
            if one is not None:
                others.pop(one, None)
                one.close()
    while True:
        wait = max(0, late[0][0] - time.monotonic()) if late else None
        for end in select.select([listener, *others], [], [], wait)[0]:
            if end is listener:
                near, far = listener.accept()[0], _unix(target)
                others[near], others[far] = far, near
            elif end in others:
                data = b""
                with contextlib.suppress(OSError):
                    data = end.recv(1 << 16)
                late.append((time.monotonic() + delay, others[end], data))
                if not data:
                    others.pop(end)      # read no more; its close is handed on like data
        while late and late[0][0] <= time.monotonic():
            _, to, data = late.popleft()
            if not data:
                drop(to)
            elif to in others:
                with contextlib.suppress(OSError):
                    to.sendall(data)


class Delay:
    """`directory` and `port` go into a URL; `ms` is what each way takes."""

    def __init__(self, target, ms):
        self.directory, self.port = Path(tempfile.mkdtemp(prefix="uvd-", dir="/tmp")), PORT
        self.directory.chmod(0o755)
        ready = multiprocessing.Event()
        self.process = multiprocessing.Process(target=_serve, args=(str(target), str(self.directory / f".s.PGSQL.{PORT}"), ms / 1000, ready), daemon=True)
        self.process.start()
        if not ready.wait(30):
            raise RuntimeError("the delaying proxy does not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.join()
        shutil.rmtree(self.directory, ignore_errors=True)
