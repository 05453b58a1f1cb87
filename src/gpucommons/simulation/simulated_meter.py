"""The activity of simulated GPUs between two moments, for the scheduler's measurements."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from gpucommons.model.gpu import ActivityMeasurement, GpuActivity
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.shared_load import JobTotals, SharedLoad

OnMeasured = Callable[[ActivityMeasurement], None]


class _Begun(NamedTuple):
    token: object
    begin_s: float
    totals: JobTotals


class SimulatedMeter:
    """As sources/nvml/activity_meter.py, without a driver. One measurement per device at a time."""

    def __init__(self, load: SharedLoad, gpus: LabGpus) -> None:
        self._load = load
        self._gpus = gpus
        self._begun: dict[str, _Begun] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop, on_measured: OnMeasured) -> None:
        self._loop, self._on_measured = loop, on_measured

    def stop(self) -> None:
        self._loop = None

    def supports(self, gpu_uuid: str) -> bool:
        return self._gpus.place(gpu_uuid) is not None

    def begin(self, gpu_uuid: str, token: object) -> None:
        self._begun[gpu_uuid] = _Begun(token, monotonic(), self._totals(gpu_uuid))

    def end(self, gpu_uuid: str, token: object) -> None:
        begun = self._begun.get(gpu_uuid)
        now_s = monotonic()
        if begun is None or begun.token != token or self._loop is None or now_s <= begun.begin_s:
            return
        del self._begun[gpu_uuid]
        after, seconds = self._totals(gpu_uuid), now_s - begun.begin_s
        # A job that ended meanwhile takes its totals along.
        rates = [min(1.0, max(0.0, new - old) / seconds) for old, new in zip(begun.totals, after, strict=True)]
        found = dict(zip(JobTotals._fields, rates, strict=True))
        activity = GpuActivity(found["sm"], found["tensor"], found["dram"], found["busy"])
        self._loop.call_soon(self._on_measured, ActivityMeasurement(gpu_uuid, token, activity, begun.begin_s, now_s))

    def _totals(self, gpu_uuid: str) -> JobTotals:
        place = self._gpus.place(gpu_uuid)
        rows = [self._load.totals(job.key) for job in self._load.jobs() if (job.gpu, job.gpu_instance_id) == place]
        return JobTotals(*map(sum, zip(*rows, strict=True))) if rows else JobTotals()
