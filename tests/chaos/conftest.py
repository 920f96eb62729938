"""Of each test that test_pgbouncer.py takes from tests/e2e, the first two parametrisations run (UMAVEZ_LONG=1: all). The fault matrix' fixtures, and its
table: one line a cell, printed at the end."""
import collections
import json
import os

import pytest

from matrix import BatchCell, DoorCell, QueueCell, Servers
from support.failpoints import failpoints_bin
from support.servers import Cluster, Valkey


@pytest.fixture(scope="session")
def matrix_servers():
    """What the cells of one process share, and crash."""
    pg, valkey = Cluster.create().start(), Valkey().start()
    yield Servers(pg, valkey)
    valkey.destroy()
    pg.destroy()


@pytest.fixture
def matrix_cell(request, matrix_servers, monkeypatch):
    """Makes the cell's world; what its run() has seen goes into the table."""
    program = failpoints_bin()
    assert program.exists(), f"{program} is not built: make failpoints"
    monkeypatch.setenv("UMAVEZ_BIN", str(program))
    made = []

    def make(entry, step, fault, owner):
        made.append({"queue": QueueCell, "batch": BatchCell, "door": DoorCell}[entry](matrix_servers, entry, step, fault, owner))
        return made[0]
    yield make
    report = getattr(request.node, "report_call", None)
    for cell in made:
        cell.close(report is None or report.failed)


def pytest_terminal_summary(terminalreporter):
    rows = []
    for result in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(result, []):
            rows += [(json.loads(text), result) for name, text in getattr(report, "user_properties", []) if name == "cell"]
    if not rows:
        return
    terminalreporter.section("fault matrix")
    terminalreporter.write_line(f"{'entry':6}{'owner':9}{'step':19}{'fault':25}{'starts':>7}{'runs':>6}{'replays':>8}{'effects':>8}{'waited':>8}{'s':>7}  result")
    for cell, result in sorted(rows, key=lambda row: (row[0]["entry"], row[0]["nr"])):
        numbers = "".join(f"{cell.get(name, '-'):>{width}}" for name, width in
                          (("starts", 7), ("runs", 6), ("replays", 8), ("effects", 8), ("waited", 8), ("seconds", 7)))
        terminalreporter.write_line(f"{cell['entry']:6}{cell['owner']:9}{cell['step']:19}{cell['fault']:25}{numbers}  {result}")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("UMAVEZ_LONG") == "1":
        return
    seen, kept, left = collections.Counter(), [], []
    for item in items:
        pooled = item.path.name == "test_pgbouncer.py"
        seen[item.originalname] += pooled
        (left if pooled and seen[item.originalname] > 2 else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
