"""The benchmark, tiny: each part runs and every row counts. Says nothing about speed."""
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_every_row_of_the_benchmark_counts(tmp_path):
    rows_file = tmp_path / "rows"
    done = subprocess.run([sys.executable, HERE / "run", "--smoke", "--json", rows_file], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert {r["what"] for r in rows} == {
        "floor b", "floor c2", "floor c3", "floor e50", "floor u3", "umavez, 1 worker", "umavez, 1 worker, no gate", "umavez, 2 workers",
        "umavez, duplicates", "latency", "latency, no gate", "idle"}
    assert all(r["ok"] for r in rows)
