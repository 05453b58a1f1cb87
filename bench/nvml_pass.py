"""The time of one pass over the GPUs and of the raw driver calls in it, in one interleaved run.

`python -m bench.nvml_pass` reads the GPUs of the machine, or a fake with 8 and with 16 GPUs whose calls take the time
that was recorded on a real driver. The floor is the time inside the raw calls of the pass.

A real GPU is measured by wall clock. The fake uses CPU time and is measured by thread CPU time, so that other programs
do not count.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.table import show
from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.source import NvmlReader

Timer = Callable[[], float]
BAR = 1.25
# Enough passes for every costly call to settle in its lane.
SETTLE_PASSES = 8


class Tape:
    """A proxy between a source and the library that times every raw call of a pass.

    Made again outside of a pass the calls would not cost the same: GPM compares two samples, and compares the
    same two for next to nothing.
    """

    def __init__(self, timer: Timer) -> None:
        self.seconds: list[float] = []
        self._real = library.function
        self._timer = timer

    def function(self, name: str) -> Callable[..., int] | None:
        real, timer, seconds = self._real(name), self._timer, self.seconds
        if real is None:
            return None

        def timed(*arguments: Any) -> int:
            began = timer()
            code = real(*arguments)
            seconds.append(timer() - began)
            return code

        return timed


def settled(timer: Timer) -> NvmlReader:
    """A source whose lanes have settled and no longer change.

    Time stands still for it: only what runs in every pass is run, neither the slow lane nor MIG.
    """
    source = NvmlReader(monotonic=lambda: 1.0, timer=timer)
    for _ in range(SETTLE_PASSES):
        source.read()
    source._notes.timer, source._notes.fast_budget_s = time.perf_counter, math.inf
    return source


def taped(timer: Timer) -> tuple[NvmlReader, Tape]:
    tape = Tape(timer)
    real, library.function = library.function, tape.function
    try:
        return settled(timer), tape
    finally:
        library.function = real


def timer_cost_s(timer: Timer) -> float:
    samples = []
    for _ in range(2000):
        began = timer()
        samples.append(timer() - began)
    return statistics.median(samples)


def measure(label: str, rounds: int, timer: Timer) -> list[str]:
    clean = settled(timer)
    watched, tape = taped(timer)
    timer_s = timer_cost_s(timer)
    passes, floors, calls = [], [], []
    for _ in range(rounds):
        tape.seconds.clear()
        gpus = len(watched.read().gpus)
        floors.append(sum(tape.seconds) - timer_s * len(tape.seconds))
        calls.append(len(tape.seconds))
        began = timer()
        clean.read()
        passes.append(timer() - began - timer_s)
    clean.close()
    watched.close()
    floor_s, pass_s = statistics.median(floors), statistics.median(passes)
    return [
        label,
        str(gpus),
        str(statistics.median_low(calls)),
        f"{floor_s * 1e6 / gpus:.1f}",
        f"{pass_s * 1e6 / gpus:.1f}",
        f"{pass_s / floor_s:.3f}",
    ]


HEADER = ("what", "GPUs", "calls", "floor us/GPU", "pass us/GPU", "pass / floor")


def on_fakes(rounds: int) -> Iterator[list[str]]:
    """Each in a separate process, which loads the fake as it would load the driver."""
    from fakes.nvml.build import build
    from fakes.nvml.control import FakeNvml

    with tempfile.TemporaryDirectory() as directory:
        built = build(Path(directory) / "lib")
        for recording in ("idle", "busy"):
            for gpus in (8, 16):
                fake = FakeNvml(Path(directory) / f"{recording}{gpus}", built)
                fake.say(f"gpus {gpus}", f"recording {recording}", "replay_cost")
                label = f"fake, {recording} H200 as recorded"
                command = [sys.executable, "-m", "bench.nvml_pass", "--here", label, "--rounds", str(rounds)]
                environment = {**os.environ, **fake.environment()}
                done = subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
                yield done.stdout.strip().split("\t")


def has_driver() -> bool:
    try:
        library.start()
    except Exception:
        return False
    library.stop()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", help="measure the fake that this process finds, under this name; one line, tabs")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    if options.here:
        print("\t".join(measure(options.here, options.rounds, time.thread_time)))
        return
    rows = [measure("real", options.rounds, time.perf_counter)] if has_driver() else []
    rows += on_fakes(options.rounds)
    show(f"One fast pass against its raw calls; medians of {options.rounds} rounds; bar: {BAR}", HEADER, rows)


if __name__ == "__main__":
    main()
