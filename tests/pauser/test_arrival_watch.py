"""Which processes are taken for programs that begin to use a GPU: real processes, and files in place of a GPU's."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.arrivals import (
    _MAX_TRIES,
    FIRST_TRY_S,
    LATER_TRY_S,
    ArrivalTerms,
    ArrivalWatch,
    _DeviceEvents,
)
from needs import needs_root
from users import in_namespace
from waiting import until

NAMES = ("nvidiactl", "nvidia-uvm", "nvidia0")
# Opens the files in the order in which CUDA does, maps the libraries if they are given, and has a context if that is.
# At `context` it opens what a context opens. At any other line it starts a child that opens the control file again: a
# fork, or with `run` another program.
PROGRAM = """
import ctypes, mmap, os, sys, threading
directory, libraries, context = sys.argv[1:]
files = [os.open(f"{directory}/{name}", os.O_RDWR) for name in ("nvidiactl", "nvidia-uvm", "nvidia0")]
mapped = [mmap.mmap(os.open(name, os.O_RDONLY), 0, prot=mmap.PROT_READ) for name in libraries.split()]
if context == "begins":
    files += [os.open(f"{directory}/nvidia-uvm", os.O_RDWR) for _ in range(2)]
if context == "ready":
    named = threading.Event()
    def handle_events():
        ctypes.CDLL(None).prctl(15, b"cuda-EvtHandlr", 0, 0, 0)
        named.set()
        threading.Event().wait()
    threading.Thread(target=handle_events, daemon=True).start()
    named.wait()
print("ready", flush=True)
for line in sys.stdin:
    if line == "context\\n":
        files += [os.open(f"{directory}/nvidia-uvm", os.O_RDWR) for _ in range(2)]
        print("done", flush=True)
        continue
    if line == "run\\n":
        code = "import os, sys; os.open(sys.argv[1], os.O_RDWR); sys.stdin.readline()"
        print(os.posix_spawn(sys.executable, [sys.executable, "-c", code, f"{directory}/nvidiactl"], {}), flush=True)
        continue
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

    def next_after(self, order: Callable[[], object]) -> int:
        """The first candidate after that."""
        while not self._candidates.empty():
            self._seen.append(self._candidates.get())
        order()
        return self._candidates.get(timeout=30)


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
def program(directory: Path, libraries: str = "", context: str = "") -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM, str(directory), libraries, context],
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


