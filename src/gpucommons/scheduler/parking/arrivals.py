"""Room for programs that begin on a full GPU: which wait, which go on, and what is parked for them. Pure.

A newcomer is held before its first allocation, where its GPU has less free memory than `room` and idle programs could
be parked there. How much it needs is not known, so:

1. It waits while idle programs are parked, until `room` is free for it, and goes on at once where nothing more can be
   parked. It never waits for longer than `wait_s`.
2. Newcomers are served in the order in which they came. The room that one was given is not counted on by a later one,
   until it was used or `settle_s` have passed.
3. While a program is young, more is parked as soon as its use comes near what is free. It does not wait for that.
4. Only programs that were idle for `idle_after_s` make room, the longest idle first, then the largest; never programs
   of the newcomer's own job, and never on a MIG device, whose memory the driver cannot move.
5. For `settle_s` after a newcomer goes on, no program comes back to its GPU unless its user uses it: some programs
   measure the free memory while they start.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.parking.plan import can_make_room, idle_for
from gpucommons.scheduler.parking.values import (
    ParkSituation,
    ParkStage,
    ParkTerms,
    PlannedProgram,
    RoomClaims,
    RoomNeed,
)

# It comes near what is free when it uses so much of it.
_NEAR: Final = 0.75
# A newcomer does not wait for a driver that does not say how much is free.
_READ_WITHIN_S: Final = 5.0
_PREFIX: Final = "arrival:"


@dataclass(frozen=True, slots=True)
class ArrivalRules:
    """`room_bytes` or else `room_ratio` of a GPU's memory is what a newcomer gets. Both None: newcomers never wait."""

    room_bytes: int | None = None
    room_ratio: float | None = 0.25
    wait_s: float = 60.0
    idle_after_s: float = 120.0
    settle_s: float = 30.0

    @property
    def on(self) -> bool:
        return self.room_bytes is not None or self.room_ratio is not None

    def room(self, total_bytes: int) -> int:
        if self.room_bytes is not None:
            return min(self.room_bytes, total_bytes)
        return round((self.room_ratio or 0.0) * total_bytes)


class GpuMemory(NamedTuple):
    """Of one GPU by its last reading. `number` is that of its device file; None: not known. `is_mig`: it is split."""

    free_bytes: int | None
    total_bytes: int | None
    number: int | None
    is_mig: bool = False


class Newcomer(NamedTuple):
    """`since_s` is when it was held, `went_on_s` when it went on; None: it waits. `siblings` are other programs of its
    job."""

    process: ProcessKey
    device: str
    since_s: float
    siblings: frozenset[str] = frozenset()
    went_on_s: float | None = None

    @property
    def id(self) -> str:
        return arrival_id(self.process)


def arrival_id(process: ProcessKey) -> str:
    return f"{_PREFIX}{process.pid}.{process.start_ticks}"


def is_arrival(need_id: str) -> bool:
    return need_id.startswith(_PREFIX)


class GoesOn(StrEnum):
    """Why a newcomer does not wait any longer."""

    ROOM = "it has room"
    NOTHING_IDLE = "no idle program is left that could be parked"
    WAITED = "it waited for parking.arrival_wait_s"
    UNKNOWN = "the free memory of its GPU is not known"


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """`needs` and `promised` are for the planner of parking. `settling` are devices on which a newcomer starts."""

    go_on: Mapping[ProcessKey, GoesOn] = field(default_factory=dict)
    needs: tuple[RoomNeed, ...] = ()
    promised: Mapping[str, int] = field(default_factory=dict)
    settling: frozenset[str] = frozenset()


def short_devices(
    rules: ArrivalRules, terms: ParkTerms, situation: ParkSituation, memory: Mapping[str, GpuMemory]
) -> frozenset[str]:
    """The GPUs on which a newcomer would be held: short of room, with idle programs that can be parked."""
    return frozenset(
        device
        for device, gpu in memory.items()
        if rules.on
        and not gpu.is_mig
        and gpu.free_bytes is not None
        and gpu.total_bytes is not None
        and gpu.free_bytes < rules.room(gpu.total_bytes)
        and any(device in program.memory for program in idle_for(terms, situation, rules.idle_after_s))
    )


