"""The set-wise functions: begin_runs, forget_runs, complete_runs, for tenants and the platform alike."""
import uuid

import psycopg2
import pytest

from conftest import HOUR, digest

F, G = digest("f"), digest("g")


def begin(sql, owner, keys, fingerprints=None):
    keys = [digest(k) for k in keys]
    return sql.val("SELECT umavez.begin_runs(%s::bigint[], %s::bytea[], %s::bytea[], 30000)", [owner] * len(keys), keys,
                   fingerprints or [F] * len(keys))


def complete(sql, owner, runs, keys, ids, outcomes, history=True):
    return [r[0] for r in sql.q("SELECT * FROM umavez.complete_runs(%s::uuid[], %s::bigint[], %s::bytea[], %s::bigint[], %s::jsonb[], %s, %s)",
                                runs, [owner] * len(runs), [digest(k) for k in keys], ids, outcomes, HOUR, history)]


def running(sql, owner, n):
    made = [sql.enqueue("t.a", '{"x": 1}', owner) for _ in range(n)]
    assert len(sql.take(n)) == n
    return made


def ledger(sql, table):
    return {bytes(r.idempotency_key): (r.id, r.status, r.attempt, r.outcome) for r in sql.q(f"SELECT * FROM {table}")}


def refused(call, *args):
    with pytest.raises(psycopg2.Error) as caught:
        call(*args)
    return caught.value.pgcode


def test_new_keys_are_claimed_in_order(connect, owner, table):
    one = connect(autocommit=False)
    keys = ["c", "a", "b"]
    ids = begin(one, owner, keys)
    assert {bytes(k): v for k, v in ((digest(k), (i, "processing", 1, {})) for k, i in zip(keys, ids))} == ledger(one, table)
    one.rollback()
    assert ledger(one, table) == {}


@pytest.mark.parametrize("status", ["completed", "failed_permanent", "failed_retryable", "processing"])
def test_a_key_with_a_row_is_left_aside_untouched(sql, owner, table, status):
    claim = sql.claim_key(owner, "b")
    if status == "completed":
        sql.complete(owner, claim.id, 1, '{"a": 1}', HOUR)
    elif status != "processing":
        sql.fail(owner, claim.id, 1, status, "{}", HOUR)
    before = sql.q(f"SELECT *, xmin::text, ctid::text FROM {table}")
    ids = begin(sql, owner, ["a", "b", "c"])
    assert ids[1] is None and None not in (ids[0], ids[2])
    assert sql.q(f"SELECT *, xmin::text, ctid::text FROM {table} WHERE id = %s", claim.id) == before


def test_a_key_that_is_held_is_left_aside_without_waiting(connect, owner, table):
    holder, other = connect(autocommit=False), connect(autocommit=False)
    holder.claim_key(owner, "b")
    ids = begin(other, owner, ["a", "b"])
    assert ids[0] is not None and ids[1] is None
    holder.commit(), other.commit()
    assert len(ledger(other, table)) == 2


def test_claims_hold_their_keys_until_the_end(connect, owner):
    one, other = connect(autocommit=False), connect()
    begin(one, owner, ["a", "b"])
    assert other.claim_key(owner, "a").verdict == "busy"
    one.rollback()
    assert other.claim_key(owner, "a").verdict == "claimed"


def test_a_key_twice_is_claimed_once(sql, owner):
    ids = begin(sql, owner, ["a", "a", "b"])
    assert len({i for i in ids if i}) == len(set(ids) - {None}) == 2


def test_forget_runs_leaves_no_trace_and_takes_only_claims(connect, owner, table):
    one = connect(autocommit=False)
    ids = begin(one, owner, ["a", "b", "c"])
    one.q("SELECT umavez.forget_runs(%s::bigint[], %s::bigint[])", [owner] * 2, ids[:2])
    one.commit()
    assert set(ledger(one, table)) == {digest("c")}
    one.complete(owner, ids[2], 1, "{}", HOUR)
    one.commit()
    assert refused(one.q, "SELECT umavez.forget_runs(%s::bigint[], %s::bigint[])", [owner], [ids[2]]) == "UV001"
    one.rollback()
    assert ledger(one, table)[digest("c")][1] == "completed"


