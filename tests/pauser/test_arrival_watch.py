"""Which processes are taken for programs that begin to use a GPU: real processes, and files in place of a GPU's."""

import os
import queue
import re
import resource
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser import arrivals
from gpucommons.pauser.arrivals import (
    _MAX_TRIES,
    FIRST_TRY_S,
    LATER_TRY_S,
    ArrivalTerms,
    ArrivalWatch,
    _DeviceEvents,
    _ExecEvents,
    choose_gpu,
    cuda_users,
)
from needs import needs_root
from open_folder import open_folder
from users import as_user, in_namespace
from waiting import until

NAMES = ("nvidiactl", "nvidia-uvm", "nvidia0")
# What CUDA opens as it is initialised, and what NVML opens.
INITIAL = ("nvidiactl", *["nvidia-uvm"] * 2, *["nvidia0"] * 4)
MONITOR = ("nvidiactl", *["nvidia-uvm"] * 2, *["nvidia0"] * 3)
# Opens the files in the order in which CUDA does, maps the libraries if they are given, and has a context if that is.
# At `context` it opens what a context on the first GPU opens, at `context 1` on the second one, and at names of files
# these; at `close` it closes the last one. At any other line it starts a child that opens the control file again: a
# fork, or with `run` another program.
PROGRAM = """
import ctypes, mmap, os, sys, threading
directory, libraries, context, names = sys.argv[1:]
files = [os.open(f"{directory}/{name}", os.O_RDWR) for name in names.split()]
mapped = [mmap.mmap(os.open(name, os.O_RDONLY), 0, prot=mmap.PROT_READ) for name in libraries.split()]
if context == "begins":
    files += [os.open(f"{directory}/nvidia0", os.O_RDWR) for _ in range(16)]
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
    if line.startswith("context"):
        files += [os.open(f"{directory}/nvidia{line[8:].strip() or 0}", os.O_RDWR) for _ in range(16)]
        print("done", flush=True)
        continue
    if line.startswith("nvidia"):
        files += [os.open(f"{directory}/{name}", os.O_RDWR) for name in line.split()]
        print("done", flush=True)
        continue
    if line == "close\\n":
        os.close(files.pop())
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

# Another user.
FLOODER = 64_000

ONE_GPU = ArrivalTerms({0: "GPU-0"}, frozenset({0}))


def join_tries() -> None:
    for thread in threading.enumerate():
        if thread.name == "arrival":
            thread.join(30)


class Watched:
    """The candidates of a watch, in the order in which they were found. None of them is held: those of `have_cuda` have
    CUDA. `gpu_of` has the GPU of each that was found."""

    def __init__(self, directory: Path) -> None:
        self._candidates: queue.Queue[int] = queue.Queue()
        self._seen: list[int] = []
        self.gpu_of: dict[int, Callable[[], str | None]] = {}
        self.have_cuda: set[int] = set()
        self._asked: tuple[ArrivalTerms | None, frozenset[int]] = None, frozenset()
        self._watch = ArrivalWatch(self._hold, directory)

    def _hold(self, key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        self.gpu_of[key.pid] = gpu_of
        self._candidates.put(key.pid)
        return key.pid in self.have_cuda

    def begin(self, terms: ArrivalTerms | None = ONE_GPU, own: frozenset[int] = frozenset()) -> None:
        self._asked = terms, own
        begun = threading.Event()
        self._watch.watch(terms, own, begun.set)
        assert begun.wait(30)

    def end(self) -> None:
        """Also of the files that are watched: what begins afterwards begins a watch."""
        self.begin(None)
        self.begin(None)

    def count(self, pid: int, act: Callable[[], object] = lambda: None) -> int:
        """How often it was a candidate, after that."""
        act()
        # What was opened before the first is looked at before the second has begun.
        self.begin(*self._asked)
        self.begin(*self._asked)
        join_tries()
        while not self._candidates.empty():
            self._seen.append(self._candidates.get())
        return self._seen.count(pid)

    @property
    def prepared(self) -> Sequence[int]:
        return self._watch._prepared()

    @property
    def remembered(self) -> Sequence[ProcessKey]:
        return list(self._watch._tried)

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
def cuda(directory: Path) -> str:
    """Its library."""
    library = directory / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    return str(library)


@pytest.fixture
def both(directory: Path, cuda: str) -> str:
    """The libraries of CUDA and of NVML, which maps the first one too."""
    nvml = directory / "libnvidia-ml.so.1"
    nvml.write_bytes(b"\0" * 4096)
    return f"{cuda} {nvml}"


@pytest.fixture
def watched(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    # A busy machine cuts no look short.
    monkeypatch.setattr(arrivals, "_SCAN_S", 30.0)
    made = Watched(directory)
    yield made
    made.end()


@contextmanager
def program(
    directory: Path, libraries: str = "", context: str = "", names: Sequence[str] = NAMES, visible: str | None = None
) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM, str(directory), libraries, context, " ".join(names)],
        env=os.environ | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}),
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


@pytest.mark.parametrize("with_nvml", [False, True])
def test_a_program_is_held_once_it_makes_a_context(
    directory: Path, watched: Watched, cuda: str, both: str, with_nvml: bool
) -> None:
    """Many only ask CUDA whether there is a GPU, or read their data for minutes after that."""
    watched.begin()
    names = (*INITIAL, *MONITOR) if with_nvml else INITIAL
    with program(directory, both if with_nvml else cuda, names=names) as new:
        before = watched.count(new.pid)
        assert before
        assert watched.gpu_of[new.pid]() == ""
        assert watched.count(new.pid, lambda: order(new, "nvidia0")) == before + 1
        assert watched.gpu_of[new.pid]() == "GPU-0"


def test_a_context_is_known_by_its_thread_too(directory: Path, watched: Watched, cuda: str, both: str) -> None:
    """Another driver may open fewer files."""
    watched.begin()
    with (
        program(directory, names=INITIAL) as before_its_library,
        program(directory, cuda, "ready") as new,
        program(directory, both, "ready") as with_nvml,
    ):
        for process in (before_its_library, new, with_nvml):
            watched.seen_before(process.pid)
        assert watched.gpu_of[before_its_library.pid]() == ""
        assert watched.gpu_of[new.pid]() == "GPU-0"
        assert watched.gpu_of[with_nvml.pid]() == "GPU-0"


def test_a_monitor_is_not_held(directory: Path, watched: Watched, both: str) -> None:
    """NVML opens the same files as CUDA, and the driver would lock it. Some open more of a GPU, for its events. That of
    older drivers does not map the library of CUDA."""
    watched.begin(ONE_GPU._replace(full=frozenset({0})))
    names = (*MONITOR, *["nvidia0"] * 20)
    with program(directory, both, names=names) as monitor, program(directory, names=names) as older:
        for process in (monitor, older):
            watched.seen_before(process.pid)
            assert watched.gpu_of[process.pid]() == ""


def test_where_a_context_has_no_room_a_program_is_held_before_it(directory: Path, watched: Watched, cuda: str) -> None:
    (directory / "nvidia1").touch()
    watched.begin(ArrivalTerms({0: "GPU-a", 1: "GPU-b"}, frozenset({0, 1}), full=frozenset({1})))
    names = (*INITIAL, *["nvidia1"] * 4)
    with program(directory, cuda, names=names) as first, program(directory, cuda, names=names, visible="1") as second:
        for process in (first, second):
            assert watched.count(process.pid)
        assert watched.gpu_of[first.pid]() == ""
        assert watched.gpu_of[second.pid]() == "GPU-b"


def test_the_gpu_is_that_of_the_context(directory: Path, watched: Watched, cuda: str) -> None:
    """Whichever comes first among those that the program may use."""
    (directory / "nvidia1").touch()
    watched.begin(ArrivalTerms({0: "GPU-a", 1: "GPU-b"}, frozenset({0, 1})))
    with program(directory, cuda, names=(*NAMES, "nvidia1")) as new:
        watched.seen_before(new.pid)
        order(new, "context 1")
        assert watched.gpu_of[new.pid]() == "GPU-b"
        order(new, "context")
        assert watched.gpu_of[new.pid]() == "GPU-a"


def test_a_context_on_a_gpu_that_is_not_known_yet_is_tried_again(directory: Path, watched: Watched, cuda: str) -> None:
    (directory / "nvidia1").touch()
    watched.begin(ArrivalTerms({0: "GPU-a", 1: "GPU-b"}, frozenset({0, 1})))
    with program(directory, cuda, "ready", (*NAMES, "nvidia1"), "MIG-1") as new:
        before = watched.count(new.pid)
        assert watched.gpu_of[new.pid]() is None
        assert watched.count(new.pid, lambda: order(new, "context 1")) > before
        assert watched.gpu_of[new.pid]() == "GPU-b"


def test_those_that_were_seen_before_are_looked_at_first(
    directory: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of one owner as are tried at once, and none that was held."""
    monkeypatch.setattr(arrivals, "_MAX_OF_OWNER", 2)
    watched.begin()
    with ExitStack() as stack:
        programs = []
        for _ in range(4):
            programs.append(stack.enter_context(program(directory)))
            assert watched.count(programs[-1].pid)
        watched.have_cuda.add(programs[0].pid)
        watched.count(programs[0].pid, lambda: order(programs[0], "nvidia0"))
        assert watched.prepared == [one.pid for one in programs[1:3]]


