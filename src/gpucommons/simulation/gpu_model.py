"""A model of programs on one GPU: how fast each is while several run, and how active they keep it. Pure.

A program that runs alone keeps the GPU at its own activity. Programs that run together are slowed down by the driver's
time-slicing: each by the GPU's overbooking and by what switching between them costs. Progress is additive in activity,
as measured on an H200.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gpucommons.model.gpu import DeviceActivity


class GpuLoad(NamedTuple):
    """A program that has the GPU for itself: its activity, and the share of time in which one of its kernels runs."""

    activity: DeviceActivity
    kernels: float

    def at_level(self, kernels: float) -> "GpuLoad":
        """The same kind of work with another share of time."""
        part = kernels / self.kernels
        return GpuLoad(DeviceActivity(*(min(1.0, part * value) for value in self.activity.work)), kernels)


# As measured on an H200 for loops of matrix products of n x n in bf16.
MATRIX_LOADS: Final[Mapping[int, GpuLoad]] = {
    8192: GpuLoad(DeviceActivity(0.932, 0.830, 0.22), 0.97),
    4096: GpuLoad(DeviceActivity(0.789, 0.637, 0.23), 0.87),
    2048: GpuLoad(DeviceActivity(0.720, 0.470, 0.05), 0.93),
    1536: GpuLoad(DeviceActivity(0.357, 0.205, 0.00), 0.58),
    1024: GpuLoad(DeviceActivity(0.142, 0.056, 0.00), 0.34),
    512: GpuLoad(DeviceActivity(0.068, 0.008, 0.00), 0.26),
}


def overbooking(loads: Sequence[GpuLoad]) -> float:
    """1 where the kernels of all fit into the time."""
    return max(1.0, sum(load.kernels for load in loads))


def speeds(loads: Sequence[GpuLoad], efficiency: float) -> tuple[float, ...]:
    """The speed of each program, as a share of its speed alone, while these run together.

    `efficiency` is what is left of a program without gaps between its kernels: dense programs lose by switches of
    context, light ones hardly.
    """
    if len(loads) <= 1:
        return (1.0,) * len(loads)
    overbooked = overbooking(loads)
    return tuple((1.0 - (1.0 - efficiency) * load.kernels) / overbooked for load in loads)
