"""A simulated GPU on which progress is additive in activity, and the programs that run on it.

A program that runs alone keeps the device at its own activity. Programs that run together are slowed down by the
driver's time-slicing: each by the device's overbooking and by a factor of the combination.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucommons.scheduler.corun.activity import DeviceActivity
from gpucommons.scheduler.corun.coruns import Coruns, Phase

# Solo activity and share of time in which a kernel runs, as measured on an H200 for bf16 matmul loops of n x n.
KINDS = {
    8192: (DeviceActivity(0.932, 0.830, 0.22), 0.97),
    4096: (DeviceActivity(0.789, 0.637, 0.23), 0.87),
    2048: (DeviceActivity(0.720, 0.470, 0.05), 0.93),
    1536: (DeviceActivity(0.357, 0.205, 0.00), 0.58),
    1024: (DeviceActivity(0.142, 0.056, 0.00), 0.34),
    512: (DeviceActivity(0.068, 0.008, 0.00), 0.26),
}
SWITCH_S = 0.001


def true_progress(kinds: Sequence[int], efficiency: float) -> tuple[float, ...]:
    """The speed of each program, as a share of its speed alone, while these run together."""
    if len(kinds) <= 1:
        return (1.0,) * len(kinds)
    overbooked = max(1.0, sum(KINDS[kind][1] for kind in kinds))
    # Dense programs lose by switches of context, light ones hardly.
    return tuple((1.0 - (1.0 - efficiency) * KINDS[kind][1]) / overbooked for kind in kinds)


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
