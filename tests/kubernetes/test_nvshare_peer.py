"""The agent's device plugin against what nvshare's own answered; with its program, against the program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from needs import needs_program, needs_root

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TEST_NVSHARE_DEVICE_PLUGIN", "")


@pytest.mark.long
def test_a_container_gets_what_nvshare_gives_or_the_bench_has_a_reason() -> None:
    needs_root()
    needs_program("nsenter")
    done = subprocess.run(
        [sys.executable, "-m", "bench.device_plugin_peer", *filter(None, [PROGRAM])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert PROGRAM or "its recorded responses are compared" in done.stdout
