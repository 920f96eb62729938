"""Child processes of the tests: unprivileged where a server refuses root, gone when the tests go."""
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def wait_until(predicate, timeout=30.0, what=None, interval=0.02):
    """Polls until predicate() is true and returns its value; fails with `what` after the time-out.

    The time-out is for liveness only: generous, since a busy machine is not a fault.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            text = what() if callable(what) else (what or getattr(predicate, "__name__", "condition"))
            raise AssertionError(f"not within {timeout:g} s: {text}")
        time.sleep(interval)


def unprivileged():
    """The account that servers run under: ourselves, or another one when we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("root needs an unprivileged account (postgres or nobody) to run servers")


MEMORY, MEMORY_NEEDED = "/dev/shm", 4 << 30


def memory_dir():
    """Where files cost no disk: making databases is what the tests wait for most, and no fault of theirs is a power cut. None: no room."""
    try:
        room = os.statvfs(MEMORY)
    except OSError:
        return None
    good = room.f_bavail * room.f_frsize >= MEMORY_NEEDED and not room.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) and os.access(MEMORY, os.W_OK)
    return MEMORY if good else None


def base_dir(parent="/tmp"):
    """One directory a session, short enough for unix sockets; conftest.py makes and removes it. What measures speed leaves it on the disk."""
    base = os.environ.get("UMAVEZ_TEST_BASE")
    if not base:
        base = tempfile.mkdtemp(prefix="uv-", dir=parent)
        os.environ["UMAVEZ_TEST_BASE"] = base
    os.chmod(base, 0o755)
    return Path(base)


def private_dir(prefix):
    """A new directory under the session's, owned by the servers' account."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=base_dir()))
    own(path)
    os.chmod(path, 0o755)
    return path


def own(path):
    who = unprivileged()
    if who:
        os.chown(path, who.pw_uid, who.pw_gid)


def remove_dir(path):
    shutil.rmtree(path, ignore_errors=True)


def spawn(argv, *, drop=True, death_signal=signal.SIGKILL, stdout=None, env=None, cwd=None, stdin=subprocess.DEVNULL):
    """Starts a process of its own group that dies with us."""
    who = unprivileged() if drop else None

    def prepare():
        os.setpgid(0, 0)
        if who:
            os.setgroups([])
            os.setgid(who.pw_gid)
            os.setuid(who.pw_uid)
        _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)

    return subprocess.Popen([str(a) for a in argv], stdin=stdin, stdout=stdout or subprocess.DEVNULL,
                            stderr=subprocess.STDOUT, env=env, cwd=cwd or base_dir(), preexec_fn=prepare)


def run(argv, *, drop=True, env=None, input=None, timeout=120):
    """Runs a tool to its end; raises with its output when it fails."""
    who = unprivileged() if drop else None

    def prepare():
        if who:
            os.setgroups([])
            os.setgid(who.pw_gid)
            os.setuid(who.pw_uid)

    done = subprocess.run([str(a) for a in argv], env=env, input=input, capture_output=True, text=True,
                          cwd=base_dir(), timeout=timeout, preexec_fn=prepare)
    if done.returncode != 0:
        raise RuntimeError(f"{argv[0]} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


def children_of(pid):
    """Pids of the live direct children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        state, ppid = stat.rsplit(")", 1)[1].split()[:2]
        if int(ppid) == pid and state not in "ZX":
            found.append(int(entry))
    return found


def with_environment(pair):
    """Pids of the live processes that were started with NAME=VALUE in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and pair.encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0") and alive(int(entry)):
                found.append(int(entry))
        except OSError:
            continue
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def send(pid, sig):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass
