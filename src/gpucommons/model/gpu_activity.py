"""How active a GPU was over a chosen time: what the scheduler learns about the programs that ran in it."""

from collections.abc import Iterable
from typing import Final, NamedTuple


class GpuActivity(NamedTuple):
    """Shares of the time in which the SMs, the tensor pipes and the DRAM interface were active, 0 to 1; and in which
    any kernel ran (`busy`). All but the first are None where the GPU does not report them."""

    sm: float
    tensor: float | None = None
    dram: float | None = None
    busy: float | None = None


class ActivityMeasurement(NamedTuple):
    """The activity of one GPU, or MIG device, between two moments of the monotonic clock.

    `token` is what the measurement was begun with.
    """

    gpu_uuid: str
    token: object
    activity: GpuActivity
    begin_s: float
    end_s: float


# Less activity than this is idleness.
IDLE: Final = 0.005


class DeviceActivity(NamedTuple):
    """Shares of time in which the SMs, the tensor pipes, the DRAM interface and any part of the device were active.

    `busy` is None where it is not measured."""

    sm: float
    tensor: float = 0.0
    dram: float = 0.0
    busy: float | None = None

    @property
    def work(self) -> tuple[float, float, float]:
        """The activities that are additive in progress."""
        return self.sm, self.tensor, self.dram

    def without(self, others: Iterable["DeviceActivity"]) -> "DeviceActivity":
        """What is left of it when the others' activity is taken away."""
        rows = list(others)
        sm, tensor, dram = (max(0.0, own - sum(row.work[m] for row in rows)) for m, own in enumerate(self.work))
        busy = None if self.busy is None else max(0.0, self.busy - sum(row.busy or 0.0 for row in rows))
        return DeviceActivity(sm, tensor, dram, busy)

    @property
    def is_idle(self) -> bool:
        return max(self.sm, self.tensor, self.dram, self.busy or 0.0) < IDLE
