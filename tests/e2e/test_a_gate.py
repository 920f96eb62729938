"""Group A of the cases: the gate and the leases. N worker processes stand for a supervisor's N children until the supervisor comes."""
import threading
import time

import pytest

from support.keys import Entry
from support.procs import wait_until
from support.proxy import ValkeyProxy
from support.resp import RespError

OWNERS = pytest.mark.parametrize("task", ["t.effect", "t.peffect"])


def digest_of(env, task, key="E1"):
    return env.digest(task, key)


def settled_entry(env, task, key="E1", timeout=20):
    """Waits for the copy of the outcome: it is fire-and-forget, so it may come after the run's end."""
    tenant = env.tenant(task)

    def look():
        entry = env.gate.get(digest_of(env, task, key), tenant)
        return entry if entry and entry.state in "CF" and entry.valid(env.gate.secret()) else None
    return wait_until(look, timeout, lambda: f"a settled gate entry of {key}: {env.gate.raw(digest_of(env, task, key), tenant)!r}")


def processing_entry(env, task, key="E1", timeout=20):
    tenant = env.tenant(task)

    def look():
        entry = env.gate.get(digest_of(env, task, key), tenant)
        return entry if entry and entry.state == "P" else None
    return wait_until(look, timeout, f"a processing gate entry of {key}")


def warm_up(env, task="t.effect", key="warm", workers=1):
    """One run of another key through a worker: it is up, connected, its scripts loaded."""
    run = env.enqueue(task, env.args(key))
    env.wait_finished(run)
    return run


# --- A01 -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("task,gate,children", [("t.effect", "warm", 8), ("t.effect", "off", 2), ("t.peffect", "warm", 2), ("t.peffect", "off", 8)])
def test_A01_64_runs_of_one_key_at_once(env, task, gate, children):
    for supervisor in env.workers(2, workers=children, pool_size=3, valkey_url="own" if gate == "warm" else None):
        supervisor.wait_children(children)
    warm_up(env, task)
    args = env.args("E1", [["effect"], ["sleep", 0.2]])
    runs = env.enqueue_many([(task, args)] * 64)
    rows = env.wait_finished(runs, 90)
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)
    assert [row.status for row in rows] == ["completed"] * 64
    assert sum(row.replay for row in rows) == 63
    row = env.ledger(task, "E1")
    assert (row.status, row.attempt) == ("completed", 1)
    assert env.live() == 0


# --- A02 -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("end", ["error", "retry", "timeout"])
def test_A02_entry_of_another_token_is_left_alone(env, end):
    task = env.tasks.add("a.leased", key=["key"], lease="10s", timeout="5s" if end == "timeout" else "30s")
    last = {"error": ["error", "asked"], "retry": ["retry", {}], "timeout": ["wait", "never"]}[end]
    env.signal("at", "go", "never")
    args = env.args("E1", [["attempt", 1, ["reach", "at"], ["wait", "go"], last], ["effect"]])
    run = env.enqueue(task, args)
    env.workers(2)
    env.wait_reached("at")
    digest = digest_of(env, task)
    mine = processing_entry(env, task)
    foreign = env.gate.entry(task, args, digest, 1)
    assert foreign.token != mine.token
    raw = env.gate.put(digest, foreign, 1, px=8000)
    put_at = time.monotonic()
    if end == "timeout":
        env.set("go")
    ended, gone_at, last_pttl = False, None, 8000
    while gone_at is None:
        pttl, value = env.gate.pttl(digest, 1), env.gate.raw(digest, 1)      # in this order: what comes after it has a TTL of its own
        if value is None or pttl < 0:
            assert pttl != -1, "the entry lost its TTL"
            gone_at = time.monotonic()
        else:
            if value != raw:
                assert time.monotonic() - put_at > 7.5, "the foreign entry was replaced while it lived"
                gone_at = time.monotonic()
                break
            assert pttl <= last_pttl, "somebody renewed the foreign entry"
            last_pttl = pttl
            # after a renewal of W1 (a third of its lease) has been due, W1 fails
            if not ended and time.monotonic() - put_at > 4:
                env.set("go")
                ended = True
        time.sleep(0.02)
    row = env.wait_finished(run, 5 + 10)
    assert time.monotonic() - gone_at < 5 + 3
    assert (row.status, row.replay, env.effects("E1")) == ("completed", False, 1)


