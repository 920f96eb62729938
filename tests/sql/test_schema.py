"""The schema: both ledgers row for row as designed, every constraint refusing, the reviewed snapshot, pinned functions.

Rows of the cases here: D01.
"""
import os
import re
import subprocess
from pathlib import Path

import psycopg2
import pytest

from support.servers import clean_environment, pg_bin, umavez_bin
from support import procs
from conftest import digest

SNAPSHOT = Path(__file__).with_name("schema.snapshot")
PREFIX = {"umavez.idempotency_keys": "idempotency_keys", "umavez.platform_idempotency_keys": "platform_idempotency_keys"}

COLUMNS = [  # name, type, nullable, default, identity
    ("id", "bigint", "NO", None, "ALWAYS"),
    ("tenant_id", "bigint", "NO", None, None),
    ("idempotency_key", "bytea", "NO", None, None),
    ("request_fingerprint", "bytea", "NO", None, None),
    ("status", "text", "NO", "'processing'::text", None),
    ("attempt", "integer", "NO", "1", None),
    ("outcome", "jsonb", "NO", "'{}'::jsonb", None),
    ("expires_at", "timestamp with time zone", "NO", None, None),
    ("created_at", "timestamp with time zone", "NO", "clock_timestamp()", None),
    ("updated_at", "timestamp with time zone", "NO", "clock_timestamp()", None),
]
CHECKS = {
    "attempt_check": "attempt > 0",
    "check": "status <> 'processing' OR outcome = '{}'",
    "idempotency_key_check": "octet_length(idempotency_key) = 32",
    "outcome_check": "jsonb_typeof(outcome) = 'object' AND octet_length(outcome) <= 4096",
    "request_fingerprint_check": "octet_length(request_fingerprint) = 32",
    "status_check": "status = ANY (ARRAY['processing', 'completed', 'failed_retryable', 'failed_permanent'])",
}


def plain(definition):
    """A check as PostgreSQL prints it, without its casts and needless brackets."""
    text = re.sub(r"::(text|jsonb)(\[\])?", "", re.sub(r"^CHECK \((.*)\)$", r"\1", definition))
    text = re.sub(r"\((status <> 'processing')\)|\((outcome = '\{\}')\)|\((jsonb_typeof\(outcome\) = 'object')\)|"
                  r"\((octet_length\(\(outcome\)\) <= 4096)\)", lambda m: next(g for g in m.groups() if g), text)
    return re.sub(r"^\((.*)\)$", r"\1", text).replace("((outcome))", "(outcome)")


def test_ledger_columns(sql, owner, table):
    found = sql.q("""SELECT column_name, data_type, is_nullable, column_default, identity_generation FROM information_schema.columns
                      WHERE table_schema = 'umavez' AND table_name = %s ORDER BY ordinal_position""", PREFIX[table])
    assert [tuple(r) for r in found] == [c for c in COLUMNS if owner is not None or c[0] != "tenant_id"]


def test_ledger_constraints(sql, owner, table):
    prefix = PREFIX[table]
    found = {r.conname: r.definition for r in sql.q(
        "SELECT conname, pg_get_constraintdef(oid) AS definition FROM pg_constraint WHERE conrelid = %s::regclass AND contype <> 'n'",
        table)}
    expected = {f"{prefix}_{name}": text for name, text in CHECKS.items()}
    expected[f"{prefix}_pkey"] = "PRIMARY KEY (id)"
    if owner is None:
        expected["platform_idempotency_keys_key"] = "UNIQUE (idempotency_key)"
    else:
        expected["idempotency_keys_owner_key"] = "UNIQUE (tenant_id, idempotency_key)"
        expected["idempotency_keys_tenant_id_fkey"] = "FOREIGN KEY (tenant_id) REFERENCES tenants(id)"
    assert {name: plain(text) for name, text in found.items()} == expected


def test_nothing_indexed_that_a_settlement_writes(sql, table):
    """Or settling would not be HOT."""
    found = sql.q("SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass", table)
    assert len(found) == 2
    assert not [r for r in found if re.search("status|outcome|expires_at|updated_at", r[0])]


FAULTS = [  # column = value, constraint
    ("attempt", "0", "attempt_check"), ("attempt", "-1", "attempt_check"),
    ("outcome", "'{\"a\": 1}'", "check"),
    ("idempotency_key", r"'\x00'", "idempotency_key_check"), ("idempotency_key", "sha512('a')", "idempotency_key_check"),
    ("request_fingerprint", "''", "request_fingerprint_check"), ("request_fingerprint", "sha384('a')", "request_fingerprint_check"),
    ("status", "'done'", "status_check"), ("status", "''", "status_check"), ("status", "'Completed'", "status_check"),
]
OUTCOME_FAULTS = ["[]", '"x"', "1", "null", "true", '{"x": "%s"}' % ("x" * 4088)]


