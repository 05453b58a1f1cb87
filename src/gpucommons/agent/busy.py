"""How busy each GPU was: each measurement is returned once, with the time that it spans.

GPM's graphics activity where the GPU has it, else NVML's utilisation. The two are never mixed for one GPU: a job that
waits for its launches is at 99 % by NVML and at 30 % by GPM.
"""

from collections.abc import Mapping
from typing import Final

from gpucommons.model.gpu import GpmReading, Gpu, GpuReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.scheduler.policy.devices import Busy

# NVML's utilisation spans up to this long, however often it is read.
_LEAST_SPAN_S: Final = 1.0


class BusyMeter:
    def __init__(self) -> None:
        self._reading: GpuReading | None = None
        self._gpm: dict[str, GpmReading] = {}
        self._measured_s: dict[str, float] = {}

    def of(self, snapshot: Snapshot) -> Mapping[str, Busy]:
        """The measurements since the last snapshot, by UUID."""
        reading, source = snapshot.readings.gpus, snapshot.sources.get("nvml")
        if reading is None or reading is self._reading:
            return {}
        if source is None or source.last_success_monotonic_s is None:
            return {}
        self._reading = reading
        begun_s = source.last_success_monotonic_s - (source.duration_s or 0.0)
        found = {}
        for gpu in reading.present_gpus():
            uuid = gpu.identity.uuid
            ratio = self._new_ratio(gpu)
            if ratio is None:
                continue
            # GPM's value spans the time between two passes, wherever in a pass it was taken.
            before_s, self._measured_s[uuid] = self._measured_s.get(uuid), begun_s
            if before_s is not None:
                found[uuid] = Busy(ratio, min(before_s, begun_s - _LEAST_SPAN_S))
        return found

    def _new_ratio(self, gpu: Gpu) -> float | None:
        uuid, gpm = gpu.identity.uuid, gpu.gpm
        if gpm is not None and gpm.graphics_ratio is not None:
            known, self._gpm[uuid] = self._gpm.get(uuid), gpm
            return None if gpm is known else gpm.graphics_ratio
        percent = gpu.readings.utilization_percent
        return None if uuid in self._gpm or percent is None else percent / 100
