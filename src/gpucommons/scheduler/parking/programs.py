"""The programs of parking: those whose memory is on the GPU, and those that are parked or on their way.

State without decisions. A program of the first kind has an idle time and perhaps a reason why it cannot be parked;
one of the second kind has a stage. The planner decides which program changes from one kind to the other.
"""

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gpucommons.base.periods import spoken_age
from gpucommons.base.processes import ancestors_from
from gpucommons.base.text import printable
from gpucommons.model.names import process_name
from gpucommons.model.ownership import Workload
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.sharing import BACKGROUND, EARLIER_AGENT, TURN, ParkedFor, ParkedReading
from gpucommons.model.words import SharingClass
from gpucommons.pauser.protocol import Paused
from gpucommons.pauser.stopped import STOPPED
from gpucommons.scheduler.parking.host import THIS_HOST, NewcomerFacts, ParkHost
from gpucommons.scheduler.parking.idleness import Idleness, ParkedCpu, ThreadTimes, after_cpu, after_gpu
from gpucommons.scheduler.parking.values import ParkRefusal, ParkStage, PlannedProgram, WhyNot
from gpucommons.scheduler.programs.exemptions import Exempt, Exemption
from gpucommons.scheduler.programs.jobs import GpuUser, Program, ProgramActivity, ProgramReading
from gpucommons.scheduler.programs.matching import names

# One program that is parked, or on its way to host memory or back. Plain state without decisions.

_MOVING: Final = frozenset({ParkStage.PARKING, ParkStage.WAKING})


class ProcessMemory(NamedTuple):
    """Where a process of a program is, and how much memory it holds there."""

    device: str
    bytes: int


Places = Mapping[ProcessKey, ProcessMemory]


