"""umavez_worker and umavez_operator: what they need, and nothing else."""
import subprocess
import uuid

import psycopg2
import pytest

from support.procs import ROOT
from conftest import HOUR, digest

K, F = digest("k"), digest("f")


@pytest.fixture
def role(sql, connect):
    """Makes a login role of the cluster in a group; dropped afterwards."""
    made = []

    def one(group=None):
        name = "r_" + uuid.uuid4().hex[:8]
        sql.q(f"CREATE ROLE {name} LOGIN" + (f" IN ROLE {group}" if group else ""))
        made.append((name, connect(name)))
        return name, made[-1][1]
    yield one
    for name, connection in made:
        connection.connection.close()
        sql.q(f"DROP OWNED BY {name}")
        sql.q(f"DROP ROLE {name}")


def test_the_worker_can_do_its_work(sql, role, owner):
    _, w = role("umavez_worker")
    worker = str(uuid.uuid4())
    w.register_tasks('[{"task": "t.a", "owner": "tenant", "queue": "default"}]')
    run = w.enqueue("t.a", '{"x": 1}', owner)
    w.enqueue_many('[{"task": "t.b"}]')
    assert run in [r.run_id for r in w.take(1, worker=worker)]
    w.q("SELECT umavez.renew_runs(%s, %s::uuid[], '{30000}'::int[])", worker, [run])
    w.connection.autocommit = False
    claim = w.begin_run(owner, K, F, 30_000, 20_000)
    w.complete_run(run, owner, K, claim.id, 1, "{}", HOUR, True)
    w.commit()
    w.connection.autocommit = True
    assert w.claim(owner, K, F, 1000).verdict == "replay"
    assert w.ack_replay(run, owner, K, F, True).status == "completed"
    assert w.resolve_commit(run, owner, K, claim.id, 1).verdict == "committed"
    second = w.take(1, worker=worker)[0].run_id
    claim = w.claim(None, digest("2"), F, 1000)
    w.fail_run(second, None, digest("2"), claim.id, 1, False, "{}", None, HOUR, 0, True)
    w.take(1, worker=worker)
    assert w.fail_lost_run(worker, second, None, digest("2"), F, False, "{}", None, HOUR, 0, True) == "recorded"
    w.take(1, worker=worker)
    w.q("SELECT umavez.release_runs(%s, %s::uuid[], '{0}', '{back}')", worker, [second])
    w.q("SELECT umavez.release_orphans(%s, '{}')", worker)
    w.reschedule_run(second, 0)
    w.put_off_run(second, '{"code": "unknown_task"}', 10)
    w.end_run(second, "failed_permanent", "{}", None)
    w.q("SELECT * FROM umavez.held_orders(%s::uuid[])", [second])
    w.worker_beat(worker, "box", 7, "0.1.0", "{}"), w.worker_gone(worker)
    w.declare_limits('[{"kind": "task", "name": "t.a", "limit": 2}]'), w.q("SELECT * FROM umavez.list_limits()")
    assert w.enqueue("t.a", "{}", owner) in [r.run_id for r in w.take(1, worker=worker)]
    w.reap_runs(10), w.sleep_begin(), w.sleep_end(), w.purge_keys(10), w.make_partitions(1)
    assert len(bytes(w.gate_secret())) == 32 and w.database_identity() == sql.database_identity()
    assert w.val("SELECT max(version) FROM umavez.migrations") >= 2


def test_the_worker_drops_partitions_it_does_not_own(sql, role):
    _, w = role("umavez_worker")
    name = sql.val("SELECT 'finished_runs_' || to_char(now() - interval '50 days', 'YYYYMMDD')")
    sql.q(f"""CREATE TABLE umavez.{name} (LIKE umavez.finished_runs INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
              DO $$ BEGIN EXECUTE format('ALTER TABLE umavez.finished_runs ATTACH PARTITION umavez.{name} FOR VALUES FROM (%L) TO (%L)',
                date_trunc('day', now() - interval '50 days'), date_trunc('day', now() - interval '49 days')); END $$""")
    assert w.purge_finished("30 days") == [name]


@pytest.mark.parametrize("statement", [
    "SELECT * FROM umavez.idempotency_keys", "DELETE FROM umavez.platform_idempotency_keys", "SELECT * FROM umavez.gate",
    "UPDATE umavez.idempotency_keys SET status = 'completed'", "SELECT * FROM umavez.runs", "DELETE FROM umavez.runs",
    "INSERT INTO umavez.finished_runs SELECT * FROM umavez.finished_runs", "TRUNCATE umavez.runs", "DROP TABLE umavez.runs",
    "CREATE TABLE umavez.mine (x int)", "UPDATE umavez.marks SET since = NULL", "SELECT * FROM umavez.audit", "DELETE FROM umavez.audit",
    "SELECT umavez.set_limit('queue', 'q', 1)", "SELECT * FROM umavez.limits", "SELECT umavez.free_places('{}', '{}')",
    "SELECT umavez.pause_queue('q')", "SELECT umavez.resume_queue('q')", "SELECT umavez.cancel_run(gen_random_uuid())", "SELECT umavez.discard_runs('{}')",
    "SELECT umavez.retry_runs('{}', 'x')", "SELECT umavez.forget_key(NULL, sha256('k'), 'why')", "SELECT umavez.end_cancelled()",
    "SELECT umavez.write_audit('pause', 'q', NULL, NULL)", "INSERT INTO umavez.paused_queues VALUES ('q')", "SELECT umavez.retry_run(gen_random_uuid())",
    "SELECT umavez.settle_enqueued('{}', '{}', '{}', '{}', '{}')", "DELETE FROM umavez.migrations", "DELETE FROM public.tenants",
])
def test_the_worker_can_do_nothing_else(role, statement):
    _, w = role("umavez_worker")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        w.q(statement)


