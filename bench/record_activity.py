"""Records what real programs do to a GPU: alone, together by the driver, and in turns. Data for tests of the policy.

`python -m bench.record_activity FILE` as root on a machine with a GPU, torch and transformers. No agent runs. Every
tenth of a second it takes GPM's activity of the device; each half second, the driver's samples of each process. The
result is one JSON document; tests/scheduler/real_shapes.json was made from it.
"""

import ctypes
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml

from bench.real_programs import RealProgram, at_work, real_programs

KINDS = ("train", "train", "conv", "small", "loader", "serve", "serve", "burst", "loop", "loop", "queue", "queue")
SETS = (
    "train+train", "train+conv", "train+small", "train+loader", "train+serve", "train+burst", "serve+serve",
    "small+loader", "loop+loop", "queue+queue", "train+loop", "loop+serve", "train+train+serve", "loop+small",
)  # fmt: skip
SOLO_S, TOGETHER_S, TURNS_S, QUANTUM_S, SETTLE_S = 4.0, 6.0, 3.0, 0.25, 1.0
SAMPLE_S = 0.1
_METRICS = (1, 2, 5, 10)  # graphics, SM, tensor, DRAM


class Recorder(threading.Thread):
    """Samples of the device and of the processes, until it is ended."""

    def __init__(self, handle: Any) -> None:
        super().__init__(daemon=True)
        self.device: list[list[float]] = []
        self.processes: list[list[float]] = []
        self._handle = handle
        self._ended = threading.Event()

    def run(self) -> None:
        samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        pynvml.nvmlGpmSampleGet(self._handle, samples[1])
        seen_us = int((time.time() - 1) * 1e6)
        for number in itertools.count():
            if self._ended.wait(SAMPLE_S):
                return
            newest, before = samples[number % 2], samples[(number + 1) % 2]
            pynvml.nvmlGpmSampleGet(self._handle, newest)
            request = pynvml.c_nvmlGpmMetricsGet_t()
            request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(_METRICS)
            request.sample1, request.sample2 = before, newest
            for place, metric in enumerate(_METRICS):
                request.metrics[place].metricId = metric
            pynvml.nvmlGpmMetricsGet(request)
            values = [round(request.metrics[place].value, 1) for place in range(len(_METRICS))]
            self.device.append([round(time.monotonic(), 3), *values])
            if number % 5 == 4:
                seen_us = self._take_processes(seen_us)

    def _take_processes(self, seen_us: int) -> int:
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, seen_us)
        except pynvml.NVMLError:
            return seen_us
        for one in samples:
            self.processes.append([round(time.monotonic(), 3), one.timeStamp, one.pid, one.smUtil, one.memUtil])
        return max([seen_us, *(int(sample.timeStamp) for sample in samples)])

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self.join()
        return {"device": self.device, "processes": self.processes}


class Turns:
    """One program at a time, by the driver's lock."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        assert self._cuda.cuInit(0) == 0

    def take(self, programs: Sequence[RealProgram], seconds: float) -> None:
        pids = [program.process.pid for program in programs]
        locked: set[int] = set()
        arguments = (ctypes.c_uint64 * 8)(2000)
        end_s = time.monotonic() + seconds
        try:
            for number in itertools.count():
                if time.monotonic() >= end_s:
                    return
                running = pids[number % len(pids)]
                for pid in pids:
                    if pid != running and pid not in locked and self._cuda.cuCheckpointProcessLock(pid, arguments) == 0:
                        locked.add(pid)
                if running in locked:
                    self._cuda.cuCheckpointProcessUnlock(running, None)
                    locked.discard(running)
                time.sleep(QUANTUM_S)
        finally:
            for pid in locked:
                self._cuda.cuCheckpointProcessUnlock(pid, None)


def record(handle: Any, programs: Sequence[RealProgram], seconds: float, turns: Turns | None = None) -> dict[str, Any]:
    with at_work(programs):
        time.sleep(SETTLE_S)
        recorder = Recorder(handle)
        recorder.start()
        begin_s = time.monotonic()
        if turns is None:
            time.sleep(seconds)
        else:
            turns.take(programs, seconds)
        end_s = time.monotonic()
        readings = recorder.end()
    steps = [
        [[round(step.done_s, 4), round(step.length_s, 5)] for step in program.steps(begin_s, end_s)]
        for program in programs
    ]
    rates = [len(steps_of_program) / (end_s - begin_s) for steps_of_program in steps]
    if max(map(len, steps)) > 2000:
        steps = []
    names = {"kinds": [program.kind for program in programs], "pids": [program.process.pid for program in programs]}
    return {**names, "begin_s": begin_s, "end_s": end_s, "rates": rates, "steps": steps, **readings}


def main() -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    turns = Turns()
    document: dict[str, Any] = {"solo": {}, "together": {}, "turns": {}}
    with tempfile.TemporaryDirectory() as name, real_programs(KINDS, Path(name)) as programs:
        Path(name).chmod(0o755)
        for kind in dict.fromkeys(KINDS):
            program = next(candidate for candidate in programs if candidate.kind == kind)
            document["solo"][kind] = record(handle, [program], SOLO_S)
            print(kind, document["solo"][kind]["rates"], file=sys.stderr, flush=True)
        for text in SETS:
            left = list(programs)
            chosen = []
            for kind in text.split("+"):
                chosen.append(next(candidate for candidate in left if candidate.kind == kind))
                left.remove(chosen[-1])
            for way, seconds, by in (("together", TOGETHER_S, None), ("turns", TURNS_S, turns)):
                recorded = document[way][text] = record(handle, chosen, seconds, by)
                solo = [document["solo"][program.kind]["rates"][0] for program in chosen]
                shares = [round(rate / alone, 3) for rate, alone in zip(recorded["rates"], solo, strict=True)]
                print(text, way, shares, file=sys.stderr, flush=True)
            Path(sys.argv[1]).write_text(json.dumps(document))


if __name__ == "__main__":
    main()
