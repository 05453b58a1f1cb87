"""Which processes are taken for programs that begin to use a GPU: real processes, and files in place of a GPU's."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.arrivals import ArrivalTerms, ArrivalWatch

NAMES = ("nvidiactl", "nvidia-uvm", "nvidia0")
# Opens the files in the order in which CUDA does, maps the library if it is given, and at each line starts a child that
# opens the control file again.
PROGRAM = """
import mmap, os, sys
directory, library = sys.argv[1:]
files = [os.open(f"{directory}/{name}", os.O_RDWR) for name in ("nvidiactl", "nvidia-uvm", "nvidia0")]
if library:
    mapped = mmap.mmap(os.open(library, os.O_RDONLY), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
for _ in sys.stdin:
    pid = os.fork()
    if not pid:
        os.open(f"{directory}/nvidiactl", os.O_RDWR)
        sys.stdin.readline()
        os._exit(0)
    print(pid, flush=True)
"""


class Watched:
    """The candidates of a watch, in the order in which they were found. None of them is held. `gpu_of` has the GPU of
    each that was found."""

    def __init__(self, directory: Path) -> None:
        self._candidates: queue.Queue[int] = queue.Queue()
        self._seen: list[int] = []
        self.gpu_of: dict[int, Callable[[], str | None]] = {}
        self._watch = ArrivalWatch(self._hold, directory)

    def _hold(self, key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        self.gpu_of[key.pid] = gpu_of
        self._candidates.put(key.pid)
        return False

    def begin(self) -> None:
        begun = threading.Event()
        self._watch.watch(ArrivalTerms({0: "GPU-0"}, frozenset({0})), begun=begun.set)
        assert begun.wait(30)

    def end(self) -> None:
        self._watch.watch(None)

    def seen_before(self, pid: int) -> list[int]:
        """The candidates up to this one."""
        while pid not in self._seen:
            self._seen.append(self._candidates.get(timeout=30))
        return self._seen


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def watched(directory: Path) -> Iterator[Watched]:
    made = Watched(directory)
    yield made
    made.end()


@contextmanager
def program(directory: Path, library: str = "") -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM, str(directory), library],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_child_of_a_program_that_only_reads_the_gpu_is_new(directory: Path, watched: Watched) -> None:
    """NVML opens the same files as CUDA: a notebook server that shows GPUs starts kernels that use them."""
    files = [os.open(directory / name, os.O_RDWR) for name in NAMES]
    watched.begin()
    with program(directory) as new:
        watched.seen_before(new.pid)
    for file in files:
        os.close(file)


def test_a_monitor_is_not_held(directory: Path, watched: Watched) -> None:
    """It opens the same files, and the driver would lock it: only the library of CUDA makes the difference."""
    library = directory / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    watched.begin()
    with program(directory) as monitor, program(directory, str(library)) as new:
        watched.seen_before(monitor.pid)
        watched.seen_before(new.pid)
        assert watched.gpu_of[monitor.pid]() == ""
        assert watched.gpu_of[new.pid]() == "GPU-0"


def test_a_program_that_had_cuda_and_its_children_are_not_new(directory: Path, watched: Watched) -> None:
    library = directory / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    with program(directory, str(library)) as old:
        watched.begin()
        assert old.stdin is not None
        assert old.stdout is not None
        old.stdin.write("\n")
        old.stdin.flush()
        child = int(old.stdout.readline())
        with program(directory) as new:
            found = watched.seen_before(new.pid)
    assert old.pid not in found
    assert child not in found