# --- A03 -------------------------------------------------------------------------------------------------------------------

@OWNERS
@pytest.mark.parametrize("replies", [1, 2])
def test_A03_lost_reply_to_acquire(env, task, replies):
    env.audit.allow("gate_tokens")   # Valkey may be away when a run ends: the entry then ends by its TTL
    proxy = env.closing(ValkeyProxy(env.valkey))
    env.worker(valkey_url=proxy.url)
    warm_up(env, task)
    settled_entry(env, task, "warm")
    proxy.swallow(lambda event: event.mentions(":gate:", digest_of(env, task).hex()), count=replies)
    run = env.enqueue(task, env.args("E1"))
    row = env.wait_finished(run)
    assert (row.status, row.replay, row.deliveries, env.starts("E1"), env.effects("E1")) == ("completed", False, 1, 1, 1)
    assert env.valkey.running() and proxy.replies > 0


# --- A04 -------------------------------------------------------------------------------------------------------------------

def test_A04_valkey_hangs(env):
    env.audit.allow("gate_tokens")   # Valkey may be away when a run ends: the entry then ends by its TTL
    worker = env.worker(gate_timeout="100ms")
    warm_up(env)
    settled_entry(env, "t.effect", "warm")
    env.valkey.freeze()
    frozen_at = time.monotonic()
    try:
        first = env.enqueue_many([("t.effect", env.args(f"a{i}", starts="all")) for i in range(200)])
        env.wait_finished(first, 30)
        took = time.monotonic() - frozen_at
        # one deadline each would be 200 x 100 ms; only those under way when the breaker opened may pay it
        assert took < 10, f"200 runs of 1 ms took {took:.1f} s: they waited for the gate"
        wait_until(lambda: time.monotonic() - frozen_at >= 5, 10)
    finally:
        env.valkey.thaw()
    second = env.enqueue_many([("t.effect", env.args(f"b{i}", starts="all")) for i in range(200)])
    rows = env.wait_finished(first + second, 60)
    assert env.effects() == 401 and env.starts("all") == 400
    for row in rows:  # nobody got the answer to another's command
        assert (row.status, row.replay, row.deliveries, row.outcome["run"]) == ("completed", False, 1, row.run_id)
    assert worker.running()

    def gate_is_back():
        key = f"c{time.monotonic_ns()}"
        env.wait_finished(env.enqueue("t.effect", env.args(key, starts=None)))
        return env.gate.get(digest_of(env, "t.effect", key), 1)
    wait_until(gate_is_back, 30, "the gate is used again after SIGCONT", 0.2)


# --- A05 -------------------------------------------------------------------------------------------------------------------

@OWNERS
@pytest.mark.parametrize("fault", ["flushall", "restart"])
def test_A05_flush_under_a_running_handler(env, task, fault):
    env.workers(2)
    env.signal("at", "go")
    args = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    first = env.enqueue(task, args)
    env.wait_reached("at")
    env.valkey.flush() if fault == "flushall" else env.valkey.restart()
    second = env.enqueue(task, args)
    waits = []

    def refused():
        waits.extend(env.lock_waits())
        return env.run(second).busy >= 2
    wait_until(refused, 30, lambda: f"the duplicate is BUSY: {env.run(second)}")
    assert waits == [], "a session waited for a lock"
    assert (env.starts("E1"), env.effects("E1")) == (1, 0)
    env.set("go")
    one, two = (env.wait_finished(run) for run in (first, second))
    assert (one.status, one.replay, one.deliveries) == ("completed", False, 1)
    assert (two.status, two.replay, two.outcome) == ("completed", True, one.outcome)
    assert (env.effects("E1"), env.starts("E1")) == (1, 1)


# --- A06 -------------------------------------------------------------------------------------------------------------------

