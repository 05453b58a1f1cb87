"""What is known of one client, and how fast clients are while several run together. Pure.

A client is known by what it does alone, how much of the GPU it uses, and how long it was paused for looks. Nothing
here is ever declared wrong by one sample: programs vary from second to second.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

from gpucommons.model.gpu import IDLE_ACTIVITY, DeviceActivity

# A client that is busy for less than this share of the time, when it is alone, is light; and so is one that is less
# busy than that in more than a quarter of the samples, since it works in bursts.
_LIGHT_BUSY: Final = 0.5
_LIGHT_SAMPLES: Final = 0.25
# Samples of a client alone that count. In turns, one comes every second or so.
MAX_SAMPLES: Final = 8
# What a process uses is read once a second, and a reading is coarse.
USE_SPAN_S: Final = 5.0
LONG_USE_SPAN_S: Final = 30.0
_USE_READINGS_PER_S: Final = 0.5
_FIRST_READINGS: Final = 2
# A light client does something else where it uses this much more, as a factor and in addition, than its activity alone
# explains, and at least so much of an equal part.
_CHANGED_RATIO: Final = 1.3
_CHANGED_POINTS: Final = 0.15
_CHANGED_PART: Final = 0.8
_DOUBT_S: Final = 5.0
_DOUBT_FACTOR: Final = 4.0
_MAX_DOUBTS: Final = 6
# Pauses for looks: the share of a client's first minute, and of each later one.
_BUDGET_SPAN_S: Final = 60.0
FIRST_MINUTE_RATIO: Final = 0.03
LATER_RATIO: Final = 0.01


def mean_activity(samples: Iterable[DeviceActivity]) -> DeviceActivity:
    rows = list(samples)
    busy = [row.busy for row in rows if row.busy is not None]
    sm, tensor, dram = map(fmean, zip(*(row.work for row in rows), strict=True))
    return DeviceActivity(sm, tensor, dram, fmean(busy) if busy else None)


def is_quiet(sample: DeviceActivity, least_busy: float = _LIGHT_BUSY) -> bool:
    """Whether the device was busy for less of the time. Where that is not measured: no."""
    return sample.busy is not None and sample.busy < least_busy


class Activity:
    """The mean of the last samples of a client alone, or of a set of clients together."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, DeviceActivity]] = deque(maxlen=MAX_SAMPLES)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def mean(self) -> DeviceActivity | None:
        return mean_activity(sample for _, sample in self._samples) if self._samples else None

    @property
    def is_light(self) -> bool:
        """Whether the samples show bursts, or less than half of the time. Without a measurement of that: no."""
        busy = [sample.busy for _, sample in self._samples if sample.busy is not None]
        if not busy:
            return False
        quiet = sum(value < _LIGHT_BUSY for value in busy)
        return fmean(busy) < _LIGHT_BUSY or quiet > _LIGHT_SAMPLES * len(busy)

    def learn(self, sample: DeviceActivity, now_s: float) -> None:
        self._samples.append((now_s, sample))

    def forget_since(self, begin_s: float) -> None:
        """What was measured since then does not count: another client used the device meanwhile."""
        kept = [row for row in self._samples if row[0] <= begin_s]
        self._samples = deque(kept, maxlen=MAX_SAMPLES)

    def clear(self) -> None:
        self._samples.clear()

    def forget_last_idle(self) -> None:
        while self._samples and self._samples[-1][1].is_idle:
            self._samples.pop()


class Use:
    """The share of the GPU's time that a client, or an owner, had, as the driver samples it, over the last seconds."""

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque()

    def learn(self, ratio: float, now_s: float) -> None:
        self._readings.append((now_s, ratio))
        while self._readings[0][0] < now_s - LONG_USE_SPAN_S:
            self._readings.popleft()

    def mean(self, now_s: float, since_s: float = float("-inf"), span_s: float = USE_SPAN_S) -> float | None:
        """None while there are too few readings, a half of those that the span has."""
        begin_s = max(since_s, now_s - span_s)
        ratios = [ratio for taken_s, ratio in self._readings if taken_s > begin_s]
        return fmean(ratios) if len(ratios) > span_s * _USE_READINGS_PER_S else None

    @property
    def readings(self) -> int:
        return len(self._readings)

    @property
    def is_idle(self) -> bool:
        """Whether the last reading shows no use. Without a reading: no."""
        return bool(self._readings) and self._readings[-1][1] < IDLE_ACTIVITY


class LatencyUse:
    """What an owner had of the GPU by its clients of class latency over the last minute, in seconds."""

    __slots__ = ("_parts", "over_until_s")

    SPAN_S: Final = 60.0
    # An owner that is over its share is taken to be so for this long at least.
    OVER_S: Final = 5.0

    def __init__(self) -> None:
        self._parts: deque[tuple[float, float]] = deque()
        self.over_until_s = float("-inf")

    def learn(self, seconds: float, now_s: float) -> None:
        self._parts.append((now_s, seconds))
        self._forget(now_s)

    def judge(self, share: float, now_s: float) -> None:
        """Its share of the GPU is this, between 0 and 1."""
        self._forget(now_s)
        if sum(seconds for _, seconds in self._parts) > share * self.SPAN_S:
            self.over_until_s = now_s + self.OVER_S

    def is_over(self, now_s: float) -> bool:
        return now_s < self.over_until_s

    def _forget(self, now_s: float) -> None:
        while self._parts and self._parts[0][0] <= now_s - self.SPAN_S:
            self._parts.popleft()


