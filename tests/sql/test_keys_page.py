"""docs/keys.md: its vectors come out of the SQL that stands there, and out of hashlib.

Rows of the cases here: C09.
"""
import re
import subprocess
from contextlib import closing

import psycopg2

from support import digest_vectors
from support.procs import ROOT

PAGE = ROOT / "docs" / "keys.md"


def test_C09_key_digests_in_sql(pg):
    sql = re.search(r"```sql\n(.*?)```", PAGE.read_text(), re.S).group(1)
    sql = sql.replace("%", "%%").replace(":task", "%(task)s").replace(":parts", "%(parts)s")
    rows = [cells for kind, cells in digest_vectors.tables(PAGE) if kind == "key digest"]
    with closing(psycopg2.connect(pg.dsn("postgres"))) as connection, connection.cursor() as cursor:
        for task, parts, published in rows:
            cursor.execute(sql, {"task": task, "parts": parts})
            assert (task, parts, bytes(cursor.fetchone()[0]).hex()) == (task, parts, published)
    assert len(rows) > 15


def test_C09_fingerprints_in_sql(pg):
    rows = [cells for kind, cells in digest_vectors.tables(PAGE) if kind == "fingerprint"]
    with closing(psycopg2.connect(pg.dsn("postgres"))) as connection, connection.cursor() as cursor:
        for task, _, canonical, published in rows:
            cursor.execute("""SELECT sha256(convert_to('umavez.fingerprint.v1', 'UTF8') || '\\x00'::bytea
                                            || int4send(octet_length(t)) || convert_to(t, 'UTF8')
                                            || int8send(octet_length(c)) || convert_to(c, 'UTF8'))
                                FROM (VALUES (%s, %s)) AS v (t, c)""", [task, canonical])
            assert (task, canonical, bytes(cursor.fetchone()[0]).hex()) == (task, canonical, published)
    assert len(rows) > 10


def test_C09_vectors_with_hashlib():
    subprocess.run(["/usr/bin/python3", ROOT / "tests" / "support" / "digest_vectors.py", PAGE], check=True, timeout=60)