def _hostile(env, task, args, digest, tenant):
    """name -> a function that puts something unusable at the run's gate key."""
    name = env.gate.name(digest, tenant)
    good = env.gate.entry(task, args, digest, tenant, state="C", ledger_id=0, attempt=0, outcome='{"forged": true}')
    other = env.gate.entry(task, args, env.digest(task, "other"), tenant, state="C", outcome='{"forged": true}')
    forged = Entry(**{**good.__dict__, "hmac": "0" * 64})
    put = env.gate.put
    return {
        "list": lambda: env.valkey("RPUSH", name, "a", "b"),
        "hash": lambda: env.valkey("HSET", name, "a", "b"),
        "empty": lambda: put(digest, b"", tenant),
        "megabyte": lambda: put(digest, b"x" * 1_000_000, tenant),
        "truncated": lambda: put(digest, good.encode()[:100], tenant, px=60_000),
        "truncated_outcome": lambda: put(digest, good.encode()[:-3], tenant, px=60_000),
        "version": lambda: put(digest, b"uv9" + good.encode()[3:], tenant, px=60_000),
        "state": lambda: put(digest, good.encode().replace(b"uv3:C:", b"uv3:Z:"), tenant, px=60_000),
        "nul": lambda: put(digest, good.encode()[:50] + b"\0" + good.encode()[51:], tenant, px=60_000),
        "forged": lambda: put(digest, forged, tenant, px=60_000),
        "other_key": lambda: put(digest, other, tenant, px=60_000),
        "other_database": lambda: put(digest, env.gate.entry(task, args, digest, tenant, state="C", dbid="0" * 16), tenant, px=60_000),
    }


HOSTILE = ["list", "hash", "empty", "megabyte", "truncated", "truncated_outcome", "version", "state", "nul", "forged", "other_key", "other_database"]


@OWNERS
def test_A06_unusable_values_at_the_gate_key(env, task):
    tenant = env.tenant(task)
    env.worker()
    warm_up(env, task)
    for what in HOSTILE:
        args = env.args(f"E-{what}")
        digest = digest_of(env, task, f"E-{what}")
        _hostile(env, task, args, digest, tenant)[what]()
        run = env.enqueue(task, args)
        row = env.wait_finished(run)
        assert (row.status, row.replay, row.deliveries) == ("completed", False, 1), what
        assert (env.starts(f"E-{what}"), env.effects(f"E-{what}")) == (1, 1), what
        entry = settled_entry(env, task, f"E-{what}")
        assert entry.state == "C" and 0 < entry.pttl <= 3_600_000, what
        again = env.wait_finished(env.enqueue(task, args))   # and the entry answers: a replay with the stored outcome
        assert (again.replay, again.outcome, env.starts(f"E-{what}")) == (True, row.outcome, 1), what
    other = env.wait_finished(env.enqueue(task, env.args("good")))
    assert other.deliveries == 1 and settled_entry(env, task, "good").state == "C"


# --- A07 -------------------------------------------------------------------------------------------------------------------

@OWNERS
@pytest.mark.parametrize("px", [None, 365 * 86_400_000, 60_000], ids=["no_ttl", "a_year", "a_minute"])
def test_A07_processing_entry_that_no_lease_can_have_made(env, task, px):
    name = env.tasks.add("a.short" if task == "t.effect" else "a.pshort", owner="tenant" if task == "t.effect" else "platform", key=["key"], lease="4s")
    tenant = env.tenant(name)
    args = env.args("E1")
    digest = digest_of(env, name)
    env.worker()
    warm_up(env, task)
    env.gate.put(digest, env.gate.entry(name, args, digest, tenant), tenant, px=px)
    run, before = env.enqueue(name, args), time.monotonic()
    row = env.wait_finished(run, 30)
    assert time.monotonic() - before < 4 + 5 + 3
    assert (row.status, row.replay, env.effects("E1"), env.starts("E1")) == ("completed", False, 1, 1)
    assert 0 < settled_entry(env, name).pttl <= 3_600_000


def test_A07_processing_entry_within_a_lease_is_waited_for(env):
    """The neighbour: an entry that a lease can have made holds the key until it ends, and not longer."""
    name = env.tasks.add("a.short", key=["key"], lease="4s")
    args, digest = env.args("E1"), digest_of(env, name)
    env.worker()
    warm_up(env)
    raw = env.gate.put(digest, env.gate.entry(name, args, digest, 1), 1, px=4000)
    run = env.enqueue(name, args)
    while True:
        early = env.starts("E1")
        if env.gate.raw(digest, 1) != raw:
            break
        assert early == 0, "started while the entry lived"
        time.sleep(0.02)
    row = env.wait_finished(run, 20)
    assert (row.status, row.replay, row.deliveries, env.effects("E1")) == ("completed", False, 1, 1)


# --- A08 -------------------------------------------------------------------------------------------------------------------

