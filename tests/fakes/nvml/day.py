"""A compressed day of a GPU node, to measure leaks.

Processes, XIDs, MIG layouts, losses and returns of GPUs and of the driver, on a simulated clock.
"""

import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from fakes.nvml.control import mig_device, process, usage
from fakes.nvml.rig import Rig
from gpucommons.sources.source import SourceAbsent, SourceError

GIB = 2**30


@dataclass(frozen=True)
class Footprint:
    rss_bytes: int
    descriptors: int
    threads: int
    gpm_samples: int
    event_sets: int
    references: int


def footprint(rig: Rig) -> Footprint:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Footprint(
        rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        gpm_samples=rig.fake.counter("gpm_samples"),
        event_sets=rig.fake.counter("event_sets"),
        references=rig.fake.counter("references"),
    )


def happenings(rig: Rig, second: int) -> None:
    """The changes at this second of the day: something every minute, sometimes a loss."""
    minute, at = divmod(second, 60)
    if at != 30:
        return
    lines = ["gpus 4", "recording busy"]
    # Always new pids: what is kept about a process must be removed with it.
    for n in range(minute % 7):
        pid = 1000 + (minute * 7 + n) % 30_000
        lines += [process(n % 4, pid, GIB), usage(n % 4, pid, 10 * n)]
    if minute % 5 == 1:
        lines += ["mig_mode 3 1 1", mig_device(3, 1), mig_device(3, 2, used_mb=minute)]
    if minute % 10 == 2:
        lines.append("lose 2")
    if minute % 10 == 4:
        lines += ["fail * 9", "fail nvmlInit 9"]
    if minute % 10 == 6:
        lines.append("fail nvmlDeviceGetPowerUsage 999")
    rig.fake.event_sequence += 1
    lines.append(f"event {rig.fake.event_sequence} {minute % 4} 8 {31 + minute % 3}")
    rig.fake.replace(*lines)


def live_through(rig: Rig, first_s: int, seconds: int) -> int:
    """Read every second of the span; returns the number of passes with a reading."""
    good = 0
    for second in range(first_s, first_s + seconds):
        happenings(rig, second)
        try:
            rig.read()
        except (SourceError, SourceAbsent):
            continue
        good += 1
    return good
