"""The jobs of the lab under the scheduler: a paused job makes no progress and shows no activity.

The meter answers with the activity of the simulated GPUs between two moments.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.model.gpu import RECENT_S, ActivityMeasurement, GpuActivity
from gpucommons.model.process_identity import ProcessKey
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import DENSE, JOBS, MATRIX_LOADS, GpuLoad, JobUse, LabJob, overbooking, speeds

# The jobs of the lab under the scheduler: a job that is paused makes no progress and shows no activity.
#
# The scheduler's thread pauses and resumes, the agent's loop reads, the thread of leases starts and ends jobs. Each
# call first plays the time since the last one. Nothing here knows a process of this machine: a job is an entry of a
# table.

# Two dense programs reach 0.71 of one under the driver's time-slicing, as measured on an H200.
EFFICIENCY: Final = 0.56
# Bytes per second to host memory and back, as measured on an H200.
OUT_BYTES_S: Final = 2e9
BACK_BYTES_S: Final = 5.5e9
# What the jobs that share a GPU are like, by number.
_KINDS: Final = {4: 4096, 5: 2048, 6: 1024, 7: 512, 8: 1536}
# The levels of the jobs change at multiples of this.
_STEP_S: Final = 0.25
_KEPT_S: Final = int(RECENT_S) + 60
_IDLE_CORES: Final = 0.001
_CELL_START_CPU_S: Final = 0.05


class Cells(NamedTuple):
    """A notebook: its user runs a cell now and then, and is away in between."""

    first_s: float
    every_s: float
    lasts_s: float
    level: float

    def count_begun(self, elapsed_s: float) -> int:
        return max(0, int((elapsed_s - self.first_s) // self.every_s) + 1)

    def level_at(self, elapsed_s: float) -> float:
        runs = elapsed_s >= self.first_s and (elapsed_s - self.first_s) % self.every_s < self.lasts_s
        return self.level if runs else 0.0


# The notebook that holds a whole GPU: idle long enough to be parked before each cell.
FORGOTTEN_NOTEBOOK: Final = JOBS[3].key
_CELLS: Final = {FORGOTTEN_NOTEBOOK: Cells(100.0, 150.0, 30.0, 0.8)}
_LOADS: Final = {JOBS[number].key: MATRIX_LOADS[kind] for number, kind in _KINDS.items()}


class JobTotals(NamedTuple):
    """Since the job was started, in seconds: those of JobUse, of progress alone, and of CPU time."""

    busy: float = 0.0
    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    progress: float = 0.0
    cpu: float = 0.0

    def plus(self, rates: Sequence[float], seconds: float) -> "JobTotals":
        return JobTotals(*(total + rate * seconds for total, rate in zip(self, rates, strict=True)))


class MemoryMove(NamedTuple):
    """The memory of a job on its way to the host, or back."""

    out: bool
    begun_s: float
    lasts_s: float

    def moved_share(self, elapsed_s: float) -> float:
        return min(1.0, max(0.0, (elapsed_s - self.begun_s) / self.lasts_s)) if self.lasts_s > 0 else 1.0


@dataclass(slots=True)
class _Track:
    """One job. `marks` are its totals at whole seconds, the last at `marked_s`; `away` is the share of its memory that
    is on the host while nothing moves."""

    job: LabJob
    totals: JobTotals = field(default_factory=JobTotals)
    paused: bool = False
    away: float = 0.0
    move: MemoryMove | None = None
    marked_s: int = 0
    marks: "deque[JobTotals]" = field(default_factory=lambda: deque([JobTotals()], maxlen=_KEPT_S))

    def at(self, when_s: float, now_s: float) -> JobTotals:
        """The totals at an earlier time: between two seconds they grow evenly."""
        if when_s >= now_s:
            return self.totals
        second = int(when_s)
        place = len(self.marks) - 1 - (self.marked_s - second)
        if place < 0:
            return self.marks[0]
        before = self.marks[place]
        after, until_s = (self.marks[place + 1], second + 1.0) if place + 1 < len(self.marks) else (self.totals, now_s)
        part = (when_s - second) / (until_s - second) if until_s > second else 0.0
        return JobTotals(*(earlier + part * (other - earlier) for earlier, other in zip(before, after, strict=True)))

    def parked_share(self, elapsed_s: float) -> float:
        """The share of its memory that is on the host."""
        if self.move is None:
            return self.away
        moved = self.move.moved_share(elapsed_s)
        return moved if self.move.out else 1.0 - moved


def _as_program(job: LabJob) -> LabJob:
    """Without nvshare's library and without MPS: the agent pauses it."""
    return job._replace(rota=None, kind="compute")


def load_of(job: LabJob, elapsed_s: float) -> GpuLoad:
    """What the job would do if it had its GPU for itself."""
    cells = _CELLS.get(job.key)
    level = job.level(elapsed_s) if cells is None else cells.level_at(elapsed_s)
    return _LOADS.get(job.key, DENSE).at_level(level)


