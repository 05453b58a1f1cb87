"""Room for programs that begin on a full GPU: which wait, which go on, and what is parked for them. Pure.

A newcomer is held before its first allocation, where its GPU has less free memory than twice `room` and idle programs,
or programs of class background, could be parked there. One that has `room` goes on at once: it is held to be counted,
since another may begin in the same second. How much it needs is not known, so:

1. It waits while these are parked, until `room` is free for it, and goes on at once where nothing more can be
   parked. It never waits for longer than `wait_s`.
2. Newcomers are served in the order in which they came. The room that one was given is not counted on by a later one,
   until it was used or `settle_s` have passed.
3. While a program is young, more is parked as soon as its use comes near what is free. It does not wait for that.
4. Only programs that were idle for `idle_after_s` make room, the longest idle first, then the largest; after them
   those of class background, for newcomers of other classes. Never programs of the newcomer's own job, and never on a
   MIG device, whose memory the driver cannot move.
5. For `settle_s` after a newcomer goes on, no program comes back to its GPU unless its user uses it: some programs
   measure the free memory while they start.
6. The budget is what others lose. A program that made room loses the time from when its user uses it until its memory
   is back. Where programs of others have lost `budget_s` in the last hour to newcomers of one owner, its newcomers get
   no more room from others; and an owner that has lost as much gives others no more. Programs of one owner always make
   room for each other. Newcomers are not counted: where the holders of their room do not need it, they cost nothing.
   What programs of class background lose is not counted either: they always make room.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.parking.plan import can_make_room, yielding_programs
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
# A context takes about half of this, on a small GPU less.
_CONTEXT_BYTES: Final = 1 << 30
_CONTEXT_RATIO: Final = 1 / 16
# Over which time the waits of others are added up.
_BUDGET_WINDOW_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ArrivalRules:
    """`room_bytes` or else `room_ratio` of a GPU's memory is what a newcomer gets. Both None: newcomers never wait."""

    room_bytes: int | None = None
    room_ratio: float | None = 0.25
    wait_s: float = 60.0
    idle_after_s: float = 120.0
    settle_s: float = 30.0
    budget_s: float = 300.0

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

    @property
    def fits_context(self) -> bool:
        """Whether a program may begin to use it, with no memory of its own yet."""
        if self.free_bytes is None or self.total_bytes is None:
            return True
        return self.free_bytes >= min(_CONTEXT_BYTES, self.total_bytes * _CONTEXT_RATIO)


class Newcomer(NamedTuple):
    """`since_s` is when it was held, `went_on_s` when it went on; None: it waits. `siblings` are other programs of its
    job."""

    process: ProcessKey
    device: str
    since_s: float
    siblings: frozenset[str] = frozenset()
    went_on_s: float | None = None
    owner: str = ""
    is_background: bool = False

    @property
    def id(self) -> str:
        return arrival_id(self.process)


def arrival_id(process: ProcessKey) -> str:
    return f"{_PREFIX}{process.pid}.{process.start_ticks}"


def is_arrival(need_id: str) -> bool:
    return need_id.startswith(_PREFIX)


def young_program(need_id: str) -> str:
    """The key of the program whose need this is, where it is on its GPU already."""
    return need_id.removeprefix(_PREFIX)


class GoesOn(StrEnum):
    """Why a newcomer does not wait any longer."""

    ROOM = "it has room"
    NOTHING_IDLE = "no program is left that could be parked"
    WAITED = "it waited for parking.arrival_wait_s"
    UNKNOWN = "the free memory of its GPU is not known"
    BUDGET = "the budget for parking programs of other owners is spent (parking.arrival_budget_s)"


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """`needs` and `promised` are for the planner of parking. `settling` are devices on which a newcomer starts."""

    go_on: Mapping[ProcessKey, GoesOn] = field(default_factory=dict)
    needs: tuple[RoomNeed, ...] = ()
    promised: Mapping[str, int] = field(default_factory=dict)
    settling: frozenset[str] = frozenset()


# What others lose by newcomers.


class _Wait(NamedTuple):
    """A program of `owner` waited to come back, after it had made room for one of `moved_for`."""

    owner: str
    moved_for: str
    begin_s: float
    end_s: float


class BudgetsSpent(NamedTuple):
    """`of_newcomers` are owners whose newcomers get no more room from others, `of_holders` those that give no more."""

    of_newcomers: frozenset[str] = frozenset()
    of_holders: frozenset[str] = frozenset()

    def allow(self, holder: str, newcomer: str) -> bool:
        """Whether a program of this owner may make room for a newcomer of that one."""
        return holder == newcomer or (newcomer not in self.of_newcomers and holder not in self.of_holders)


_NOTHING_SPENT: Final = BudgetsSpent()


