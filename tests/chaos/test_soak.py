"""The soak, short (UMAVEZ_SOAK_SECONDS: 75; `make soak`: 1800). What it does and measures: soak.py."""
import os
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from soak import POOL, Soak  # noqa: E402

SECONDS = float(os.environ.get("UMAVEZ_SOAK_SECONDS", "75"))
SEED = int(os.environ.get("UMAVEZ_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
STATEMENTS = 200      # PGCONN_STATEMENTS in runtime/io/pgconn.h


@pytest.mark.timeout(int(SECONDS) * 2 + 900)
def test_J09_everything_ends_where_it_began(own_env):
    env = own_env
    env.audit.allow("gate_tokens", "leases", "settled_effect")
    print(f"\nUMAVEZ_CHAOS_SEED={SEED} UMAVEZ_SOAK_SECONDS={SECONDS:g}")
    soak = Soak(env, SEED)
    try:
        soak.load(SECONDS * 0.4)
        before = soak.measure()
        soak.load(SECONDS * 0.6)
        after = soak.measure()
    finally:
        soak.close()
    print(f"{len(env.accepted)} runs: " + ", ".join(f"{kind} {count}" for kind, count in soak.sent.most_common())
          + "; door: " + ", ".join(f"{status} {count}" for status, count in soak.answers.most_common()))
    print(f"{soak.faults.total()} faults: " + ", ".join(f"{fault} {count}" for fault, count in soak.faults.most_common()))
    print(f"after the warm-up: {before}\nat the end:        {after}")
    assert soak.worker.running()
    assert after.rss_kb <= before.rss_kb * 1.10 + 4096, "memory grows"
    assert after.fds <= before.fds + 2, "descriptors grow"
    assert after.sessions <= POOL + 2, "sessions grow"
    assert after.prepared <= STATEMENTS + 5, "prepared statements grow"
    assert after.lua_kb <= before.lua_kb * 1.10 + 256, "Lua's memory grows"
    assert after.dead_tuples == 0, "somebody holds the vacuum horizon back"
    assert after.queue_kb <= max(4 * before.queue_kb, 20_000), "the queue's table grows"