@dataclass(slots=True)
class ParkedProgram:
    """One program. `program` is None where an earlier agent parked it: only its processes are known then.

    `settled_s` is when its stage began, `since_wall_s` when it was last on the GPU. `retry_s`: not to be brought back
    before. `waited_in` is where it slept while it was idle; None: not known. `looks_elsewhere` counts looks in a row at
    which it slept elsewhere. `expected_s` is when it will be back; None: not known. `made_for` is the need for which it
    made room; empty: none. `comes_after` are the requests from which its room is not kept; None: it is kept from none.
    `made_for_program` is the new program of that need. `touched`: its user uses it or asked for it. `was_moved`: its
    memory was in host memory. `moved_for` is the owner of the new program for which it is parked; empty: none.
    `ancestors` are those of one that an earlier agent parked. `unsure`: the pauser ended during a move, and the next
    one knows what came of it.
    """

    key: str
    name: str
    places: Places
    stage: ParkStage
    settled_s: float
    since_wall_s: float
    cause: str
    program: Program | None = None
    user: str = ""
    uid: int | None = None
    cpu: ParkedCpu = field(default_factory=lambda: ParkedCpu(0.0))
    wakes_since_s: float | None = None
    retry_s: float = 0.0
    waited_in: tuple[int, ...] | None = None
    looks_elsewhere: int = 0
    waits: str = ""
    expected_s: float | None = None
    made_for: str = ""
    comes_after: frozenset[str] | None = None
    ancestors: tuple[ProcessKey, ...] = ()
    unsure: bool = False
    touched: bool = False
    was_moved: bool = False
    made_for_program: ParkedFor | None = None
    moved_for: str = ""
    resident_before: int = 0
    nvml_bytes: int | None = None
    host: ParkHost = THIS_HOST

    @property
    def names(self) -> frozenset[str]:
        """By which a person may address it; a bare pid as well."""
        pids = {text for process in self.places for text in (f"pid:{process.pid}", str(process.pid))}
        return frozenset({self.key, *pids}) | (frozenset() if self.program is None else names(self.program))

    @property
    def memory(self) -> Mapping[str, int]:
        bytes_on: dict[str, int] = {}
        for device, amount in self.places.values():
            bytes_on[device] = bytes_on.get(device, 0) + amount
        return bytes_on

    @property
    def bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def owner(self) -> str:
        return f"uid:{self.uid}" if self.program is None else self.program.counts_for

    @property
    def label(self) -> str:
        """Its command, as people know it."""
        return self.name if self.program is None else self.program.command or "program"

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(sorted(process.pid for process in self.places))

    def for_plan(self, now_s: float, *, is_background: bool = False) -> PlannedProgram:
        wakes_since_s = self.wakes_since_s if now_s >= self.retry_s and not self.unsure else None
        if wakes_since_s is not None and self.stage is ParkStage.PARKED and (stopped := self.why_stopped()):
            # The driver could not restore it before it is continued.
            wakes_since_s, self.waits = None, stopped
        return PlannedProgram(
            self.key,
            self.stage,
            self.memory,
            self.settled_s,
            wakes_since_s=wakes_since_s,
            for_turn=self.cause in (TURN, BACKGROUND),
            made_for=self.made_for,
            touched=self.touched,
            is_background=is_background,
            owner=self.owner,
            moved_for=self.moved_for,
        )

    def why_stopped(self) -> str:
        """Why it cannot be brought back now: its user has stopped it."""
        why = self.host.why_stopped(self.pids)
        return f"{STOPPED}: {why}" if why else ""

    def begin(self, stage: ParkStage, now_s: float) -> None:
        self.stage, self.settled_s, self.waits, self.expected_s = stage, now_s, "", None
        # No lease passes a program whose memory is on its way back.
        self.comes_after = frozenset() if stage is ParkStage.WAKING else None
        if stage is ParkStage.PARKING and self.made_for:
            self.comes_after = frozenset({self.made_for})
        self.resident_before = self.host.resident_bytes(self.pids)

    def go_on(self, now_s: float, *, touched: bool = True) -> None:
        """It is to be brought back; the first time counts."""
        self.touched = self.touched or touched
        if self.wakes_since_s is None:
            self.wakes_since_s = now_s

    def keep(self, processes: set[ProcessKey]) -> None:
        """The others are not parked, or have ended."""
        self.places = {process: place for process, place in self.places.items() if process in processes}

    def reading(self, now_s: float) -> ParkedReading:
        done, total = self._moved_bytes(), self.bytes
        passed_s = now_s - self.settled_s
        rate = done / passed_s if self.stage in _MOVING and passed_s > 0 and done else None
        in_host = {ParkStage.PARKING: done, ParkStage.WAKING: total - done}.get(self.stage, total)
        back_in_s = None if self.expected_s is None else max(0.0, self.expected_s - now_s)
        when = "" if not self.waits or back_in_s is None else f"; back in about {spoken_age(back_in_s)}"
        return ParkedReading(
            self.key,
            self.name,
            self.user,
            self.uid,
            self.stage.value,
            next(iter(self.memory), ""),
            self.pids,
            total,
            in_host,
            self.since_wall_s,
            self.cause,
            self.waits + when,
            rate,
            back_in_s if rate is None else (total - done) / rate,
            self.comes_after,
            self.ancestors,
            self.made_for_program,
        )

    def _moved_bytes(self) -> int:
        """By the growth of its host memory, and by NVML; the memory of the process itself may change as well."""
        if self.stage not in _MOVING:
            return 0
        parking = self.stage is ParkStage.PARKING
        grown = self.host.resident_bytes(self.pids) - self.resident_before
        by_nvml = 0 if self.nvml_bytes is None else self.bytes - self.nvml_bytes if parking else self.nvml_bytes
        return max(0, min(self.bytes, max(grown if parking else -grown, by_nvml)))


def parked_of(
    program: Program, cause: str, cpu: ParkedCpu, now_s: float, wall_s: float, host: ParkHost = THIS_HOST
) -> ParkedProgram:
    places: dict[ProcessKey, ProcessMemory] = {}
    for process in program.processes:
        if process.key is not None and process.uses:
            amount = sum(use.memory_bytes or 0 for use in process.uses)
            places[process.key] = ProcessMemory(process.uses[0].device, amount)
    return ParkedProgram(
        program.key,
        program.display_name,
        places,
        ParkStage.PARKING,
        now_s,
        wall_s,
        cause,
        program,
        printable(program.user),
        program.uid,
        cpu,
        host=host,
    )


def adopt_parked(paused: Paused, now_s: float, wall_s: float) -> ParkedProgram:
    """A program that an earlier agent parked, of which only the pauser's record speaks. It is to be brought back."""
    pid = paused.process.pid
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            command = file.read().strip()
    except OSError:
        uid, command = None, ""
    place = ProcessMemory(paused.gpu, paused.memory_bytes or THIS_HOST.resident_bytes([pid]))
    return ParkedProgram(
        f"process:{pid}.{paused.process.start_ticks}",
        process_name("unknown owner" if uid is None else f"uid {uid}", command, {pid}),
        {paused.process: place},
        ParkStage.PARKED,
        now_s,
        wall_s - paused.age_s,
        EARLIER_AGENT,
        uid=uid,
        wakes_since_s=now_s,
        ancestors=tuple(ProcessKey(*key) for key in ancestors_from("/proc", pid)),
    )