def insert(sql, owner, table, **columns):
    values = {"idempotency_key": "sha256('k')", "request_fingerprint": "sha256('f')", "expires_at": "now()", **columns}
    if owner is not None:
        values.setdefault("tenant_id", str(owner))
    return sql.q(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())}) RETURNING *")[0]


@pytest.mark.parametrize("column,value,constraint", FAULTS)
def test_each_check_refuses(sql, owner, table, column, value, constraint):
    with pytest.raises(psycopg2.errors.CheckViolation) as caught:
        insert(sql, owner, table, **{column: value})
    assert caught.value.diag.constraint_name == f"{PREFIX[table]}_{constraint}"


@pytest.mark.parametrize("outcome", OUTCOME_FAULTS, ids=range(len(OUTCOME_FAULTS)))
def test_D01_outcome_check_refuses(sql, owner, table, outcome):
    with pytest.raises(psycopg2.errors.CheckViolation) as caught:
        insert(sql, owner, table, outcome=f"'{outcome}'", status="'completed'")
    assert caught.value.diag.constraint_name == f"{PREFIX[table]}_outcome_check"
    insert(sql, owner, table, outcome="'" + '{"x": "%s"}' % ("x" * 4087) + "'", status="'completed'")   # 4096 octets


@pytest.mark.parametrize("column", [c[0] for c in COLUMNS if c[0] != "id"])
def test_no_null(sql, owner, table, column):
    if column == "tenant_id" and owner is None:
        pytest.skip("the platform's table has no tenant")
    with pytest.raises(psycopg2.errors.NotNullViolation):
        insert(sql, owner, table, **{column: "NULL"})


def test_keys_are_unique_within_their_owner(sql, owner, table):
    row = insert(sql, owner, table)
    assert (row.status, row.attempt, row.outcome) == ("processing", 1, {})
    with pytest.raises(psycopg2.errors.UniqueViolation) as caught:
        insert(sql, owner, table)
    assert caught.value.diag.constraint_name == ("platform_idempotency_keys_key" if owner is None else "idempotency_keys_owner_key")
    if owner is not None:
        insert(sql, owner, table, tenant_id="2")
    with pytest.raises(psycopg2.errors.GeneratedAlways):
        insert(sql, owner, table, id="7", idempotency_key="sha256('other')")


def test_unknown_tenant_is_refused(sql):
    with pytest.raises(psycopg2.errors.ForeignKeyViolation) as caught:
        sql.claim_key(999999)
    assert caught.value.diag.constraint_name == "idempotency_keys_tenant_id_fkey"
    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        insert(sql, 1, "umavez.idempotency_keys", tenant_id="0")


RUN_FAULTS = [({"priority": 5}, "runs_priority_check"), ({"priority": 0}, "runs_priority_check"), ({"task": ""}, "runs_task_check"),
              ({"queue": ""}, "runs_queue_check"), ({"args": "[]"}, "runs_args_check"), ({"args": "3"}, "runs_args_check")]


@pytest.mark.parametrize("fault,constraint", RUN_FAULTS)
def test_run_checks_refuse(sql, fault, constraint):
    with pytest.raises(psycopg2.errors.CheckViolation) as caught:
        sql.enqueue(**{"task": "t.a", **fault})
    assert caught.value.diag.constraint_name == constraint


@pytest.mark.parametrize("change", ["state = 'running'", "lease_until = now()", "worker_id = gen_random_uuid()", "state = 'done'"])
def test_illegal_run_states_are_refused(sql, change):
    sql.enqueue("t.a")
    with pytest.raises(psycopg2.errors.CheckViolation):
        sql.q(f"UPDATE umavez.runs SET {change}")


def test_every_function_is_pinned_and_private(sql):
    """A hostile search_path cannot matter, and nobody but those who were granted it may call anything."""
    loose = sql.q("""SELECT proname FROM pg_proc WHERE pronamespace = 'umavez'::regnamespace
                        AND (NOT prosecdef OR NOT coalesce(proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp'])""")
    # What resets the caller's session has to run with its rights, and without settings that would be put back; its names are written out.
    assert sorted(row[0] for row in loose) == ["begin_turn", "reset_session", "temporary_left"]
    public = sql.q("""SELECT proname FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                       WHERE p.pronamespace = 'umavez'::regnamespace AND a.grantee = 0""")
    assert public == []


