"""Parking in the scheduler's thread: looks, asks the planner, and has its plan carried out. It decides nothing.

A parked program takes no part in turns: the policy does not know it. The pauser's record outlives the agent; what an
earlier agent, or an earlier pauser, left parked is brought back one after another.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from gpucommons.config.scheduler import OFF, ParkingSettings, parse_room
from gpucommons.model.sharing import ARRIVAL, ASKED, BACKGROUND, IDLE, SUSPENDED, TURN, ParkingReading
from gpucommons.model.words import SharingClass
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.protocol import Notice
from gpucommons.pauser.release import RESERVE_BYTES
from gpucommons.scheduler.parking.arrivals import (
    ArrivalRules,
    ArrivalWaits,
    GpuMemory,
    is_arrival,
    is_full,
    plan_arrivals,
    short_devices,
    with_arrivals,
    young_program,
)
from gpucommons.scheduler.parking.host import THIS_HOST, ParkHost
from gpucommons.scheduler.parking.idleness import ParkedCpu, ThreadTimes, after_look
from gpucommons.scheduler.parking.moves import (
    EndTurns,
    ParkLog,
    ProgramMover,
    ProgramMoves,
    RecordSync,
    RoomReader,
    Rooms,
)
from gpucommons.scheduler.parking.newcomers import NewcomerLookup, Newcomers, describe_newcomer
from gpucommons.scheduler.parking.plan import expected_rooms, plan
from gpucommons.scheduler.parking.programs import (
    NEVER_S,
    ParkedProgram,
    ParkedPrograms,
    ResidentProgram,
    ResidentPrograms,
    parked_of,
)
from gpucommons.scheduler.parking.sleep_calls import SleepCalls
from gpucommons.scheduler.parking.suspended import BatchSystem, SuspendedJobs
from gpucommons.scheduler.parking.turns import attained_seconds
from gpucommons.scheduler.parking.values import (
    DeviceRoom,
    ParkPlan,
    ParkRefusal,
    ParkSituation,
    ParkStage,
    ParkTerms,
    RoomClaims,
    WhyNot,
)
from gpucommons.scheduler.programs.exemptions import Exemption
from gpucommons.scheduler.programs.jobs import Program, ProgramReading
from gpucommons.scheduler.programs.matching import ProgramRule

# What people and the agent itself order: park this program, bring that one back. It moves nothing.
#
# An order marks the programs that it reaches; the planner decides when they move.

Row = TypeVar("Row")


class ParkOrder(NamedTuple):
    """The answer to an order: the names of the programs that it reaches, and why others are refused."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    refused: tuple[str, ...]


_ALREADY: Final[Mapping[ParkStage, str]] = {
    ParkStage.PARKING: "{} is being parked already",
    ParkStage.PARKED: "{} is already parked",
    ParkStage.WAKING: "{} is being brought back: park it when that has ended",
    ParkStage.STRANDED: "{} cannot be parked: the driver could not restore it; end the process",
}


class ParkOrders:
    """`on_order` is called after each order, so that it is planned at once."""

    def __init__(
        self,
        resident: ResidentPrograms,
        parked: ParkedPrograms,
        park_log: ParkLog,
        pauser: Pauser,
        on_order: Callable[[], None],
    ) -> None:
        self._resident = resident
        self._parked = parked
        self._log = park_log
        self._pauser = pauser
        self._on_order = on_order

    def park(self, target: str, uid: int | None) -> ParkOrder:
        """`uid` is that of the person who asks; None: an admin. ValueError: no such program, or not theirs."""
        matches = [resident for resident in self._resident if target in resident.names]
        already = [program for program in self._parked if target in program.names]
        if already and not matches:
            allowed = _of_user(target, uid, [(program.uid, program) for program in already])
            return ParkOrder((), (), tuple(_ALREADY[program.stage].format(program.name) for program in allowed))
        return self._ask(_of_user(target, uid, [(resident.program.uid, resident) for resident in matches]))

    def park_processes(self, pids: AbstractSet[int]) -> ParkOrder:
        """The programs of these processes, for the agent itself. Nothing is reached if none of them is a program."""
        return self._ask([resident for resident in self._resident if not pids.isdisjoint(resident.pids)])

    def _ask(self, allowed: Sequence[ResidentProgram]) -> ParkOrder:
        refused = []
        for resident in allowed:
            self._resident.try_again(resident.program)
            refusal = self._resident.obstacle(resident, self._parked.keys, monotonic()) or self._unavailable()
            if refusal is not None:
                self._log.log_refused_program(resident.program, refusal)
                refused.append(f"{resident.program.display_name}: {refusal.sentence}")
            else:
                resident.asked = True
        reached = [resident.program for resident in allowed if resident.asked]
        self._on_order()
        return ParkOrder(tuple(p.key for p in reached), tuple(p.display_name for p in reached), tuple(refused))

    def _unavailable(self) -> ParkRefusal | None:
        reason = self._pauser.reason
        return ParkRefusal(WhyNot.UNAVAILABLE, reason) if reason else None

    def wake(self, target: str, uid: int | None) -> ParkOrder:
        """As `park`."""
        named = [program for program in self._parked if target in program.names]
        allowed = _of_user(target, uid, [(program.uid, program) for program in named])
        refused, reached = [], []
        for program in allowed:
            if program.stage is ParkStage.STRANDED:
                refused.append(f"{program.name}: the driver could not restore it; end the process")
            elif stopped := program.why_stopped():
                refused.append(f"{program.name}: {stopped}; continue it first")
            else:
                program.retry_s = 0.0
                program.go_on(monotonic())
                reached.append(program)
        self._on_order()
        return ParkOrder(tuple(s.key for s in reached), tuple(s.name for s in reached), tuple(refused))


