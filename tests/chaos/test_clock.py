"""G7 at the door and in the gate: worker clocks a year off, in either direction and leaping, change nothing (H01 has the queue's part, tests/e2e)."""
import threading
from email.utils import parsedate_to_datetime

import pytest

from support import procs
from support.http import Door, door_key, make_token
from support.procs import wait_until
from support.skew import YEAR, Skew


@pytest.fixture
def skew():
    directory = procs.private_dir("skew-")
    yield Skew(directory)
    procs.remove_dir(directory)


def now_ms(env):
    return env.db.val("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")


@pytest.mark.parametrize("clock", ["a year ahead", "a year behind", "leaping"])
def test_H01_wrong_clock_at_the_door(env, clock, skew):
    env.audit.allow("effect_once", "replays_equal", "ledger_run", "gate_truth")      # the retention of one key passes
    env.tasks.add("h.keeps", owner="tenant", retention="2h", lease="5s", timeout="60s", http={"method": "POST", "path": "/keeps"})
    env.tasks.add("h.brief", owner="tenant", retention="3s", lease="2s", timeout="2500ms", http={"method": "POST", "path": "/brief"})
    skew.set({"a year ahead": YEAR, "a year behind": -YEAR, "leaping": YEAR}[clock])
    ended, leaps = threading.Event(), 0

    def leap():
        nonlocal leaps
        while not ended.wait(0.1):
            leaps += 1
            skew.set(YEAR if leaps % 2 else -YEAR)
    leaper = threading.Thread(target=leap)
    if clock == "leaping":
        leaper.start()
    try:
        door = Door(env, env=skew.env)
        # Tokens: valid until they expire by the database's clock.
        soon = make_token(env, 1, expires=env.db.val("SELECT (clock_timestamp() + interval '4 seconds')::text"), name="soon")
        past = make_token(env, 1, expires=env.db.val("SELECT (clock_timestamp() - interval '1 second')::text"), name="past")
        good = make_token(env, 1, expires=env.db.val("SELECT (clock_timestamp() + interval '1 hour')::text"), name="good")
        assert door.post("/keeps", {"key": "t0"}, key="t0", token=past).status == 401
        assert door.post("/keeps", {"key": "t1"}, key="t1", token=good).status == 200
        assert door.post("/keeps", {"key": "t2"}, key="t2", token=soon).status in (200, 401)
        # A retention: advertised and kept by the database's clock, in the answer, in the gate's TTL and in its signed time.
        first = door.post("/keeps", {"key": "E1"}, key="k1")
        asked = now_ms(env)
        entry = wait_until(lambda: (lambda e: e if e and e.state == "C" else None)(env.gate.get(door_key("h.keeps", "k1", 1), 1)), 20, "the copy")
        assert abs(entry.time_ms - asked - 7_200_000) < 60_000 and 0 < entry.pttl <= 7_200_000
        for _ in range(2):
            again = door.post("/keeps", {"key": "E1"}, key="k1")
            assert again.replayed and again.body == first.body
            assert abs(parsedate_to_datetime(again.get("Idempotency-Key-Expires")).timestamp() * 1000 - asked - 7_200_000) < 60_000
            env.valkey.flush()
        brief = door.post("/brief", {"key": "E2"}, key="k2")
        assert brief.status == 200
        left = env.db.val("SELECT extract(epoch FROM expires_at - clock_timestamp())::float FROM umavez.idempotency_keys ORDER BY id DESC LIMIT 1")
        assert left <= 3
        wait_until(lambda: not env.db.val("SELECT count(*) FROM umavez.idempotency_keys WHERE expires_at < clock_timestamp()") == 0, 20, "the retention ends")
        anew = door.post("/brief", {"key": "E2"}, key="k2")
        assert (anew.status, anew.replayed) == (200, False) and anew.body != brief.body and env.effects("E2") == 2
        # A lease: the entry of a run at work never outlives it, and is renewed.
        env.signal("at", "go")
        held = door.later("/keeps", env.args("E3", [["effect"], ["reach", "at"], ["wait", "go"]]), key="k3")
        env.wait_reached("at")
        ends = now_ms(env) + 6000
        while now_ms(env) < ends:
            held_entry = env.gate.get(door_key("h.keeps", "k3", 1), 1)
            assert held_entry is not None and held_entry.state == "P" and 0 < held_entry.pttl <= 5000
        env.set("go")
        assert held.result().status == 200 and env.effects("E3") == 1
        wait_until(lambda: door.post("/keeps", {"key": "t3"}, key="t3", token=soon).status == 401, 60, "the token expires")
        assert door.post("/keeps", {"key": "t4"}, key="t4", token=good).status == 200
        assert clock != "leaping" or leaps > 20
    finally:
        ended.set()
        if leaper.is_alive():
            leaper.join()
