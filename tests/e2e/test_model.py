"""What the model of the protocol (tests/model) found, shown with the real program."""
from support.http import Door
from support.procs import wait_until
from support.proxy import PgProxy


def make_door(env, proxy, **fields):
    env.tasks.add("m.pay", owner="tenant", lease="20s", timeout="20s", http={"method": "POST", "path": "/pay"}, **fields)
    return Door(env, database_url=proxy.url(env.db))


def settle_gate(door, key):
    """Waits until nothing of the first delivery is under way to the gate: its entry is a copy, or gone."""
    wait_until(lambda: getattr(door.gate("m.pay", key), "state", None) != "P", 30, "the gate's entry is given up")


def test_a_copy_does_not_outlive_a_retention_that_ended_while_commit_was_unanswered(env):
    proxy = env.closing(PgProxy(env.pg))
    door = make_door(env, proxy, retention="2s")
    env.audit.allow("effect_once", "ledger_run", "replays_equal")      # the key is used again after its retention
    proxy.hold_commit(after="complete_request")
    first = door.later("/pay", env.args("E1"), key="k1")
    proxy.wait_fired()
    wait_until(lambda: env.db.val("SELECT count(*) FROM umavez.idempotency_keys WHERE status = 'completed' AND expires_at < clock_timestamp()"),
               30, "the retention has passed")
    proxy.release()
    assert first.result().status == 200
    settle_gate(door, "k1")
    again = door.post("/pay", env.args("E1"), key="k1")
    assert (again.status, again.replayed, env.effects("E1"), env.starts("E1")) == (200, False, 2, 2)


def test_G8_an_answer_that_comes_after_a_failover_is_not_copied_as_the_new_servers(own_env):
    env = own_env
    env.pg.settings["wal_keep_size"] = "64MB"
    standby = env.pg.standby()
    proxy = env.closing(PgProxy(env.pg))
    door = make_door(env, proxy)
    assert door.post("/pay", env.args("warm", starts=None), key="warm").status == 200
    there = standby.database(env.db.name)
    wait_until(lambda: there.val("SELECT count(*) FROM umavez.finished_runs") == 1, 30, "the standby follows")
    there.q("ALTER SYSTEM SET primary_conninfo = ''")
    there.q("SELECT pg_reload_conf()")
    wait_until(lambda: there.val("SELECT count(*) FROM pg_stat_wal_receiver") == 0, 30, "the standby lags")
    proxy.hold_commit(after="complete_request")
    body = env.args("E1", starts=None)
    first = door.later("/pay", body, key="k1")
    proxy.wait_fired()                                             # committed, and its answer is on its way for long
    old = env.pg
    old.stop("kill")
    env.db.close()
    standby.promote()
    env.pg = standby
    env.db = env.gate.db = there
    proxy.target = str(proxy.socket_of(standby))

    def copied():
        return door.post("/pay", env.args("after", starts=None), key="after").status == 200 and getattr(door.gate("m.pay", "after"), "state", None) == "C"
    wait_until(copied, 60, "the worker copies to the gate again: it has read the new server's identity")
    proxy.release()
    assert first.result().status == 200                            # what the old server has answered; it is lost all the same
    settle_gate(door, "k1")
    again = door.post("/pay", body, key="k1")
    assert (again.status, again.replayed, env.effects("E1")) == (200, False, 1)
    old.destroy()