def test_what_is_opened_again_and_again_is_tried_once(directory: Path, watched: Watched) -> None:
    """A program that asks NVML every second may train later."""
    watched.begin()
    with program(directory) as reads:
        assert watched.count(reads.pid)
        before = watched.count(reads.pid, lambda: order(reads, "nvidia0"))
        for _ in range(3):
            order(reads, "close")
            assert watched.count(reads.pid, lambda: order(reads, "nvidia0")) == before
        assert watched.count(reads.pid, lambda: order(reads, "nvidia0")) == before + 1


def test_a_program_that_had_cuda_and_its_children_are_not_new(directory: Path, watched: Watched, cuda: str) -> None:
    with program(directory, cuda) as old:
        watched.begin()
        child = int(order(old, ""))
        with program(directory) as new:
            found = watched.seen_before(new.pid)
    assert old.pid not in found
    assert child not in found


def test_a_fork_of_a_program_that_only_read_the_gpu_before_is_new(directory: Path, watched: Watched, cuda: str) -> None:
    """It has no CUDA, and its fork may use it."""
    nvml = directory / "libnvidia-ml.so.1"
    nvml.write_bytes(b"\0" * 4096)
    with program(directory, f"{cuda} {nvml}") as reads, program(directory, cuda, "", NAMES[:1]) as before_its_files:
        watched.begin()
        for parent in (reads, before_its_files):
            watched.seen_before(int(order(parent, "")))