def test_hostile_search_path(sql, connect):
    hostile = connect()
    hostile.q("""CREATE SCHEMA evil; SET search_path = evil, pg_catalog, public;
      CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '1999-01-01'::timestamptz $$;
      CREATE FUNCTION evil.never(bytea, bytea) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
      CREATE OPERATOR evil.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = evil.never);
      CREATE TABLE evil.runs (LIKE umavez.runs)""")
    run = hostile.q("SELECT umavez.enqueue('t.a', '{}', 1)")[0][0]
    assert hostile.q("SELECT verdict FROM umavez.claim(1, %s, %s, 30000)", digest("k"), digest("f"))[0][0] == "claimed"
    assert hostile.q("SELECT verdict FROM umavez.claim(1, %s, %s, 30000)", digest("k"), digest("f"))[0][0] == "busy"
    assert [str(r[0]) for r in hostile.q("SELECT run_id FROM umavez.take_runs(gen_random_uuid(), '{default}', 5, '{}', 1000)")] == [str(run)]
    assert sql.val("SELECT count(*) FROM umavez.idempotency_keys WHERE expires_at > now()") == 1


def test_what_resets_a_session_minds_no_hostile_search_path(sql, connect):
    sql.q("""CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO public;
      CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'evil' $$;
      CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT '1' $$;
      CREATE FUNCTION evil.pg_my_temp_schema() RETURNS oid LANGUAGE sql AS $$ SELECT 1::oid $$;
      CREATE FUNCTION evil.always(oid, integer) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
      CREATE OPERATOR evil.= (LEFTARG = oid, RIGHTARG = integer, FUNCTION = evil.always)""")
    sql.q(f"ALTER DATABASE {sql.val('SELECT current_database()')} SET search_path = evil, pg_catalog, public")
    hostile = connect(autocommit=False)
    assert hostile.val("SHOW search_path") == "evil, pg_catalog, public"
    assert hostile.val("SELECT umavez.begin_turn(7, 12345)") is False
    assert hostile.val("SELECT pg_catalog.current_setting('umavez.tenant_id')") == "7"
    assert hostile.val("SELECT pg_catalog.current_setting('idle_in_transaction_session_timeout')") == "12345ms"
    hostile.q("CREATE TEMPORARY TABLE left_over (); SET work_mem = '77MB'")
    assert hostile.val("SELECT umavez.begin_turn(NULL, 12345)") is True
    assert hostile.val("SELECT pg_catalog.current_setting('umavez.tenant_id')") == ""
    assert hostile.val("SELECT umavez.reset_session()") is True and hostile.val("SHOW work_mem") != "77MB"
    hostile.rollback()
    assert hostile.val("SELECT umavez.reset_session()") is False
    hostile.rollback()
    hostile.q("DECLARE held CURSOR WITH HOLD FOR SELECT 1")
    hostile.commit()
    assert hostile.val("SELECT umavez.reset_session()") is True
    hostile.rollback()


def snapshot(db):
    """pg_dump's schema, without what differs by day, version or owner, and without the functions' bodies (see sql/functions)."""
    dump = procs.run([pg_bin("pg_dump"), "-s", "-n", "umavez", "-O", "-d", db.url("postgres")], drop=False)
    dump = re.sub(r"\n    AS \$(\w*)\$.*?\$\1\$;", ";", dump, flags=re.S)
    lines = []
    for block in re.split(r"\n--\n-- ", dump)[1:]:
        title, _, body = block.partition("\n--\n")
        if re.search(r"finished_runs_\d{8}|DEFAULT ACL|migrations", title):
            continue
        lines += ["-- " + re.sub(r"; Owner: .*", "", title)] + [l for l in body.splitlines() if l and not re.match(r"SET |--|\\", l)]
    return "\n".join(lines) + "\n"


def test_schema_is_the_reviewed_one(db):
    """Written by: UMAVEZ_WRITE_SNAPSHOT=1 /usr/bin/python3 -m pytest tests/sql/test_schema.py -k reviewed"""
    major = db.val("SELECT current_setting('server_version_num')::int / 10000")
    if os.environ.get("UMAVEZ_WRITE_SNAPSHOT") == "1":
        SNAPSHOT.write_text(snapshot(db))
    if major != 15:
        pytest.skip("the snapshot is written on PostgreSQL 15; other versions print some definitions otherwise")
    assert snapshot(db) == SNAPSHOT.read_text(), "the schema differs from tests/sql/schema.snapshot: see this test's first line"


DIGESTS = procs.ROOT / "sql" / "schema.digests"


def test_digests_are_the_reviewed_ones(db):
    """What `umavez doctor` compares a database with. Written as the snapshot is: UMAVEZ_WRITE_SNAPSHOT=1 … -k reviewed"""
    found = subprocess.run([str(umavez_bin()), "exec", str(procs.ROOT / "tests/support/schema_digests.lua")], check=True, capture_output=True,
                           text=True, env={**clean_environment(), "DATABASE_URL": db.url("postgres")}).stdout
    if os.environ.get("UMAVEZ_WRITE_SNAPSHOT") == "1":
        DIGESTS.write_text(found)
    assert found == DIGESTS.read_text(), "the schema differs from sql/schema.digests: see this test's first line"
