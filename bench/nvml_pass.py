"""What one pass over the GPUs costs against the raw driver calls it makes, in one interleaved run.

`python -m bench.nvml_pass` reads the real GPUs where there are any, else a fake with 8 and with 16 GPUs that
spends the time the real one was recorded to take. The floor is the sum of the medians of the same calls, made
bare through ctypes with arguments that are ready.

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
from gpucommons.sources.nvml.source import NvmlSource  # noqa: E402

Timer = Callable[[], float]
RawCall = tuple[Callable[..., int], tuple[Any, ...], str]
BAR = 1.25
# Until every costly call has found its lane.
SETTLE_PASSES = 8


class Tape:
    """Stands between the source and the library, and writes down every raw call of a pass."""

    def __init__(self) -> None:
        self.calls: list[RawCall] = []
        self._real = library.function

    def function(self, name: str) -> Callable[..., int] | None:
        real = self._real(name)
        if real is None:
            return None

        def recorded(*arguments: Any) -> int:
            self.calls.append((real, arguments, name))
            return real(*arguments)

        return recorded


def one_pass_of_raw_calls(timer: Timer) -> tuple[NvmlSource, list[RawCall]]:
    """A source whose last pass is on tape. It must live on: the calls use its buffers."""
    tape = Tape()
    real, library.function = library.function, tape.function
    try:
        source = NvmlSource(monotonic=lambda: 1.0, timer=timer)
        for _ in range(SETTLE_PASSES):
            tape.calls.clear()
            source.read()
    finally:
        library.function = real
    return source, list(tape.calls)


def timer_cost_s(timer: Timer) -> float:
    samples = []
    for _ in range(2000):
        began = timer()
        samples.append(timer() - began)
    return statistics.median(samples)


def measure(label: str, rounds: int, timer: Timer) -> list[str]:
    taped, calls = one_pass_of_raw_calls(timer)
    # Time stands still for this one: only what runs in every pass is run, neither the slow lane nor MIG.
    source = NvmlSource(monotonic=lambda: 1.0, timer=timer)
    for _ in range(SETTLE_PASSES):
        gpus = len(source.read().gpus)
    # The lanes have settled. From here on its timer is the one of every day, and no noise moves a call.
    source._notes.timer, source._notes.fast_budget_s = time.perf_counter, math.inf
    per_call: list[list[float]] = [[] for _ in calls]
    passes = []
    for _ in range(rounds):
        for samples, (function, arguments, _) in zip(per_call, calls, strict=True):
            began = timer()
            function(*arguments)
            samples.append(timer() - began)
        began = timer()
        source.read()
        passes.append(timer() - began)
    timer_s = timer_cost_s(timer)
    floor_s = sum(statistics.median(samples) - timer_s for samples in per_call)
    pass_s = statistics.median(passes) - timer_s
    source.close()
    taped.close()
    return [
        label,
        str(gpus),
        str(len(calls)),
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