class ArrivalWaits:
    """How long programs that made room for newcomers of others have waited to come back in the last hour."""

    def __init__(self) -> None:
        self._ended: deque[_Wait] = deque()
        # By program.
        self._lasting: dict[str, _Wait] = {}

    def see(self, programs: Iterable[PlannedProgram], now_s: float) -> None:
        """One that is stopped by its user does not wait to come back."""
        before, self._lasting = self._lasting, {}
        for program in programs:
            if program.is_background:
                continue
            if program.wakes_since_s is not None and program.moved_for not in ("", program.owner):
                earlier = before.pop(program.key, None)
                begin_s = now_s if earlier is None else earlier.begin_s
                self._lasting[program.key] = _Wait(program.owner, program.moved_for, begin_s, now_s)
        self._ended.extend(wait._replace(end_s=now_s) for wait in before.values())
        while self._ended and self._ended[0].end_s <= now_s - _BUDGET_WINDOW_S:
            self._ended.popleft()

    def budgets_spent(self, budget_s: float, now_s: float) -> BudgetsSpent:
        newcomers: defaultdict[str, float] = defaultdict(float)
        holders: defaultdict[str, float] = defaultdict(float)
        for wait in (*self._ended, *self._lasting.values()):
            lost_s = max(0.0, wait.end_s - max(wait.begin_s, now_s - _BUDGET_WINDOW_S))
            newcomers[wait.moved_for] += lost_s
            holders[wait.owner] += lost_s
        return BudgetsSpent(_at_least(budget_s, newcomers), _at_least(budget_s, holders))


def _at_least(budget_s: float, lost_s: Mapping[str, float]) -> frozenset[str]:
    return frozenset(owner for owner, amount_s in lost_s.items() if amount_s >= budget_s)


def short_devices(
    rules: ArrivalRules, terms: ParkTerms, situation: ParkSituation, memory: Mapping[str, GpuMemory]
) -> frozenset[str]:
    """The GPUs on which a newcomer is held until it is seen whether it has room: those without room for two of them,
    where programs can be parked, or are on their way."""
    yielding = yielding_programs(terms, situation, rules.idle_after_s, of_background=False)
    moving = [program for program in situation.programs if program.stage is ParkStage.PARKING]
    return frozenset(
        device
        for device, gpu in memory.items()
        if is_full(rules, gpu) and any(device in program.memory for program in (*yielding, *moving))
    )


def is_full(rules: ArrivalRules, gpu: GpuMemory) -> bool:
    """Whether it has no room for two newcomers that begin at once: the memory that one of them takes is not seen in
    time. The driver cannot move memory of MIG devices."""
    return (
        rules.on
        and not gpu.is_mig
        and gpu.free_bytes is not None
        and gpu.total_bytes is not None
        and gpu.free_bytes < 2 * rules.room(gpu.total_bytes)
    )


def plan_arrivals(
    rules: ArrivalRules,
    terms: ParkTerms,
    situation: ParkSituation,
    newcomers: Iterable[Newcomer],
    memory: Mapping[str, GpuMemory],
    spent: BudgetsSpent = _NOTHING_SPENT,
) -> ArrivalPlan:
    """`situation` is without the needs of newcomers. Its programs include those that went on, once NVML lists them."""
    ordered = sorted(newcomers, key=lambda newcomer: (newcomer.since_s, newcomer.process))
    promised = _promised_bytes(rules, situation, ordered, memory)
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
            spared=newcomer.siblings | _spared_programs(situation, newcomer.owner, spent),
            of_background=newcomer.is_background,
        )
        why = _why_goes_on(rules, terms, situation, newcomer, need)
        if why is None:
            needs.append(need)
        else:
            go_on[newcomer.process] = why
        taken[newcomer.device] += room
    needs += _young_needs(rules, situation, taken, memory, spent)
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
    without_budget = need._replace(spared=newcomer.siblings)
    return GoesOn.BUDGET if can_make_room(terms, situation, without_budget) else GoesOn.NOTHING_IDLE


def _spared_programs(situation: ParkSituation, owner: str, spent: BudgetsSpent) -> frozenset[str]:
    """The programs that make no room for newcomers of this owner any more."""
    return frozenset(
        program.key
        for program in situation.resident
        if not program.is_background and not spent.allow(program.owner, owner)
    )


def _is_moving(programs: Sequence[PlannedProgram], device: str) -> bool:
    return any(program.stage is ParkStage.PARKING and device in program.memory for program in programs)


def _promised_bytes(
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
    rules: ArrivalRules,
    situation: ParkSituation,
    taken: Mapping[str, int],
    memory: Mapping[str, GpuMemory],
    spent: BudgetsSpent,
) -> Iterator[RoomNeed]:
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
                spared=_spared_programs(situation, program.owner, spent) | {program.key},
                of_background=program.is_background,
            )


def _total(memory: Mapping[str, GpuMemory], device: str) -> int:
    gpu = memory.get(device)
    return 0 if gpu is None else gpu.total_bytes or 0
