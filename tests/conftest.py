"""Fixtures: `env` (shared cluster, own database and Valkey) and `own_env` (own cluster too). See support/README.md."""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support import procs  # noqa: E402
from support.client import Env  # noqa: E402
from support.servers import Cluster, Valkey  # noqa: E402

LONG = os.environ.get("UMAVEZ_LONG") == "1"


def pytest_configure(config):
    config.umavez_base = None
    if "UMAVEZ_TEST_BASE" not in os.environ:
        config.umavez_base = procs.base_dir(procs.memory_dir() or "/tmp")


def pytest_unconfigure(config):
    if config.umavez_base:
        os.environ.pop("UMAVEZ_TEST_BASE", None)
        procs.remove_dir(config.umavez_base)


def pytest_terminal_summary(terminalreporter):
    """Names what failed to `tests/run`, one node id a line."""
    path = os.environ.get("UMAVEZ_TEST_FAILURES")
    if path:
        reports = terminalreporter.stats.get("failed", []) + terminalreporter.stats.get("error", [])
        Path(path).write_text("".join(report.nodeid + "\n" for report in reports))


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    setattr(item, "report_" + call.when, outcome.get_result())


def _failed(request):
    report = getattr(request.node, "report_call", None)
    return report is None or report.failed or report.skipped


@pytest.fixture(scope="session")
def pg():
    """The cluster that this process's ordinary tests share. Never stop, freeze or configure it: take own_pg."""
    cluster = Cluster.create()
    cluster.start()
    yield cluster
    cluster.destroy()


@pytest.fixture
def own_pg():
    """A cluster of the test's own."""
    cluster = Cluster.create()
    cluster.start()
    yield cluster
    cluster.destroy()


@pytest.fixture
def db(pg):
    """A migrated database of the test's own, nothing else."""
    database = pg.database()
    yield database
    database.drop()


@pytest.fixture
def valkey():
    server = Valkey().start()
    yield server
    server.destroy()


@pytest.fixture
def env(request, pg):
    world = Env(pg)
    yield world
    world.close(_failed(request))


@pytest.fixture
def own_env(request):
    cluster = Cluster.create()
    cluster.start()
    world = Env(cluster, own_cluster=True)
    yield world
    world.close(_failed(request))


@pytest.fixture(scope="session")
def long():
    """True when rows that wait long run whole (UMAVEZ_LONG=1)."""
    return LONG
