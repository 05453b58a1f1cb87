"""What one pass over the GPUs costs against the raw driver calls it makes, in one interleaved run.

`python -m bench.nvml_pass` reads the real GPUs where there are any, else a fake with 8 and with 16 GPUs that
spends the time the real one was recorded to take. The floor is the time inside the raw calls of such a pass.

On the real GPU the wall clock is the measure. The fake spends its time on the CPU, so that there it is the
thread's own CPU time: what else the machine does is not counted.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bench.table import show  # noqa: E402
from gpucommons.sources.nvml import library  # noqa: E402
from gpucommons.sources.nvml.source import NvmlReader  # noqa: E402

Timer = Callable[[], float]
BAR = 1.25
# Until every costly call has found its lane.
SETTLE_PASSES = 8


class Tape:
    """Stands between a source and the library, and times every raw call of a pass where it is made.

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
    """A source whose lanes have settled; from here on no noise moves a call.

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
    """Each in a process of its own, which finds the fake as it would find the driver."""
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