def _of_user(target: str, uid: int | None, matches: Sequence[tuple[int | None, Row]]) -> list[Row]:
    if not matches:
        raise ValueError(f"no such program {target!r}: see 'gpucommons scheduler status' and 'gpucommons parked'")
    rows = [row for owner, row in matches if uid is None or owner == uid]
    if not rows:
        raise ValueError(f"{target} is refused: it is another user's program")
    return rows


# Looks at what programs do on the CPU: whether one that may be idle is, and whether a parked one goes on.

_CANDIDATE_LOOK_S: Final = 1.0
# Where programs are parked only to make room for new ones, they are looked at less often: nothing depends on a second.
_RARE_LOOK_S: Final = 10.0
_LOOKS_ELSEWHERE: Final = 2


class _Look(NamedTuple):
    """The CPU times of a program, and where it sleeps; None: not known."""

    threads: ThreadTimes | None
    place: tuple[int, ...] | None


class ParkLooks:
    """`every_s`: how often programs on the GPU are looked at, to find those that are idle."""

    def __init__(self, resident: ResidentPrograms, parked: ParkedPrograms, host: ParkHost, every_s: float) -> None:
        self._resident = resident
        self._parked = parked
        self._host = host
        self._every_s = every_s
        self._looked_s = 0.0

    async def look(self) -> None:
        """At the CPU time of parked programs, and once a second of programs whose GPU is idle.

        A program may have hundreds of threads: they are read in another thread, so that no hand-off waits.
        """
        parked = [
            program
            for program in self._parked
            # A suspended job goes on when it is continued, not when it uses the CPU; one of class background works.
            if program.stage is ParkStage.PARKED
            and program.cause not in (SUSPENDED, BACKGROUND)
            and (program.wakes_since_s is None or not program.touched)
        ]
        idle = self._idle(monotonic())
        if not parked and not idle:
            return
        pids = {program.key: program.pids for program in parked} | {resident.key: resident.pids for resident in idle}
        looks = await asyncio.to_thread(self._looks, pids)
        now = monotonic()
        for program in parked:
            if program.stage is ParkStage.PARKED and self._parked.get(program.key) is program:
                look = looks[program.key]
                program.cpu, goes_on = after_look(program.cpu, look.threads, now)
                if goes_on or _has_gone_on(program, look):
                    program.go_on(now)
        for before in idle:
            # A reading that came meanwhile may have shown it active, or that it has ended.
            resident = self._resident.get(before.key)
            if resident is not None and resident.idleness.gpu_s is not None:
                look = looks[resident.key]
                resident.look(look.threads, look.place, now)

    def _idle(self, now_s: float) -> Sequence[ResidentProgram]:
        if now_s - self._looked_s < self._every_s:
            return ()
        self._looked_s = now_s
        return [resident for resident in self._resident if resident.may_be_idle]

    def _looks(self, pids: Mapping[str, Sequence[int]]) -> Mapping[str, _Look]:
        host = self._host
        return {key: _Look(host.thread_seconds(several), host.waits_in(several)) for key, several in pids.items()}