def program_of_process(process: ProcessKey, facts: NewcomerFacts, user: str | None = None) -> Program:
    """The process as a program of its own, for names and rules."""
    name = user if user is not None or facts.uid is None else f"uid {facts.uid}"
    workload = Workload(process_name=facts.process_name, uid=facts.uid, user=name)
    context = ProcessContext(command_line=facts.command_line)
    key = f"process:{process.pid}.{process.start_ticks}"
    return Program(key, (GpuUser(process.pid, process, key, (), workload, context=context),))


# The programs whose memory is on the GPU: how long each has been idle, and why one cannot be parked.

NEVER_S: Final = float("inf")
# More are not locked and moved together.
MAX_PROCESSES: Final = 8
# A program that has been on the GPU for less is young.
YOUNG_S: Final = 300.0
# A reading may show a context before the pauser reports the program that makes it.
_BEGINS_WITHIN_S: Final = 3.0
_PLACES: Final = 3
# For so long after its last short turn a program is expected to take turns again: longer than moving another one takes.
_TURNS_AGAIN_S: Final = 120.0


def is_mig_device(device: str) -> bool:
    """Whether it is a part of a GPU: by its UUID, or by the instance of its GPU where that is not listed."""
    return device.startswith("MIG-") or "/" in device


@dataclass(slots=True)
class ResidentProgram:
    """`alone` is why it takes no part. `asked`: a person asked to park it. `suspended`: its batch system stopped it."""

    program: Program
    alone: ParkRefusal | None
    seen_since_s: float
    idleness: Idleness = field(default_factory=Idleness)
    # Where it slept at the last looks.
    places: deque[tuple[int, ...] | None] = field(default_factory=lambda: deque(maxlen=_PLACES))
    in_turns: bool = False
    last_in_turns_s: float = -NEVER_S
    asked: bool = False
    suspended: bool = False

    @property
    def key(self) -> str:
        return self.program.key

    @property
    def waits_in(self) -> tuple[int, ...] | None:
        """None unless it slept in the same place at all of the last looks."""
        places = set(self.places)
        return places.pop() if len(self.places) == _PLACES and len(places) == 1 else None

    @property
    def names(self) -> frozenset[str]:
        """By which a person may address it."""
        pids = (str(process.pid) for process in self.program.processes)
        return names(self.program) | {self.program.display_name, *pids}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(sorted(process.pid for process in self.program.processes))

    @property
    def may_be_idle(self) -> bool:
        """Whether it did not use the GPU lately, so that its CPU time is worth reading."""
        return self.idleness.gpu_s is not None and self.alone is None

    def look(self, threads: ThreadTimes | None, place: tuple[int, ...] | None, now_s: float) -> None:
        self.idleness = after_cpu(self.idleness, threads, now_s)
        self.places.append(place)