@OWNERS
def test_A08_killed_between_commit_and_copy(env, task):
    """The copy is kept from Valkey by a stalled proxy; the worker is killed as soon as the commit shows."""
    name = env.tasks.add("a.five" if task == "t.effect" else "a.pfive", owner="tenant" if task == "t.effect" else "platform", key=["key"], lease="6s")
    tenant, digest = env.tenant(name), digest_of(env, name)
    env.signal("at", "go")
    args = env.args("E1", [["effect"], ["reach", "at"], ["wait", "go"]])
    proxy = env.closing(ValkeyProxy(env.valkey))
    worker = env.worker(valkey_url=proxy.url)
    first = env.enqueue(name, args)
    env.wait_reached("at")
    processing_entry(env, name)
    proxy.stall()
    env.set("go")
    one = env.wait_finished(first)
    worker.kill()
    proxy.cut_all()
    assert (one.status, one.replay, env.effects("E1")) == ("completed", False, 1)
    held = env.gate.get(digest, tenant)
    assert held and held.state == "P", "the entry should still be the dead worker's"
    second = env.enqueue(name, args)
    env.worker()
    while True:
        early = env.finished(second)
        if env.gate.raw(digest, tenant) != held.raw:
            break
        assert early is None, "not BUSY: finished while the dead worker's entry stood"
        time.sleep(0.02)
    two = env.wait_finished(second, 30)
    assert (two.status, two.replay, two.outcome) == ("completed", True, one.outcome)
    assert settled_entry(env, name).outcome == env.db.val("SELECT outcome::text FROM umavez.finished_runs WHERE run_id = %s::uuid", first)
    assert (env.starts("E1"), env.effects("E1")) == (1, 1)


# --- A09 -------------------------------------------------------------------------------------------------------------------

ANSWERS = {
    "OOM": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "READONLY": b"-READONLY You can't write against a read only replica.\r\n",
    "LOADING": b"-LOADING Redis is loading the dataset in memory\r\n",
    "NOAUTH": b"-NOAUTH Authentication required.\r\n",
    "BUSY": b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
    "MISCONF": b"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
    "garbage": b"+\xff\xfe\r\n",
    "array": b"*2\r\n:1\r\n$-1\r\n",
}


def _quiet(worker, before, runs):
    lines = [line for line in worker.text().splitlines()[before:] if any(w in line.lower() for w in ("valkey", "gate", "breaker"))]
    assert len(lines) < runs / 2, f"{len(lines)} lines for {runs} runs:\n" + "\n".join(lines[:10])


def test_A09_valkey_answers_with_errors(env):
    env.audit.allow("gate_tokens")   # Valkey may be away when a run ends: the entry then ends by its TTL
    proxy = env.closing(ValkeyProxy(env.valkey))
    worker = env.worker(valkey_url=proxy.url, gate_timeout="100ms")
    warm_up(env)
    for code, answer in ANSWERS.items():
        before = len(worker.text().splitlines())
        proxy.answer(answer)
        runs = env.enqueue_many([("t.effect", env.args(f"{code}{i}", starts=code)) for i in range(30)])
        for row in env.wait_finished(runs):
            assert (row.status, row.replay, row.deliveries, row.attempt) == ("completed", False, 1, 1), code
        assert env.starts(code) == 30 and env.db.val("SELECT count(*) FROM effects WHERE key LIKE %s", code + "%") == 30
        _quiet(worker, before, 30)
    proxy.answer(None)

    def gate_is_back():
        key = f"c{time.monotonic_ns()}"
        env.wait_finished(env.enqueue("t.effect", env.args(key, starts=None)))
        return env.gate.get(digest_of(env, "t.effect", key), 1)
    wait_until(gate_is_back, 30, "the gate is used again", 0.2)


