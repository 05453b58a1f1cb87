"""Fifty `gpucommons run` at once, some killed at random, while the agent is killed and started again: nothing leaks."""

import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from leases.test_run import Lab
from waiting import until

pytestmark = pytest.mark.long

RUNS, KILLED, RESTARTS = 50, 15, 2


def overlapping(lines: list[str]) -> list[tuple[str, str]]:
    """Pairs of commands that had the same slot at the same time. Each command wrote its slot, its start and its end."""
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for line in lines:
        slot, name, begun, *ended = line.split()
        spans.setdefault(slot, []).append((float(begun), float(ended[0]) if ended else float(begun), name))
    return [
        (one[2], other[2])
        for each in spans.values()
        for one, other in zip(sorted(each), sorted(each)[1:], strict=False)
        if other[0] < one[1]
    ]


def test_fifty_runs_random_kills_and_restarts_leak_nothing(tmp_path: Path) -> None:
    lab, dice, log = Lab(tmp_path), random.Random(7), tmp_path / "log"
    script = f'begun=$(date +%s.%N); sleep $2; echo "$CUDA_VISIBLE_DEVICES $1 $begun $(date +%s.%N)" >> {log}'
    runs: list[subprocess.Popen[str]] = []

    def kill_some() -> None:
        for victim in dice.sample(runs, KILLED // 3):
            victim.kill()

    try:
        with lab.agent() as agent:
            with lab.fill():
                for number in range(RUNS):
                    length = f"{dice.uniform(0.05, 0.3):.2f}"
                    runs.append(lab.start("run", "--quiet", "sh", "-c", script, "job", str(number), length))
                until(lambda: len(lab.queue()["waiting"]) == RUNS, "all of them wait", within_s=120)
                kill_some()
            until(lambda: log.exists(), "the first command has ended")
            agent.stop(signal.SIGKILL)
        for number in range(RESTARTS):
            with lab.agent() as agent:
                kill_some()
                if number < RESTARTS - 1:
                    agent.stop(signal.SIGKILL)
                    continue
                until(lambda: all(run.poll() is not None for run in runs), "all runs have ended", within_s=150)
                until(lambda: _is_empty(lab.queue()), "no lease and no request is left", within_s=90)
                agent.stop(signal.SIGTERM)
    finally:
        for run in runs:
            if run.poll() is None:
                run.kill()
            run.communicate()
    status = [run.returncode for run in runs]
    assert set(status) <= {0, -signal.SIGKILL}
    lines = log.read_text().splitlines()
    assert len({line.split()[1] for line in lines}) >= status.count(0) >= RUNS - KILLED
    assert overlapping(lines) == []
    record = json.loads(lab.record())
    assert (record["leases"], record["waiting"], record["clients"]) == ([], [], {})


def _is_empty(queue: dict[str, Any]) -> bool:
    return not queue["leases"] and not queue["waiting"]
