"""Of each test that test_pgbouncer.py takes from tests/e2e, the first two parametrisations run; UMAVEZ_LONG=1: all."""
import collections
import os


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
