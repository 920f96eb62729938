"""A wrong wall clock for worker processes: a library of our own (skew.c), preloaded, that adds what stands in a file to each reading, so that it may jump at
any moment. (Debian's libfaketime does the same, but looks at its file every ten seconds unless told otherwise, and is one package more.) The monotonic
clock, which no administrator sets, stays.
"""
import os
import subprocess

from . import procs

SKEW_C = procs.ROOT / "tests" / "support" / "skew.c"
YEAR = 366 * 86400


class Skew:
    """A wrong wall clock for processes started with `env`."""

    def __init__(self, directory):
        self.library, self.file = directory / "skew.so", directory / "skew"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self.library, SKEW_C, "-ldl"], check=True)
        self.set(0)
        self.env = {"LD_PRELOAD": str(self.library), "UMAVEZ_TEST_SKEW": str(self.file)}
        if os.environ.get("ASAN_OPTIONS") or "asan" in os.environ.get("UMAVEZ_BIN", ""):
            self.env["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"

    def set(self, seconds):
        self.file.write_text(f"{int(seconds):<30d}")
        self.file.chmod(0o644)
