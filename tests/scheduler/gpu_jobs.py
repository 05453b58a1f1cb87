"""Runs jobs of gpu_job.py side by side on a real GPU."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

JOB = Path(__file__).with_name("gpu_job.py")


def run_jobs(socket_path: str, sizes: Sequence[int], seconds: float) -> list[float]:
    """Products per second of each job, all of them begun at once."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    jobs = [
        subprocess.Popen(
            [sys.executable, str(JOB), socket_path, str(size), str(seconds), f"job-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number, size in enumerate(sizes)
    ]
    try:
        for job in jobs:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write("go\n")
            job.stdin.flush()
        return [float(job.communicate(timeout=seconds + 120)[0]) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
