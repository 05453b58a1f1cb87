"""What the reader keeps from one session with the driver to the next: counts, unsupported calls, lanes, GPUs.

A GPU that was ever seen is present, or lost, since when and why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.model.gpu import CLOCK_SAMPLE_EVERY_S, RECENT_S, ClockSample, GpuIdentity, LaneMove
from gpucommons.sources.nvml.calls import FAST_BUDGET_S, Lane, LaneTable
from gpucommons.sources.nvml.events import EventCounts
from gpucommons.sources.nvml.presence import Remembered, same_place
from gpucommons.sources.nvml.processes import StartTimes

# Samples of each GPU's throttle mask over the last hour, for counts within a window. Pure.
#
# Kept for the life of the agent: a new session with the driver does not clear it.

_MAX_SAMPLES = round(RECENT_S / CLOCK_SAMPLE_EVERY_S)


class ClockHistory:
    def __init__(self) -> None:
        self._samples: dict[str, tuple[ClockSample, ...]] = {}
        self._due_s: dict[str, float] = {}

    def see(self, uuid: str, now_s: float, wall_s: float, mask: float | None) -> tuple[ClockSample, ...]:
        """The samples up to now, including this mask if a sample is due. `now_s` is monotonic."""
        samples = self._samples.get(uuid, ())
        if mask is None or now_s < self._due_s.get(uuid, now_s):
            return samples
        self._due_s[uuid] = now_s + CLOCK_SAMPLE_EVERY_S
        samples = self._samples[uuid] = (*samples[-_MAX_SAMPLES + 1 :], ClockSample(wall_s, int(mask)))
        return samples


# Every GPU that was ever seen: present, or lost, since when and why. Pure: the time is passed in.


@dataclass(slots=True)
class RosterEntry:
    identity: GpuIdentity
    up: bool
    since_wall_s: float
    reason: str = ""


class Roster:
    def __init__(self) -> None:
        self._entries: dict[str, RosterEntry] = {}
        self._max_enumerated = 0
        self._unidentified = 0
        self.present = 0

    def remember(self, gpus: Iterable[Remembered]) -> None:
        """Takes the GPUs that an earlier agent saw: until the driver lists them they are lost."""
        for identity, last_seen_wall_s in gpus:
            self._entries[identity.uuid] = RosterEntry(identity, False, last_seen_wall_s, "not_enumerated")

    def identities(self) -> Iterator[GpuIdentity]:
        return (entry.identity for entry in self._entries.values())

    def record_count(self, count: int) -> None:
        """The number of GPUs that the driver counts, including those that cannot be opened."""
        self._max_enumerated = max(self._max_enumerated, count)

    def record_unopened(self, count: int) -> bool:
        """Takes the number that cannot be opened. True if more of them than before have never been identified: those
        that are known, or were reported already, are not news."""
        unidentified = count - len(self._entries) + self.present
        more, self._unidentified = unidentified > self._unidentified, unidentified
        return more

    def record_found(self, identity: GpuIdentity, wall_s: float) -> bool:
        """Records a GPU that answers. True if it was lost before."""
        entry = self._entries.get(identity.uuid)
        returned = entry is not None and not entry.up
        if entry is None or returned:
            self._forget_replaced(identity)
            self._entries[identity.uuid] = RosterEntry(identity, True, wall_s)
            self.present += 1
        else:
            entry.identity = identity
        return returned

    def _forget_replaced(self, identity: GpuIdentity) -> None:
        """A lost GPU at whose place on the bus another one answers was taken out."""
        place = same_place(identity.pci_bus_id)
        for uuid, entry in list(self._entries.items()):
            if not entry.up and uuid != identity.uuid and same_place(entry.identity.pci_bus_id) == place:
                del self._entries[uuid]

    def record_lost(self, uuid: str, reason: str, wall_s: float) -> bool:
        """Records a GPU that no longer answers. True if it did until now."""
        entry = self._entries[uuid]
        if not entry.up:
            return False
        self._entries[uuid] = RosterEntry(entry.identity, False, wall_s, reason)
        self.present -= 1
        return True

    def missing(self, present: set[str], wall_s: float) -> list[RosterEntry]:
        """After an enumeration: marks those that are not in it as lost, and returns them."""
        gone = [uuid for uuid, entry in self._entries.items() if entry.up and uuid not in present]
        for uuid in gone:
            self.record_lost(uuid, "not_enumerated", wall_s)
        return [self._entries[uuid] for uuid in gone]

    def entry(self, uuid: str) -> RosterEntry:
        return self._entries[uuid]

    def absentees(self) -> Iterator[RosterEntry]:
        return (entry for entry in self._entries.values() if not entry.up)

    @property
    def expected(self) -> int:
        return max(len(self._entries), self._max_enumerated)

    @property
    def complete(self) -> bool:
        return self.present == self.expected


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
