"""What the scheduler asks of a GPU outside of the regular readings: its activity between two moments, and its
free memory before a parked program is brought back.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from gpucommons.base.threads import WorkerThread
from gpucommons.model.gpu import ActivityMeasurement, GpuActivity
from gpucommons.sources.nvml.gpm import GpmAccess

# Measures the activity of a GPU between two moments that the scheduler chooses, on a thread of its own.
#
# Its methods never wait: a driver call that hangs blocks only this thread, and measurements are missing until it
# returns. GPM's counters move every 100 ms, so `begin` is called at least that long into what is to be measured.

log = logging.getLogger(__name__)

OnMeasured = Callable[[ActivityMeasurement], None]

# Two samples that are closer than the interval of the counters may be of the same one.
_SHORTEST_S: Final = 0.1
# A last sample that is taken later than this may contain what came after: a phase waits so long for it.
_LATEST_S: Final = 0.05
# A driver call that takes this long hangs.
_HUNG_S: Final = 2.0
_MAX_WAITING: Final = 128


class _Request(NamedTuple):
    ends: bool
    gpu_uuid: str
    token: object
    asked_s: float


class _Begun(NamedTuple):
    token: object
    begin_s: float


class ActivityMeter:
    """Call `start` once, then the other methods from the thread of its loop.

    One measurement per GPU at a time: `begin` replaces one that was not ended. A measurement that failed, was too
    short or came too late is not reported.
    """

    def __init__(self, access: GpmAccess) -> None:
        self._access = access
        self._thread = WorkerThread("activity-meter")
        self._begun: dict[str, _Begun] = {}
        self._busy_since_s: float | None = None
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop, on_measured: OnMeasured) -> None:
        """`on_measured` is called in the loop."""
        self._loop = loop
        self._on_measured = on_measured

    def stop(self) -> None:
        """Nothing is reported from now on. Does not wait for the thread."""
        self._stopped = True
        self._thread.submit(self._access.release)
        self._thread.close()

    def supports(self, gpu_uuid: str) -> bool:
        """Whether this GPU, or MIG device, can be measured now: it has GPM, and the driver answers."""
        busy_since_s = self._busy_since_s
        hung = busy_since_s is not None and time.monotonic() - busy_since_s > _HUNG_S
        return not hung and self._access.supports(gpu_uuid)

    def begin(self, gpu_uuid: str, token: object) -> None:
        self._ask(_Request(False, gpu_uuid, token, time.monotonic()))

    def end(self, gpu_uuid: str, token: object) -> None:
        """Ends the measurement that was begun with an equal token; nothing happens if that was not the last one."""
        self._ask(_Request(True, gpu_uuid, token, time.monotonic()))

    def _ask(self, request: _Request) -> None:
        if self._thread.waiting < _MAX_WAITING:
            self._thread.submit(partial(self._measure, request))

    # -- on the thread

    def _measure(self, request: _Request) -> None:
        self._busy_since_s = time.monotonic()
        try:
            measurement = self._carry_out(request)
        except Exception:
            log.exception("activity meter: measuring GPU %s failed", request.gpu_uuid)
            measurement = None
        self._busy_since_s = None
        if measurement is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, measurement)

    def _deliver(self, measurement: ActivityMeasurement) -> None:
        if not self._stopped:
            self._on_measured(measurement)

    def _carry_out(self, request: _Request) -> ActivityMeasurement | None:
        begun = self._begun.get(request.gpu_uuid)
        if request.ends:
            if begun is None or begun.token != request.token:
                return None
            del self._begun[request.gpu_uuid]
            return self._end(request, begun)
        self._begun.pop(request.gpu_uuid, None)
        if self._access.first(request.gpu_uuid):
            self._begun[request.gpu_uuid] = _Begun(request.token, time.monotonic())
        return None

    def _end(self, request: _Request, begun: _Begun) -> ActivityMeasurement | None:
        if request.asked_s - begun.begin_s < _SHORTEST_S:
            return None
        reading = self._access.second(request.gpu_uuid)
        end_s = time.monotonic()
        if reading is None or reading.sm_ratio is None or end_s - request.asked_s > _LATEST_S:
            return None
        activity = GpuActivity(reading.sm_ratio, reading.tensor_ratio, reading.dram_ratio, reading.graphics_ratio)
        return ActivityMeasurement(request.gpu_uuid, request.token, activity, begun.begin_s, end_s)