class ResidentPrograms:
    """`movable` is false where the pauser cannot move memory. `oversubscribe`: working programs are parked, too."""

    def __init__(
        self,
        idle_after_s: float,
        movable: bool,
        host: ParkHost = THIS_HOST,
        oversubscribe: bool = False,
        arrival_idle_after_s: float = NEVER_S,
    ) -> None:
        self._idle_after_s = idle_after_s
        self._arrival_idle_after_s = arrival_idle_after_s
        # The class of each program, as of the last reading; without one: batch.
        self._classes: Mapping[str, SharingClass] = {}
        # When the first reading came: programs that it shows are not new.
        self._first_s: float | None = None
        self._oversubscribe = oversubscribe
        self._movable = movable
        self._host = host
        self._rows: dict[str, ResidentProgram] = {}
        # Since when each process has GPU memory.
        self._since_s: dict[ProcessKey, float] = {}
        self._displays: set[str] = set()
        # Why processes cannot be parked, and until when; and when they were last brought back.
        self._cannot: dict[ProcessKey, tuple[ParkRefusal, float]] = {}
        self._woken_s: dict[ProcessKey, float] = {}

    def __iter__(self) -> Iterator[ResidentProgram]:
        return iter(self._rows.values())

    def __getitem__(self, key: str) -> ResidentProgram:
        return self._rows[key]

    def get(self, key: str) -> ResidentProgram | None:
        return self._rows.get(key)

    def pop(self, key: str) -> ResidentProgram:
        return self._rows.pop(key)

    def see(
        self,
        programs: Iterable[Program],
        exempt: Sequence[Exemption],
        paused: AbstractSet[str],
        in_turns: AbstractSet[str],
        parked: AbstractSet[ProcessKey],
        as_of_s: float,
        classes: Mapping[str, SharingClass],
    ) -> None:
        """One reading: programs that take part and that do not, the keys of those that are paused, or take turns; the
        processes that are parked; and the classes of programs."""
        self._classes = classes
        if self._first_s is None:
            self._first_s = as_of_s
        alone = {exemption.program.key: ParkRefusal(WhyNot.LEFT_ALONE, exemption.sentence) for exemption in exempt}
        seen = [(program, alone.get(program.key)) for program in programs]
        seen += [(exemption.program, alone[exemption.program.key]) for exemption in exempt]
        before, self._rows = self._rows, {}
        self._displays = {exemption.program.key for exemption in exempt if exemption.why is Exempt.DISPLAY}
        for program, refusal in seen:
            earlier = before.get(program.key)
            resident = self._rows.get(program.key) or ResidentProgram(program, refusal, as_of_s)
            if earlier is not None and earlier.program.process_keys & program.process_keys:
                resident.asked, resident.suspended = earlier.asked, earlier.suspended
                resident.idleness, resident.places = earlier.idleness, earlier.places
                resident.seen_since_s, resident.last_in_turns_s = earlier.seen_since_s, earlier.last_in_turns_s
            resident.in_turns = program.key in in_turns
            if resident.in_turns:
                resident.last_in_turns_s = as_of_s
            idle = program.activity is ProgramActivity.IDLE and program.key not in paused
            resident.idleness = after_gpu(resident.idleness, idle, as_of_s)
            self._rows[program.key] = resident
        with_memory = {process for resident in self for process in resident.program.process_keys}
        self._since_s = {process: self._since_s.get(process, as_of_s) for process in with_memory}
        living = with_memory | parked
        self._cannot = {process: row for process, row in self._cannot.items() if process in living}
        self._woken_s = {process: at_s for process, at_s in self._woken_s.items() if process in living}

    # Processes

    def cannot_park(self, processes: Iterable[ProcessKey], refusal: ParkRefusal, until_s: float) -> None:
        self._cannot.update(dict.fromkeys(processes, (refusal, until_s)))

    def try_again(self, program: Program) -> None:
        """What failed for a reason that may pass is tried again when a person asks for it."""
        for process in program.process_keys:
            if self._cannot.get(process, (None, NEVER_S))[1] < NEVER_S:
                del self._cannot[process]

    def record_return(self, process: ProcessKey, now_s: float) -> None:
        self._woken_s[process] = now_s

    def is_at_work(self, process: ProcessKey, now_s: float) -> bool:
        """Whether it has GPU memory, and not only since it makes its context."""
        return now_s - self._since_s.get(process, now_s) >= _BEGINS_WITHIN_S

    # For the planner

    def is_background(self, resident: ResidentProgram) -> bool:
        return self._classes.get(resident.key) is SharingClass.BACKGROUND

    def is_idle(self, resident: ResidentProgram, now_s: float) -> bool:
        return 0 < self._idle_after_s <= resident.idleness.idle_s(now_s)

    def for_plan(self, parked: AbstractSet[str], now_s: float) -> list[PlannedProgram]:
        """`parked` are the keys of programs with parked processes."""
        return [
            self._for_plan(resident, parked, now_s)
            for resident in self
            # A display does not hold a GPU: a lease may have one that a display server is on.
            if resident.key not in parked and resident.key not in self._displays
        ]

    def _for_plan(self, resident: ResidentProgram, parked: AbstractSet[str], now_s: float) -> PlannedProgram:
        program = resident.program
        idle_s = resident.idleness.idle_s(now_s)
        is_candidate = (
            resident.asked
            or self._oversubscribe
            or self.is_background(resident)
            or self.is_idle(resident, now_s)
            or idle_s >= self._arrival_idle_after_s
        )
        woken = [at_s for process in program.process_keys if (at_s := self._woken_s.get(process)) is not None]
        return PlannedProgram(
            program.key,
            ParkStage.RESIDENT,
            {device: use.memory_bytes or 0 for device, use in program.uses.items()},
            settled_s=max(woken, default=-NEVER_S),
            resident_since_s=max(woken, default=None),
            seen_since_s=resident.seen_since_s,
            in_turns=resident.in_turns,
            was_in_turns=now_s - resident.last_in_turns_s < _TURNS_AGAIN_S,
            uses_gpu=resident.idleness.gpu_s is None,
            idle_s=idle_s,
            obstacle=self.obstacle(resident, parked, now_s),
            container_room_bytes=self._host.container_room_bytes(resident.pids) if is_candidate else math.inf,
            asked=resident.asked,
            is_young=not woken and self._is_young(resident, now_s),
            is_latency=self._classes.get(program.key) is SharingClass.LATENCY,
            is_background=self.is_background(resident),
            is_over_share=program.is_over_share,
            processes=program.process_keys,
            owner=program.counts_for,
        )

    def has_young(self, now_s: float) -> bool:
        return any(self._is_young(resident, now_s) for resident in self)

    def _is_young(self, resident: ResidentProgram, now_s: float) -> bool:
        return resident.seen_since_s != self._first_s and now_s - resident.seen_since_s < YOUNG_S

    def obstacle(self, resident: ResidentProgram, parked: AbstractSet[str], now_s: float) -> ParkRefusal | None:
        """Why it cannot be parked."""
        program = resident.program
        if resident.alone is not None:
            return resident.alone
        if not self._movable:
            return ParkRefusal(WhyNot.UNAVAILABLE, 'scheduler.pause = "freeze" cannot move GPU memory')
        if program.key in parked:
            return ParkRefusal(WhyNot.PART_PARKED, "other processes of it are parked")
        if any(is_mig_device(device) for device in program.devices):
            return ParkRefusal(WhyNot.MIG, "the driver cannot move the memory of MIG devices")
        if len(program.devices) > 1:
            return ParkRefusal(WhyNot.SEVERAL_GPUS, "it uses several GPUs: jobs with NCCL cannot be moved")
        if len(program.processes) > MAX_PROCESSES:
            return ParkRefusal(WhyNot.NOT_LOCKED, f"it has more than {MAX_PROCESSES} processes on the GPU")
        if any(use.memory_bytes is None for process in program.processes for use in process.uses):
            return ParkRefusal(WhyNot.MEMORY_UNKNOWN, "NVML does not say how much GPU memory it holds")
        if not resident.suspended and (why := self._host.why_stopped(resident.pids)):
            return ParkRefusal(WhyNot.STOPPED, f"{STOPPED}: {why}")
        refusals = (self._cannot.get(process, (None, 0.0)) for process in program.process_keys)
        return next((refusal for refusal, until_s in refusals if refusal is not None and until_s > now_s), None)


