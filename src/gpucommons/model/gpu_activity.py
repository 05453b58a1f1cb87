"""How active a GPU was over a chosen time: what the scheduler learns about the programs that ran in it."""

from typing import NamedTuple


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
