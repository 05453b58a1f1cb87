"""What would have made a job use its GPUs better: at most two hints, each with its reason. Pure.

A hint is given only where the figures show a cause. A short job gets none: its start is most of it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gpucommons.base.text import memory_text

MAX_HINTS = 2
_SHORTEST_S = 60.0
_MOSTLY = 0.5
# A job that used less than this part of the memory that it asked for kept the GPU from smaller requests.
_LITTLE_MEMORY = 0.5
_WORTH_BYTES = 4 << 30


class JobOutcome(NamedTuple):
    """`judged_s` are the GPU-seconds of which it is known whether the GPU was used; `idle_ratio` is the idle part of
    them. The causes are parts of the idle time. Memory is that of one GPU. None is not known.
    """

    judged_s: float
    slots_held: int
    slots_used: int
    idle_ratio: float | None = None
    idle_cpu_ratio: float | None = None
    idle_disk_ratio: float | None = None
    peak_bytes: int | None = None
    asked_bytes: int | None = None


def job_hints(job: JobOutcome) -> tuple[str, ...]:
    """The gravest first."""
    if job.judged_s < _SHORTEST_S:
        return ()
    return tuple(_hints(job))[:MAX_HINTS]


def _hints(job: JobOutcome) -> Iterator[str]:
    if not job.slots_used:
        held = "the GPU was" if job.slots_held == 1 else f"{job.slots_held} GPUs were"
        yield f"{held} held and never used: does the program find CUDA?"
    elif job.slots_used < job.slots_held:
        yield f"asked {job.slots_held} GPUs, used {job.slots_used}: ask for fewer, or let the program use all of them"
    yield from _of_idle_time(job)
    peak, asked = job.peak_bytes, job.asked_bytes
    if peak and asked and peak < _LITTLE_MEMORY * asked and asked - peak >= _WORTH_BYTES:
        yield (
            f"asked {memory_text(asked)}, used {memory_text(peak, asked)}: a smaller --memory fits on more GPUs and "
            "waits less"
        )


def _of_idle_time(job: JobOutcome) -> Iterator[str]:
    idle, cpu, disk = job.idle_ratio, job.idle_cpu_ratio, job.idle_disk_ratio
    if idle is None or idle < _MOSTLY:
        return
    if cpu is not None and cpu >= _MOSTLY:
        yield f"GPU idle {idle:.0%}: the program kept a CPU core busy {cpu:.0%} of that time: more loader workers?"
    elif disk is not None and disk >= _MOSTLY:
        yield f"GPU idle {idle:.0%}: the program waited for a disk {disk:.0%} of that time: a faster disk?"
