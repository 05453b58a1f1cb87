"""kill -9 at any moment: the ledger opens, nothing is counted twice, and at most one flush is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROUNDS = 200
# 50 and more on an idle machine, half of that on a busy one.
LEAST_DURING_WRITES = 10


def test_two_hundred_kills_lose_at_most_a_flush_each_and_count_nothing_twice(tmp_path: Path) -> None:
    program = Path(__file__).with_name("crash_rounds.py")
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, program, tmp_path / "ledger.sqlite", str(ROUNDS), "20261115"],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rounds"] == ROUNDS
    assert result["rounds_that_wrote"] >= LEAST_DURING_WRITES, "too few kills came during a write"
