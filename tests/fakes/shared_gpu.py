"""A machine with fake GPUs that programs share: a fake driver whose NVML and GPM report what the programs really do.

Programs are real processes. They stop and go with their lock, make progress as programs on an H200 do, alone and
together, and show in NVML with their memory, utilisation and activity.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from fakes.cuda.build import build_driver, build_program
from fakes.cuda.control import FakeCuda, FakeProgram
from fakes.gpu.account import Activity, GpuAccount, Pair, Phase, Work, Works
from fakes.gpu.build import build_gpus
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.pauser.backend import State
from needs import needs_program
from waiting import until

# Loops of n x n bf16 matrix products on an H200, alone.
MATMUL = {
    8192: Activity(0.932, 0.830, 0.22, 0.97),
    4096: Activity(0.789, 0.637, 0.23, 0.87),
    2048: Activity(0.720, 0.470, 0.05, 0.93),
    1536: Activity(0.357, 0.205, 0.00, 0.58),
    1024: Activity(0.142, 0.056, 0.00, 0.34),
    512: Activity(0.068, 0.008, 0.00, 0.26),
}
# Two of them together under the driver's time-slicing. Other sets are estimated (gpus.c).
PAIRS = [
    Pair(MATMUL[first], MATMUL[second], progress, Activity(*device))
    for first, second, progress, device in (
        (8192, 8192, (0.48, 0.48), (0.871, 0.774, 0.21)),
        (4096, 4096, (0.36, 0.36), (0.514, 0.406, 0.17)),
        (2048, 2048, (0.39, 0.39), (0.548, 0.356, 0.05)),
        (1536, 1536, (0.61, 0.61), (0.424, 0.241, 0.01)),
        (1024, 1024, (0.93, 0.93), (0.272, 0.107, 0.00)),
        (512, 512, (0.84, 0.84), (0.118, 0.014, 0.00)),
        (4096, 512, (0.40, 1.02), (0.346, 0.220, 0.09)),
        (4096, 1536, (0.34, 0.65), (0.463, 0.313, 0.09)),
    )
]
CLIENT = Path(__file__).resolve().parent / "gpu" / "client.py"


class Files(NamedTuple):
    """What is built of the fakes."""

    nvml: Path
    cuda: Path
    program: Path
    gpus: Path


@cache
def built() -> Files:
    """Built once for the whole run, where programs of other users can enter."""
    needs_program("cc")
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.chmod(directory, 0o755)
    nvml, cuda = build(directory / "nvml"), build_driver(directory / "cuda")
    return Files(nvml, cuda, build_program(directory / "program"), build_gpus(directory / "gpus"))


class SharedJob:
    """A program on a shared GPU, or an nvshare client."""

    def __init__(self, account: GpuAccount, job: int, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self.job = job
        self.process = process
        self._account = account

    @property
    def work(self) -> Work:
        return self._account.works().by_job[self.job]

    def progress(self) -> float:
        """The work done so far, in seconds that it takes alone."""
        return self.work.progress_s

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._account.end(self.job)


class SharedProgram(SharedJob):
    """A CUDA program that knows nothing of gpucommons."""

    def __init__(self, account: GpuAccount, job: int, program: FakeProgram) -> None:
        super().__init__(account, job, program.process)
        self.pid = program.pid
        self.program = program
        self.key = program.key

    @property
    def locked(self) -> bool:
        return self.program.state is not State.RUNNING


class Rates(NamedTuple):
    """Each job's progress per second since a moment, over that alone, and how long ago the moment was."""

    over_s: float
    by_job: tuple[float, ...]

    def of(self, job: SharedJob) -> float:
        return self.by_job[job.job]


class SharedGpu:
    """`nvml` and `cuda` control the two drivers. Programs of other users need a directory that they can enter."""

    def __init__(self, directory: Path, gpus: int = 1) -> None:
        files = built()
        self.nvml = FakeNvml(directory / "nvml", files.nvml)
        self.nvml.say(f"gpus {gpus}")
        self.cuda = FakeCuda(directory / "cuda", files.cuda, files.program)
        # The fake NVML finds it by this name.
        self._path = directory / "nvml" / "gpus"
        self._account = GpuAccount(files.gpus, self._path, create=True)
        for pair in PAIRS:
            self._account.add_pair(pair)
        self.jobs: list[SharedJob] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.nvml.unsay("hang", "fail", "lose", "slow")
        self.cuda.close()
        for job in self.jobs:
            job.end()

    def environment(self) -> dict[str, str]:
        """For an agent or a pauser: it finds both drivers as it would find the real ones."""
        nvml, cuda = self.nvml.environment(), self.cuda.environment()
        both = os.pathsep.join(found["LD_LIBRARY_PATH"] for found in (nvml, cuda))
        return {**nvml, **cuda, "LD_LIBRARY_PATH": both}

    def program(
        self,
        solo: Activity | None = None,
        *,
        phases: Sequence[Phase] = (),
        memory_bytes: int = 2**30,
        gpu: int = 0,
        uid: int | None = None,
        prefix: tuple[str, ...] = (),
        is_child: bool = False,
        is_elsewhere: bool = False,
    ) -> SharedProgram:
        """Start a program that computes without end, or goes through phases. `prefix`: see FakeCuda.start."""
        job = self._declare(solo, phases, memory_bytes, gpu)
        arguments = (str(self._path), str(job))
        started = self.cuda.start(
            memory_bytes, *arguments, uid=uid, prefix=prefix, is_child=is_child, is_elsewhere=is_elsewhere
        )
        made = SharedProgram(self._account, job, started)
        self.jobs.append(made)
        return made

    def nvshare_client(
        self,
        socket: Path,
        solo: Activity | None = None,
        *,
        phases: Sequence[Phase] = (),
        memory_bytes: int = 2**30,
        gpu: int = 0,
        version: int = 2,
    ) -> SharedJob:
        """Start a program that takes turns by nvshare's protocol, and computes while it holds the lock."""
        job = self._declare(solo, phases, memory_bytes, gpu)
        arguments = (socket, built().gpus, self._path, job, version, memory_bytes)
        process = subprocess.Popen(
            [sys.executable, str(CLIENT), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        made = SharedJob(self._account, job, process)
        self.jobs.append(made)
        return made

    def _declare(self, solo: Activity | None, phases: Sequence[Phase], memory_bytes: int, gpu: int) -> int:
        given = [Phase(solo), *phases] if solo is not None and not phases else phases
        assert given, "a program needs its activity or its phases"
        return self._account.add_job(gpu, memory_bytes, given)

    # -- what they do

    def works(self) -> Works:
        return self._account.works()

    def rates_since(self, before: Works) -> Rates:
        """Exact: both moments are of the account itself, however late this is called."""
        now = self.works()
        over_s = now.now_s - before.now_s
        pairs = zip(before.by_job, now.by_job, strict=False)
        return Rates(over_s, tuple((new.progress_s - old.progress_s) / over_s for old, new in pairs))

    def calm(self) -> AbstractContextManager[None]:
        """Around the moment in which a program is stopped: it holds nothing then that others need."""
        return self._account.exclusively()

    def let_pass(self, seconds: float) -> None:
        """Wait until that much time of the account has passed."""
        end_s = self.works().now_s + seconds
        until(lambda: self.works().now_s >= end_s, f"{seconds:g} s have passed")
