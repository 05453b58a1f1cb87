"""What the reader keeps from one session with the driver to the next: counts, unsupported calls, lanes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.model.gpu import LaneMove
from gpucommons.sources.nvml.clock_history import ClockHistory
from gpucommons.sources.nvml.events import EventCounts
from gpucommons.sources.nvml.lanes import FAST_BUDGET_S, Lane, LaneTable
from gpucommons.sources.nvml.roster import Roster
from gpucommons.sources.nvml.start_times import StartTimes


class Capabilities:
    def __init__(self) -> None:
        self._driver_version: str | None = None
        self._refused: set[tuple[str, str]] = set()

    def meet_driver(self, version: str) -> bool:
        """Takes the driver's version. True if it has changed: then what is supported must be found out again."""
        changed = self._driver_version is not None and version != self._driver_version
        if changed:
            self._refused.clear()
        self._driver_version = version
        return changed

    def refuse(self, uuid: str, function: str) -> None:
        self._refused.add((uuid, function))

    def refuses(self, uuid: str, function: str) -> bool:
        return (uuid, function) in self._refused

    def forget(self, uuid: str) -> None:
        """Call when MIG was enabled or disabled: it changes what the GPU supports."""
        self._refused = {pair for pair in self._refused if pair[0] != uuid}


class Counts(NamedTuple):
    lane_moves: Mapping[LaneMove, int]
    slow_calls: tuple[LaneMove, ...]
    samples_dropped: Mapping[tuple[str, str], int]
    call_failures: Mapping[tuple[str, str], int]


@dataclass(slots=True)
class Notes:
    start_times: StartTimes
    wall: Callable[[], float]
    timer: Callable[[], float]
    fast_budget_s: float = FAST_BUDGET_S
    keep_fast: frozenset[str] = frozenset()
    capabilities: Capabilities = field(default_factory=Capabilities)
    lanes: LaneTable = field(default_factory=LaneTable)
    events: EventCounts = field(default_factory=EventCounts)
    clocks: ClockHistory = field(default_factory=ClockHistory)
    roster: Roster = field(default_factory=Roster)
    _dropped: dict[tuple[str, str], int] = field(default_factory=dict)
    _failures: dict[tuple[str, str], int] = field(default_factory=dict)
    _counts: Counts | None = None

    def drop(self, uuid: str, reason: str) -> None:
        self._dropped[(uuid, reason)] = self._dropped.get((uuid, reason), 0) + 1
        self._counts = None

    def fail(self, call: str, code: str) -> None:
        self._failures[(call, code)] = self._failures.get((call, code), 0) + 1
        self._counts = None

    def move(self, uuid: str, call: str, to: Lane) -> None:
        self.lanes.move(uuid, call, to)
        self._counts = None

    def meet_driver(self, version: str) -> bool:
        """Takes the driver's version. True if it has changed: what was learned about the old one is discarded."""
        changed = self.capabilities.meet_driver(version)
        if changed:
            self.lanes.forget()
            self._counts = None
        return changed

    def counts(self) -> Counts:
        """The counts; the same object while none of them has changed."""
        if self._counts is None:
            self._counts = Counts(
                dict(self.lanes.moves), self.lanes.slow_calls(), dict(self._dropped), dict(self._failures)
            )
        return self._counts