def plan_arrivals(
    rules: ArrivalRules,
    terms: ParkTerms,
    situation: ParkSituation,
    newcomers: Iterable[Newcomer],
    memory: Mapping[str, GpuMemory],
) -> ArrivalPlan:
    """`situation` is without the needs of newcomers. Its programs include those that went on, once NVML lists them."""
    ordered = sorted(newcomers, key=lambda newcomer: (newcomer.since_s, newcomer.process))
    promised = _promised(rules, situation, ordered, memory)
    taken = Counter(promised)
    go_on: dict[ProcessKey, GoesOn] = {}
    needs: list[RoomNeed] = []
    for newcomer in ordered:
        if newcomer.went_on_s is not None:
            continue
        room = rules.room(_total(memory, newcomer.device))
        need = RoomNeed(
            (newcomer.device,),
            room,
            newcomer.since_s,
            id=newcomer.id,
            kept={newcomer.device: taken[newcomer.device]},
            idle_after_s=rules.idle_after_s,
            spared=newcomer.siblings,
        )
        why = _why_goes_on(rules, terms, situation, newcomer, need)
        if why is None:
            needs.append(need)
        else:
            go_on[newcomer.process] = why
        taken[newcomer.device] += room
    needs += _young_needs(rules, situation, taken, memory)
    settling = {
        newcomer.device
        for newcomer in ordered
        if newcomer.went_on_s is None or situation.now_s - newcomer.went_on_s < rules.settle_s
    }
    return ArrivalPlan(go_on, tuple(needs), promised, frozenset(settling))


def with_arrivals(situation: ParkSituation, arrivals: ArrivalPlan) -> ParkSituation:
    """The situation with what newcomers need and were given."""
    claims = situation.claims
    promised = Counter(claims.promised) + Counter(arrivals.promised)
    claims = RoomClaims((*claims.needs, *arrivals.needs), promised)
    return replace(situation, claims=claims, settling=arrivals.settling)


def _why_goes_on(
    rules: ArrivalRules, terms: ParkTerms, situation: ParkSituation, newcomer: Newcomer, need: RoomNeed
) -> GoesOn | None:
    waited_s = situation.now_s - newcomer.since_s
    if waited_s >= rules.wait_s:
        return GoesOn.WAITED
    room = situation.fresh_room(newcomer.device)
    if room is None:
        return GoesOn.UNKNOWN if waited_s >= _READ_WITHIN_S else None
    if room.free_bytes >= (need.bytes or 0) + need.kept.get(newcomer.device, 0):
        return GoesOn.ROOM
    if _is_moving(situation.programs, newcomer.device) or can_make_room(terms, situation, need):
        return None
    return GoesOn.NOTHING_IDLE


def _is_moving(programs: Sequence[PlannedProgram], device: str) -> bool:
    return any(program.stage is ParkStage.PARKING and device in program.memory for program in programs)


def _promised(
    rules: ArrivalRules, situation: ParkSituation, newcomers: Iterable[Newcomer], memory: Mapping[str, GpuMemory]
) -> Mapping[str, int]:
    """What newcomers that went on a moment ago were given and do not use yet."""
    promised: Counter[str] = Counter()
    for newcomer in newcomers:
        if newcomer.went_on_s is not None and situation.now_s - newcomer.went_on_s < rules.settle_s:
            used = sum(
                program.memory.get(newcomer.device, 0)
                for program in situation.programs
                if newcomer.process in program.processes and program.stage is ParkStage.RESIDENT
            )
            promised[newcomer.device] += max(0, rules.room(_total(memory, newcomer.device)) - used)
    return {device: amount for device, amount in promised.items() if amount}


def _young_needs(
    rules: ArrivalRules, situation: ParkSituation, taken: Mapping[str, int], memory: Mapping[str, GpuMemory]
) -> Iterable[RoomNeed]:
    for program in situation.resident if rules.on else ():
        if not program.is_young or len(program.memory) != 1:
            continue
        ((device, used),) = program.memory.items()
        room = situation.fresh_room(device)
        if room is None or device not in memory or memory[device].is_mig:
            continue
        if used >= _NEAR * (room.free_bytes - taken.get(device, 0)):
            yield RoomNeed(
                (device,),
                max(rules.room(_total(memory, device)), used),
                situation.now_s,
                id=f"{_PREFIX}{program.key}",
                kept={device: taken.get(device, 0)},
                idle_after_s=rules.idle_after_s,
                spared=frozenset({program.key}),
            )


def _total(memory: Mapping[str, GpuMemory], device: str) -> int:
    gpu = memory.get(device)
    return 0 if gpu is None else gpu.total_bytes or 0
