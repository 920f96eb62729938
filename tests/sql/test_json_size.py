"""json_jsonb_size against PostgreSQL: the same documents, measured by C and by octet_length(text::jsonb::text).

Rows of the cases here: D01, D02, D07.
"""
import json
import os
import random
import subprocess
from contextlib import closing

import psycopg2
import pytest

from support.procs import ROOT

PROGRAM = ROOT / os.environ.get("BUILD", "build") / "unit" / "test_json_size"
DIGITS = "0123456789"


def number(rnd):
    text = rnd.choice(["", "-"]) + rnd.choice(["0", str(rnd.randrange(1, 10 ** rnd.randrange(1, 40)))])
    if rnd.random() < 0.5:
        text += "." + "".join(rnd.choice(rnd.choice(["0", DIGITS])) for _ in range(rnd.randrange(1, 20)))
    if rnd.random() < 0.5:
        text += rnd.choice("eE") + rnd.choice(["", "+", "-"]) + rnd.choice(["", "0"]) + str(rnd.randrange(0, 10 ** rnd.randrange(1, 4)))
    return text


def string(rnd):
    pieces = ["\\n", "\\t", "\\b", "\\f", "\\r", "\\\"", "\\\\", "\\/", "\\u0001", "\\u001F", "\\u007f", "\\u00e9", "\\u20AC", "\\ud83d\\ude00",
              "a", "é", "😀", " ", "'", "\x7f", "k1", "k2"]
    return '"' + "".join(rnd.choice(pieces) for _ in range(rnd.randrange(0, 8))) + '"'


def document(rnd, depth=0):
    kind = rnd.randrange(4 if depth > 4 else 7)
    space = lambda: rnd.choice(["", "", " ", "\t"])  # noqa: E731
    if kind == 0:
        return rnd.choice(["null", "true", "false"])
    if kind in (1, 2):
        return number(rnd)
    if kind == 3:
        return string(rnd)
    parts = []
    for _ in range(rnd.randrange(0, 6)):
        value = space() + document(rnd, depth + 1) + space()
        key = rnd.choice(['"a"', '"\\u0061"', '"b"', '""', string(rnd)])
        parts.append(value if kind == 4 else f"{space()}{key}{space()}:{value}")
    return "[" + ",".join(parts) + space() + "]" if kind == 4 else "{" + ",".join(parts) + space() + "}"


def measured_by_c(documents):
    text = "".join(d + "\n" for d in documents)
    answer = subprocess.run([PROGRAM, "lines"], input=text.encode(), stdout=subprocess.PIPE, check=True, timeout=120)
    return answer.stdout.decode().split()


@pytest.mark.skipif(not PROGRAM.exists(), reason="make unit-programs builds what measures")
@pytest.mark.parametrize("seed", range(4))
def test_D01_D07_sizes_are_postgresqls(pg, seed):
    rnd = random.Random(seed)
    documents = [document(rnd) for _ in range(3000)]
    sizes = measured_by_c(documents)
    with closing(psycopg2.connect(pg.dsn("postgres"))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT octet_length(t::jsonb::text)::text FROM unnest(%s) WITH ORDINALITY AS d(t, n) ORDER BY n", [documents])
        expected = [size for size, in cursor]
    different = [(d, c, p) for d, c, p in zip(documents, sizes, expected) if c != p]
    assert (different[:3], len(sizes)) == ([], len(documents))


@pytest.mark.skipif(not PROGRAM.exists(), reason="make unit-programs builds what measures")
def test_D07_both_refuse_the_same_numbers(pg):
    numbers = ["1e131071", "1e131072", "-1e131072", "1e-16383", "1e-16384", "0e-16383", "0e-16384", "0e999999", "1e99999999999999999999",
               "9e131071", "0.1e131072", "0.01e131072", "123e131069", "123e131070", "1.5e-16382", "1.5e-16383", "0e-99999999999999999999"]
    with closing(psycopg2.connect(pg.dsn("postgres"))) as connection:
        connection.autocommit = True
        for lexeme, size in zip(numbers, measured_by_c(numbers)):
            with connection.cursor() as cursor:
                try:
                    cursor.execute("SELECT octet_length(%s::jsonb::text)", [lexeme])
                    expected = str(cursor.fetchone()[0])
                except psycopg2.Error:
                    expected = "json_number"
            assert (lexeme, size) == (lexeme, expected)


@pytest.mark.skipif(not PROGRAM.exists(), reason="make unit-programs builds what measures")
def test_D02_both_refuse_the_same_documents(pg):
    bad = ['"\\u0000"', '{"\\u0000":1}', '"\\ud83d"', '"\\ude00\\ud83d"', "{", "[1,]", '{"a":1,}', "nul", "01", '"\t"', json.dumps("x")[:-1]]
    sizes = measured_by_c(bad)
    with closing(psycopg2.connect(pg.dsn("postgres"))) as connection:
        connection.autocommit = True
        for text, size in zip(bad, sizes):
            with connection.cursor() as cursor, pytest.raises(psycopg2.Error):
                cursor.execute("SELECT %s::jsonb", [text])
            assert size.startswith("json_"), text