def test_the_operator_reads_retries_and_does_not_settle(sql, role):
    _, o = role("umavez_operator")
    run = o.enqueue("t.a")
    sql.end_run(run, "failed_permanent", "{}", None)
    o.retry_run(run)
    for table in ("runs", "finished_runs", "idempotency_keys", "platform_idempotency_keys", "tasks", "migrations"):
        o.q(f"SELECT * FROM umavez.{table}")
    for statement in ("SELECT umavez.gate_secret()", "SELECT * FROM umavez.gate", "DELETE FROM umavez.runs",
                      "SELECT umavez.claim(NULL, sha256('k'), sha256('f'), 1000)"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            o.q(statement)


def test_the_operator_acts_and_cannot_change_what_was_audited(sql, role):
    name, o = role("umavez_operator")
    assert o.pause_queue("q", "why", "me@box") and o.resume_queue("q")
    run = o.enqueue("t.a")
    assert o.cancel_run(run, "why") == "cancelled"
    o.q("SELECT umavez.discard_runs(ARRAY[%s]::uuid[])", run)
    sql.q("UPDATE umavez.finished_runs SET discarded_at = NULL")
    o.q("SELECT umavez.retry_runs(ARRAY[%s]::uuid[], 'one')", run)
    claim = sql.claim(None, K, F, 1000)
    sql.complete(None, claim.id, 1, "{}", HOUR)
    assert o.forget_key(None, K, "why") == "forgotten"
    o.q("SELECT * FROM umavez.recent_ends(64)"), o.q("SELECT * FROM umavez.list_queues(10)"), o.q("SELECT * FROM umavez.failed_runs(NULL, '-infinity', NULL, 'infinity', 1)")
    for table in ("paused_queues", "cancellations", "workers"):
        o.q(f"SELECT * FROM umavez.{table}")
    rows = o.q("SELECT * FROM umavez.audit ORDER BY id")
    assert [row.action for row in rows] == ["pause", "resume", "cancel", "discard", "retry", "forget"]
    assert {row.db_user for row in rows} == {name}
    for statement in ("DELETE FROM umavez.audit", "UPDATE umavez.audit SET db_user = 'x'", "SELECT umavez.write_audit('pause', 'q', NULL, NULL)",
                      "SELECT umavez.worker_gone(gen_random_uuid())", "SELECT umavez.purge_audit('400 days', 10)", "UPDATE umavez.finished_runs SET discarded_at = NULL"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            o.q(statement)


def test_an_application_that_only_enqueues(sql, role):
    name, app = role()
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        app.q("SELECT umavez.enqueue('t.a')")
    sql.q(f"GRANT USAGE ON SCHEMA umavez TO {name}")
    sql.q(f"GRANT EXECUTE ON FUNCTION umavez.enqueue TO {name}")
    run = app.enqueue("t.a", "{}", 1, str(uuid.uuid4()))
    assert app.enqueue("t.a", "{}", 1, run) == run
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        app.q("SELECT umavez.enqueue_many('[]')")


def test_functions_are_applied_again_without_taking_grants_away(db, sql, role):
    name, app = role()
    sql.q(f"GRANT USAGE ON SCHEMA umavez TO {name}; GRANT EXECUTE ON FUNCTION umavez.enqueue TO {name}")
    subprocess.run([str(ROOT / "tests/support/apply_sql.sh"), db.url("postgres")], check=True, capture_output=True)
    app.enqueue("t.a")


def test_migrating_without_the_right_to_create_roles(db, sql, role, connect):
    """An ordinary owner of a database migrates it; the groups exist, or it is told that they are missing."""
    name, _ = role()
    database = "uv_" + uuid.uuid4().hex[:10]
    sql.q(f"CREATE DATABASE {database} OWNER {name} TEMPLATE template0")
    try:
        other = db.cluster.database(database)
        subprocess.run([str(ROOT / "tests/support/apply_sql.sh"), other.url(name)], check=True, capture_output=True)
        other.q("INSERT INTO tenants (id) VALUES (7)")
        owned = psycopg2.connect(db.cluster.dsn(database, name))
        with owned.cursor() as cursor:
            cursor.execute("SELECT umavez.enqueue('t.a', '{}', 7), umavez.database_identity(), umavez.gate_secret()")
        owned.close()
        other.close()
    finally:
        sql.q(f"DROP DATABASE {database} WITH (FORCE)")


def test_another_tenants_table(db, sql):
    database = "uv_" + uuid.uuid4().hex[:10]
    sql.q(f"CREATE DATABASE {database} TEMPLATE template0")
    try:
        other = db.cluster.database(database)
        other.q('CREATE SCHEMA "My App"')
        other.q('CREATE TABLE "My App"."Customers" (id bigint PRIMARY KEY, name text NOT NULL)')
        other.q("INSERT INTO \"My App\".\"Customers\" VALUES (3, 'c')")
        subprocess.run([str(ROOT / "tests/support/apply_sql.sh"), other.url("postgres"), '"My App"."Customers"'], check=True,
                       capture_output=True)
        assert other.val("SELECT to_regclass('public.tenants')") is None
        other.q("SELECT umavez.enqueue('t.a', '{}', 3)")
        with pytest.raises(psycopg2.errors.ForeignKeyViolation):
            other.q("SELECT umavez.enqueue('t.a', '{}', 4)")
        other.close()
    finally:
        sql.q(f"DROP DATABASE {database} WITH (FORCE)")
