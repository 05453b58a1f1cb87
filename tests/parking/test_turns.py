"""Three programs of 50 GiB on a GPU of 139 GiB and a host of 128 GiB, played with the planner."""

from dataclasses import dataclass, field

from gpucommons.parking.plan import plan
from gpucommons.parking.values import (
    GIB,
    DeviceRoom,
    HostMemory,
    ParkProgram,
    ParkSituation,
    ParkStage,
    ParkTerms,
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
    ran_s: float = 0.0

    def planned(self, in_turns: bool) -> ParkProgram:
        return ParkProgram(
            self.key,
            self.stage,
            {GPU: SIZE},
            self.settled_s,
            self.resident_since_s,
            seen_since_s=0.0,
            in_turns=in_turns,
            wakes_since_s=self.wakes_since_s,
        )


@dataclass
class World:
    programs: list[Played] = field(default_factory=list)
    terms: ParkTerms = TERMS
    in_turns: bool = False
    now_s: float = 1.0

    def play(self, lasts_s: int) -> list[float]:
        """For which part of the time each program was on the GPU."""
        for _ in range(lasts_s):
            self.step()
        return [one.ran_s / lasts_s for one in self.programs]

    def step(self) -> None:
        self.now_s += 1
        for one in self.programs:
            self._finish(one)
        on_gpu = sum(one.stage is not ParkStage.PARKED for one in self.programs)
        in_host = sum(one.stage is not ParkStage.HELD for one in self.programs)
        assert on_gpu * SIZE <= TOTAL, "a restore would strand the program"
        assert in_host * SIZE <= HOST_TOTAL - HOST_TOTAL // 10, "more than the host can hold"
        found = plan(self.terms, self._situation(on_gpu, in_host))
        for one in self.programs:
            if one.key in found.park or one.key in found.wake:
                one.stage = ParkStage.PARKING if one.key in found.park else ParkStage.WAKING
                one.settled_s = self.now_s
            one.ran_s += one.stage is ParkStage.HELD

    def _situation(self, on_gpu: int, in_host: int) -> ParkSituation:
        room = DeviceRoom(TOTAL - on_gpu * SIZE, self.now_s)
        host = HostMemory(HOST_TOTAL, HOST_TOTAL - 8 * GIB - in_host * SIZE)
        programs = tuple(one.planned(self.in_turns) for one in self.programs)
        return ParkSituation(programs, {GPU: room}, host, now_s=self.now_s)

    def _finish(self, one: Played) -> None:
        """The end of a move."""
        passed_s = self.now_s - one.settled_s
        if one.stage is ParkStage.PARKING and passed_s >= OUT_S:
            one.stage, one.settled_s, one.wakes_since_s = ParkStage.PARKED, self.now_s - 0.5, self.now_s
        elif one.stage is ParkStage.WAKING and passed_s >= IN_S:
            one.stage, one.settled_s, one.wakes_since_s = ParkStage.HELD, self.now_s - 0.5, None
            one.resident_since_s = self.now_s


def three() -> list[Played]:
    waiting = Played("third", ParkStage.PARKED, wakes_since_s=1.0)
    return [Played("first", ParkStage.HELD), Played("second", ParkStage.HELD), waiting]


def test_all_make_progress_in_proportion_and_moving_takes_a_tenth() -> None:
    shares = World(three()).play(2 * 3600)
    assert max(shares) - min(shares) < 0.1, shares
    # Two have a place at a time. The steps of a second and the first switch are not counted exactly.
    assert 1 - sum(shares) / 2 <= 0.11, "moving costs a tenth"


def test_programs_that_fill_the_gpu_make_progress_in_proportion_within_minutes() -> None:
    """One at least is on the GPU at any time, so that the GPU does not lose anything."""
    shares = World(three(), ParkTerms(oversubscribe=True, min_residence_s=20.0), in_turns=True).play(300)
    assert min(shares) >= 0.6 * max(shares), shares
    assert sum(shares) >= 1
