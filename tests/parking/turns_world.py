"""Programs that do not fit into one GPU together, played with the planner: a GPU of 139 GiB, a host of 128 GiB."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpucommons.model.host import GIB, HostMemory
from gpucommons.scheduler.parking.plan import plan
from gpucommons.scheduler.parking.turns import IN_BYTES_S, OUT_BYTES_S, attained_seconds
from gpucommons.scheduler.parking.values import (
    DeviceRoom,
    ParkSituation,
    ParkStage,
    ParkTerms,
    PlannedProgram,
    RoomClaims,
    RoomNeed,
)

GPU = "a"
SIZE = 50 * GIB
TOTAL = 139 * GIB
HOST_TOTAL = 128 * GIB
TERMS = ParkTerms(oversubscribe=True, min_residence_s=60.0)


@dataclass
class Played:
    key: str
    stage: ParkStage
    settled_s: float = 0.0
    resident_since_s: float | None = None
    wakes_since_s: float | None = None
    # How long it was on the GPU, and its part of the GPU's time.
    resident_s: float = 0.0
    worked_s: float = 0.0
    seen_since_s: float = 0.0
    size: int = SIZE
    made_for: str = ""

    def planned(self, in_turns: bool, was_in_turns: bool) -> PlannedProgram:
        return PlannedProgram(
            self.key,
            self.stage,
            {GPU: self.size},
            self.settled_s,
            self.resident_since_s,
            seen_since_s=self.seen_since_s,
            in_turns=in_turns,
            was_in_turns=was_in_turns,
            wakes_since_s=self.wakes_since_s,
            for_turn=True,
            made_for=self.made_for,
        )


@dataclass
class World:
    programs: list[Played] = field(default_factory=list)
    terms: ParkTerms = TERMS
    in_turns: bool = False
    host_bytes: int = HOST_TOTAL
    now_s: float = 1.0
    before: ParkSituation | None = None
    # Requests for leases that wait for room, and the programs for which room is kept, as planned in the last step.
    requests: list[RoomNeed] = field(default_factory=list)
    claims: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def play(self, lasts_s: int) -> None:
        for _ in range(lasts_s):
            self.step()

    @property
    def shares(self) -> list[float]:
        """The part of all work that each program has done."""
        whole_s = sum(one.worked_s for one in self.programs)
        return [one.worked_s / whole_s for one in self.programs]

    def step(self) -> None:
        self.now_s += 1
        for one in self.programs:
            self._finish(one)
        self._grant()
        assert self._on_gpu <= TOTAL, "a restore would strand the program"
        assert self._in_host <= self.host_bytes * 0.9, "more than the host can hold"
        self.before = self.situation()
        found = plan(self.terms, self.before)
        made_for = {key: frozenset({need}) for key, need in found.made_for.items()}
        self.claims = {key: before for key, before in found.claims.items() if key not in found.wake} | made_for
        for one in self.programs:
            if one.key in found.park or one.key in found.wake:
                one.stage = ParkStage.PARKING if one.key in found.park else ParkStage.WAKING
                one.settled_s, one.made_for = self.now_s, found.made_for.get(one.key, "")
        held = [one for one in self.programs if one.stage is ParkStage.RESIDENT]
        for one in held:
            one.resident_s += 1
            one.worked_s += 1 / len(held)

    @property
    def _on_gpu(self) -> int:
        return sum(one.size for one in self.programs if one.stage is not ParkStage.PARKED)

    @property
    def _in_host(self) -> int:
        return sum(one.size for one in self.programs if one.stage is not ParkStage.RESIDENT)

    def situation(self) -> ParkSituation:
        room = DeviceRoom(TOTAL - self._on_gpu, self.now_s)
        host = HostMemory(self.host_bytes, self.host_bytes - 8 * GIB - self._in_host)
        several = sum(one.stage is ParkStage.RESIDENT for one in self.programs) > 1
        programs = tuple(one.planned(self.in_turns and several, self.in_turns) for one in self.programs)
        found = ParkSituation(programs, {GPU: room}, host, RoomClaims(tuple(self.requests)), self.now_s)
        return replace(found, attained_s=attained_seconds(self.before, found))

    def _grant(self) -> None:
        """The first request for which there is room."""
        for request in self.requests:
            size = request.bytes or 0
            kept = sum(one.size for one in self.programs if request.id not in self.claims.get(one.key, {request.id}))
            if self._on_gpu + kept + size + self.terms.gpu_reserve_bytes <= TOTAL:
                self.programs.append(Played(request.id, ParkStage.RESIDENT, seen_since_s=self.now_s, size=size))
                self.requests.remove(request)
                return

    def _finish(self, one: Played) -> None:
        """The end of a move."""
        passed_s = self.now_s - one.settled_s
        if one.stage is ParkStage.PARKING and passed_s >= one.size / OUT_BYTES_S:
            one.stage, one.settled_s, one.wakes_since_s = ParkStage.PARKED, self.now_s - 0.5, self.now_s
        elif one.stage is ParkStage.WAKING and passed_s >= one.size / IN_BYTES_S:
            one.stage, one.settled_s, one.wakes_since_s = ParkStage.RESIDENT, self.now_s - 0.5, None
            one.resident_since_s = self.now_s


def several(number: int = 3, on_gpu: int = 2) -> list[Played]:
    held = [Played(f"on-{n}", ParkStage.RESIDENT) for n in range(on_gpu)]
    return held + [Played(f"waits-{n}", ParkStage.PARKED, wakes_since_s=1.0) for n in range(number - on_gpu)]