def test_A09_valkey_really_out_of_memory_readonly_locked_busy(env):
    env.audit.allow("gate_tokens")   # Valkey may be away when a run ends: the entry then ends by its TTL
    worker = env.worker(gate_timeout="100ms")
    warm_up(env)
    stop_script = threading.Event()

    def busy_script():
        client = env.valkey.client(timeout=60)
        try:
            client("EVAL", "while true do end", "0")
        except (RespError, OSError):
            stop_script.set()

    def out_of_memory(on):
        env.valkey.configure(maxmemory="1" if on else "0")

    def readonly(on):
        env.valkey("REPLICAOF", *(("127.0.0.1", "1") if on else ("NO", "ONE")))

    def locked(on):
        if on:
            env.valkey.configure(requirepass="secret")
            env.valkey("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        else:
            env.valkey("AUTH", "secret")
            env.valkey.configure(requirepass="")

    def busy(on):
        if on:
            threading.Thread(target=busy_script, daemon=True).start()

            def is_busy():
                try:
                    env.valkey("PING")
                    return False
                except RespError as error:
                    return "BUSY" in str(error)
            wait_until(is_busy, 10)
        else:
            env.valkey("SCRIPT", "KILL")
            assert stop_script.wait(20)

    for fault in (out_of_memory, readonly, locked, busy):
        name = fault.__name__
        before = len(worker.text().splitlines())
        args = [("t.effect", env.args(f"{name}{i}", starts=name)) for i in range(30)]
        fault(True)
        runs = env.enqueue_many(args)
        try:
            rows = env.wait_finished(runs)
        finally:
            fault(False)
        for row in rows:
            assert (row.status, row.replay, row.deliveries, row.attempt) == ("completed", False, 1, 1), name
        assert env.starts(name) == 30
        _quiet(worker, before, 30)


# --- A10 -------------------------------------------------------------------------------------------------------------------

@OWNERS
@pytest.mark.parametrize("state", ["P", "C", "F"])
@pytest.mark.parametrize("same", [False, True], ids=["other_fingerprint", "same_fingerprint"])
def test_A10_valkeys_word_alone_decides_nothing(env, task, state, same):
    """Authentic entries whose row PostgreSQL does not have. (As processing with the run's own fingerprint: BUSY until it ends.)"""
    name = env.tasks.add("a.ten" if task == "t.effect" else "a.pten", owner="tenant" if task == "t.effect" else "platform", key=["key"], lease="4s")
    tenant, digest = env.tenant(name), digest_of(env, name)
    args = env.args("E1", amount=100)
    env.worker()
    warm_up(env, task)
    other = args if same else {**args, "amount": 101}
    entry = env.gate.entry(name, other, digest, tenant, state=state, ledger_id=0, attempt=0, outcome="{}" if state == "P" else '{"forged": true}')
    env.gate.put(digest, entry, tenant, px=4000)
    run, before = env.enqueue(name, args), time.monotonic()
    row = env.wait_finished(run, 30)
    assert time.monotonic() - before < 4 + 5
    assert (row.status, row.replay, row.outcome.get("ok"), env.effects("E1"), env.starts("E1")) == ("completed", False, True, 1, 1)
    assert env.ledger(name, "E1").status == "completed"


# --- A11 -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["one_statement", "many_statements"])
def test_A11_leases_are_renewed(env, how):
    name = env.tasks.add("a.long", key=["key"], lease="2s", timeout="20s")
    env.signal("at", "go")
    wait = ["sleep", 7] if how == "one_statement" else ["wait", "go"]
    args = env.args("E1", [["effect"], ["reach", "at"], wait])
    env.workers(8, pool_size=2)
    warm_up(env)
    run = env.enqueue(name, args)
    env.wait_reached("at")
    token, begun = processing_entry(env, name).token, time.monotonic()
    while time.monotonic() - begun < 6.5:
        assert env.finished(run) is None
        entry = env.gate.get(digest_of(env, name), 1)
        assert entry and entry.state == "P" and entry.token == token and 0 < entry.pttl <= 2000, entry
        live = env.db.one("SELECT deliveries, lease_until > clock_timestamp() AS held FROM umavez.runs WHERE run_id = %s::uuid", run)
        assert live.held and live.deliveries == 1
        time.sleep(0.05)
    env.set("go")
    row = env.wait_finished(run)
    assert (row.status, row.deliveries, row.attempt, env.starts("E1"), env.effects("E1")) == ("completed", 1, 1, 1, 1)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_A11_renewed_run_completes_under_a_snapshot(env, isolation):
    """A renewal changes the run's row while the handler's snapshot is older: the completion must not fail for that, for ever."""
    env.db.q(f"ALTER DATABASE {env.db.name} SET default_transaction_isolation = '{isolation}'")
    name = env.tasks.add("a.long", key=["key"], lease="2s", timeout="20s")
    env.worker()
    run = env.enqueue(name, env.args("E1", [["effect"], ["sleep", 3]]))
    row = env.wait_finished(run, 60)
    assert (row.status, row.deliveries, row.attempt, env.starts("E1"), env.effects("E1")) == ("completed", 1, 1, 1, 1)
