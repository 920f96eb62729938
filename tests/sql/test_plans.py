"""No statistics can give a plan that reads a whole index: blocks are counted, whatever VACUUM and ANALYZE have seen, with generic plans
and with plans for the values at hand.

Rows of the cases here: E08.
"""
import uuid

import pytest

# CALLS runs cost some hundreds of blocks, 2000 where each plan is made anew. A whole index, read mostly once a run, costs a block for each
# entry or, in the order in which the rows came, for each block of rows.
DEAD, CALLS, BLOCKS = 8000, 20, 3000

LEDGERS = {"umavez.idempotency_keys": ("tenant_id, ", "1, "), "umavez.platform_idempotency_keys": ("", "")}


def fill_ledger(sql, table):
    column, value = LEDGERS[table]
    sql.q(f"""INSERT INTO {table} ({column}idempotency_key, request_fingerprint, status, expires_at)
              SELECT {value}sha256(uuid_send(gen_random_uuid())), sha256('f'), 'completed', now() + interval '1 hour'
                FROM generate_series(1, {DEAD})""")


def fill_finished(sql, table):
    sql.q(f"""INSERT INTO {table} (run_id, task, queue, priority, status, replay, outcome, args, deliveries, enqueued_at, finished_at)
              SELECT gen_random_uuid(), 't.a', 'default', 2, 'failed_permanent', false, '{{}}', '{{}}', 1, now(), now()
                FROM generate_series(1, {DEAD})""")


def fill_runs(sql, _):
    sql.q("SELECT umavez.enqueue('t.a') FROM generate_series(1, %s)", DEAD)


