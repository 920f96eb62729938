"""The demo, which is the main job on real input with faults: its own table, and the same counted here, with other SQL."""
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import psycopg2
import pytest

from support.procs import ROOT, remove_dir
from support.servers import clean_environment, umavez_bin

GITHUB = ROOT.parent / "shared/data/github-webhooks.jsonl"


@pytest.fixture
def here():
    directory = Path(tempfile.mkdtemp(prefix="uvx-", dir="/tmp"))
    os.chmod(directory, 0o755)
    yield directory
    subprocess.run([str(umavez_bin()), "dev", "--stop"], cwd=directory, capture_output=True)
    remove_dir(directory)


def demo(here, *argv):
    done = subprocess.run([str(umavez_bin()), "demo", *argv], cwd=here, env=clean_environment(), text=True,
                          capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "`umavez dev --stop`" in lines[-1]
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["messages", "runs"])
    rows = {}
    for line in lines[head + 1:]:
        if not line.strip():
            break
        name, *numbers = line.split()
        rows[name] = dict(zip(re.split(r" {2,}", lines[head].strip()), map(int, numbers)))
    connection = psycopg2.connect(re.search(r"psql '([^']+)'", done.stdout).group(1))
    return rows, connection, done.stdout


def one(connection, sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def check(rows, connection, text):
    total = rows["total"]
    assert (total["duplicates"], total["lost"]) == (0, 0)
    assert total["effects"] == total["messages"] <= total["handler runs"] <= total["deliveries"]
    assert total["runs"] == total["effects"] + total["replays"]
    assert re.search(r"which has [1-9]\d* effects? under way", text) and "SIGKILL to Valkey" in text
    assert one(connection, "SELECT count(*), count(*) FILTER (WHERE replay), sum(deliveries), count(*) FILTER (WHERE status = 'completed')"
               " FROM umavez.finished_runs") == (total["runs"], total["replays"], total["deliveries"], total["runs"])
    assert one(connection, "SELECT count(*) FROM umavez.runs") == (0,)
    # the printed SQL gives the printed table
    sql = text[text.index("WITH effects"):text.index(";\n", text.index("WITH effects"))]
    with connection.cursor() as cursor:
        cursor.execute(sql)
        assert {row[0]: list(map(int, row[1:])) for row in cursor} == \
            {name: list(row.values()) for name, row in rows.items() if name != "total"}


def test_demo_on_its_own_input(here):
    rows, connection, text = demo(here)
    check(rows, connection, text)
    assert rows["payments.pix"]["effects"] == rows["receipts.send"]["effects"]
    assert rows["payments.pix"]["replays"] == 5 * rows["payments.pix"]["effects"]
    connection.close()


def test_demo_on_any_lines(here):
    (here / "in.jsonl").write_text("".join(json.dumps({"n": n, "text": "olá\n" * n}) + "\n" for n in range(60)))
    rows, connection, text = demo(here, "--input", "in.jsonl")
    check(rows, connection, text)
    assert rows["total"]["effects"] == 60
    connection.close()


@pytest.mark.skipif(not GITHUB.exists(), reason="the payloads are not beside this checkout")
def test_demo_on_github_webhooks(here):
    rows, connection, text = demo(here, "--input", str(GITHUB))
    check(rows, connection, text)
    assert rows["total"]["effects"] == 329
    connection.close()


def test_demo_refuses_bad_input(here):
    (here / "bad.jsonl").write_text('{"a":1}\nnot json\n')
    for argv, word in [(["--input", "bad.jsonl"], "bad.jsonl:2"), (["--input", "none.jsonl"], "none.jsonl")]:
        done = subprocess.run([str(umavez_bin()), "demo", *argv], cwd=here, env=clean_environment(), text=True, capture_output=True)
        assert done.returncode == 1 and word in done.stderr and "traceback" not in done.stderr


def test_the_demo_of_the_door(here):
    """Its own verdict, and the same counted here; the lines that it shows can be repeated."""
    done = subprocess.run([str(umavez_bin()), "demo", "--http"], cwd=here, env=clean_environment(), text=True, capture_output=True, timeout=280)
    assert done.returncode == 0 and "UNEXPECTED" not in done.stdout, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("Each payment once.") and done.stderr == ""
    assert done.stdout.count("\n$ curl") == 11 and "49 HTTP 201 replay:true" in done.stdout and "curl ends with 52" in done.stdout
    connection = psycopg2.connect(re.search(r"psql '([^']+)'", done.stdout).group(1))
    assert one(connection, "SELECT array_agg(end_to_end_id ORDER BY 1) FROM payments") == (["E1", "E2", "E9"],)
    assert one(connection, "SELECT count(*), count(DISTINCT idempotency_key) FROM umavez.idempotency_keys WHERE idempotency_key"
               " IN (SELECT idempotency_key FROM umavez.finished_runs WHERE task = 'payments.pix')") == (4, 4)