class SharedLoad:
    """`clock` returns the seconds since the start. Thread-safe; no call takes long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now_s = 0.0
        self._tracks = {job.key: _Track(_as_program(job)) for job in JOBS}

    # Readings, as of LabLoad

    def jobs(self) -> Sequence[LabJob]:
        with self._lock:
            return [track.job for track in self._tracks.values()]

    def use(self, job: LabJob, elapsed_s: float) -> JobUse:
        """In the second before."""
        with self._lock:
            self._play()
            track = self._tracks.get(job.key)
            if track is None or elapsed_s <= 0:
                return JobUse()
            begin_s = max(0.0, elapsed_s - 1.0)
            before, after = track.at(begin_s, self._now_s), track.at(elapsed_s, self._now_s)
            rates = [max(0.0, new - old) / (elapsed_s - begin_s) for old, new in zip(before, after, strict=True)]
            return JobUse(*(min(1.0, rate) for rate in rates[: len(JobUse._fields)]))

    def memory_bytes(self, job: LabJob, elapsed_s: float) -> int:
        return job.memory_bytes(elapsed_s) - self._parked_bytes(job, elapsed_s)

    def cpu_seconds(self, job: LabJob, elapsed_s: float) -> float:
        """A cell that is begun while its kernel is paused still uses the CPU up to the first call of CUDA."""
        cells = _CELLS.get(job.key)
        begun = 0 if cells is None else cells.count_begun(elapsed_s)
        return 1800 * job.cpu_cores + self.totals(job.key).cpu + _CELL_START_CPU_S * begun

    def resident_bytes(self, job: LabJob, elapsed_s: float) -> int:
        return int(job.rss_gib * 2**30) + self._parked_bytes(job, elapsed_s)

    def _parked_bytes(self, job: LabJob, elapsed_s: float) -> int:
        with self._lock:
            track = self._tracks.get(job.key)
            return 0 if track is None else int(track.parked_share(self._clock()) * job.memory_bytes(elapsed_s))

    def totals(self, key: ProcessKey) -> JobTotals:
        """Until now; nothing of a job that is not there."""
        with self._lock:
            self._play()
            track = self._tracks.get(key)
            return JobTotals() if track is None else track.totals

    def job(self, key: ProcessKey) -> LabJob | None:
        with self._lock:
            track = self._tracks.get(key)
            return None if track is None else track.job

    # What happens

    def start(self, job: LabJob) -> None:
        with self._lock:
            self._play()
            self._tracks[job.key] = _Track(job, marked_s=int(self._now_s))

    def end(self, key: ProcessKey) -> None:
        with self._lock:
            self._play()
            self._tracks.pop(key, None)

    def pause(self, key: ProcessKey, paused: bool) -> None:
        with self._lock:
            self._play()
            if key in self._tracks:
                self._tracks[key].paused = paused

    def begin_move(self, key: ProcessKey, out: bool) -> float:
        """Moves the memory of a job that is paused. Returns how long that takes."""
        with self._lock:
            self._play()
            track = self._tracks[key]
            seconds = track.job.memory_bytes(self._now_s) / (OUT_BYTES_S if out else BACK_BYTES_S)
            track.move = MemoryMove(out, self._now_s, seconds)
            return seconds

    def end_move(self, key: ProcessKey) -> None:
        with self._lock:
            track = self._tracks.get(key)
            if track is not None and track.move is not None:
                track.away, track.move = float(track.move.out), None

    # Time

    def _play(self) -> None:
        now_s = self._clock()
        while now_s > self._now_s:
            begin_s = self._now_s // _STEP_S * _STEP_S
            self._play_until(min(now_s, begin_s + _STEP_S), begin_s)

    def _play_until(self, when_s: float, levels_s: float) -> None:
        seconds = when_s - self._now_s
        devices: dict[tuple[int, int | None], list[tuple[_Track, GpuLoad]]] = {}
        for track in self._tracks.values():
            load = load_of(track.job, levels_s)
            if load.kernels > 0 and not track.paused:
                devices.setdefault((track.job.gpu, track.job.gpu_instance_id), []).append((track, load))
            else:
                track.totals = track.totals.plus((0.0, 0.0, 0.0, 0.0, 0.0, _IDLE_CORES), seconds)
        for running in devices.values():
            loads = [load for _, load in running]
            overbooked = overbooking(loads)
            for (track, load), speed in zip(running, speeds(loads, EFFICIENCY), strict=True):
                rates = (load.kernels / overbooked, *(speed * value for value in load.activity.work), speed)
                track.totals = track.totals.plus((*rates, track.job.cpu_cores), seconds)
        self._now_s = when_s
        if when_s == int(when_s):
            for track in self._tracks.values():
                track.marks.append(track.totals)
                track.marked_s = int(when_s)


# The activity of simulated GPUs between two moments, for the scheduler's measurements.

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
        by_name = dict(zip(JobTotals._fields, rates, strict=True))
        activity = GpuActivity(by_name["sm"], by_name["tensor"], by_name["dram"], by_name["busy"])
        self._loop.call_soon(self._on_measured, ActivityMeasurement(gpu_uuid, token, activity, begun.begin_s, now_s))

    def _totals(self, gpu_uuid: str) -> JobTotals:
        place = self._gpus.place(gpu_uuid)
        rows = [self._load.totals(job.key) for job in self._load.jobs() if (job.gpu, job.gpu_instance_id) == place]
        return JobTotals(*map(sum, zip(*rows, strict=True))) if rows else JobTotals()
