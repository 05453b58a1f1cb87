"""A simulated GPU on which progress is additive in activity, and the programs that run on it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucommons.scheduler.corun.activity import DeviceActivity
from gpucommons.scheduler.corun.coruns import Coruns, Phase
from gpucommons.simulation.gpu_model import MATRIX_LOADS, speeds

KINDS = MATRIX_LOADS
SWITCH_S = 0.001


def true_progress(kinds: Sequence[int], efficiency: float) -> tuple[float, ...]:
    """The speed of each program, as a share of its speed alone, while these run together."""
    return speeds([KINDS[kind] for kind in kinds], efficiency)


@dataclass
class Program:
    """`stages` are (length_s, kind): kind None is idleness, in which the program does not use the GPU."""

    name: str
    stages: Sequence[tuple[float, int | None]]
    progress_s: float = 0.0

    def kind(self, now_s: float) -> int | None:
        for length_s, kind in self.stages:
            if now_s < length_s:
                return kind
            now_s -= length_s
        return self.stages[-1][1]


@dataclass
class World:
    programs: list[Program]
    efficiency: float
    noise: random.Random = field(default_factory=lambda: random.Random(1))
    now_s: float = 0.0
    coruns: "Coruns[str]" = field(default_factory=Coruns)

    def true_progress(self, kinds: Sequence[int]) -> tuple[float, ...]:
        return true_progress(kinds, self.efficiency)

    def activity(self, kinds: Sequence[int], progress: Sequence[float]) -> DeviceActivity:
        sums = [sum(KINDS[kind][0][metric] * p for kind, p in zip(kinds, progress, strict=True)) for metric in range(3)]
        return DeviceActivity(*(min(1.0, max(0.0, value * self.noise.uniform(0.995, 1.005))) for value in sums))

    def step(self) -> Phase[str] | None:
        """Plays one phase; None while no program requests the GPU."""
        requesting = {program.name: program for program in self.programs if program.kind(self.now_s) is not None}
        if not requesting:
            self.now_s += 0.1
            return None
        phase = self.coruns.phase(list(requesting), self.now_s)
        assert phase.length_s > 0
        assert set(phase.clients) <= set(requesting)
        running = [requesting[name] for name in phase.clients]
        kinds = [kind for program in running if (kind := program.kind(self.now_s)) is not None]
        progress = self.true_progress(kinds)
        for program, part in zip(running, progress, strict=True):
            program.progress_s += part * (phase.length_s - SWITCH_S)
        self.now_s += phase.length_s
        self.coruns.ended(phase, phase.length_s)
        if phase.measure:
            self.coruns.measured(phase.clients, self.activity(kinds, progress), self.now_s)
        return phase

    def play(self, until_s: float) -> dict[str, float]:
        """Each program's progress per second until then."""
        before = {program.name: program.progress_s for program in self.programs}
        begun_s = self.now_s
        while self.now_s < until_s:
            self.step()
        span_s = max(1e-9, self.now_s - begun_s)
        return {program.name: (program.progress_s - before[program.name]) / span_s for program in self.programs}
