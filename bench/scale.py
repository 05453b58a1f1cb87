"""The cost of the agent as GPUs and processes grow: CPU, memory, and the first scrape of a snapshot.

    python -m bench.scale [GPUS PROCESSES]

The driver is a fake whose calls take as long as on a busy H200. As many processes as given are on each GPU: real ones
of up to 16 users, each on every GPU. One in ten is busy, and its use changes every second. The agent is scraped every
15 s, as by Prometheus.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.handoff import build as build_load
from bench.handoff import measured
from bench.idle import cpu_seconds, rss_mb
from bench.table import show
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process, usage
from running import running_agent

GPUS, PROCESSES = (1, 8, 64), (5, 50, 500)
# The first sample of many processes takes longer than later ones.
SETTLE_S, SECONDS, SCRAPE_EVERY_S = 10, 45, 15
# Longer than the agent's interval, so that each scrape reads a new snapshot.
FIRSTS, NEXT_SNAPSHOT_S = 7, 1.07
USERS, FIRST_UID, BUSY_ONE_IN = 16, 60_000, 10
MEMORY_BYTES = 1 << 27


@contextmanager
def sleeping(count: int) -> Iterator[list[int]]:
    """The pids of this many processes, of several users if this process may start them."""
    users = [FIRST_UID + number for number in range(USERS)] if os.geteuid() == 0 else [None]
    command = ["sleep", "3600"]
    children = [subprocess.Popen(command, user=users[number % len(users)]) for number in range(count)]
    try:
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def measure(gpus: int, processes: int, library: Path, load: Path, directory: Path) -> list[str]:
    fake = FakeNvml(directory / f"{gpus}x{processes}", library)
    with sleeping(processes) as pids:
        lines = [f"gpus {gpus}", "recording busy", "replay_cost", "vary"]
        for gpu in range(gpus):
            for number, pid in enumerate(pids):
                lines += [process(gpu, pid, MEMORY_BYTES), usage(gpu, pid, int(number % BUSY_ONE_IN == 0))]
        fake.say(*lines)
        with running_agent(environment=fake.environment()) as agent:
            port, pid = urllib.parse.urlsplit(agent.url).port, agent.process.pid
            time.sleep(SETTLE_S)
            measured(load, "http", "-", 1, port, 1)
            before, begun = cpu_seconds(pid), time.monotonic()
            while time.monotonic() - begun < SECONDS:
                time.sleep(SCRAPE_EVERY_S)
                body_bytes = measured(load, "http", "-", 1, port, 1)["body.bytes"]
            core = (cpu_seconds(pid) - before) / (time.monotonic() - begun)
            firsts = []
            for _ in range(FIRSTS):
                time.sleep(NEXT_SNAPSHOT_S)
                firsts.append(measured(load, "http", "-", 1, port, 1)["http.max"] / 1e6)
            return [
                str(gpus),
                str(processes),
                f"{core:.3f}",
                f"{rss_mb(pid):.0f}",
                f"{body_bytes / 1e6:.2f}",
                f"{statistics.median(firsts):.3f}",
            ]


def main() -> None:
    sizes = [(gpus, processes) for gpus in GPUS for processes in PROCESSES]
    if len(sys.argv) == 3:
        sizes = [(int(sys.argv[1]), int(sys.argv[2]))]
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        library, load = build(directory / "lib"), build_load(directory)
        rows = [measure(*size, library, load, directory) for size in sizes]
    show(
        "The agent by GPUs and processes on each (bars: 64 x 500 at most 0.35 core, 160 MB, 0.3 s; 8 x 3 0.03 core)",
        ("GPUs", "processes on each", "cores", "RSS, MB", "/metrics, MB", "first scrape of a snapshot, s"),
        rows,
    )


if __name__ == "__main__":
    main()
