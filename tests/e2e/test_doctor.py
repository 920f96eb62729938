"""`umavez doctor`: each thing that it must find, found on real servers that have it; exit codes; no secrets."""
import json
import re
import subprocess
import uuid

import pytest

from lab import OWNERS
from support import procs
from support.servers import PgBouncer, clean_environment, umavez_bin
from test_command_line import umavez

# The tests' servers are throwaways (support/servers.py).
THROWAWAY = {"fsync", "full_page_writes"}


def findings(done):
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def examine(lab):
    """Runs the doctor; gives its findings by check, the worst of each first. `code` has the exit code."""
    def look(role="doctor_role", **env):
        done = lab.cli("doctor", "--json", "--long-transaction", look.long, role=role, **env)
        assert "Traceback" not in done.err and "fault of umavez" not in done.err, done
        look.code, look.text = done.code, done.out + done.err
        by_check = {}
        for finding in findings(done):
            by_check.setdefault(finding["check"], finding)
        return by_check
    look.long = "300"
    lab.sql("DO $$ BEGIN CREATE ROLE doctor_role LOGIN IN ROLE umavez_worker, umavez_operator, pg_read_all_stats; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    return look


def grave(found):
    return {check: finding["severity"] for check, finding in found.items() if finding["severity"] in ("error", "warning") and check not in THROWAWAY}


def test_a_sound_installation(lab, examine):
    worker = lab.worker()
    worker.wait_event("worker_ready")
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.workers") == 1, 30, "the worker to be listed")
    found = examine()
    assert grave(found) == {}, found
    assert {check for check, finding in found.items() if finding["severity"] == "error"} == THROWAWAY and examine.code == 6
    for check in ("version of PostgreSQL", "role", "synchronous_commit", "connections", "pooler", "LISTEN", "autovacuum", "oldest transaction", "clock of PostgreSQL", "migrations",
                  "schema", "workers", "queues", "unknown tasks", "ended leases", "dead runs", "expired keys", "partitions", "version of Valkey", "memory of Valkey", "persistence of Valkey", "clock of Valkey", "synchronous standbys", "time zones of PostgreSQL",
                  "open files", "time zones"):
        assert found[check]["severity"] == "ok", (check, found.get(check))
    assert "1 worker processes" in found["connections"]["found"]
    lab.sql("UPDATE umavez.workers SET version = '0.0.9'")
    assert "0.0.9" in examine()["workers"]["found"] and examine()["workers"]["severity"] == "info"
    for finding in found.values():
        assert finding["severity"] == "ok" or (finding["why"] and finding["fix"]), finding
    text = lab.cli("doctor", role="doctor_role")
    assert "error    fsync: off" in text.out and "         why  " in text.out and "2 errors, 0 warnings" in text.out, text
    assert "LISTEN" not in text.out and "LISTEN: works" in lab.cli("doctor", "--all", role="doctor_role").out


@OWNERS
def test_what_lies_in_the_queue(lab, examine, owner):
    lab.cli("pause", "halted", "--reason", "INC-9")
    dead = str(lab.value("SELECT umavez.enqueue('x.dead', tenant_id => %s)", owner.tenant_id))
    lab.sql("SELECT umavez.end_run(%s::uuid, 'failed_permanent', '{}', NULL)", dead)
    lab.sql("SELECT umavez.enqueue('x.nobody', tenant_id => %s, queue => 'lonely')", owner.tenant_id)
    key = lab.foreign(owner, b"k" * 32, b"f" * 32, seconds=-200000, status="completed", outcome={"a": 1})
    assert key
    found = examine()
    assert found["workers"]["severity"] == "warning"
    assert "INC-9" in found["paused queues"]["found"] and "umavez resume halted" in found["paused queues"]["fix"]
    assert found["queues without worker"]["severity"] == "error" and "lonely" in found["queues without worker"]["found"]
    assert "x.nobody" in found["unknown tasks"]["found"]
    assert "1 of 1 tasks" in found["dead runs"]["found"] and found["dead runs"]["severity"] == "warning"
    assert found["expired keys"]["severity"] == "warning"
    lab.sql("SELECT * FROM umavez.take_runs(gen_random_uuid(), ARRAY['lonely'], 1, '{}', 1000)")
    lab.sql("UPDATE umavez.runs SET lease_until = now() - interval '5 minutes'")
    assert examine()["ended leases"]["severity"] == "error"
    lab.cli("discard", dead)
    assert examine()["dead runs"]["severity"] == "ok"
    lab.sql("DELETE FROM umavez.runs")
    lab.sql("DELETE FROM umavez.finished_runs")
    lab.allow("ledger_run")


DRIFT = {
    "a function": ("CREATE OR REPLACE FUNCTION umavez.wake() RETURNS void LANGUAGE sql AS 'SELECT'", "function wake() is another"),
    "a function too many": ("CREATE FUNCTION umavez.mine() RETURNS void LANGUAGE sql AS 'SELECT'", "function mine() is not umavez's"),
    "a missing function": ("DROP FUNCTION umavez.sleep_begin()", "function sleep_begin() is missing"),
    "a column": ("ALTER TABLE umavez.runs ADD COLUMN mine int", "table runs is another"),
    "an index": ("DROP INDEX umavez.runs_leased", "index runs_leased is missing"),
    "a constraint": ("ALTER TABLE umavez.idempotency_keys DROP CONSTRAINT idempotency_keys_status_check", "constraint idempotency_keys_status_check is missing"),
    "a trigger": ("CREATE FUNCTION public.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'; CREATE TRIGGER mine BEFORE INSERT ON umavez.runs FOR EACH ROW EXECUTE FUNCTION public.t()",
                  "trigger mine is not umavez's"),
    "an index too many": ("CREATE INDEX mine ON umavez.idempotency_keys (status)", "index mine is not umavez's"),
}


@pytest.mark.parametrize("what", DRIFT)
def test_a_schema_that_somebody_has_changed(lab, examine, what):
    statement, words = DRIFT[what]
    lab.sql(statement)
    found = examine()
    assert found["schema"]["severity"] == "error" and words in found["schema"]["found"], found["schema"]


def test_the_doctors_advice_mends_a_changed_function(lab, examine):
    lab.sql(DRIFT["a function"][0])
    lab.sql("DELETE FROM umavez.migrations WHERE version = 0")
    assert lab.cli("migrate").code == 0
    assert examine()["schema"]["severity"] == "ok"


def test_settings_of_the_server(lab, examine):
    lab.sql("ALTER TABLE umavez.runs SET (autovacuum_enabled = false)")
    lab.sql(f"ALTER ROLE doctor_role IN DATABASE {lab.env.db.name} SET synchronous_commit = off")
    lab.sql(f"ALTER ROLE doctor_role IN DATABASE {lab.env.db.name} SET default_transaction_isolation = 'serializable'")
    found = examine(UMAVEZ_POOL_SIZE="100", UMAVEZ_WORKERS="100")
    assert found["synchronous_commit"]["severity"] == "warning" and found["isolation"]["severity"] == "info"
    assert found["autovacuum"]["severity"] == "warning" and "umavez.runs" in found["autovacuum"]["found"]
    assert found["connections"]["severity"] == "error"
    assert examine(role="postgres")["role"]["severity"] == "warning"


def test_a_long_transaction(lab, examine):
    examine.long = "0"
    other = lab.env.db.connect("postgres", False)
    with other.cursor() as cursor:
        cursor.execute("SELECT txid_current()")
    found = examine()["oldest transaction"]
    assert found["severity"] in ("warning", "error") and "idle in transaction" in found["found"] and "pg_terminate_backend" in found["fix"]
    other.rollback()
    other.close()


def test_a_prepared_transaction_holds_the_horizon(own_lab):
    own_lab.env.pg.stop()
    own_lab.env.pg.start(max_prepared_transactions=3)
    other = own_lab.env.db.connect("postgres", True)
    with other.cursor() as cursor:
        cursor.execute("BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'left behind'")
    found = {finding["check"]: finding for finding in findings(own_lab.cli("doctor", "--json", "--long-transaction", "0"))}["oldest transaction"]
    assert found["severity"] in ("warning", "error") and "prepared transaction left behind" in found["found"] and "ROLLBACK PREPARED" in found["fix"]
    with other.cursor() as cursor:
        cursor.execute("ROLLBACK PREPARED 'left behind'")
    other.close()


def test_a_replication_slot_that_nobody_reads(lab, examine):
    lab.sql("SELECT pg_create_physical_replication_slot('nobodys', true)")
    try:
        found = examine()["replication slots"]
        assert found["severity"] == "info" and "nobodys" in found["found"] and "pg_drop_replication_slot('nobodys')" in found["fix"]
        for _ in range(6):
            lab.sql("SELECT pg_logical_emit_message(false, 'test', 'x')")
            lab.sql("SELECT pg_switch_wal()")
        assert examine()["replication slots"]["severity"] == "warning"
    finally:
        lab.sql("SELECT pg_drop_replication_slot('nobodys')")
    assert "replication slots" not in examine()


def test_a_synchronous_standby_that_is_not_there(own_lab):
    own_lab.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    own_lab.sql("SELECT pg_reload_conf()")
    look = lambda: {finding["check"]: finding for finding in findings(own_lab.cli("doctor", "--json"))}["synchronous standbys"]
    own_lab.until(lambda: look()["severity"] == "error", 30, "the doctor to see it")
    assert "nobody" in look()["found"] and "COMMIT" in look()["why"]
    own_lab.sql("ALTER SYSTEM RESET synchronous_standby_names")
    own_lab.sql("SELECT pg_reload_conf()")


def test_a_time_zone_that_the_server_does_not_know(lab, examine):
    lab.sql("INSERT INTO umavez.schedules (task, declared, seen_at) VALUES ('t.far', '{\"cron\": \"0 0 * * *\", \"tz\": \"Mars/Olympus\"}', now())")
    found = examine()["time zones of PostgreSQL"]
    assert found["severity"] == "warning" and "Mars/Olympus" in found["found"]
    lab.sql("DELETE FROM umavez.schedules")


def test_a_pooler_in_transaction_mode(lab, examine):
    pooler = lab.env.closing(PgBouncer(lab.env.pg, pool_size=2))
    url = f"postgresql://app_worker@/{lab.env.db.name}?host={pooler.socket_dir}&port={pooler.port}"
    found = examine(DATABASE_URL=url)
    assert found["pooler"]["severity"] == "info" and "transaction mode" in found["pooler"]["found"] and "LISTEN" not in found
    lab.allow("sessions")


def test_a_worker_role_sees_what_it_may(lab, examine):
    """Checks that its role may not make are told of, the others are made."""
    found = examine(role="app_worker")
    assert found["schema"]["severity"] == "ok" and found["version of PostgreSQL"]["severity"] == "ok"
    assert "could not be looked at" in found["dead runs"]["found"] and found["dead runs"]["severity"] == "info"
    lab.sql("DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    found = examine(role="stranger")
    assert found["role"]["severity"] == "error" and "GRANT umavez_worker" in found["role"]["fix"]


def test_valkey(lab, examine):
    client = lab.env.valkey.client()
    client("CONFIG", "SET", "maxmemory", "64mb")
    client("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert examine()["memory of Valkey"]["severity"] == "warning"
    client("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    assert examine()["memory of Valkey"]["severity"] == "ok"
    client.close()
    assert examine(VALKEY_URL="")["Valkey"]["severity"] == "info"
    found = examine(VALKEY_URL="redis://:vk_SECRET@127.0.0.1:1/0")
    assert found["Valkey"]["severity"] == "warning" and "127.0.0.1" in found["Valkey"]["found"] and "SECRET" not in examine.text


def test_a_database_that_is_not_migrated_or_not_there(pg):
    url = f"postgresql://postgres@/postgres?host={pg.socket_dir}&port={pg.port}"
    code, out, _ = umavez("doctor", "--json", DATABASE_URL=url, UMAVEZ_VALKEY_URL="")
    found = {finding["check"]: finding for finding in map(json.loads, out.splitlines())}
    assert code == 6 and found["migrations"]["severity"] == "error" and "umavez migrate" in found["migrations"]["fix"]
    code, out, err = umavez("doctor", DATABASE_URL="postgresql://who:pw_SECRET@127.0.0.1:1/none", UMAVEZ_VALKEY_URL="")
    assert code == 4 and "error    PostgreSQL: " in out and "Valkey" in out and "SECRET" not in out + err


def test_too_few_open_files():
    done = subprocess.run(["sh", "-c", f"ulimit -n 40; exec '{umavez_bin()}' doctor --json"], capture_output=True, text=True, cwd=procs.base_dir(),
                          env={**clean_environment(), "DATABASE_URL": "postgresql://who@127.0.0.1:1/none", "UMAVEZ_VALKEY_URL": ""})
    found = {finding["check"]: finding for finding in map(json.loads, done.stdout.splitlines())}
    assert found["open files"]["severity"] == "error" and re.search(r"LimitNOFILE=\d+", found["open files"]["fix"]), done


def test_it_changes_nothing(lab, examine):
    lab.sql("SELECT umavez.enqueue('e2.t_run', tenant_id => 1, run_id => %s::uuid)", str(uuid.uuid4()))
    before = lab.sql("SELECT xmin::text, * FROM umavez.runs"), lab.sql("SELECT * FROM umavez.marks")
    examine()
    assert (lab.sql("SELECT xmin::text, * FROM umavez.runs"), lab.sql("SELECT * FROM umavez.marks")) == before
    assert lab.value("SELECT count(*) FROM umavez.audit") == 0
    lab.sql("DELETE FROM umavez.runs")
