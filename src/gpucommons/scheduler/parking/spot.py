"""One program that is parked, or on its way to host memory or back. Plain state without decisions."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpucommons.base.duration_text import spoken_age
from gpucommons.base.printable import printable
from gpucommons.model.parking import EARLIER_AGENT, TURN, ParkedProgram
from gpucommons.model.process_identity import ProcessKey
from gpucommons.parking.idleness import ParkedCpu
from gpucommons.parking.values import ParkProgram, ParkStage
from gpucommons.pauser.protocol import Paused
from gpucommons.pauser.stopped import STOPPED
from gpucommons.rules.identities import process_name
from gpucommons.scheduler.parking.moves import Places, ProcessMemory
from gpucommons.scheduler.parking.park_host import THIS_HOST, ParkHost
from gpucommons.scheduler.programs.jobs import Program
from gpucommons.scheduler.programs.matching import names
from gpucommons.sources.host.ancestors import ancestors_from

_MOVING: Final = frozenset({ParkStage.PARKING, ParkStage.WAKING})


@dataclass(slots=True)
class Spot:
    """One program. `program` is None where an earlier agent parked it: only its processes are known then.

    `settled_s` is when its stage began, `since_wall_s` when it was last on the GPU. `retry_s`: not to be brought back
    before. `waited_in` is where it slept while it was idle; None: not known. `looks_elsewhere` counts looks in a row at
    which it slept elsewhere. `expected_s` is when it will be back; None: not known. `made_for` is the need for which it
    made room; empty: none. `comes_after` are the requests from which its room is not kept; None: it is kept from none.
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
        found: dict[str, int] = {}
        for device, amount in self.places.values():
            found[device] = found.get(device, 0) + amount
        return found

    @property
    def bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(sorted(process.pid for process in self.places))

    def planned(self, now_s: float) -> ParkProgram:
        wakes_since_s = self.wakes_since_s if now_s >= self.retry_s and not self.unsure else None
        if wakes_since_s is not None and self.stage is ParkStage.PARKED and (stopped := self.why_stopped()):
            # The driver could not restore it before it is continued.
            wakes_since_s, self.waits = None, stopped
        return ParkProgram(
            self.key,
            self.stage,
            self.memory,
            self.settled_s,
            wakes_since_s=wakes_since_s,
            for_turn=self.cause == TURN,
            made_for=self.made_for,
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

    def go_on(self, now_s: float) -> None:
        """It is to be brought back; the first time counts."""
        if self.wakes_since_s is None:
            self.wakes_since_s = now_s

    def keep(self, processes: set[ProcessKey]) -> None:
        """The others are not parked, or have ended."""
        self.places = {process: place for process, place in self.places.items() if process in processes}

    def reading(self, now_s: float) -> ParkedProgram:
        done, total = self._moved_bytes(), self.bytes
        passed_s = now_s - self.settled_s
        rate = done / passed_s if self.stage in _MOVING and passed_s > 0 and done else None
        in_host = {ParkStage.PARKING: done, ParkStage.WAKING: total - done}.get(self.stage, total)
        back_in_s = None if self.expected_s is None else max(0.0, self.expected_s - now_s)
        when = "" if not self.waits or back_in_s is None else f"; back in about {spoken_age(back_in_s)}"
        return ParkedProgram(
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
        )

    def _moved_bytes(self) -> int:
        """By the growth of its host memory, and by NVML; the memory of the process itself may change as well."""
        if self.stage not in _MOVING:
            return 0
        parking = self.stage is ParkStage.PARKING
        grown = self.host.resident_bytes(self.pids) - self.resident_before
        by_nvml = 0 if self.nvml_bytes is None else self.bytes - self.nvml_bytes if parking else self.nvml_bytes
        return max(0, min(self.bytes, max(grown if parking else -grown, by_nvml)))


def spot_of(
    program: Program, cause: str, cpu: ParkedCpu, now_s: float, wall_s: float, host: ParkHost = THIS_HOST
) -> Spot:
    places: dict[ProcessKey, ProcessMemory] = {}
    for process in program.processes:
        if process.key is not None and process.uses:
            amount = sum(use.memory_bytes or 0 for use in process.uses)
            places[process.key] = ProcessMemory(process.uses[0].device, amount)
    return Spot(
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


def left_spot(one: Paused, now_s: float, wall_s: float) -> Spot:
    """A program that an earlier agent parked, of which only the pauser's record speaks. It is to be brought back."""
    pid = one.process.pid
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            command = file.read().strip()
    except OSError:
        uid, command = None, ""
    place = ProcessMemory(one.gpu, one.memory_bytes or THIS_HOST.resident_bytes([pid]))
    return Spot(
        f"process:{pid}.{one.process.start_ticks}",
        process_name("unknown owner" if uid is None else f"uid {uid}", command, {pid}),
        {one.process: place},
        ParkStage.PARKED,
        now_s,
        wall_s - one.age_s,
        EARLIER_AGENT,
        uid=uid,
        wakes_since_s=now_s,
        ancestors=tuple(ancestors_from("/proc", pid)),
    )