def _has_gone_on(program: ParkedProgram, look: _Look) -> bool:
    """Whether it sleeps elsewhere than while it was idle, at two looks in a row: inside a CUDA call.

    This also shows a cell that was run while the memory moved, and one that uses hardly any CPU time.
    """
    if program.waited_in is None or look.place is None:
        return False
    program.looks_elsewhere = program.looks_elsewhere + 1 if look.place != program.waited_in else 0
    return program.looks_elsewhere >= _LOOKS_ELSEWHERE


def _look_every_s(settings: ParkingSettings, arrivals: ArrivalRules) -> float:
    if settings.idle_after_s > 0:
        return _CANDIDATE_LOOK_S
    return max(_CANDIDATE_LOOK_S, min(_RARE_LOOK_S, arrivals.idle_after_s / 4)) if arrivals.on else NEVER_S


log = logging.getLogger(__name__)

Claims = Callable[[], RoomClaims]
ClassOf = Callable[[Program], SharingClass]

_LOOK_S: Final = 0.25
# How long the agent waits at its end for a move under way, which cannot be cancelled.
_STOP_WITHIN_S: Final = 20.0


class Parking:
    """Call everything from the scheduler's loop.

    `end_turns` takes a program out of turns and returns once it runs; `claims` are the leases and clients that wait for
    room; `backend` is how the pauser pauses. `rules` leave programs alone; `own_uid`: only this user's programs are
    held until they have room. With `batch`, the memory of jobs that it suspends is parked. `class_of` knows the class
    of any program, and `lookup` what no reading says yet of a new one.
    """

    def __init__(
        self,
        settings: ParkingSettings,
        pauser: Pauser,
        rooms: RoomReader,
        end_turns: EndTurns,
        claims: Claims,
        backend: str = "cuda",
        host: ParkHost = THIS_HOST,
        rules: Sequence[ProgramRule] = (),
        own_uid: int | None = None,
        batch: BatchSystem | None = None,
        class_of: ClassOf = lambda program: SharingClass.BATCH,
        lookup: NewcomerLookup = lambda process, command_line: None,
    ) -> None:
        self._class_of = class_of
        self._terms = ParkTerms(
            settings.idle_after_s,
            settings.eager,
            settings.oversubscribe,
            settings.host_reserve_percent,
            settings.min_residence_s,
            RESERVE_BYTES,
        )
        self._pauser = pauser
        self._claims = claims
        self._host = host
        self._wake_up = asyncio.Event()
        # Simulated programs open no device files.
        room_bytes, room_ratio = parse_room(settings.arrival_room if pauser.has_record else OFF)
        self._arrival_rules = ArrivalRules(
            room_bytes,
            room_ratio,
            settings.arrival_wait_s,
            settings.arrival_idle_after_s,
            settings.settle_s,
            settings.arrival_budget_s,
        )
        self._arrival_waits = ArrivalWaits()
        self._resident = ResidentPrograms(
            settings.idle_after_s,
            backend == "cuda",
            host,
            settings.oversubscribe,
            settings.arrival_idle_after_s if self._arrival_rules.on else NEVER_S,
        )
        self._parked = ParkedPrograms(host)
        self._rooms = Rooms(rooms)
        self._looks = ParkLooks(self._resident, self._parked, host, _look_every_s(settings, self._arrival_rules))
        self._record = RecordSync(pauser, self._parked, self._fullest_gpu)
        self.log = ParkLog()
        self.orders = ParkOrders(self._resident, self._parked, self.log, pauser, on_order=self._wake_up.set)
        self.newcomers = Newcomers(pauser, rules, self.log, self._wake_up.set, own_uid, class_of, lookup)
        # The memory of the GPUs by the last reading, and whether it was looked at since.
        self._memory: Mapping[str, GpuMemory] = {}
        self._memory_is_new = False
        self._short: frozenset[str] = frozenset()
        self._suspended = None if batch is None else SuspendedJobs(batch, pauser, self._resident, self._parked, host)
        self._moves = ProgramMoves(
            ProgramMover(pauser),
            self._resident,
            self._parked,
            self._rooms,
            self.log,
            host,
            end_turns,
            on_end=self._wake_up.set,
            suspended=self._suspended,
            host_reserve_percent=settings.host_reserve_percent,
            sleep=SleepCalls(rules),
        )
        # The requests for leases whose room is expected, and when.
        self._expected_s: Mapping[str, float] = {}
        # That of the last step; None: nothing waited then.
        self._before: ParkSituation | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Waits for a move under way, up to a limit. What is parked stays in the record for the next start."""
        self._stopping = True
        if self._moves.under_way and self._pauser.has_record:
            log.info("parking: waiting for %d moves of GPU memory", self._moves.under_way)
            await self._moves.wait(_STOP_WITHIN_S)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        left = sum(program.stage is not ParkStage.STRANDED for program in self._parked)
        if left and self._pauser.has_record:
            log.warning("parking: %d programs stay parked until the next start; or run: gpucommons resume --all", left)

    # Input

    def without_parked(self, reading: ProgramReading) -> ProgramReading:
        """The reading without the processes that are parked, on their way or held until they have room: they take no
        turns."""
        held = self.newcomers.processes
        if held:
            reading = replace(
                reading, processes=tuple(process for process in reading.processes if process.key not in held)
            )
        return self._parked.without_parked(reading)

    def see_memory(self, memory: Mapping[str, GpuMemory]) -> None:
        """The memory of all GPUs, by UUID."""
        self._memory, self._memory_is_new = memory, True

    def hear(self, notice: Notice) -> None:
        """What the pauser reports of a program that has just started."""
        self.newcomers.hear(notice, self._resident)

    def see(
        self,
        programs: Iterable[Program],
        exempt: Sequence[Exemption],
        paused: AbstractSet[str],
        in_turns: AbstractSet[str],
        as_of_s: float,
        classes: Mapping[str, SharingClass] | None = None,
    ) -> None:
        """One reading: programs that take part and that do not, the keys of those that are paused and that take turns,
        and the classes of programs."""
        self._resident.see(programs, exempt, paused, in_turns, self._parked.processes, as_of_s, classes or {})

    # Output

    def reading(self) -> ParkingReading:
        now = monotonic()
        return ParkingReading(
            self._terms.idle_after_s,
            self._terms.eager,
            self._pauser.reason,
            tuple(program.reading(now) for program in self._parked),
            tuple(self.log.events),
            self.log.parks,
            self.log.wakes,
            dict(self.log.refusals),
            {id: time.time() + at_s - now for id, at_s in self._expected_s.items()},
            tuple(self.newcomers.readings()),
            self.newcomers.waited,
            self.newcomers.waited_s,
            () if self._suspended is None else self._suspended.kept_readings(),
        )

    # The loop

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wake_up.wait()
            self._wake_up.clear()
            try:
                await self._step()
            except Exception:
                log.exception("parking: an unexpected error; it is tried again")
                await asyncio.sleep(1)

    async def _step(self) -> None:
        if not self._pauser.available or self._stopping:
            return
        if self._record.is_due:
            await self._record.sync()
        self._parked.forget_ended()
        await self._looks.look()
        await self._watch_arrivals()
        if self._suspended is not None:
            await self._suspended.look()
        if not self._has_work():
            self._expected_s, self._before = {}, None
            self._arrival_waits.see((), monotonic())
            return
        # Before the rooms: what a lease takes in between is counted twice, never not at all.
        claims, since_s = self._claims(), monotonic()
        rooms = await self._rooms.read(self._devices(), since_s)
        if self._stopping:
            return
        situation = self._situation(rooms, claims)
        self._arrival_waits.see(situation.programs, situation.now_s)
        spent = self._arrival_waits.budgets_spent(self._arrival_rules.budget_s, situation.now_s)
        arrivals = plan_arrivals(
            self._arrival_rules, self._terms, situation, self.newcomers.newcomers, self._memory, spent
        )
        self._before = situation = with_arrivals(situation, arrivals)
        self._carry_out(plan(self._terms, situation))
        self.newcomers.carry_out(arrivals)
        self._expect(expected_rooms(self._terms, situation))

    def _fullest_gpu(self) -> str:
        free_memory = [(gpu.free_bytes, device) for device, gpu in self._memory.items() if gpu.free_bytes is not None]
        return min(free_memory, default=(0, ""))[1]

    async def _watch_arrivals(self) -> None:
        """Newcomers are held on GPUs that are short of room, where others could make room, and nowhere else."""
        if not self._memory_is_new or not self._arrival_rules.on:
            return
        self._memory_is_new, now = False, monotonic()
        rules, memory = self._arrival_rules, self._memory
        full = {
            device: DeviceRoom(gpu.free_bytes, now)
            for device, gpu in memory.items()
            if gpu.free_bytes is not None and is_full(rules, gpu)
        }
        short = short_devices(rules, self._terms, self._situation(full, RoomClaims()), memory) if full else frozenset()
        self._short = short
        await self.newcomers.watch(short, memory)

    def _has_work(self) -> bool:
        if self.newcomers.processes or (self._short and self._resident.has_young(monotonic())):
            return True
        if any(resident.asked for resident in self._resident) or any(
            program.wakes_since_s is not None for program in self._parked
        ):
            return True
        now = monotonic()
        idle = any(self._resident.is_idle(resident, now) for resident in self._resident)
        yields = idle or self._terms.oversubscribe or any(map(self._resident.is_background, self._resident))
        return (idle and self._terms.eager) or (yields and bool(self._claims().needs))

    def _devices(self) -> AbstractSet[str]:
        return self._parked.devices | {device for resident in self._resident for device in resident.program.devices}

    def _situation(self, rooms: Mapping[str, DeviceRoom], claims: RoomClaims) -> ParkSituation:
        now = monotonic()
        held = self.newcomers.processes
        # Those that begin may be in the last reading with their context.
        resident = [row for row in self._resident.for_plan(self._parked.keys, now) if held.isdisjoint(row.processes)]
        parked = [program.for_plan(now, is_background=self._is_background(program)) for program in self._parked]
        situation = ParkSituation((*resident, *parked), rooms, self._host.host_memory(), claims, now)
        return replace(situation, attained_s=attained_seconds(self._before, situation))

    def _carry_out(self, plan: ParkPlan) -> None:
        for key, refusal in plan.refused.items():
            refused = self._resident[key]
            refused.asked = False
            self.log.log_refused_program(refused.program, refusal)
            if self._suspended is not None and refused.suspended:
                memory = sum(use.memory_bytes or 0 for use in refused.program.uses.values())
                self._suspended.keeps(key, refusal, memory, refused.program.devices)
        for key, sentence in plan.waits.items():
            self._parked[key].waits = sentence
        for program in self._parked:
            if program.stage is not ParkStage.WAKING:
                program.comes_after = plan.claims.get(program.key)
        for key in plan.wake:
            self._moves.wake(self._parked[key])
        for key in plan.park:
            self._moves.park(self._begin_parking(self._resident.pop(key), plan.made_for.get(key, "")))

    def _expect(self, rooms_s: Mapping[str, float]) -> None:
        for program in self._parked:
            if program.stage is ParkStage.PARKED:
                program.expected_s = rooms_s.get(program.key)
        self._expected_s = {id: at_s for id, at_s in rooms_s.items() if id not in self._parked.keys}

    def _begin_parking(self, parting: ResidentProgram, made_for: str) -> ParkedProgram:
        cause = self._cause(parting, made_for)
        # An idle program has been quiet for long: its next use of the CPU counts, however soon it comes.
        was_idle = cause in (IDLE, ARRIVAL)
        cpu = ParkedCpu(
            parting.idleness.background,
            quiet_since_s=-NEVER_S if was_idle else None,
            idle_threads=parting.idleness.known_threads,
        )
        program = parked_of(parting.program, cause, cpu, monotonic(), time.time(), self._host)
        program.waited_in = parting.waits_in if was_idle else None
        program.made_for = made_for
        if is_arrival(made_for):
            # A new program is held, or young: then it is on its GPU.
            young = self._resident.get(young_program(made_for))
            if young is None:
                program.made_for_program = self.newcomers.describe(made_for)
                program.moved_for = self.newcomers.owner_of_need(made_for)
            else:
                program.made_for_program = describe_newcomer(young.program)
                program.moved_for = young.program.counts_for
        self.newcomers.credit(made_for, program)
        return program

    def _is_background(self, parked: ParkedProgram) -> bool:
        """Its class may change while it is parked."""
        return parked.program is not None and self._class_of(parked.program) is SharingClass.BACKGROUND

    def _cause(self, parting: ResidentProgram, made_for: str) -> str:
        if parting.suspended:
            return SUSPENDED
        if parting.asked:
            return ASKED
        now, is_background = monotonic(), self._resident.is_background(parting)
        idle_s = parting.idleness.idle_s(now)
        if is_arrival(made_for) and (not is_background or idle_s >= self._arrival_rules.idle_after_s):
            return ARRIVAL
        if self._resident.is_idle(parting, now):
            return IDLE
        waiting = self._parked.get(made_for)
        is_for_background = waiting is not None and self._is_background(waiting)
        return BACKGROUND if is_background and not is_for_background else TURN