class PauseBudget:
    """How long a client may be paused for looks. `since_s` is when its first minute began."""

    __slots__ = ("_pauses", "_since_s")

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s
        self._pauses: deque[tuple[float, float]] = deque()

    def allows(self, length_s: float, now_s: float) -> bool:
        first_end_s = self._since_s + _BUDGET_SPAN_S
        if now_s < first_end_s:
            spent_s = sum(paused_s for _, paused_s in self._pauses)
            if spent_s + length_s > FIRST_MINUTE_RATIO * _BUDGET_SPAN_S:
                return False
            if now_s + length_s <= first_end_s:
                return True
        begin_s = max(first_end_s, now_s + length_s - _BUDGET_SPAN_S)
        spent_s = sum(paused_s for start_s, paused_s in self._pauses if start_s + paused_s > begin_s)
        return spent_s + length_s <= LATER_RATIO * _BUDGET_SPAN_S

    def spend(self, length_s: float, now_s: float) -> None:
        self._pauses.append((now_s, length_s))
        while self._pauses[0][0] < now_s - 2 * _BUDGET_SPAN_S:
            self._pauses.popleft()


class ClientFacts:
    """`looked_s` is when a look at it was last begun; `light` is None until it was seen alone."""

    __slots__ = ("_runs", "alone", "budget", "doubts", "light", "looked_s", "looks", "since_s", "use")

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self.alone = Activity()
        self.use = Use()
        self.budget = PauseBudget(now_s)
        self.light: bool | None = None
        self.looked_s = float("-inf")
        self.looks = 0
        self.doubts = 0
        # When it ran, and for how long.
        self._runs: deque[tuple[float, float]] = deque()

    def note_run(self, length_s: float, now_s: float) -> None:
        self._runs.append((now_s, length_s))
        while self._runs[0][0] < now_s - USE_SPAN_S:
            self._runs.popleft()

    def ran_s(self, now_s: float) -> float:
        """How long it ran in the seconds over which its use is read."""
        return sum(length_s for began_s, length_s in self._runs if began_s >= now_s - USE_SPAN_S)

    def learn_alone(self, sample: DeviceActivity, now_s: float) -> None:
        self.alone.learn(sample, now_s)
        self.light = self.alone.is_light

    def forget_since(self, begin_s: float) -> None:
        self.alone.forget_since(begin_s)
        self.light = self.alone.is_light if len(self.alone) else None

    def forget_last_idle(self) -> None:
        self.alone.forget_last_idle()
        self.light = self.alone.is_light if len(self.alone) else None

    def awaits_use(self, now_s: float) -> bool:
        """Whether it came so lately that nothing is known of its use yet."""
        return now_s - self.since_s < USE_SPAN_S and self.use.readings < _FIRST_READINGS

    def reset_if_changed(self, clients: int, now_s: float) -> None:
        """A light client, one of so many that use the GPU, may do something else now: it has to be seen again."""
        alone, used = self.alone.mean, self.use.mean(now_s)
        if not self.light or alone is None or alone.busy is None or used is None:
            return
        # After each look that confirmed what was known, the next doubt comes later.
        if now_s < self.looked_s + _DOUBT_S * _DOUBT_FACTOR**self.doubts:
            return
        # One that has most of an equal part is seen again once, whatever it did before: it may work all the time now
        # and use no more than that. After that it has to use more than a look showed.
        explained = _CHANGED_RATIO * alone.busy + _CHANGED_POINTS if self.doubts else 0.0
        if used > max(explained, _CHANGED_PART / clients):
            self.alone.clear()
            self.light = None
            self.doubts = min(_MAX_DOUBTS, self.doubts + 1)


# How fast each client is while several run together, estimated from the device's activity. Pure arithmetic.
#
# The activities are three equations (SM, tensor, DRAM) for as many unknowns as there are clients. Where they do not say
# more, clients are taken to be slowed down alike.

# No client is faster together than alone, but measurements are noisy.
MAX_PROGRESS: Final = 1.1
# How much the assumption that all are slowed down alike counts against the equations.
_ALIKE_WEIGHT: Final = 0.0005
_MAX_ROUNDS: Final = 200
_CONVERGED: Final = 1e-4


def progress_together(device: DeviceActivity, alone: Sequence[DeviceActivity]) -> tuple[float, ...]:
    """The share of its speed alone that each client has, least squares with bounds 0 and MAX_PROGRESS."""
    total_sm = sum(activity.sm for activity in alone)
    if total_sm <= 0.0:
        return (1.0,) * len(alone)
    alike = min(MAX_PROGRESS, device.sm / total_sm)
    # Coordinate descent on the normal equations. The weight says that all are slowed down alike.
    weight = _ALIKE_WEIGHT * max(activity.sm for activity in alone) ** 2
    progress = [alike] * len(alone)
    works = [activity.work for activity in alone]
    left = [total - sum(alike * work[m] for work in works) for m, total in enumerate(device.work)]
    for _ in range(_MAX_ROUNDS):
        change = 0.0
        for client, work in enumerate(works):
            own = sum(value * value for value in work)
            slope = sum(value * rest for value, rest in zip(work, left, strict=True))
            best = (slope + own * progress[client] + weight * alike) / (own + weight)
            step = min(MAX_PROGRESS, max(0.0, best)) - progress[client]
            progress[client] += step
            left = [rest - step * value for rest, value in zip(left, work, strict=True)]
            change = max(change, abs(step))
        if change < _CONVERGED:
            break
    return tuple(progress)
