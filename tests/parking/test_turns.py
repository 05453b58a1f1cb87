"""Three programs of 50 GiB on a GPU of 139 GiB and a host of 128 GiB, played with the planner."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from gpucommons.parking.attained import attained_seconds
from gpucommons.parking.plan import plan
from gpucommons.parking.values import (
    GIB,
    DeviceRoom,
    HostMemory,
    ParkProgram,
    ParkSituation,
    ParkStage,
    ParkTerms,
    RoomClaims,
    RoomNeed,
)

GPU = "a"
SIZE = 50 * GIB
TOTAL = 139 * GIB
HOST_TOTAL = 128 * GIB
OUT_S, IN_S = SIZE / 2e9, SIZE / 5e9
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

    def planned(self, in_turns: bool, was_in_turns: bool) -> ParkProgram:
        return ParkProgram(
            self.key,
            self.stage,
            {GPU: SIZE},
            self.settled_s,
            self.resident_since_s,
            seen_since_s=self.seen_since_s,
            in_turns=in_turns,
            was_in_turns=was_in_turns,
            wakes_since_s=self.wakes_since_s,
            for_turn=True,
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
        on_gpu = sum(one.stage is not ParkStage.PARKED for one in self.programs)
        in_host = sum(one.stage is not ParkStage.HELD for one in self.programs)
        assert on_gpu * SIZE <= TOTAL, "a restore would strand the program"
        assert in_host * SIZE <= self.host_bytes * 0.9, "more than the host can hold"
        self.before = self._situation(on_gpu, in_host)
        found = plan(self.terms, self.before)
        self.claims = {key: before for key, before in found.claims.items() if key not in found.wake}
        for one in self.programs:
            if one.key in found.park or one.key in found.wake:
                one.stage = ParkStage.PARKING if one.key in found.park else ParkStage.WAKING
                one.settled_s = self.now_s
        held = [one for one in self.programs if one.stage is ParkStage.HELD]
        for one in held:
            one.resident_s += 1
            one.worked_s += 1 / len(held)

    def _situation(self, on_gpu: int, in_host: int) -> ParkSituation:
        room = DeviceRoom(TOTAL - on_gpu * SIZE, self.now_s)
        host = HostMemory(self.host_bytes, self.host_bytes - 8 * GIB - in_host * SIZE)
        several = sum(one.stage is ParkStage.HELD for one in self.programs) > 1
        programs = tuple(one.planned(self.in_turns and several, self.in_turns) for one in self.programs)
        found = ParkSituation(programs, {GPU: room}, host, RoomClaims(tuple(self.requests)), self.now_s)
        return replace(found, attained_s=attained_seconds(self.before, found))

    def _grant(self) -> None:
        taken = sum(one.stage is not ParkStage.PARKED for one in self.programs)
        for request in self.requests:
            kept = sum(request.id not in before for before in self.claims.values())
            if (taken + kept + 1) * SIZE + self.terms.gpu_reserve_bytes <= TOTAL:
                self.programs.append(Played(request.id, ParkStage.HELD, seen_since_s=self.now_s))
                self.requests.remove(request)
                return

    def _finish(self, one: Played) -> None:
        """The end of a move."""
        passed_s = self.now_s - one.settled_s
        if one.stage is ParkStage.PARKING and passed_s >= OUT_S:
            one.stage, one.settled_s, one.wakes_since_s = ParkStage.PARKED, self.now_s - 0.5, self.now_s
        elif one.stage is ParkStage.WAKING and passed_s >= IN_S:
            one.stage, one.settled_s, one.wakes_since_s = ParkStage.HELD, self.now_s - 0.5, None
            one.resident_since_s = self.now_s


def several(number: int = 3, on_gpu: int = 2) -> list[Played]:
    held = [Played(f"on-{n}", ParkStage.HELD) for n in range(on_gpu)]
    return held + [Played(f"waits-{n}", ParkStage.PARKED, wakes_since_s=1.0) for n in range(number - on_gpu)]


def test_all_make_progress_in_proportion_and_moving_takes_a_tenth() -> None:
    world = World(several())
    world.play(2 * 3600)
    assert max(world.shares) - min(world.shares) < 0.05, world.shares
    # Two have a place at a time. The steps of a second and the first switch are not counted exactly.
    resident_s = sum(one.resident_s for one in world.programs)
    assert 1 - resident_s / (2 * 2 * 3600) <= 0.11, "moving costs a tenth"


@pytest.mark.parametrize("min_residence_s", [20.0, 120.0])
@pytest.mark.parametrize(("number", "lasts_s", "least_ratio"), [(3, 300, 0.8), (3, 1800, 0.9), (4, 1800, 0.8)])
def test_programs_that_fill_the_gpu_make_progress_in_proportion(
    number: int, lasts_s: int, least_ratio: float, min_residence_s: float
) -> None:
    terms = ParkTerms(oversubscribe=True, min_residence_s=min_residence_s)
    world = World(several(number), terms, in_turns=True, host_bytes=4 * HOST_TOTAL)
    world.play(lasts_s)
    assert min(world.shares) >= least_ratio * max(world.shares), world.shares
    assert sum(one.worked_s for one in world.programs) == pytest.approx(lasts_s), "the GPU is never without a program"


def test_a_program_that_comes_later_gets_its_share_but_not_the_time_before() -> None:
    terms = ParkTerms(oversubscribe=True, min_residence_s=20.0)
    world = World(several(), terms, in_turns=True, host_bytes=4 * HOST_TOTAL)
    world.play(900)
    later = Played("later", ParkStage.PARKED, settled_s=world.now_s, wakes_since_s=world.now_s)
    before_s = {one.key: one.worked_s for one in world.programs}
    world.programs.append(later)
    world.play(1800)
    assert later.worked_s == pytest.approx(1800 / 4, rel=0.1)
    since = [one.worked_s - before_s[one.key] for one in world.programs[:3]]
    assert min(since) >= 0.8 * max(since), since


def test_a_lease_that_host_memory_could_not_give_turns_to_does_not_stop_the_others() -> None:
    """Two of 50 GiB in host memory would leave no room to change places: both would wait for the others to end."""
    requests = [RoomNeed((GPU,), SIZE, 1.0, id=name) for name in ("third", "fourth")]
    world = World(several(2), ParkTerms(oversubscribe=True, min_residence_s=20.0), in_turns=True, requests=requests)
    world.play(1800)
    assert [one.key for one in world.programs] == ["on-0", "on-1", "third"]
    assert [request.id for request in world.requests] == ["fourth"]
    assert min(world.shares) >= 0.8 * max(world.shares), world.shares
    world.programs = world.programs[:2]
    world.play(300)
    assert [one.key for one in world.programs] == ["on-0", "on-1", "fourth"], "it has the room of one that ended"
