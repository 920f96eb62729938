"""Acknowledgements of replays (core/ledger_acks): many duplicates at once are removed by sets, each verified by the ledger."""
from lab import OWNERS, WARMTH
from support.procs import wait_until

PLAIN = "start() effect() return { n = args.n }"


def enqueue(lab, owner, keys):
    return lab.enqueue_many(owner.task("key"), [{"e1": key, "n": 1, "lua": PLAIN} for key in keys], owner)


def settle_keys(lab, owner, keys):
    worker = lab.worker()
    for run in enqueue(lab, owner, keys):
        lab.done(run)
    lab.settle(worker)


def transactions_of(lab, runs):
    return lab.value("SELECT count(DISTINCT xmin::text) FROM umavez.finished_runs WHERE run_id = ANY (%s::uuid[])", runs)


@OWNERS
@WARMTH
def test_many_duplicates_end_in_sets(lab, owner, gate):
    lab.gate(gate)
    keys = [f"E{n}" for n in range(20)]
    settle_keys(lab, owner, keys)
    if gate == "cold":
        lab.flush_gate()
    again = enqueue(lab, owner, keys * 5)
    lab.worker()
    ends = [lab.done(run) for run in again]
    assert {(end.status, end.replay, end.deliveries) for end in ends} == {("completed", True, 1)}
    assert {str(end.outcome) for end in ends} == {str({"n": 1})}
    assert lab.effects() == 20 and lab.starts() == 20
    # With a warm gate nothing else is on the way, so that a set takes what a tick brings; through the ledger they come one by one.
    assert gate != "warm" or transactions_of(lab, again) < 50


@OWNERS
def test_one_that_cannot_be_removed_holds_up_nobody_else(lab, owner):
    """A set that is refused goes again run by run: the others end at once, the one is tried again and ends when it can."""
    keys = [f"E{n}" for n in range(10)]
    settle_keys(lab, owner, keys)
    again = enqueue(lab, owner, keys)
    lab.sql("CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$")
    lab.sql(f"CREATE TRIGGER refuse BEFORE DELETE ON umavez.runs FOR EACH ROW WHEN (OLD.run_id = '{again[4]}') EXECUTE FUNCTION public.refuse()")
    try:
        worker = lab.worker()
        for run in again[:4] + again[5:]:
            assert lab.done(run).replay
        wait_until(lambda: worker.events("ack_failed"), 20, "ack_failed")
        assert {event["run_id"] for event in worker.events("ack_failed")} == {str(again[4])}
        assert lab.live(again[4])
    finally:
        lab.sql("DROP TRIGGER refuse ON umavez.runs")
        lab.sql("DROP FUNCTION public.refuse()")
    assert lab.done(again[4]).replay and lab.effects() == 10


@OWNERS
def test_the_connection_is_lost_under_them(lab, owner):
    """Nothing is known of what was sent: each is due again, and is removed by whoever gets there first."""
    keys = [f"E{n}" for n in range(30)]
    settle_keys(lab, owner, keys)
    again = enqueue(lab, owner, keys * 3)
    lab.sql("CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN OLD; END $$")
    lab.sql("CREATE TRIGGER dawdle BEFORE DELETE ON umavez.runs FOR EACH STATEMENT EXECUTE FUNCTION public.dawdle()")
    try:
        lab.worker()
        wait_until(lambda: lab.value("""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                                          WHERE query LIKE '%%ack_replays%%' AND wait_event = 'PgSleep' AND datname = current_database()""") > 0,
                   20, "an acknowledgement that waits")
    finally:
        lab.sql("DROP TRIGGER dawdle ON umavez.runs")
        lab.sql("DROP FUNCTION public.dawdle()")
    ends = [lab.done(run) for run in again]
    assert {(end.status, end.replay) for end in ends} == {("completed", True)} and lab.effects() == 30
