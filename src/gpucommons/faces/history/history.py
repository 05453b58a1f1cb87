"""History in memory: the last hour in steps of 1 s, the last day in steps of 15 s, and the recent turns.

Readings are columns of floats. All of it is bounded.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpucommons.model.gpu import Gpu
from gpucommons.model.host import Pressure
from gpucommons.model.sharing import ClientSharing, Timeline, Turn
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import node_health_of

# History in memory: the last hour in steps of 1 s, the last day in steps of 15 s, as columns of floats.
#
# The size is bounded: a column is 37 kB, there is one per reading and GPU, and the number of GPUs is limited. A step
# without a reading is NaN, never 0. The steps follow the snapshots' monotonic clock, so a step of the wall clock moves
# nothing.

NODE = "node"
NODE_SERIES = (
    "cpu_utilization_ratio",
    "memory_used_ratio",
    "cpu_pressure_percent",
    "memory_pressure_percent",
    "io_pressure_percent",
    "health_score",
)
GPU_SERIES = (
    "gpu_utilization_ratio",
    "gpu_sm_active_ratio",
    "gpu_memory_used_bytes",
    "gpu_power_watts",
    "gpu_temperature_celsius",
    "gpu_clock_sm_mhz",
)
SERIES = NODE_SERIES + GPU_SERIES
FINE_S, FINE_SPAN_S = 1.0, 3600.0
COARSE_S, COARSE_SPAN_S = 15.0, 86400.0
MAX_GPUS = 64
# A snapshot that comes slightly early belongs to the next bucket.
_SLACK_RATIO = 0.05

Key = tuple[str, str]
"""(NODE or a GPU's UUID, name of the series)"""


class Window(NamedTuple):
    """Columns of one series on one grid. The first value covers `start_wall_s` to one step later."""

    step_s: float
    start_wall_s: float
    columns: Mapping[str, Sequence[float]]


class _Column:
    __slots__ = ("count", "total", "values")

    def __init__(self, length: int) -> None:
        self.values = array("f", [math.nan]) * length
        self.total = 0.0
        self.count = 0


class _Tier:
    """A ring of buckets of equal length. The readings of one bucket are averaged."""

    def __init__(self, step_s: float, span_s: float) -> None:
        self.step_s = step_s
        self.length = math.ceil(span_s / step_s)
        self.bucket: int | None = None
        self.columns: dict[Key, _Column] = {}

    def add(self, monotonic_s: float, values: Mapping[Key, float]) -> None:
        bucket = math.floor(monotonic_s / self.step_s + _SLACK_RATIO)
        if self.bucket is None:
            self.bucket = bucket
        elif bucket > self.bucket:
            self._advance(self.bucket, bucket)
            self.bucket = bucket
        slot = self.bucket % self.length
        for key, value in values.items():
            column = self.columns.get(key)
            if column is None:
                column = self.columns[key] = _Column(self.length)
            column.total += value
            column.count += 1
            column.values[slot] = column.total / column.count

    def _advance(self, old: int, new: int) -> None:
        passed = range(max(old, new - self.length) + 1, new + 1)
        for column in self.columns.values():
            column.total, column.count = 0.0, 0
            for bucket in passed:
                column.values[bucket % self.length] = math.nan

    def last(self, key: Key, end_bucket: int, buckets: int) -> "array[float]":
        """The buckets up to and including `end_bucket`, oldest first."""
        column = self.columns.get(key)
        if column is None:
            return array("f", [math.nan]) * buckets
        first = (end_bucket - buckets + 1) % self.length
        head = column.values[first : first + buckets]
        return head if len(head) == buckets else head + column.values[: buckets - len(head)]

    def forget(self, subject: str) -> None:
        for key in [key for key in self.columns if key[0] == subject]:
            del self.columns[key]


class History:
    def __init__(self, interval_s: float = 1.0) -> None:
        self._fine = _Tier(max(FINE_S, interval_s), FINE_SPAN_S)
        self._coarse = _Tier(max(COARSE_S, interval_s), COARSE_SPAN_S)
        self._seen: dict[str, None] = {}
        self._now_monotonic_s = 0.0
        self._now_wall_s = 0.0

    def observe(self, snapshot: Snapshot) -> None:
        values = dict(readings_of(snapshot))
        self._now_monotonic_s, self._now_wall_s = snapshot.monotonic_s, snapshot.wall_s
        for tier in (self._fine, self._coarse):
            tier.add(snapshot.monotonic_s, values)
        self._bound_gpus(values)

    @property
    def memory_bytes(self) -> int:
        """The size of the columns; the rest is small."""
        return sum(
            column.values.itemsize * len(column.values)
            for tier in (self._fine, self._coarse)
            for column in tier.columns.values()
        )

    @property
    def subjects(self) -> tuple[str, ...]:
        return (NODE, *self._seen)

    @property
    def fine_step_s(self) -> float:
        return self._fine.step_s

    @property
    def coarse_step_s(self) -> float:
        return self._coarse.step_s

    def covers(self, start_wall_s: float) -> bool:
        return self._now_wall_s - start_wall_s <= COARSE_SPAN_S

    def window(self, series: str, range_s: float, points: int, end_wall_s: float | None = None) -> Window:
        """One series of every subject that has it, in at most `points` values. Finer steps are averaged."""
        end_s = self._now_wall_s if end_wall_s is None else min(end_wall_s, self._now_wall_s)
        back_s = self._now_wall_s - (end_s - range_s)
        tier = self._fine if back_s <= FINE_SPAN_S + FINE_S else self._coarse
        if tier.bucket is None:
            return Window(tier.step_s, end_s - range_s, {})
        end_bucket = tier.bucket - round((self._now_wall_s - end_s) / tier.step_s)
        fold = math.ceil(min(range_s / tier.step_s, tier.length) / points)
        # Folds on a fixed grid, so that a moment is always averaged with the same neighbours.
        end_bucket -= (end_bucket + 1) % fold
        buckets = min(round(range_s / tier.step_s), tier.length - (tier.bucket - end_bucket)) // fold * fold
        subjects = (NODE,) if series in NODE_SERIES else tuple(self._seen)
        columns = {
            subject: fold_values(tier.last((subject, series), end_bucket, buckets), fold) for subject in subjects
        }
        end_of_window_s = self._now_wall_s + (end_bucket + 1) * tier.step_s - self._now_monotonic_s
        return Window(tier.step_s * fold, end_of_window_s - buckets * tier.step_s, columns)

    def _bound_gpus(self, values: Mapping[Key, float]) -> None:
        for subject, _ in values:
            if subject != NODE:
                # Ordered by the last reading: the first GPU has been gone longest.
                self._seen.pop(subject, None)
                self._seen[subject] = None
        while len(self._seen) > MAX_GPUS:
            longest_gone = next(iter(self._seen))
            del self._seen[longest_gone]
            for tier in (self._fine, self._coarse):
                tier.forget(longest_gone)


def fold_values(values: Sequence[float], fold: int) -> Sequence[float]:
    """Means of `fold` values each, ignoring missing ones."""
    if fold == 1:
        return values
    means = []
    for start in range(0, len(values), fold):
        present = [value for value in values[start : start + fold] if value == value]
        means.append(sum(present) / len(present) if present else math.nan)
    return means


def readings_of(snapshot: Snapshot) -> Iterator[tuple[Key, float]]:
    for name, value in _node_values(snapshot):
        if value is not None:
            yield (NODE, name), value
    reading = snapshot.readings.gpus
    for gpu in () if reading is None else reading.gpus:
        if gpu.up:
            for name, value in _gpu_values(gpu):
                if value is not None:
                    yield (gpu.identity.uuid, name), value


def _node_values(snapshot: Snapshot) -> Iterator[tuple[str, float | None]]:
    cpu, memory, pressure = snapshot.readings.cpu, snapshot.readings.memory, snapshot.readings.pressure
    health = node_health_of(cpu, memory, pressure)
    used = None
    if memory is not None and memory.available_bytes is not None and memory.total_bytes > 0:
        used = 1 - memory.available_bytes / memory.total_bytes
    return zip(
        NODE_SERIES,
        (
            None if cpu is None else cpu.utilization_ratio,
            used,
            None if pressure is None else _stalled_percent(pressure.cpu),
            None if pressure is None else _stalled_percent(pressure.memory),
            None if pressure is None else _stalled_percent(pressure.io),
            None if health is None else health.score,
        ),
        strict=True,
    )


def _stalled_percent(pressure: Pressure | None) -> float | None:
    return None if pressure is None or pressure.some is None else pressure.some.avg10


def _gpu_values(gpu: Gpu) -> Iterator[tuple[str, float | None]]:
    now = gpu.readings
    return zip(
        GPU_SERIES,
        (
            gpu.use_ratio,
            None if gpu.gpm is None else gpu.gpm.sm_ratio,
            now.memory_used_bytes,
            now.power_watts,
            now.temperature_celsius,
            now.clock_sm_mhz,
        ),
        strict=True,
    )


# The recent turns on each shared GPU, read from each snapshot. Bounded, in memory.
#
# The start of a turn is exact, because the scheduler reports how long a turn has lasted. Its end is exact to one
# snapshot. A turn that began and ended between two snapshots is not seen.

KEPT_S = 600.0
MAX_TURNS = 300


class TurnLog:
    """Pass every snapshot to `observe`; `timeline` is by GPU, oldest turn first."""

    def __init__(self, kept_s: float = KEPT_S, max_turns: int = MAX_TURNS) -> None:
        self._kept_s = kept_s
        self._max_turns = max_turns
        self.timeline: Timeline = {}

    def observe(self, snapshot: Snapshot) -> None:
        sharing = snapshot.readings.sharing
        if sharing is None:
            self.timeline = {}
            return
        now_s = snapshot.wall_s
        clients = {client.client_id: client for client in sharing.clients}
        self.timeline = {
            gpu.uuid: self._on_gpu(
                self.timeline.get(gpu.uuid, ()), [clients[id] for id in gpu.running if id in clients], now_s
            )
            for gpu in sharing.gpus
        }

    def _on_gpu(self, turns: tuple[Turn, ...], running: list[ClientSharing], now_s: float) -> tuple[Turn, ...]:
        going = {(client.client_id, client.turns): client for client in running}
        kept: list[Turn] = []
        for turn in turns:
            if turn.end_wall_s is None and going.pop(_mark(turn), None) is None:
                turn = Turn(turn.id, turn.client_id, turn.label, turn.uid, turn.start_wall_s, now_s)
            if turn.end_wall_s is None or now_s - turn.end_wall_s <= self._kept_s:
                kept.append(turn)
        kept.extend(_running_turn(client, now_s) for client in going.values())
        return tuple(kept[-self._max_turns :])


def _running_turn(client: ClientSharing, now_s: float) -> Turn:
    start_s = now_s - (client.turn_s or 0.0)
    label = client.name or client.client_id
    return Turn(f"{client.client_id}.{client.turns}", client.client_id, label, client.uid, start_s)


def _mark(turn: Turn) -> tuple[str, int]:
    client_id, _, number = turn.id.rpartition(".")
    return client_id, int(number)