def test_complete_runs_settles_and_ends(sql, owner, table):
    runs = running(sql, owner, 3)
    ids = begin(sql, owner, ["a", "b", "c"])
    assert complete(sql, owner, runs, ["a", "b", "c"], ids, ['{"n":1,"a":[]}', "{}", '{"s": "\\"\\\\"}']) == \
        ['{"a": [], "n": 1}', "{}", '{"s": "\\"\\\\"}']
    assert [v[1:] for _, v in sorted(ledger(sql, table).items(), key=lambda kv: kv[1][0])] == \
        [("completed", 1, {"a": [], "n": 1}), ("completed", 1, {}), ("completed", 1, {"s": '"\\'})]
    ended = {r.run_id: r for r in sql.q("SELECT * FROM umavez.finished_runs")}
    for run, key, outcome in zip(runs, "abc", ({"a": [], "n": 1}, {}, {"s": '"\\'})):
        row = ended[run]
        assert (row.status, row.replay, row.outcome, row.args, row.attempt, row.deliveries, row.tenant_id, bytes(row.idempotency_key)) == \
            ("completed", False, outcome, None, 1, 1, owner, digest(key))
    assert sql.q("SELECT 1 FROM umavez.runs") == []


def test_complete_runs_without_history(sql, owner):
    runs = running(sql, owner, 2)
    complete(sql, owner, runs, ["a", "b"], begin(sql, owner, ["a", "b"]), ["{}", "{}"], history=False)
    assert sql.q("SELECT 1 FROM umavez.finished_runs UNION ALL SELECT 1 FROM umavez.runs") == []


def test_complete_runs_is_all_or_none(sql, owner, table):
    """One stale claim, one run that is gone, one outcome too large: nothing of the others is settled."""
    runs, ids = running(sql, owner, 2), begin(sql, owner, ["a", "b"])
    assert refused(complete, sql, owner, runs, ["a", "b"], [ids[0], ids[1] + 1000], ["{}", "{}"]) == "UV001"
    assert refused(complete, sql, owner, [runs[0], str(uuid.uuid4())], ["a", "b"], ids, ["{}", "{}"]) == "UV002"
    assert refused(complete, sql, owner, runs, ["a", "b"], ids, ["{}", '{"s": "%s"}' % ("x" * 4097)]) == "23514"
    assert {v[1] for v in ledger(sql, table).values()} == {"processing"}
    assert sql.val("SELECT count(*) FROM umavez.runs") == 2
    complete(sql, owner, runs, ["a", "b"], ids, ["{}", "{}"])
    assert refused(complete, sql, owner, runs, ["a", "b"], ids, ["{}", "{}"]) == "UV001"


def test_tenants_in_one_call(sql):
    keys = [digest("k")] * 3
    ids = sql.val("SELECT umavez.begin_runs('{1,2,3}', %s::bytea[], %s::bytea[], 30000)", keys, [F, F, G])
    assert None not in ids
    assert [r.tenant_id for r in sql.q("SELECT tenant_id FROM umavez.idempotency_keys ORDER BY id")] == [1, 2, 3]
    assert refused(sql.q, "SELECT umavez.begin_runs('{1,999999}', %s::bytea[], %s::bytea[], 30000)", [digest("x"), digest("y")], [F, F]) == "23503"


def test_the_hot_path_stays_hot(sql, owner, table):
    """Settling fifty claims of one transaction moves no row to another page; no index holds what changes, so each update is HOT."""
    pages = f"SELECT id, (ctid::text::point)[0] AS page FROM {table} ORDER BY id"
    sql.connection.autocommit = False
    keys = [f"k{n}" for n in range(50)]
    runs, ids = running(sql, owner, 50), begin(sql, owner, keys)
    before = sql.q(pages)
    complete(sql, owner, runs, keys, ids, ["{}"] * 50)
    after = sql.q(pages)
    sql.commit()
    assert len(before) == 50 and after == before


