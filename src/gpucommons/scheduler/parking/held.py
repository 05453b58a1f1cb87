"""The programs whose memory is on the GPU: how long each has been idle, and why one cannot be parked."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.parking.idleness import Idleness, after_cpu, after_gpu
from gpucommons.parking.values import ParkProgram, ParkRefusal, ParkStage, WhyNot
from gpucommons.pauser.stopped import STOPPED
from gpucommons.scheduler.parking.moves import MOST_PROCESSES
from gpucommons.scheduler.parking.park_host import THIS_HOST, ParkHost
from gpucommons.scheduler.programs.activity import ProgramActivity
from gpucommons.scheduler.programs.exemptions import Exempt, Exemption
from gpucommons.scheduler.programs.jobs import Program
from gpucommons.scheduler.programs.matching import names

NEVER_S: Final = float("inf")
_PLACES: Final = 3
# For so long after its last short turn a program is expected to take turns again: longer than moving another one takes.
_TURNS_AGAIN_S: Final = 120.0


@dataclass(slots=True)
class HeldProgram:
    """`alone` is why it takes no part. `asked`: a person asked to park it."""

    program: Program
    alone: ParkRefusal | None
    seen_since_s: float
    idleness: Idleness = field(default_factory=Idleness)
    # Where it slept at the last looks.
    places: deque[tuple[int, ...] | None] = field(default_factory=lambda: deque(maxlen=_PLACES))
    in_turns: bool = False
    last_in_turns_s: float = -NEVER_S
    asked: bool = False

    @property
    def key(self) -> str:
        return self.program.key

    @property
    def waits_in(self) -> tuple[int, ...] | None:
        """None unless it slept in the same place at all of the last looks."""
        known = set(self.places)
        return known.pop() if len(self.places) == _PLACES and len(known) == 1 else None

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

    def look(self, cpu_s: float | None, place: tuple[int, ...] | None, now_s: float) -> None:
        self.idleness = after_cpu(self.idleness, cpu_s, now_s)
        self.places.append(place)


class HeldPrograms:
    """`movable` is false where the pauser cannot move memory. `oversubscribe`: working programs are parked, too."""

    def __init__(
        self, idle_after_s: float, movable: bool, host: ParkHost = THIS_HOST, oversubscribe: bool = False
    ) -> None:
        self._idle_after_s = idle_after_s
        self._oversubscribe = oversubscribe
        self._movable = movable
        self._host = host
        self._rows: dict[str, HeldProgram] = {}
        self._displays: set[str] = set()
        # Why processes cannot be parked, and until when; and when they were last brought back.
        self._cannot: dict[ProcessKey, tuple[ParkRefusal, float]] = {}
        self._woken_s: dict[ProcessKey, float] = {}

    def __iter__(self) -> Iterator[HeldProgram]:
        return iter(self._rows.values())

    def __getitem__(self, key: str) -> HeldProgram:
        return self._rows[key]

    def get(self, key: str) -> HeldProgram | None:
        return self._rows.get(key)

    def pop(self, key: str) -> HeldProgram:
        return self._rows.pop(key)

    def see(
        self,
        programs: Iterable[Program],
        exempt: Sequence[Exemption],
        paused: AbstractSet[str],
        in_turns: AbstractSet[str],
        parked: AbstractSet[ProcessKey],
        as_of_s: float,
    ) -> None:
        """One reading: programs that take part and that do not, the keys of those that are paused, or take turns; and
        the processes that are parked."""
        alone = {one.program.key: ParkRefusal(WhyNot.LEFT_ALONE, one.sentence) for one in exempt}
        seen = [(program, alone.get(program.key)) for program in programs]
        seen += [(one.program, alone[one.program.key]) for one in exempt]
        before, self._rows = self._rows, {}
        self._displays = {one.program.key for one in exempt if one.why is Exempt.DISPLAY}
        for program, refusal in seen:
            known = before.get(program.key)
            held = self._rows.get(program.key) or HeldProgram(program, refusal, as_of_s)
            if known is not None and known.program.process_keys & program.process_keys:
                held.asked = known.asked
                held.idleness, held.places = known.idleness, known.places
                held.seen_since_s, held.last_in_turns_s = known.seen_since_s, known.last_in_turns_s
            held.in_turns = program.key in in_turns
            if held.in_turns:
                held.last_in_turns_s = as_of_s
            idle = program.activity is ProgramActivity.IDLE and program.key not in paused
            held.idleness = after_gpu(held.idleness, idle, as_of_s)
            self._rows[program.key] = held
        living = {process for held in self for process in held.program.process_keys} | parked
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

    def came_back(self, process: ProcessKey, now_s: float) -> None:
        self._woken_s[process] = now_s

    # For the planner

    def is_idle(self, held: HeldProgram, now_s: float) -> bool:
        return 0 < self._idle_after_s <= held.idleness.idle_s(now_s)

    def planned(self, parked: AbstractSet[str], now_s: float) -> list[ParkProgram]:
        """`parked` are the keys of programs with parked processes."""
        return [
            self._planned(held, parked, now_s)
            for held in self
            # A display does not hold a GPU: a lease may have one that a display server is on.
            if held.key not in parked and held.key not in self._displays
        ]

    def _planned(self, held: HeldProgram, parked: AbstractSet[str], now_s: float) -> ParkProgram:
        program = held.program
        is_candidate = held.asked or self._oversubscribe or self.is_idle(held, now_s)
        woken = [at_s for process in program.process_keys if (at_s := self._woken_s.get(process)) is not None]
        return ParkProgram(
            program.key,
            ParkStage.HELD,
            {device: use.memory_bytes or 0 for device, use in program.uses.items()},
            settled_s=max(woken, default=-NEVER_S),
            resident_since_s=max(woken, default=None),
            seen_since_s=held.seen_since_s,
            in_turns=held.in_turns,
            was_in_turns=now_s - held.last_in_turns_s < _TURNS_AGAIN_S,
            uses_gpu=held.idleness.gpu_s is None,
            idle_s=held.idleness.idle_s(now_s),
            obstacle=self.obstacle(held, parked, now_s),
            container_room_bytes=self._host.container_room_bytes(held.pids) if is_candidate else None,
            asked=held.asked,
        )

    def obstacle(self, held: HeldProgram, parked: AbstractSet[str], now_s: float) -> ParkRefusal | None:
        """Why it cannot be parked."""
        program = held.program
        if held.alone is not None:
            return held.alone
        if not self._movable:
            return ParkRefusal(WhyNot.UNAVAILABLE, 'scheduler.pause = "freeze" cannot move GPU memory')
        if program.key in parked:
            return ParkRefusal(WhyNot.PART_PARKED, "other processes of it are parked")
        if len(program.devices) > 1:
            return ParkRefusal(WhyNot.SEVERAL_GPUS, "it uses several GPUs: jobs with NCCL cannot be moved")
        if len(program.processes) > MOST_PROCESSES:
            return ParkRefusal(WhyNot.NOT_LOCKED, f"it has more than {MOST_PROCESSES} processes on the GPU")
        if any(use.memory_bytes is None for process in program.processes for use in process.uses):
            return ParkRefusal(WhyNot.MEMORY_UNKNOWN, "NVML does not say how much GPU memory it holds")
        if why := self._host.why_stopped(held.pids):
            return ParkRefusal(WhyNot.STOPPED, f"{STOPPED}: {why}")
        found = (self._cannot.get(process, (None, 0.0)) for process in program.process_keys)
        return next((refusal for refusal, until_s in found if refusal is not None and until_s > now_s), None)