def order(process: "subprocess.Popen[str]", line: str) -> str:
    """Its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_a_child_of_a_program_that_only_reads_the_gpu_is_new(directory: Path, watched: Watched) -> None:
    """NVML opens the same files as CUDA: a notebook server that shows GPUs starts kernels that use them."""
    files = [os.open(directory / name, os.O_RDWR) for name in NAMES]
    watched.begin()
    with program(directory) as new:
        watched.seen_before(new.pid)
    for file in files:
        os.close(file)


def test_a_monitor_is_not_held(directory: Path, watched: Watched) -> None:
    """NVML opens the same files and maps the library of CUDA, and the driver would lock it. A program that uses both is
    known by its context."""
    cuda, nvml = directory / "libcuda.so.1", directory / "libnvidia-ml.so.1"
    for library in (cuda, nvml):
        library.write_bytes(b"\0" * 4096)
    both = f"{cuda} {nvml}"
    watched.begin()
    with (
        program(directory) as before_its_library,
        program(directory, both) as monitor,
        program(directory, str(cuda)) as new,
        program(directory, both, "begins") as early,
        program(directory, both, "ready") as late,
    ):
        for process in (before_its_library, monitor, new, early, late):
            watched.seen_before(process.pid)
        assert watched.gpu_of[before_its_library.pid]() == ""
        assert watched.gpu_of[monitor.pid]() == ""
        assert watched.gpu_of[new.pid]() == "GPU-0"
        assert watched.gpu_of[early.pid]() == "GPU-0"
        assert watched.gpu_of[late.pid]() == "GPU-0"


def test_a_program_that_had_cuda_and_its_children_are_not_new(directory: Path, watched: Watched) -> None:
    library = directory / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    with program(directory, str(library)) as old:
        watched.begin()
        child = int(order(old, ""))
        with program(directory) as new:
            found = watched.seen_before(new.pid)
    assert old.pid not in found
    assert child not in found


def test_a_program_that_had_initialised_cuda_without_a_context_is_new(directory: Path, watched: Watched) -> None:
    """Libraries do so as they are imported, long before a model is loaded."""
    library = directory / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    with program(directory, str(library)) as old:
        watched.begin()
        assert watched.next_after(lambda: order(old, "context")) == old.pid
        assert watched.gpu_of[old.pid]() == "GPU-0"


def test_what_others_open_makes_no_program_a_candidate_again(directory: Path, watched: Watched) -> None:
    """A program that has opened NVML reads its data for minutes, while a monitor starts every second."""
    watched.begin()
    with program(directory) as reads:
        watched.seen_before(reads.pid)
        for _ in range(_MAX_TRIES):
            with program(directory) as monitor:
                found = watched.seen_before(monitor.pid)
        # It may have been seen with some of its files first.
        assert found.count(reads.pid) <= len(NAMES)
        assert watched.next_after(lambda: order(reads, "context")) == reads.pid


def test_what_a_program_opens_while_it_is_tried_is_tried_next(directory: Path) -> None:
    """Its context may begin when the time of the first try is nearly over."""
    tried: queue.Queue[tuple[int, float]] = queue.Queue()
    end = threading.Event()

    def hold(key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        tried.put((key.pid, within_s))
        end.wait(60)
        return False

    watch, begun = ArrivalWatch(hold, directory), threading.Event()
    watch.watch(ArrivalTerms({0: "GPU-0"}, frozenset({0})), begun=begun.set)
    assert begun.wait(30)
    with program(directory) as new:
        assert tried.get(timeout=30) == (new.pid, FIRST_TRY_S)
        order(new, "context")
        with program(directory) as later:
            # When this one was noticed, what the first one opened before was seen, too.
            assert tried.get(timeout=30) == (later.pid, FIRST_TRY_S)
            # Nothing is looked at from here on.
            ended = threading.Event()
            watch.watch(None, begun=ended.set)
            assert ended.wait(30)
            end.set()
            assert tried.get(timeout=30) == (new.pid, LATER_TRY_S)


def test_what_a_program_with_cuda_executes_is_new(directory: Path, watched: Watched) -> None:
    """A notebook, or a monitor that is taken for a program, starts a training."""
    library = directory / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    with program(directory, str(library)) as old:
        watched.begin()
        watched.seen_before(int(order(old, "run")))


# In a mount namespace of its own, the directory is on a file system that never answers.
HANGING = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, PRIVATE_BELOW = 0x20000, 0x44000
if libc.unshare(NEW_MOUNTS) or libc.mount(b"none", b"/", None, PRIVATE_BELOW, None):
    sys.exit("no mount namespace")
options = f"fd={os.open('/dev/fuse', os.O_RDWR)},rootmode=40000,user_id=0,group_id=0"
if libc.mount(b"hangs", os.fsencode(sys.argv[1]), b"fuse", 0, options.encode()):
    sys.exit("no FUSE")
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_container_with_a_file_system_that_hangs_hides_no_other_program(directory: Path, watched: Watched) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HANGING, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as hanging:
        assert hanging.stdout is not None
        try:
            if hanging.stdout.readline() != "ready\n":
                pytest.skip("needs root and FUSE")
            watched.begin()
            with program(directory) as new:
                watched.seen_before(new.pid)
        finally:
            hanging.kill()


@contextmanager
def container(directory: Path) -> Iterator[Path]:
    """Its device file, on a file system of its own that ends with it."""
    mount = 'mount -t tmpfs tmpfs "$0" && touch "$0/nvidiactl" && echo ready && exec cat'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", mount, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Path(f"/proc/{process.pid}/root{directory}/nvidiactl")
        finally:
            process.kill()


def test_the_file_of_the_next_container_is_watched_though_it_has_the_same_numbers(directory: Path) -> None:
    needs_root()
    with _DeviceEvents() as opens:

        def numbers_once_watched(file: Path) -> tuple[int, int]:
            opens.drain()
            opens.add([file])
            file.read_bytes()
            assert opens.drain(), "its open is reported"
            status = os.stat(file)
            return status.st_dev, status.st_ino

        seen: list[tuple[int, int]] = []
        # The number of a file system is free a moment after its end.
        while len(set(seen)) == len(seen) < 100:
            with container(directory) as file:
                seen.append(numbers_once_watched(file))
        if len(set(seen)) == len(seen):
            pytest.skip("this kernel gives each file system a number of its own")


def test_the_files_of_many_programs_that_start_at_once_are_all_watched(tmp_path: Path) -> None:
    """As a build starts them: more than there are threads."""
    files = [tmp_path / str(number) for number in range(300)]
    with _DeviceEvents() as opens:
        for file in files:
            file.touch()
        opens.drain()
        for file in files:
            opens.add_soon([file])

        def is_watched(file: Path) -> bool:
            file.read_bytes()
            return opens.drain()

        for file in files:
            until(partial(is_watched, file), f"{file.name} is watched")


FLOODER = 64_000
OPENS = 'exec 3<>"$0/nvidiactl" 4<>"$0/nvidia0"; echo ready; exec sleep 600'


@pytest.mark.parametrize("way", ["one uid", pytest.param("uids of a namespace", marks=pytest.mark.long)])
def test_many_programs_of_one_user_do_not_hide_those_of_another(way: str) -> None:
    needs_root()
    tried: list[int] = []
    end = threading.Event()

    def hold(key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        tried.append(key.pid)
        end.wait(120)
        return False

    with ExitStack() as stack:
        # Other users may look into it.
        directory = Path(stack.enter_context(TemporaryDirectory()))
        directory.chmod(0o755)
        for name in NAMES:
            (directory / name).touch()
            (directory / name).chmod(0o666)
        stack.callback(end.set)
        watch, begun = ArrivalWatch(hold, directory), threading.Event()
        watch.watch(ArrivalTerms({0: "GPU-0"}, frozenset({0})), begun=begun.set)
        stack.callback(watch.watch, None)
        assert begun.wait(30)
        namespace = 0 if way == "one uid" else stack.enter_context(in_namespace(100, FLOODER))
        for number in range(80):
            enter = ["nsenter", f"--user=/proc/{namespace}/ns/user", f"--setuid={number}"] if namespace else []
            flood = stack.enter_context(
                subprocess.Popen(
                    [*enter, "sh", "-c", OPENS, str(directory)],
                    user=None if namespace else FLOODER,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(flood.kill)
            assert flood.stdout is not None
            assert flood.stdout.readline() == "ready\n"
        with program(directory) as new:
            until(lambda: new.pid in tried, "the program of the other user is noticed")
