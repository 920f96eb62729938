"""The benchmark, tiny: each part runs and every row counts. Says nothing about speed."""
import json
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

from bench.charts import charts
from bench.report import Results

HERE = Path(__file__).resolve().parent


def test_the_door_loses_nothing():
    """Few connections; a stopped and a killed Valkey under load: each key has one answer, one effect, one ledger row."""
    done = subprocess.run([sys.executable, HERE / "door", "--smoke"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"keys, answers, effects, ledger rows +[1-9]\d* of each", done.stdout)


def rows_of(tmp_path, *arguments):
    rows_file = tmp_path / "rows"
    done = subprocess.run([sys.executable, HERE / "run", "--smoke", *arguments, "--json", rows_file], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in rows_file.read_text().splitlines()]


def test_every_row_of_the_benchmark_counts(tmp_path):
    rows = rows_of(tmp_path)
    assert {r["what"] for r in rows} == {
        "floor b", "floor c2", "floor c3", "floor e50", "floor u3", "umavez, 1 worker", "umavez, 1 worker, no gate", "umavez, 2 workers",
        "umavez, duplicates", "latency", "latency, no gate", "idle"}
    assert all(r["ok"] for r in rows)


def test_every_row_of_what_grows_counts(tmp_path):
    rows = rows_of(tmp_path, "--only", "enqueue,depth,ledger,horizon,remote,tenants")
    assert len(rows) == 15 and all(r["ok"] for r in rows), [r["why"] for r in rows]
    assert [r["runs"] for r in rows if "waits" in r] == [20, 20, 10]
    assert {r["group"].split(" from ")[0] for r in rows if "group" in r} == {
        "enqueueing", "enqueueing in bulk", "draining a deep queue", "draining beside a big ledger", "a backlog through a proxy"}


def test_every_row_of_what_it_depends_on_counts_and_is_drawn(tmp_path):
    rows = rows_of(tmp_path, "--only", "connections,spread,args,load,alone")
    assert len(rows) == 9 and all(r["ok"] for r in rows), [r["why"] for r in rows]
    assert "umavez, 1 worker, batch = 1" in {r["what"] for r in rows} and [r["runs"] > 0 for r in rows if "loaded" in r] == [True]
    results = Results()
    results.rows = rows
    drawn = charts(results)
    assert list(drawn) == ["connections.svg"]
    picture = xml.etree.ElementTree.fromstring(drawn["connections.svg"])
    assert len(picture.findall("{*}circle")) == 2 and len(picture.findall("{*}polyline")) == 1
