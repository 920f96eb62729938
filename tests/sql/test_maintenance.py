"""The purge of keys and of finished runs, partitions, identity and the gate's secret.

Rows of the cases here: H04, H06.
"""
import time
import uuid

import psycopg2
import pytest

from conftest import HOUR, digest

FILL = """INSERT INTO {table} ({column} idempotency_key, request_fingerprint, status, expires_at)
          SELECT {value} sha256(int8send(g + %s)), sha256('f'), %s, now() + %s::interval FROM generate_series(1, %s) g"""


def fill(sql, owner, table, start, status, expires, n):
    sql.q(FILL.format(table=table, column="tenant_id," if owner else "", value="1," if owner else ""), start, status, expires, n)


def purged(sql, owner, limit):
    counts = sql.purge_keys(limit)
    return counts.platform_keys if owner is None else counts.tenant_keys


@pytest.mark.parametrize("n", [3000, pytest.param(200_000, marks=pytest.mark.long)])
def test_H04_just_the_expired_settled_ones(sql, owner, table, n, long):
    if n > 10_000 and not long:
        pytest.skip("waits long: UMAVEZ_LONG=1")
    fill(sql, owner, table, 0, "completed", "1 hour", 1000)
    fill(sql, owner, table, 10_000, "processing", "1 hour", 10)
    fill(sql, owner, table, 20_000, "processing", "-1 hour", 5)              # a lease that is over: obeyed by claim, not purged
    fill(sql, owner, table, 10_000_000, "completed", "-1 second", n // 3)
    fill(sql, owner, table, 20_000_000, "failed_permanent", "-1 day", n // 3)
    fill(sql, owner, table, 30_000_000, "failed_retryable", "-1 second", n - 2 * (n // 3))
    calls = []
    while True:
        calls.append(purged(sql, owner, 1000))
        if calls[-1] == 0:
            break
    assert sum(calls) == n and max(calls) <= 1000 and len(calls) == -(-n // 1000) + 1
    left = {(r.status, r.n) for r in sql.q(f"SELECT status, count(*) AS n FROM {table} GROUP BY 1")}
    assert left == {("completed", 1000), ("processing", 15)}
    assert purged(sql, owner, 1000) == 0


def test_abandoned_leases_go_after_a_day(sql, owner, table):
    fill(sql, owner, table, 0, "processing", "-25 hours", 3)
    assert purged(sql, owner, 10) == 3


def test_purge_zones_are_read_only_when_due(sql):
    """Zones of 100,000 ids; a closed one is read again when something in it can expire, an empty one falls to its predecessor."""
    sql.q("""INSERT INTO umavez.platform_idempotency_keys (id, idempotency_key, request_fingerprint, status, expires_at)
             OVERRIDING SYSTEM VALUE
             SELECT g, sha256(int8send(g)), sha256('f'), 'completed', now() + CASE WHEN g < 200000 THEN interval '2 hours'
                    WHEN g < 300000 THEN interval '-1 second' ELSE interval '3 days' END
               FROM generate_series(1, 450000, 1000) g""")
    assert purged(sql, None, 1000) == 100
    zones = sql.q("""SELECT from_id, extract(epoch FROM next_at - now()) / 3600 AS hours FROM umavez.purge_zones
                      WHERE ledger = 'platform_idempotency_keys' ORDER BY 1""")
    assert [z.from_id for z in zones] == [0, 100_000, 300_000, 400_000]
    assert [round(float(z.hours)) for z in zones] == [2, 2, 24, 24]
    sql.q("UPDATE umavez.platform_idempotency_keys SET expires_at = now() WHERE id IN (1, 440001)")
    assert purged(sql, None, 1000) == 1                            # the newest zone is always read, the first is not due
    sql.q("UPDATE umavez.purge_zones SET next_at = now()")
    assert purged(sql, None, 1000) == 1


def test_two_purges_and_a_live_claim_do_not_wait(connect, sql, owner, table):
    fill(sql, owner, table, 0, "completed", "-1 second", 100)
    one, two = connect(autocommit=False), connect(autocommit=False)
    two.q("SET LOCAL statement_timeout = '5s'")
    assert purged(one, owner, 50) == 50
    assert purged(two, owner, 50) == 0                             # that zone is being purged
    begun = time.monotonic()
    assert two.claim_key(owner, "unrelated").verdict == "claimed"
    assert time.monotonic() - begun < 1
    two.rollback()
    one.commit()
    assert purged(two, owner, 100) == 50


def test_a_claim_of_a_key_that_is_being_purged_is_busy_not_blocked(connect, sql, owner, table):
    claim = sql.claim_key(owner)
    sql.complete(owner, claim.id, 1, "{}", -1)
    purge, other = connect(autocommit=False), connect()
    assert purged(purge, owner, 10) == 1
    begun = time.monotonic()
    with pytest.raises(psycopg2.errors.LockNotAvailable):
        other.claim_key(owner)
    assert time.monotonic() - begun < 2
    purge.commit()
    assert other.claim_key(owner).verdict == "claimed"


# --- finished runs

def partitions(sql):
    return {r[0] for r in sql.q("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'umavez.finished_runs'::regclass")}


def finish(sql, at=None):
    run = sql.enqueue("t.a")
    sql.end_run(run, "completed", "{}", None)
    if at:
        sql.q(f"UPDATE umavez.finished_runs SET finished_at = {at} WHERE run_id = %s", run)
    return run


def drop_days(sql):
    for name in partitions(sql):
        if not name.endswith("default"):
            sql.q(f"DROP TABLE {name}")


def test_partitions_are_made_ahead_once(sql):
    drop_days(sql)
    made = sql.make_partitions(3)
    today = sql.val("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    assert len(made) == 4 and made[0] == "finished_runs_" + today
    assert sql.make_partitions(3) == []
    assert sql.make_partitions(4) != []
    finish(sql)
    assert sql.val("SELECT tableoid::regclass::text FROM umavez.finished_runs") == f"umavez.finished_runs_{today}"
    indexes = sql.q("SELECT indexname FROM pg_indexes WHERE tablename = %s", "finished_runs_" + today)
    assert len(indexes) == 2


def test_partitions_follow_utc_whatever_the_sessions_zone(sql):
    drop_days(sql)
    sql.q("SET timezone = 'Pacific/Kiritimati'")
    made = sql.make_partitions(1)
    bounds = sql.val("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = %s", made[0])
    sql.q("SET timezone = 'UTC'")
    bounds = sql.val("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = %s", made[0])
    assert bounds.count("00:00:00+00") == 2


def test_H06_without_a_partition_runs_end_all_the_same(sql):
    drop_days(sql)
    run = finish(sql)
    assert sql.q("SELECT run_id, tableoid::regclass::text FROM umavez.finished_runs") == [(run, "umavez.finished_runs_default")]
    made = sql.make_partitions(2)
    assert len(made) == 2                                          # not today's: the default partition holds rows of it
    finish(sql)
    assert sql.val("SELECT count(*) FROM umavez.finished_runs_default") == 2
    assert sql.ack_replay(run, None, digest("k"), digest("f"), True) is None
    sql.q("UPDATE umavez.finished_runs_default SET finished_at = finished_at - interval '40 days'")
    assert sql.purge_finished("30 days") == []
    assert sql.val("SELECT count(*) FROM umavez.finished_runs") == 0


def test_H06_a_busy_default_partition_is_not_waited_for(connect, sql):
    drop_days(sql)
    holder = connect(autocommit=False)
    holder.q("INSERT INTO umavez.finished_runs SELECT gen_random_uuid(), 't', NULL, 'default', 2, 'completed', false, '{}', NULL, NULL, "
             "1, 1, NULL, now(), now() - interval '9 days'")
    begun = time.monotonic()
    assert sql.make_partitions(2) == []
    assert time.monotonic() - begun < 3
    holder.rollback()
    assert len(sql.make_partitions(2)) == 3


def old_partition(sql, days):
    name = sql.val("SELECT 'finished_runs_' || to_char((now() AT TIME ZONE 'UTC')::date - %s, 'YYYYMMDD')", days)
    sql.q(f"""CREATE TABLE umavez.{name} (LIKE umavez.finished_runs INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
              DO $$ BEGIN EXECUTE format('ALTER TABLE umavez.finished_runs ATTACH PARTITION umavez.{name} FOR VALUES FROM (%L) TO (%L)',
                ((now() AT TIME ZONE 'UTC')::date - {days})::timestamp AT TIME ZONE 'UTC',
                ((now() AT TIME ZONE 'UTC')::date - {days} + 1)::timestamp AT TIME ZONE 'UTC'); END $$""")
    return name


def test_purge_finished_drops_whole_days(sql):
    names = [old_partition(sql, days) for days in (40, 31, 30, 1)]
    finish(sql, "now() - interval '31 days'")
    assert sql.purge_finished("30 days") == names[:2]
    assert sql.purge_finished("30 days") == []
    assert {"umavez." + n for n in names[2:]} <= partitions(sql)
    with pytest.raises(psycopg2.errors.InvalidParameterValue):
        sql.purge_finished("-1 day")


def test_purge_finished_waits_for_nobody(connect, sql):
    name = old_partition(sql, 40)
    reader, other = connect(autocommit=False), connect()
    reader.q("SELECT count(*) FROM umavez.finished_runs")
    begun = time.monotonic()
    assert sql.purge_finished("30 days") == []
    assert time.monotonic() - begun < 3
    finish(other)                                                  # nobody was locked out
    reader.rollback()
    assert sql.purge_finished("30 days") == [name]


# --- identity

def test_identity_is_stable_and_tells_databases_apart(db, sql, connect):
    identity = sql.database_identity()
    assert identity == connect().database_identity() and identity.count(":") == 5
    assert identity.split(":")[1] == "00000001"
    other = db.cluster.database()
    try:
        assert other.val("SELECT umavez.database_identity()") != identity
    finally:
        other.drop()
    sql.q("TRUNCATE umavez.idempotency_keys")
    assert sql.database_identity() != identity


def test_G8_identity_on_a_standby_and_after_its_promotion(own_pg):
    primary = own_pg.database()
    standby = own_pg.standby()
    try:
        there = type(primary)(standby, primary.name)
        before = primary.val("SELECT umavez.database_identity()")
        deadline = time.monotonic() + 30
        while True:
            try:
                there.val("SELECT umavez.database_identity()")
                raise AssertionError("a standby has no identity")
            except psycopg2.OperationalError as error:             # the database is not there yet
                assert "does not exist" in str(error) and time.monotonic() < deadline
                time.sleep(0.05)
            except psycopg2.Error as error:
                assert error.pgcode == "25006"
                break
        own_pg.stop("kill")
        there.q("SELECT pg_promote(true, 60)")
        after = there.val("SELECT umavez.database_identity()")
        assert after.split(":")[0] == before.split(":")[0] and after.split(":")[1] == "00000002"
        there.close()
    finally:
        primary.close()
        standby.destroy()


def test_gate_secret_is_this_databases_own_by_migration(sql):
    secret = bytes(sql.gate_secret())
    assert len(secret) == 32 and secret == bytes(sql.val("SELECT secret FROM umavez.gate"))
    with pytest.raises(psycopg2.errors.UniqueViolation):
        sql.q("INSERT INTO umavez.gate (secret) VALUES (sha256('x'))")


def test_the_audit_is_purged_after_its_retention_and_not_before(sql):
    sql.q("""INSERT INTO umavez.audit (at, db_user, action, target)
             SELECT clock_timestamp() - g * interval '1 day', 'x', 'pause', g::text FROM generate_series(500, 1, -1) g""")
    purge = lambda keep, limit=1000: sql.val("SELECT umavez.purge_audit(%s::interval, %s)", keep, limit)
    assert purge("400 days", 30) == 30 and purge("400 days") == 71 and purge("400 days") == 0
    assert sql.val("SELECT array_agg(target::int ORDER BY id) FROM umavez.audit") == list(range(399, 0, -1))
    for keep in ("89 days", "0", "-1 day", None):
        with pytest.raises(psycopg2.Error) as refused:
            purge(keep)
        assert refused.value.pgcode == "22023"
    assert sql.val("SELECT count(*) FROM umavez.audit") == 399