def statistics_of(sql, table, fill, statistics):
    """Leaves DEAD dead rows that a snapshot keeps, and what a VACUUM or an ANALYZE at the worst moment has written down about them."""
    sql.q(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    if statistics == "of an empty table":
        sql.q(f"VACUUM ANALYZE {table}")
    fill(sql, table)
    if table == "umavez.runs":
        sql.q("""UPDATE umavez.runs SET state = 'running', worker_id = gen_random_uuid(),
                                        lease_until = clock_timestamp() - interval '1 second'""")
    if statistics == "of a full one":
        sql.q(f"ANALYZE {table}")
    sql.q(f"DELETE FROM {table}")
    if statistics == "analysed when dead":
        sql.q(f"ANALYZE {table}")
    if statistics == "vacuumed when dead":
        sql.q(f"VACUUM {table}")


@pytest.fixture(params=["never analysed", "of an empty table", "of a full one", "analysed when dead", "vacuumed when dead"])
def crowd(request, connect, sql):
    """Tables full of dead rows, and ledgers and finished runs full of live ones that no statistics know of."""
    holder = connect(autocommit=False)
    holder.q("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.q("SELECT count(*) FROM umavez.runs")
    today = sql.val("SELECT 'umavez.finished_runs_' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    for table, fill in [("umavez.runs", fill_runs), (today, fill_finished), *((table, fill_ledger) for table in LEDGERS)]:
        statistics_of(sql, table, fill, request.param)
        if fill is not fill_runs:
            fill(sql, table)
    sql.q("""INSERT INTO umavez.marks SELECT n, array_fill(clock_timestamp(), ARRAY[4]), clock_timestamp(), 'infinity'
               FROM unnest('{take:default,reap}'::text[]) n""")
    yield
    holder.rollback()


EACH = "FROM unnest(%(ids)s::uuid[]) i"
CLAIM = EACH + ", LATERAL umavez.claim(%(tenant)s, sha256(uuid_send(i)), sha256('f'), 30000) b"
BEGIN = EACH + ", LATERAL umavez.begin_run(%(tenant)s, sha256(uuid_send(i)), sha256('f'), 30000, 30000) b"
KEYS = f"(SELECT array_agg(sha256(uuid_send(i))) {EACH})"
MANY = f"umavez.begin_runs(array_fill(%(tenant)s::bigint, ARRAY[{CALLS}]), {KEYS}, array_fill(sha256('f'), ARRAY[{CALLS}]), 30000) b"
SETTLE = ", LATERAL umavez.complete(%(tenant)s, b.id, b.attempt, '{}', 1000000) c"
LATER = "CASE WHEN c.outcome IS NOT NULL THEN sha256('f') END"       # so that it is called after the one before

# What is called, with CALLS runs (%(ids)s) that are available, held by the worker, or held with leases that are over.
CALLED = {
    "take_runs": ("available", "SELECT * FROM umavez.take_runs(%(worker)s, '{default}', 20, '{}', 30000, 'infinity')"),
    "take_runs by weight": ("available", "SELECT * FROM umavez.take_runs(%(worker)s, '{default}', 20, '{}', 30000, 'infinity', NULL, '{1}')"),
    "reap_runs": ("over", "SELECT umavez.reap_runs(20)"),
    "renew_runs": ("held", "SELECT * FROM umavez.renew_runs(%(worker)s, %(ids)s::uuid[], array_fill(30000::bigint, ARRAY[20]))"),
    "release_runs": ("held", """SELECT umavez.release_runs(%(worker)s, %(ids)s::uuid[], array_fill(9::bigint, ARRAY[20]),
                                                           array_fill('back'::text, ARRAY[20]))"""),
    "queue_depths": ("available", "SELECT * FROM umavez.queue_depths('{default}', 1000)"),
    "release_orphans": ("held", "SELECT umavez.release_orphans(%(worker)s, '{}')"),
    "renew_worker": ("held", "SELECT umavez.renew_worker(%(worker)s, 30000)"),
    "bury_worker": ("held", "SELECT umavez.bury_worker(%(worker)s, (%(ids)s::uuid[])[:3], '{}')"),
    "enqueue": ("available", f"SELECT umavez.enqueue('t.a', run_id => i, tenant_id => %(tenant)s) {EACH}"),
    "enqueue_many": ("available", f"""SELECT umavez.enqueue_many((SELECT jsonb_agg(jsonb_build_object(
                                        'task', 't.a', 'run_id', i, 'tenant_id', %(tenant)s::bigint)) {EACH}))"""),
    "end_run": ("held", f"SELECT umavez.end_run(i, 'completed', '{{}}', NULL) {EACH}"),
    "reschedule_run": ("held", f"SELECT umavez.reschedule_run(i, 1000) {EACH}"),
    "put_off_run": ("held", f"""SELECT umavez.put_off_run(i, '{{"code": "x"}}', 3) {EACH}"""),
    "hold_run": ("held", f"SELECT umavez.hold_run(i) {EACH}"),
    "run_state": ("held", f"SELECT umavez.run_state(i, %(tenant)s) {EACH}"),
    "retry_run": ("held", f"""SELECT umavez.retry_run(x.i)
                               FROM (SELECT i, umavez.end_run(i, 'failed_permanent', '{{}}', NULL) {EACH} OFFSET 0) x"""),
    "claim": ("held", f"SELECT b.id {CLAIM}"),
    "complete": ("held", f"SELECT c.outcome {CLAIM}{SETTLE}"),
    "fail": ("held", f"SELECT c.outcome {CLAIM}, LATERAL umavez.fail(%(tenant)s, b.id, b.attempt, 'failed_retryable', '{{}}', 1000) c"),
    "renew": ("held", f"SELECT umavez.renew(%(tenant)s, b.id, b.attempt, 1000000) {CLAIM}"),
    "release": ("held", f"SELECT umavez.release(%(tenant)s, b.id, b.attempt) {CLAIM}"),
    "taking a key over": ("held", f"""SELECT umavez.claim(%(tenant)s, sha256(uuid_send(i)), {LATER}, 30000)
                                      {CLAIM}, LATERAL umavez.fail(%(tenant)s, b.id, b.attempt, 'failed_retryable', '{{}}', 100000) c"""),
    "complete_run": ("held", f"""SELECT c.outcome {BEGIN}, LATERAL umavez.complete_run(
                                   i, %(tenant)s, sha256(uuid_send(i)), b.id, b.attempt, '{{}}', 1000000, true) c"""),
    "begin_runs": ("held", f"SELECT b FROM {MANY}"),
    "forget_runs": ("held", f"SELECT umavez.forget_runs(array_fill(%(tenant)s::bigint, ARRAY[{CALLS}]), b) FROM {MANY}"),
    "complete_runs": ("held", f"""SELECT umavez.complete_runs(%(ids)s::uuid[], array_fill(%(tenant)s::bigint, ARRAY[{CALLS}]), {KEYS}, b,
                                    array_fill('{{}}'::jsonb, ARRAY[{CALLS}]), 1000000, true) FROM {MANY}"""),
    "fail_run": ("held", f"""SELECT c.outcome {BEGIN}, LATERAL umavez.fail_run(
                               i, %(tenant)s, sha256(uuid_send(i)), b.id, b.attempt, false, '{{}}', '{{}}', 1000000, 1000, true) c"""),
    "fail_lost_run": ("held", f"""SELECT umavez.fail_lost_run(%(worker)s, i, %(tenant)s, sha256(uuid_send(i)), sha256('f'), true,
                                                              '{{}}', '{{}}', 1000000, 0, true) {EACH}"""),
    "ack_replay": ("held", f"SELECT umavez.ack_replay(i, %(tenant)s, sha256(uuid_send(i)), {LATER}, true) {CLAIM}{SETTLE}"),
    "ack_replays": ("held", f"""SELECT umavez.ack_replays(%(ids)s::uuid[], array_fill(%(tenant)s::bigint, ARRAY[{CALLS}]), {KEYS},
                                                          array_fill(f, ARRAY[{CALLS}]), true)
                                FROM (SELECT CASE WHEN count(c.outcome) > 0 THEN sha256('f') END AS f {CLAIM}{SETTLE} OFFSET 0) done"""),
    "resolve_commit": ("held", f"SELECT umavez.resolve_commit(i, %(tenant)s, sha256(uuid_send(i)), b.id, b.attempt) {CLAIM}"),
}


@pytest.mark.parametrize("plans", ["force_generic_plan", "force_custom_plan"])
def test_E08_no_plan_reads_a_whole_index(crowd, connect, sql, owner, plans):
    one, worker = connect(), str(uuid.uuid4())
    one.q(f"SET plan_cache_mode = {plans}")
    read = {}
    for name, (state, call) in CALLED.items():
        ids = [row[0] for row in sql.q("SELECT umavez.enqueue('t.a', tenant_id => %s) FROM generate_series(1, %s)", owner, CALLS)]
        if state != "available":
            sql.q("""UPDATE umavez.runs SET state = 'running', worker_id = %s,
                       lease_until = clock_timestamp() + CASE WHEN %s THEN interval '-1 millisecond' ELSE interval '1 hour' END
                      WHERE run_id = ANY (%s::uuid[])""", worker, state == "over", ids)
        read[name] = one.blocks(call, {"ids": ids, "worker": worker, "tenant": owner})
        sql.q("DELETE FROM umavez.runs WHERE run_id = ANY (%s::uuid[])", ids)
    assert {name: n for name, n in read.items() if n > BLOCKS} == {}
