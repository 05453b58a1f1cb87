"""CPU time of one sampling pass over a host with 500 processes: ours against psutil doing the same reads."""

import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from bench.table import show
from gpucommons.sources.host.cpu import CpuReader, read_memory
from gpucommons.sources.host.processes import ProcessTableReader

PROCESSES = 500
ROUNDS = 30


def cpu_ms(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) * 1e3


def with_psutil() -> int:
    psutil.cpu_times()
    psutil.getloadavg()
    psutil.virtual_memory()
    seen = 0
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                process.cpu_times(), process.memory_info().rss, process.name(), process.create_time()
        except psutil.Error:
            continue
        seen += 1
    return seen


def main() -> None:
    root = Path("/proc")
    reads = (CpuReader(root).read, partial(read_memory, root), ProcessTableReader(root, 100).read)

    def with_ours() -> None:
        for read in reads:
            read()

    missing = max(PROCESSES - len(psutil.pids()), 0)
    idlers = [subprocess.Popen(["sleep", "600"]) for _ in range(missing)]
    try:
        with_ours()
        with_psutil()
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(cpu_ms(with_ours))
            theirs.append(cpu_ms(with_psutil))
        count = len(psutil.pids())
    finally:
        for idler in idlers:
            idler.kill()
            idler.wait()
    a, b = statistics.median(ours), statistics.median(theirs)
    show(
        f"One pass over {count} processes, median of {ROUNDS} interleaved rounds (bar: at most 0.5)",
        ("reader", "CPU ms a pass", "ratio to psutil"),
        [("gpucommons", f"{a:.2f}", f"{a / b:.2f}"), ("psutil", f"{b:.2f}", "1.00")],
    )


if __name__ == "__main__":
    main()