def test_the_worker_alone_may_call_them(sql):
    for name in ("begin_runs", "forget_runs", "complete_runs"):
        assert sql.val("SELECT has_function_privilege('umavez_worker', oid, 'EXECUTE') AND NOT has_function_privilege('public', oid, 'EXECUTE') "
                       "FROM pg_proc WHERE proname = %s AND pronamespace = 'umavez'::regnamespace", name)


# --- ack_replays

def ack(sql, owner, runs, keys, fingerprints=None, history=True):
    return {r.nr: r for r in sql.q("SELECT * FROM umavez.ack_replays(%s::uuid[], %s::bigint[], %s::bytea[], %s::bytea[], %s)",
                                   runs, [owner] * len(runs), [digest(k) for k in keys], fingerprints or [F] * len(runs), history)}


@pytest.mark.parametrize("history", [True, False])
def test_ack_replays_ends_each_run_with_its_own_outcome(sql, owner, table, history):
    done, dead = sql.claim_key(owner, "done"), sql.claim_key(owner, "dead")
    sql.complete(owner, done.id, 1, '{"a": 1}', HOUR)
    sql.fail(owner, dead.id, 1, "failed_permanent", '{"code": "no"}', HOUR)
    before = sql.q(f"SELECT *, xmin::text FROM {table} ORDER BY id")
    runs = running(sql, owner, 4)
    keys = ["done", "dead", "done", "done"]                            # a key twice and thrice is as good as once
    told = ack(sql, owner, runs, keys, history=history)
    assert [(told[n].status, told[n].outcome, told[n].id, told[n].attempt) for n in (1, 2, 3, 4)] == \
        [("completed", '{"a": 1}', done.id, 1), ("failed_permanent", '{"code": "no"}', dead.id, 1)] + [("completed", '{"a": 1}', done.id, 1)] * 2
    assert all(0 < r.remaining_ms <= HOUR for r in told.values())
    assert sql.q("SELECT 1 FROM umavez.runs") == [] and sql.q(f"SELECT *, xmin::text FROM {table} ORDER BY id") == before
    ended = {r.run_id: r for r in sql.q("SELECT * FROM umavez.finished_runs")}
    assert (ended[runs[1]].status, ended[runs[1]].args, ended[runs[1]].outcome) == ("failed_permanent", {"x": 1}, {"code": "no"})
    assert set(ended) == (set(runs) if history else {runs[1]})
    assert {(r.replay, r.deliveries, r.tenant_id) for r in ended.values()} == {(True, 1, owner)}
    assert ack(sql, owner, runs, keys, history=history).keys() == {1, 2, 3, 4}   # gone already: the same word, nothing changes
    assert len(sql.q("SELECT 1 FROM umavez.finished_runs")) == len(ended)


def test_G4_ack_replays_leaves_what_the_ledger_does_not_hold(sql, owner, table):
    for key in ("done", "open", "expired", "held"):
        claim = sql.claim_key(owner, key)
        if key == "open":
            sql.fail(owner, claim.id, 1, "failed_retryable", "{}", HOUR)
        elif key != "held":
            sql.complete(owner, claim.id, 1, '{"a": 1}', HOUR)
    sql.q(f"UPDATE {table} SET expires_at = clock_timestamp() WHERE idempotency_key = %s", digest("expired"))
    runs = running(sql, owner, 6)
    told = ack(sql, owner, runs, ["absent", "open", "expired", "held", "done", "done"], [F, F, F, F, G, F])
    assert told.keys() == {6}
    assert {r.run_id for r in sql.q("SELECT run_id FROM umavez.runs")} == set(runs[:5])
    assert [r.run_id for r in sql.q("SELECT run_id FROM umavez.finished_runs")] == [runs[5]]


def test_G4_ack_replays_ends_nobody_elses_run(sql, owner):
    claim = sql.claim_key(owner, "done")
    sql.complete(owner, claim.id, 1, "{}", HOUR)
    other = None if owner else 2
    runs = running(sql, other, 2)
    assert ack(sql, owner, runs, ["done", "done"]).keys() == {1, 2}    # the ledger's word is right …
    assert len(sql.q("SELECT 1 FROM umavez.runs")) == 2                # … but the runs are another owner's
