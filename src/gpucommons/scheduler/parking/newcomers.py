"""The programs that wait for room before their first allocation, and those that went on lately. It decides nothing.

The pauser notices and holds them (pauser/arrivals.py), the planner decides which go on (arrivals.py). They are held as
any program is paused: the record names them before the lock, and the pauser resumes them when the agent is gone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from gpucommons.base.peers import look_at, owner_of
from gpucommons.base.text import printable
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import BACKGROUND, ArrivalReading, ParkedFor, ParkEvent
from gpucommons.model.words import SharingClass
from gpucommons.pauser.arrivals import ArrivalTerms
from gpucommons.pauser.backend import Code
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.protocol import Notice, NoticeKind, Reply
from gpucommons.pauser.release import has_ended
from gpucommons.rules.wait_reasons import arrival_sentence
from gpucommons.scheduler.parking.arrivals import ArrivalPlan, GoesOn, GpuMemory, Newcomer
from gpucommons.scheduler.parking.host import job_marks, newcomer_facts
from gpucommons.scheduler.parking.moves import ParkLog
from gpucommons.scheduler.parking.programs import ParkedProgram, ResidentProgram, ResidentPrograms, program_of_process
from gpucommons.scheduler.parking.values import ParkStage
from gpucommons.scheduler.programs.exemptions import is_labelled_alone
from gpucommons.scheduler.programs.jobs import GpuUser, Program
from gpucommons.scheduler.programs.matching import ProgramRule, exempting_rule

log = logging.getLogger(__name__)

# What the agent knows of a process with this command line that no reading has listed yet; None: nothing.
NewcomerLookup = Callable[[ProcessKey, tuple[str, ...]], GpuUser | None]

# How long it is shown that a program waited.
_SHOWN_S: Final = 3600.0
_MAX_SHOWN: Final = 64


@dataclass(slots=True)
class _Arrival:
    """`chosen` is what is to be parked for it, with how others read of it. `kept_s` is when the pauser was last
    asked to keep it."""

    newcomer: Newcomer
    program: Program
    since_wall_s: float
    kept_s: float
    chosen: list[tuple[ParkedProgram, ParkedFor]] = field(default_factory=list)
    why: GoesOn | None = None

    @property
    def is_held(self) -> bool:
        return self.newcomer.went_on_s is None

    @property
    def is_shown(self) -> bool:
        """One that was let go at once, because nothing could be parked, did not notice."""
        return self.is_held or bool(self.parked) or self.why is GoesOn.BUDGET

    @property
    def parked(self) -> tuple[ParkedFor, ...]:
        """What was parked for it. Some of what was chosen may not have been possible. Where it has its room, the memory
        of a program whose move has not been reported yet has left the GPU."""
        has_room = self.why is GoesOn.ROOM
        return tuple(
            row
            for program, row in self.chosen
            if program.was_moved or (has_room and program.stage is ParkStage.PARKING)
        )

    def reading(self, now_s: float) -> ArrivalReading:
        end_s = now_s if self.newcomer.went_on_s is None else self.newcomer.went_on_s
        return ArrivalReading(
            self.newcomer.id,
            self.program.display_name,
            printable(self.program.user),
            self.program.uid,
            self.newcomer.process.pid,
            self.newcomer.device,
            self.is_held,
            self.since_wall_s,
            end_s - self.newcomer.since_s,
            self.parked,
            "" if self.why is None else self.why.value,
        )


class Newcomers:
    """Call everything from the scheduler's loop. `on_arrival` is called for each newcomer: it is planned at once.

    `own_uid`: only this user's programs are held; None: all. `class_of` and `lookup` are those of Parking.
    """

    def __init__(
        self,
        pauser: Pauser,
        rules: Sequence[ProgramRule],
        park_log: ParkLog,
        on_arrival: Callable[[], None],
        own_uid: int | None,
        class_of: Callable[[Program], SharingClass],
        lookup: NewcomerLookup,
    ) -> None:
        self._class_of = class_of
        self._lookup = lookup
        self._pauser = pauser
        self._rules = rules
        self._log = park_log
        self._on_arrival = on_arrival
        self._own_uid = own_uid
        self._arrivals: dict[ProcessKey, _Arrival] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        # What the pauser watches, and which one; None: it has not been asked.
        self._watched: tuple[int | None, ArrivalTerms | None] = None, None
        # The names of users by uid, as the agent last read them.
        self.user_names: Mapping[int, str] = {}
        self.waited = 0
        self.waited_s = 0.0

    # What the pauser reports

    def hear(self, notice: Notice, resident: ResidentPrograms) -> None:
        """A newcomer is held, or was resumed by the pauser itself."""
        arrival = self._arrivals.get(notice.process)
        if notice.kind is NoticeKind.RESUMED:
            if arrival is not None and arrival.is_held:
                self._let_go_on(arrival, GoesOn.WAITED, monotonic())
            return
        if notice.kind is not NoticeKind.ARRIVED:
            return
        if resident.is_at_work(notice.process, monotonic()) or (arrival is not None and not arrival.is_held):
            # It waited once, or is at work, and opened device files once more.
            self._resume(notice.process)
            return
        facts = newcomer_facts(notice.process.pid)
        found = self._lookup(notice.process, facts.command_line)
        if found is None:
            user = None if facts.uid is None else self.user_names.get(facts.uid)
            program = program_of_process(notice.process, facts, user)
        else:
            program = Program(found.job, (found,))
        if is_labelled_alone(program) or exempting_rule(self._rules, program) is not None:
            self._resume(notice.process)
            return
        siblings = (program for program in resident if _is_sibling(program, facts.marks))
        now = monotonic()
        keys = frozenset(program.key for program in siblings)
        owner = "" if facts.uid is None else owner_of(facts.uid, look_at(notice.process.pid))
        is_background = self._class_of(program) is SharingClass.BACKGROUND
        newcomer = Newcomer(notice.process, notice.reason, now, keys, owner=owner, is_background=is_background)
        self._arrivals[notice.process] = _Arrival(newcomer, program, time.time(), now)
        log.info("parking: %s waits for room on its GPU", program.display_name)
        self._on_arrival()

    def pauser_changed(self) -> None:
        """The watchdog of a pauser that is lost resumes what it had paused."""
        if not self._pauser.available:
            for arrival in self._held_arrivals():
                self._let_go_on(arrival, GoesOn.UNKNOWN, monotonic())

    # For the planner

    @property
    def processes(self) -> AbstractSet[ProcessKey]:
        """Those that are held: they take no turns."""
        return {arrival.newcomer.process for arrival in self._held_arrivals()}

    @property
    def newcomers(self) -> list[Newcomer]:
        """One that has ended does not need the room that it was given."""
        there = (arrival.newcomer for arrival in self._arrivals.values())
        return [one for one in there if one.went_on_s is None or not has_ended(one.process)]

    def _held_arrivals(self) -> list[_Arrival]:
        return [arrival for arrival in self._arrivals.values() if arrival.is_held]

    async def watch(self, short: AbstractSet[str], memory: Mapping[str, GpuMemory]) -> None:
        """Have the pauser hold newcomers on these GPUs, and on no others."""
        gpus = {gpu.number: device for device, gpu in memory.items() if gpu.number is not None}
        numbers = frozenset(number for number, device in gpus.items() if device in short)
        full = frozenset(number for number in numbers if not memory[gpus[number]].fits_context)
        terms = ArrivalTerms(gpus, numbers, self._own_uid, full) if numbers else None
        target = self._pauser.pid, terms
        if target == self._watched or (terms is None and self._watched[1] is None):
            return
        if (await self._pauser.watch_arrivals(terms)).failure is None:
            self._watched = target
            names = ", ".join(f"nvidia{number}" for number in sorted(numbers))
            log.info("parking: %s", f"new programs wait for room on {names}" if names else "every GPU has room")

    # Carrying out

    def carry_out(self, plan: ArrivalPlan) -> None:
        now = monotonic()
        for process, why in plan.go_on.items():
            arrival = self._arrivals.get(process)
            if arrival is not None and arrival.is_held:
                self._resume(process)
                self._let_go_on(arrival, why, now)
        for arrival in self._held_arrivals():
            if has_ended(arrival.newcomer.process):
                del self._arrivals[arrival.newcomer.process]
            elif now - arrival.kept_s >= self._pauser.max_pause_s / 4:
                arrival.kept_s = now
                self._start(self._keep(arrival))
        self._forget(now)

    def credit(self, need_id: str, parked: ParkedProgram) -> None:
        """This program is parked for the newcomer of this need."""
        for arrival in self._arrivals.values():
            if arrival.newcomer.id == need_id:
                was_idle = parked.cause != BACKGROUND
                row = ParkedFor(parked.label, parked.user, parked.uid, parked.bytes, was_idle)
                arrival.chosen.append((parked, row))

    def describe(self, need_id: str) -> ParkedFor | None:
        """The newcomer of this need, for the owner of what was parked for it."""
        programs = (arrival.program for arrival in self._arrivals.values() if arrival.newcomer.id == need_id)
        return next(map(describe_newcomer, programs), None)

    def owner_of_need(self, need_id: str) -> str:
        """Whose newcomer this need is of; empty: of none."""
        return next((newcomer.owner for newcomer in self.newcomers if newcomer.id == need_id), "")

    def readings(self) -> Iterator[ArrivalReading]:
        now = monotonic()
        return (arrival.reading(now) for arrival in self._arrivals.values() if arrival.is_shown)

    async def _keep(self, arrival: _Arrival) -> None:
        reply = await self._pauser.keep(arrival.newcomer.process)
        if reply.failure is not None and reply.failure.code in (Code.NOT_PAUSED, Code.BUSY) and arrival.is_held:
            self._let_go_on(arrival, GoesOn.UNKNOWN, monotonic())

    def _resume(self, process: ProcessKey) -> None:
        self._start(self._pauser.resume({process}, process))

    def _start(self, work: "Coroutine[None, None, Reply | None]") -> None:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _let_go_on(self, arrival: _Arrival, why: GoesOn, now_s: float) -> None:
        arrival.newcomer = arrival.newcomer._replace(went_on_s=now_s)
        arrival.why = why
        reading = arrival.reading(now_s)
        log.info("parking: %s goes on after %.1f s: %s", reading.name, reading.waited_s, why.value)
        if not reading.parked:
            return
        self.waited += 1
        self.waited_s += reading.waited_s
        self._log.events.append(
            ParkEvent(
                f"{time.time():.3f}/waited/{reading.key}",
                "waited",
                time.time(),
                arrival.program.key,
                reading.name,
                reading.user,
                reading.uid,
                reading.gpu_uuid,
                sum(parked.bytes for parked in reading.parked),
                reading.waited_s,
                arrival_sentence(_for_events(reading)),
            )
        )

    def _forget(self, now_s: float) -> None:
        """Those that have ended, or went on long ago."""
        gone = [
            process
            for process, arrival in self._arrivals.items()
            if arrival.newcomer.went_on_s is not None
            and (now_s - arrival.newcomer.went_on_s > _SHOWN_S or has_ended(process))
        ]
        gone += list(self._arrivals)[: max(0, len(self._arrivals) - len(gone) - _MAX_SHOWN)]
        for process in gone:
            if not self._arrivals[process].is_held:
                self._arrivals.pop(process, None)


def describe_newcomer(program: Program) -> ParkedFor:
    """For the owner of what is parked for it."""
    return ParkedFor(program.command or "program", printable(program.user), program.uid, 0)


def _is_sibling(program: ResidentProgram, marks: frozenset[str]) -> bool:
    """Whether a newcomer with these marks belongs to the job of the program. Where that job is a POSIX session, the
    cgroup says nothing: unrelated programs share it."""
    if program.key.startswith(("session:", "process:")):
        marks = frozenset(mark for mark in marks if mark.startswith("session:"))
    return any(not marks.isdisjoint(job_marks(pid)) for pid in program.pids)


def _for_events(reading: ArrivalReading) -> ArrivalReading:
    return reading._replace(parked=tuple(parked.in_events_of(reading.uid) for parked in reading.parked))