# The programs that are parked, or on their way to host memory or back, by key. Plain state without decisions.


class ParkedPrograms:
    def __init__(self, host: ParkHost = THIS_HOST) -> None:
        self._host = host
        self._programs: dict[str, ParkedProgram] = {}

    def __iter__(self) -> Iterator[ParkedProgram]:
        return iter(self._programs.values())

    def __getitem__(self, key: str) -> ParkedProgram:
        return self._programs[key]

    def get(self, key: str) -> ParkedProgram | None:
        return self._programs.get(key)

    def add(self, program: ParkedProgram) -> None:
        self._programs[program.key] = program

    def remove(self, program: ParkedProgram) -> None:
        del self._programs[program.key]

    @property
    def keys(self) -> AbstractSet[str]:
        return self._programs.keys()

    @property
    def processes(self) -> AbstractSet[ProcessKey]:
        return {process for program in self for process in program.places}

    @property
    def devices(self) -> AbstractSet[str]:
        return {device for program in self for device in program.memory}

    def without_parked(self, reading: ProgramReading) -> ProgramReading:
        """The reading without the processes of these programs. What it says of their memory is kept here."""
        parked = self.processes
        if not parked:
            return reading
        for program in self:
            listed = [process for process in reading.processes if process.key in program.places]
            amounts = [use.memory_bytes for process in listed for use in process.uses]
            program.nvml_bytes = None if None in amounts else sum(amount or 0 for amount in amounts)
        return replace(reading, processes=tuple(process for process in reading.processes if process.key not in parked))

    def forget_ended(self) -> None:
        """A parked program that is killed frees everything; the pauser removes it from the record."""
        for program in list(self):
            if program.stage in (ParkStage.PARKED, ParkStage.STRANDED) and not program.unsure:
                program.keep({process for process in program.places if not self._host.has_ended(process)})
                if not program.places:
                    self.remove(program)
