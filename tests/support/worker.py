"""Worker processes: started with a login role of least privilege, signalled, watched through their log."""
import json
import os
import re
import signal
import uuid

from . import procs
from .procs import wait_until
from .servers import clean_environment, umavez_bin

_PAIR = re.compile(r'([A-Za-z_][\w.]*)=("(?:[^"\\]|\\.)*"|\S*)')
SANITIZER = re.compile(r"AddressSanitizer|LeakSanitizer|runtime error:|umavez: bug")


def parse_line(line):
    """A log line as a dict, JSON or logfmt; {} when it is neither."""
    if line.startswith("{"):
        try:
            return json.loads(line)
        except ValueError:
            return {}
    return {k: (json.loads(v) if v.startswith('"') else v) for k, v in _PAIR.findall(line)}


# A busy machine misses the default of 100 ms now and then, and then a copy is left out: right, but not what most tests are about.
DEFAULTS = {"log_format": "json", "poll_interval": "200ms", "gate_timeout": "1s", "supervise": "false"}


class Worker:
    """`umavez worker`: one process, or with supervised=True (or workers=N) a supervisor with its children.

    Its settings become UMAVEZ_<NAME>; database_url and valkey_url their own variables. `pid`, `process` and what sends signals mean
    the process that was started: the only one, or the supervisor; kill() ends the children, too.
    """

    def __init__(self, name, *, database_url, valkey_url, tasks_dir, log_dir, env=None, arguments=(), supervised=None, **settings):
        self.name = name
        self.supervised = "workers" in settings if supervised is None else supervised
        if self.supervised:
            settings = {"supervise": "true", "workers": 2, **settings}
        self.mark = f"UMAVEZ_TEST_WORKER={uuid.uuid4()}"
        self.log = log_dir / f"{name}.log"
        environment = {**clean_environment(), "DATABASE_URL": database_url, "VALKEY_URL": valkey_url or "",
                       "UMAVEZ_TASKS_DIR": str(tasks_dir),
                       **{f"UMAVEZ_{k.upper()}": str(v) for k, v in {**DEFAULTS, **settings}.items()}, **dict([self.mark.split("=")]), **(env or {})}
        with open(self.log, "ab") as log:
            self.process = procs.spawn([umavez_bin(), "worker", *arguments], drop=False, stdout=log, env=environment, cwd=log_dir)
        self.killed = False

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def kill(self):
        """SIGKILL; returns when it is gone, its children too."""
        self.killed = True
        if self.running():
            self.process.kill()
        self.process.wait()
        if self.supervised:
            for pid in self.processes():
                procs.send(pid, signal.SIGKILL)
            wait_until(lambda: not self.processes(), 20, "killed children gone")

    def children(self):
        """Pids of a supervisor's live children."""
        return procs.children_of(self.pid)

    def processes(self):
        """Pids of all its live processes, orphans among them."""
        return procs.with_environment(self.mark)

    def wait_children(self, count=None, generation=None, timeout=60):
        """Waits until so many children (default: as many as it has) are ready and no other is left; gives their pids."""
        def look():
            ready = {int(e["child"]) for e in self.events("child_ready") if generation is None or int(e["generation"]) == generation}
            alive = self.children()
            return alive if alive and set(alive) <= ready and len(alive) == (count or len(alive)) else None
        return wait_until(look, timeout, lambda: f"{count} ready children of {self.name}, there are {self.children()}:\n{self.tail()}")

    def try_freeze(self):
        """Stops it; False: it had ended."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _state(self.pid) == "T" or not self.running(), 30, f"worker {self.name} to stop")
        return self.running()

    def freeze(self):
        assert self.try_freeze(), f"cannot freeze a worker that has ended: {self.complaint() or self.tail()}"

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, timeout=40):
        """SIGTERM; returns the exit status."""
        if self.running():
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except Exception:
            self.dump()
            raise AssertionError(f"worker {self.name} did not end within {timeout} s after SIGTERM; its log: {self.tail()}")

    def text(self):
        return self.log.read_text(errors="replace")

    def tail(self, lines=40):
        return "\n".join(self.text().splitlines()[-lines:])

    def events(self, event=None, **match):
        """The log's events, in order; with a name or fields only those."""
        found = []
        for line in self.text().splitlines():
            fields = parse_line(line)
            if fields and (event is None or fields.get("event") == event) and all(str(fields.get(k)) == str(v) for k, v in match.items()):
                found.append(fields)
        return found

    def wait_event(self, event, timeout=30, **match):
        return wait_until(lambda: self.events(event, **match), timeout, lambda: f"event {event} {match} in {self.name}:\n{self.tail()}")[0]

    def wait_line(self, pattern, timeout=30):
        expression = re.compile(pattern)
        return wait_until(lambda: expression.search(self.text()), timeout, lambda: f"/{pattern}/ in {self.name}'s log:\n{self.tail()}")

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_kb(self):
        return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{self.pid}/status").read()).group(1))

    def complaint(self):
        """What a sanitizer or an assertion said, or an unexpected death; None when all is well."""
        found = SANITIZER.search(self.text())
        if found:
            return f"worker {self.name}: {found.group(0)}\n{self.crash_report()}{self.tail(60)}"
        if self.crash_report():     # of a child, too: its parent goes on
            return f"worker {self.name} has crashed{'' if self.running() else f', ended with {self.process.returncode}'}\n{self.crash_report()}{self.tail(60)}"
        if not self.killed and not self.running() and self.process.returncode != 0:
            return f"worker {self.name} ended with {self.process.returncode}\n{self.tail(60)}"
        return None

    def crash_report(self):
        """What it wrote when a signal ended it (runtime/base/crash.h), to be shown in front of its log, which may be cut; "" for another end."""
        lines = self.text().splitlines(keepends=True)
        first = next((n for n, line in enumerate(lines) if line.startswith("umavez: crash: SIG")), None)
        return "" if first is None else "".join(lines[first:first + 90])

    def dump(self):
        """Where it hangs, into its log directory, when gdb is there; for the person who reads a failure."""


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"