def test_programs_at_work_take_no_place_of_new_ones(
    directory: Path, watched: Watched, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_MAX_CANDIDATES", 1)
    with program(directory, cuda, "begins"):
        watched.begin()
        with program(directory) as new:
            watched.seen_before(new.pid)


def test_a_program_that_had_initialised_cuda_without_a_context_is_new(
    directory: Path, watched: Watched, cuda: str
) -> None:
    """Libraries do so as they are imported, long before a model is loaded."""
    with program(directory, cuda, names=INITIAL) as old:
        watched.begin()
        assert watched.next_after(lambda: order(old, "nvidia0")) == old.pid
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


@pytest.mark.parametrize(("opens", "within_s"), [("nvidia-uvm", LATER_TRY_S), ("context", FIRST_TRY_S)])
def test_what_a_program_opens_while_it_is_tried_is_tried_next(directory: Path, opens: str, within_s: float) -> None:
    """Its context may begin when the time of the first try is nearly over, and takes long on a busy machine."""
    tried: queue.Queue[tuple[int, float]] = queue.Queue()
    end = threading.Event()

    def hold(key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        tried.put((key.pid, within_s))
        end.wait(60)
        return False

    watch, begun = ArrivalWatch(hold, directory), threading.Event()
    watch.watch(ONE_GPU, begun=begun.set)
    assert begun.wait(30)
    with program(directory) as new:
        assert tried.get(timeout=30) == (new.pid, FIRST_TRY_S)
        order(new, opens)
        with program(directory) as later:
            # When this one was noticed, what the first one opened before was seen, too.
            assert tried.get(timeout=30) == (later.pid, FIRST_TRY_S)
            # Nothing is looked at from here on.
            ended = threading.Event()
            watch.watch(None, begun=ended.set)
            assert ended.wait(30)
            end.set()
            assert tried.get(timeout=30) == (new.pid, within_s)


def test_one_that_turns_out_to_have_cuda_is_not_tried_again_for_what_it_opened_meanwhile(directory: Path) -> None:
    tried: queue.Queue[int] = queue.Queue()
    end = threading.Event()

    def hold(key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        tried.put(key.pid)
        end.wait(60)
        return True

    watch, begun = ArrivalWatch(hold, directory), threading.Event()
    watch.watch(ONE_GPU, begun=begun.set)
    assert begun.wait(30)
    with program(directory, "", "", NAMES[:1]) as new:
        assert tried.get(timeout=30) == new.pid
        order(new, "context")
        with program(directory) as later:
            # When this one was noticed, what the first one opened before was seen, too.
            assert tried.get(timeout=30) == later.pid
            ended = threading.Event()
            watch.watch(None, begun=ended.set)
            assert ended.wait(30)
            end.set()
            join_tries()
            assert tried.empty()


def test_processes_that_opened_nothing_are_not_read_again(
    directory: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor starts every second, on a node with a thousand processes."""
    if not os.stat("/proc/self/fd").st_size:
        pytest.skip("this kernel does not count the open files of a process")
    read: list[int] = []

    def opened_files(pid: int, device_files: Path, procfs: Path) -> arrivals.Opened | None:
        read.append(pid)
        return real(pid, device_files, procfs)

    real = arrivals.opened_files
    monkeypatch.setattr(arrivals, "opened_files", opened_files)
    with program(directory, names=()) as waits:
        watched.begin()
        assert read.count(waits.pid) == 1
        with program(directory) as monitor:
            assert watched.count(monitor.pid)
        assert read.count(waits.pid) == 1
        assert watched.count(waits.pid, lambda: order(waits, "nvidiactl nvidia0"))
        # One with a GPU's files is read each time: it may close one and open another.
        before = read.count(waits.pid)
        with program(directory) as monitor:
            assert watched.count(monitor.pid)
        assert read.count(waits.pid) > before


def test_each_watch_reads_the_files_of_all_processes_first(directory: Path, watched: Watched, cuda: str) -> None:
    """Between two of them a program may open as many files as it closes."""
    (directory / "data").touch()
    files = ("nvidiactl", "nvidia-uvm", *["nvidia0"] * 18)
    with program(directory, cuda, names=["data"] * len(files)) as old:
        watched.begin()
        watched.end()
        for _ in files:
            order(old, "close")
        order(old, " ".join(files))
        watched.begin()
        assert watched.count(old.pid, lambda: order(old, "nvidia0")) == 0, "it was at work before the watch"


def test_what_a_program_with_cuda_executes_is_new(directory: Path, watched: Watched, cuda: str) -> None:
    """A notebook, or a monitor that is taken for a program, starts a training."""
    with program(directory, cuda) as old:
        watched.begin()
        watched.seen_before(int(order(old, "run")))


def test_a_program_is_held_where_its_gpu_is_short(directory: Path, watched: Watched, cuda: str) -> None:
    names = (*NAMES, "nvidia1")
    (directory / "nvidia1").touch()
    watched.begin(ArrivalTerms({0: "GPU-a", 1: "GPU-b"}, frozenset({1})))
    with (
        program(directory, cuda, "", NAMES[:2]) as without,
        program(directory, cuda, "", names) as first,
        program(directory, cuda, "", names, "1,0") as second,
        program(directory, cuda, "", names, "MIG-1") as unknown,
    ):
        for process in (without, first, second, unknown):
            assert watched.count(process.pid)
            assert watched.gpu_of[process.pid]() == ""
        order(first, "context")
        order(second, "context 1")
        order(unknown, "context")
        assert watched.gpu_of[without.pid]() == ""
        assert watched.gpu_of[first.pid]() is None
        assert watched.gpu_of[second.pid]() == "GPU-b"
        assert watched.gpu_of[unknown.pid]() is None
        watched.end()
        assert watched.gpu_of[second.pid]() is None
        watched.begin(ArrivalTerms({0: "GPU-a", 1: "GPU-b"}, frozenset({1})))
    assert watched.gpu_of[second.pid]() is None


@pytest.mark.parametrize(
    ("opened", "visible", "gpu"),
    [
        ({2}, "0", 2),
        ({0, 1, 2, 3}, None, 0),
        ({0, 1, 2, 3}, "", 0),
        ({1, 2, 9}, None, 1),
        ({0, 1, 2, 3}, "2,0", 2),
        ({0, 1, 2, 3}, " 1 , 0", 1),
        ({0, 1, 2, 3}, "GPU-ab", 1),
        ({0, 1, 2, 3}, "GPU-b,GPU-aa", 2),
        ({0, 1, 2, 3}, "4", None),
        ({0, 1, 2, 3}, "-1", None),
        (set(), "0", None),
        ({9}, None, None),
        # So far: the others follow.
        ({0, 1}, "3", 3),
        ({1, 2}, "1", 1),
        # In a container that has some of the GPUs.
        ({2, 3}, "0", 2),
        ({2, 3}, "1,0", 3),
        ({2, 3}, "4", None),
    ],
)
def test_the_gpu_of_a_program_is_the_first_that_it_may_use(
    opened: set[int], visible: str | None, gpu: int | None
) -> None:
    assert choose_gpu(opened, visible, {0: "GPU-aa", 1: "GPU-ab", 2: "GPU-b", 3: "GPU-c"}) == gpu


def test_a_program_that_began_while_its_gpu_had_room_is_not_new_when_it_is_short(
    directory: Path, watched: Watched, cuda: str
) -> None:
    """It was watched, as another GPU was short. It works for hours, and then reads NVML."""
    (directory / "nvidia1").touch()
    gpus = {0: "GPU-a", 1: "GPU-b"}
    watched.begin(ArrivalTerms(gpus, frozenset({1})))
    with program(directory, cuda) as old, program(directory, cuda) as prepares:
        before = watched.count(old.pid, lambda: order(old, "context"))
        assert watched.gpu_of[old.pid]() is None
        assert watched.gpu_of[prepares.pid]() == ""
        watched.begin(ArrivalTerms(gpus, frozenset({0, 1})))
        assert watched.count(old.pid, lambda: order(old, "nvidia-uvm")) == before
        before = watched.count(prepares.pid)
        assert watched.count(prepares.pid, lambda: order(prepares, "context")) > before
        assert watched.gpu_of[prepares.pid]() == "GPU-a"


def test_a_program_with_a_context_before_the_watch_began_again_is_not_new(
    directory: Path, watched: Watched, cuda: str
) -> None:
    """It opens more as it reads NVML."""
    watched.begin()
    with program(directory, cuda) as old:
        before = watched.count(old.pid)
        watched.end()
        order(old, "context")
        watched.begin()
        assert watched.count(old.pid, lambda: order(old, "nvidia-uvm")) == before > 0


def test_a_program_with_cuda_and_its_forks_are_not_tried_again(directory: Path, watched: Watched, cuda: str) -> None:
    watched.begin()
    with program(directory, cuda, "", NAMES[:2]) as old:
        before = watched.count(old.pid)
        watched.have_cuda.add(old.pid)
        assert watched.count(old.pid, lambda: order(old, "nvidia0")) == before + 1
        assert watched.count(old.pid, lambda: order(old, "context")) == before + 1
        fork = int(order(old, ""))
        # The files that it has from its parent are seen as this one opens its own.
        with program(directory) as new:
            assert watched.count(new.pid)
        assert watched.count(fork) == 0


def test_a_program_that_opens_more_and_more_is_a_monitor(
    directory: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_MAX_TRIES", 3)
    watched.begin()
    with program(directory, "", "", NAMES[:1]) as monitor:
        counts = [watched.count(monitor.pid, lambda: order(monitor, "nvidia-uvm")) for _ in range(5)]
    assert counts[-3:] == [3, 3, 3]


def test_of_many_programs_those_that_run_are_remembered(
    directory: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_MAX_REMEMBERED", 2)
    watched.begin()
    with program(directory) as reads:
        before = watched.count(reads.pid)
        for _ in range(4):
            with program(directory) as other:
                assert watched.count(other.pid)
        assert watched.count(reads.pid) == before > 0
        assert len(watched.remembered) <= 4, "those that have ended are forgotten"


def watched_names(directory: Path) -> set[str]:
    """The files of this directory that this process watches, as the kernel lists them."""
    inodes: set[int] = set()
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        # It may have been closed meanwhile.
        with suppress(FileNotFoundError):
            found = re.findall(r"^inotify wd:\S+ ino:(\S+)", descriptor.read_text("ascii"), re.MULTILINE)
            inodes |= {int(inode, 16) for inode in found}
    return {path.name for path in directory.iterdir() if path.stat().st_ino in inodes}


def test_of_the_device_files_those_of_gpus_are_watched(directory: Path, watched: Watched) -> None:
    """A terminal or the null device is opened all the time."""
    others = {"null", "tty", "nvidia-modeset", "nvidia-caps", "nvidia", "xnvidia1"}
    for name in ("nvidia1", "nvidia12", *others):
        (directory / name).touch()
    watched.begin()
    assert watched_names(directory) == {*NAMES, "nvidia1", "nvidia12"}
    watched.end()
    assert watched_names(directory) == set()


def test_a_watch_is_reported_when_it_is_there_also_while_the_last_one_ends(directory: Path) -> None:
    watch = ArrivalWatch(lambda *_: False, directory)
    reported: queue.Queue[set[str]] = queue.Queue()

    def begin() -> None:
        watch.watch(ONE_GPU, begun=lambda: reported.put(watched_names(directory)))

    for _ in range(30):
        begin()
        assert reported.get(timeout=30) == set(NAMES)
        watch.watch(None)
        # The files are not watched any more some milliseconds before the kernel's call returns.
        while watched_names(directory):
            pass


def test_where_nothing_can_be_watched_the_next_terms_are_tried(directory: Path) -> None:
    watch, begun, again = ArrivalWatch(lambda *_: False, directory), threading.Event(), threading.Event()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # It can open nothing.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        watch.watch(ONE_GPU, begun=begun.set)
        assert begun.wait(30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    watch.watch(ONE_GPU, begun=again.set)
    assert again.wait(30)
    assert watched_names(directory) == set(NAMES)
    watch.watch(None)


# Watches, and tries to hold what opens a device file. Then it begins another watch, and ends during that.
WATCHING = """
import os, signal, sys, threading
from pathlib import Path
from gpucommons.pauser.arrivals import ArrivalTerms, ArrivalWatch
signal.alarm(60)
tries = threading.Event()
def hold(*_):
    tries.set()
    threading.Event().wait()
watch, begun = ArrivalWatch(hold, Path(sys.argv[1])), threading.Event()
terms = ArrivalTerms({0: "GPU-0"}, frozenset({0}), os.getuid())
watch.watch(terms, begun=begun.set)
begun.wait()
file = os.open(sys.argv[1] + "/nvidiactl", os.O_RDWR)
tries.wait()
for each in (None, terms):
    begun.clear()
    watch.watch(each, begun=begun.set)
    begun.wait()
"""


@pytest.mark.parametrize("enter", [[], as_user(FLOODER)], ids=["this user", "another user"])
def test_a_watch_and_its_tries_keep_no_program_from_its_end(enter: Sequence[str]) -> None:
    if enter:
        needs_root()
    with open_folder() as directory:
        for name in NAMES:
            (directory / name).touch()
            (directory / name).chmod(0o666)
        subprocess.run([*enter, sys.executable, "-c", WATCHING, str(directory)], check=True)


def test_what_opens_no_device_file_is_not_new(directory: Path, watched: Watched) -> None:
    watched.begin()
    with program(directory, "", "", ()) as none, program(directory, "", "", ("nvidia0",)) as only_a_gpu:
        assert watched.count(only_a_gpu.pid)
        assert watched.count(none.pid) == 0


def test_a_process_that_ends_during_a_look_is_passed_over(directory: Path) -> None:
    """Its folder was listed, and has no open files any more."""
    ended = directory / "proc" / "77"
    ended.mkdir(parents=True)
    (ended / "stat").write_bytes(Path("/proc/self/stat").read_bytes())
    watch = ArrivalWatch(lambda *_: False, directory, ended.parent)
    for terms in (ONE_GPU, None):
        begun = threading.Event()
        watch.watch(terms, begun=begun.set)
        assert begun.wait(30)


def test_the_programs_that_are_tried_at_once_are_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_MAX_CANDIDATES", 2)
    tried: queue.Queue[int] = queue.Queue()
    end = threading.Event()

    def hold(key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        tried.put(key.pid)
        end.wait(60)
        return False

    watch = ArrivalWatch(hold, directory)

    def begin(terms: ArrivalTerms | None = ONE_GPU) -> None:
        begun = threading.Event()
        watch.watch(terms, begun=begun.set)
        assert begun.wait(30)

    begin()
    with ExitStack() as stack:
        # On a busy machine the next one may be seen first.
        for _ in range(2):
            one = stack.enter_context(program(directory))
            assert tried.get(timeout=30) == one.pid
        third = stack.enter_context(program(directory))
        # What was opened is looked at before the second has begun.
        begin()
        begin()
        assert tried.empty()
        end.set()
        join_tries()
        order(third, "nvidia0")
        # The others may have opened more meanwhile.
        while tried.get(timeout=30) != third.pid:
            pass
    begin(None)


def test_what_is_opened_while_no_thread_can_start_is_tried_when_it_opens_more(
    directory: Path, watched: Watched
) -> None:
    watched.begin()
    # More than there are addresses.
    before = threading.stack_size(1 << 60)
    try:
        with program(directory) as new:
            assert watched.count(new.pid) == 0
            threading.stack_size(before)
            assert watched.count(new.pid, lambda: order(new, "context"))
    finally:
        threading.stack_size(before)


def test_a_look_ends_with_its_time_and_the_next_one_sees_the_rest(
    directory: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_SCAN_S", 0.0)
    watched.begin()
    with program(directory) as new:
        assert watched.count(new.pid) == 0
        monkeypatch.setattr(arrivals, "_SCAN_S", 30.0)
        assert watched.count(new.pid, lambda: order(new, "nvidia0"))


def test_a_watch_that_ends_during_a_look_begins_again(
    directory: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pause until the next look of the same round.
    monkeypatch.setattr(arrivals, "_SCAN_AGAIN_S", (0.3,))
    watched.begin()
    with program(directory) as one:
        watched.seen_before(one.pid)
        watched.end()
        watched.begin()
        with program(directory) as other:
            watched.seen_before(other.pid)


def test_the_agent_and_what_other_users_run_are_not_held(directory: Path, watched: Watched) -> None:
    """An agent without root watches for its own user only."""
    watched.begin()
    with program(directory) as one:
        before = watched.count(one.pid)
        watched.begin(own=frozenset({one.pid}))
        assert watched.count(one.pid, lambda: order(one, "nvidia0")) == before > 0
        watched.begin(ONE_GPU._replace(uid=os.getuid() + 1))
        assert watched.count(one.pid, lambda: order(one, "nvidia0")) == before
        watched.begin(ONE_GPU._replace(uid=os.getuid()))
        assert watched.count(one.pid, lambda: order(one, "nvidia0")) == before + 1


def test_what_uses_cuda_is_found_for_an_order_to_resume_it(directory: Path) -> None:
    files = [os.open(directory / name, os.O_RDWR) for name in NAMES]
    # Its name is as long.
    elsewhere = directory.with_name(directory.name[::-1])
    elsewhere.mkdir()
    (elsewhere / "nvidia-uvm").touch()
    with (
        program(directory) as uses,
        program(directory, "", "", ("nvidiactl", "nvidia0")),
        program(elsewhere, "", "", ("nvidia-uvm",)),
        program(directory) as youngest,
    ):
        found = list(cuda_users(directory))
    for file in files:
        os.close(file)
    # The youngest first, as far as pids show that.
    assert found == sorted((uses.pid, youngest.pid), reverse=True)


# Executes a shell once its own device files are there, as a container runtime does. It opens one at each line.
CONTAINER = """
mount -t tmpfs tmpfs "$0" && touch "$0/nvidiactl" "$0/nvidia0" && exec sh -c '
echo ready
while read line; do exec 3<>"$0/$1"; echo opened; done
' "$0" "$1"
"""


@pytest.mark.parametrize(
    ("begins", "file"),
    [("before the watch", "nvidiactl"), ("before the watch", "nvidia0"), ("during the watch", "nvidia0")],
)
def test_a_program_in_a_container_with_device_files_of_its_own_is_noticed(
    directory: Path, watched: Watched, begins: str, file: str
) -> None:
    """Also one that has initialised CUDA, and opens no more than the file of its GPU for a context."""
    needs_root()
    with _ExecEvents() as execs:
        if begins == "during the watch" and execs.descriptor is None:
            pytest.skip("this kernel does not report what is executed")
    if begins == "during the watch":
        watched.begin()
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", CONTAINER, str(directory), file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as inside:
        try:
            assert inside.stdout is not None
            assert inside.stdout.readline() == "ready\n"
            if begins == "before the watch":
                watched.begin()
            until(lambda: watched.count(inside.pid, lambda: order(inside, "open")), "it is noticed")
        finally:
            inside.kill()


def test_where_the_kernel_does_not_report_what_is_executed_programs_are_noticed(
    directory: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No protocol of netlink has this number.
    monkeypatch.setattr(arrivals, "_NETLINK_CONNECTOR", 31)
    watched.begin()
    with program(directory) as new:
        watched.seen_before(new.pid)


def test_what_is_executed_is_reported_and_what_only_forks_is_not() -> None:
    with _ExecEvents() as execs:
        if execs.descriptor is None:
            pytest.skip("needs root, and a kernel that reports what is executed")
        fork = os.fork()
        if not fork:
            os._exit(0)
        os.waitpid(fork, 0)
        executed = subprocess.Popen(["true"])
        executed.wait()
        found: list[int] = []
        while executed.pid not in found:
            assert select.select([execs.descriptor], [], [], 30)[0]
            found += execs.pids()
    assert fork not in found


def test_the_end_of_a_file_is_not_an_open_and_hides_none(tmp_path: Path) -> None:
    file = tmp_path / "nvidiactl"
    with _DeviceEvents() as opens:
        for is_opened in (False, True):
            file.touch()
            opens.add([file])
            if is_opened:
                file.read_bytes()
            file.unlink()
            assert opens.drain() is is_opened


def test_what_comes_after_the_end_of_a_watch_is_not_entered_in_the_next_one(tmp_path: Path) -> None:
    """Its descriptor often has the same number; threads look at the files of containers for a long time."""
    file = tmp_path / "nvidiactl"
    file.touch()
    with _DeviceEvents() as last:
        number = last.descriptor
    with _DeviceEvents() as opens:
        assert opens.descriptor == number
        last.add([file])
        file.read_bytes()
        assert not opens.drain()


def test_a_file_whose_end_was_lost_among_other_events_is_watched_when_it_is_there_again(tmp_path: Path) -> None:
    """Device and inode are the same: those of a container's files often are."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text("ascii"))
    if most > 100_000:
        pytest.skip("the kernel keeps very many events")
    file, others = tmp_path / "nvidiactl", [tmp_path / "nvidia0", tmp_path / "nvidia1"]
    for path in (file, *others):
        path.touch()
    with _DeviceEvents() as opens:
        opens.add([file, *others])
        inode = file.stat().st_ino
        for number in range(most + 1):
            # Two equal events in a row are one.
            os.close(os.open(others[number % 2], os.O_RDONLY))
        file.unlink()
        for number in range(100):
            again = tmp_path / str(number)
            again.touch()
            if again.stat().st_ino == inode:
                break
        else:
            pytest.skip("this file system gives each file a number of its own")
        assert opens.drain()
        opens.add([again])
        again.read_bytes()
        assert opens.drain()


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
        directory = stack.enter_context(open_folder())
        for name in NAMES:
            (directory / name).touch()
            (directory / name).chmod(0o666)
        stack.callback(end.set)
        watch, begun = ArrivalWatch(hold, directory), threading.Event()
        watch.watch(ONE_GPU, begun=begun.set)
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
