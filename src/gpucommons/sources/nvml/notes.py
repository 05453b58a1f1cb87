"""What the source keeps from one session with the driver to the next: counts, refusals, lanes."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpucommons.sources.nvml.capability import Capabilities
from gpucommons.sources.nvml.events import EventBook
from gpucommons.sources.nvml.lanes import FAST_BUDGET_S, LaneBook
from gpucommons.sources.nvml.roster import Roster
from gpucommons.sources.nvml.start_times import StartTimes


@dataclass(slots=True)
class Notes:
    start_times: StartTimes
    wall: Callable[[], float]
    timer: Callable[[], float]
    fast_budget_s: float = FAST_BUDGET_S
    capabilities: Capabilities = field(default_factory=Capabilities)
    lanes: LaneBook = field(default_factory=LaneBook)
    events: EventBook = field(default_factory=EventBook)
    roster: Roster = field(default_factory=Roster)
    dropped: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: dict[tuple[str, str], int] = field(default_factory=dict)

    def drop(self, uuid: str, reason: str) -> None:
        self.dropped[(uuid, reason)] = self.dropped.get((uuid, reason), 0) + 1

    def fail(self, call: str, code: str) -> None:
        self.failures[(call, code)] = self.failures.get((call, code), 0) + 1
