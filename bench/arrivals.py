"""Room on arrival on a real GPU: programs that begin where idle programs hold the memory, and what they wait.

python -m bench.arrivals [PART ...] [--seconds 270] [--repetitions 20]    As root, with torch and transformers.

empty: the start of a CUDA program on an empty GPU, with the agent and without.
roomy: the same where an idle program leaves room for one, so that each is held until the agent has counted it.
signs: what a torch program has open at each step of its start, and whether the driver locks it there.
kills: parked programs are killed; each ends at once, and all memory is free.
repeat: a torch program allocates most of the memory, of which an idle program holds a part; again and again.
four: four programs of 25 GiB start at once; idle programs hold 100 GiB, and come back bit for bit; again and again.
full: a torch program allocates 80 GiB; idle programs hold 100 GiB, and come back bit for bit; again and again.
servers: an HTTP server around a transformers model, a notebook, and programs with a DataLoader, with a CUDA graph and
    with two CUDA processes are parked for a newcomer and used again.
shared: torch.multiprocessing with memory that two processes share cannot be parked.
shards: transformers loads a model of 20 GiB in shards onto a GPU that an idle program fills; again and again.

Every measurement is printed as it is made. A part that does not fit into the seconds that are left is skipped, with a
line. Without arguments: all parts, in this order.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pynvml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bench.table import show  # noqa: E402
from gpucommons.model.process_identity import ProcessKey  # noqa: E402
from gpucommons.pauser.arrivals import DEVICE_FILES, opened_files  # noqa: E402
from gpucommons.pauser.client import Pauser, PauserSettings  # noqa: E402
from gpucommons.pauser.release import has_ended, key_of  # noqa: E402
from parking.torch_notebooks import Cell, Notebook, notebook  # noqa: E402
from pauser.gpu_programs import nvml_bytes  # noqa: E402

PROGRAMS = Path(__file__).with_name("arrival_programs.py")
GIB = 2**30
BEGUN_S = time.monotonic()
ROWS: list[list[str]] = []
CONFIG = """
[web]
listen = ""
[ledger]
enabled = false
[leases]
enabled = "false"
[scheduler]
share_programs = "all"
socket = "{directory}/scheduler.sock"
xpushare_socket = ""
[parking]
arrival_room = "{room}"
arrival_idle_after_s = {idle_after_s:g}
arrival_wait_s = 90
settle_s = 2
min_residence_s = 0
[sharing_quotas.ballast]
command = "*ballast*"
share = false
"""
WATCHED, ROOM = "new programs wait for room", "every GPU has room"
IDLE_AFTER_S = 3.0
# Of one repetition.
SLOWEST_FULL_S, SLOWEST_FOUR_S, SLOWEST_SHARDS_S = 45.0, 80.0, 30.0


def note(text: str) -> None:
    print(f"{time.monotonic() - BEGUN_S:6.1f} s  {text}", flush=True)


def row(part: str, measured: str, bar: str, good: bool) -> None:
    ROWS.append([part, measured, bar, "holds" if good else "MISSED"])
    note(f"{part}: {measured} (bar: {bar}): {'holds' if good else 'MISSED'}")


def memory() -> tuple[int, int]:
    """Free and total bytes of the first GPU."""
    pynvml.nvmlInit()
    info = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    return int(info.free), int(info.total)


class Program:
    """A program of arrival_programs.py, in a session of its own: it is a job of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._rest = b""

    def line(self, within_s: float) -> str:
        """Empty where it has ended or does not answer in time."""
        assert self.process.stdout is not None
        descriptor, until_s = self.process.stdout.fileno(), time.monotonic() + within_s
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], max(0.0, until_s - time.monotonic()))[0]:
                return ""
            data = os.read(descriptor, 4096)
            if not data:
                return ""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def go(self) -> None:
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), b"\n")

    def ask(self, within_s: float) -> str:
        self.go()
        return self.line(within_s)

    def end(self) -> None:
        """With the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def program(*arguments: str) -> Iterator[Program]:
    made = Program(*arguments)
    try:
        yield made
    finally:
        made.end()


class LoneAgent:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def wait_for(self, text: str, since: int = 0, within_s: float = 60) -> bool:
        until_s = time.monotonic() + within_s
        while not any(text in line for line in self.lines[since:]):
            if time.monotonic() > until_s or self.process.poll() is not None:
                note("the agent's last lines:\n" + "\n".join(self.lines[-25:]))
                return False
            time.sleep(0.02)
        return True

    def last(self, text: str) -> str:
        return next((line for line in reversed(self.lines) if text in line), "")


def can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run(["unshare", "--cgroup", "true"]).returncode == 0


@contextmanager
def agent(room: str = "60%") -> Iterator[LoneAgent]:
    """In a cgroup namespace of its own: in a container all programs have one cgroup, and would be one job."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config.toml"
        config.write_text(CONFIG.format(directory=directory, room=room, idle_after_s=IDLE_AFTER_S))
        prefix = ("unshare", "--cgroup") if can_unshare() else ()
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "bench.lone_agent", str(config)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        running = LoneAgent(process)
        try:
            if not running.wait_for("pauser: ready"):
                raise SystemExit("the agent did not start")
            yield running
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def until_watched(running: LoneAgent, since: int) -> bool:
    return running.wait_for(WATCHED, since, within_s=30)


def is_watched(running: LoneAgent, within_s: float = 30) -> bool:
    """Waits until the agent's last word is that new programs wait for room."""
    until_s = time.monotonic() + within_s
    while WATCHED not in next((line for line in reversed(running.lines) if WATCHED in line or ROOM in line), ""):
        if time.monotonic() > until_s:
            note("no GPU is short of room: new programs would not be held")
            return False
        time.sleep(0.05)
    return True


def is_back(notebook: Notebook, first: object, within_s: float = 60) -> tuple[bool, float]:
    begun_s = time.monotonic()
    cell = notebook.run_cell(within_s)
    return cell is not None and cell[1:] == first, time.monotonic() - begun_s


def wait_for_end(key: ProcessKey) -> None:
    until_s = time.monotonic() + 5
    while not has_ended(key) and time.monotonic() < until_s:
        time.sleep(0.005)


# -- parts


def empty(_: argparse.Namespace) -> None:
    with program("cuda", "64") as warm:
        warm.line(20)
        without = starts()
        with agent():
            time.sleep(2)
            compare_starts("empty", without, starts())


def roomy(_: argparse.Namespace) -> None:
    with notebook(20.0) as idle:
        idle.run_cell()
        without = starts()
        with agent("50%") as running:
            if not until_watched(running, 0):
                return
            with_agent = starts()
            held = sum("goes on after" in line and "it has room" in line for line in running.lines)
            note(f"roomy: {held} of 20 were held")
            if held < 20:
                _show_parking(running)
            compare_starts("roomy", without, with_agent)


def starts() -> list[float]:
    starts_s = []
    for _ in range(20):
        with program("cuda", "64") as started:
            starts_s.append(float(started.line(20).partition(" ")[2]))
    return starts_s


def compare_starts(part: str, without: list[float], with_agent: list[float]) -> None:
    before, after = statistics.median(without), statistics.median(with_agent)
    text = f"start {before * 1e3:.0f} ms without, {after * 1e3:.0f} ms with the agent, medians of 20"
    row(part, text, "within 20 ms", after - before < 0.02)


@asynccontextmanager
async def lone_pauser() -> AsyncIterator[Pauser]:
    with tempfile.TemporaryDirectory() as directory:
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        pauser = Pauser(PauserSettings(record=Path(directory) / "paused", environment=environment))
        await pauser.start()
        assert await pauser.wait_available(30), pauser.reason
        yield pauser
        await pauser.stop()


def signs(_: argparse.Namespace) -> None:
    async def run() -> None:
        async with lone_pauser() as pauser:
            with program("steps", "0") as one:
                while step := await asyncio.to_thread(one.line, 60):
                    pid = one.process.pid
                    key = key_of(pid)
                    assert key is not None
                    reply = await pauser.lock(key, timeout_ms=100)
                    locked = "locked" if reply.failure is None else reply.failure.meaning
                    await pauser.unlock(key)
                    note(f"signs: {step}: {shown_by(pid)}; {locked}")
                    one.go()

    asyncio.run(run())


def shown_by(pid: int) -> str:
    directory = Path(f"/proc/{pid}")
    maps = (directory / "maps").read_text()
    libraries = [name for name in ("libcuda.so", "libnvidia-ml.so") if name in maps]
    threads = {file.read_text().strip() for file in directory.glob("task/*/comm")}
    named = sorted(name for name in threads if name.startswith("cuda"))
    opened = opened_files(pid, DEVICE_FILES, directory.parent)
    assert opened is not None
    times = f"control {opened.control}, uvm {opened.uvm}, {dict(opened.gpus)}"
    return f"{times}, {libraries}, {named}"


def kills(given: argparse.Namespace) -> None:
    number = 50

    async def run() -> tuple[int, float]:
        done, slowest_s = 0, 0.0
        async with lone_pauser() as pauser:
            for at in range(0, number, 10):
                batch = [Program("cuda", "64") for _ in range(10)]
                keys = []
                for newcomer in batch:
                    assert newcomer.line(30).startswith("ready")
                    key = key_of(newcomer.process.pid)
                    assert key is not None
                    keys.append(key)
                for place, (newcomer, key) in enumerate(zip(batch, keys, strict=True)):
                    assert (await pauser.lock(key, timeout_ms=2000)).failure is None
                    moving = asyncio.create_task(pauser.checkpoint(key, memory_bytes=64 << 20))
                    # Of ten, six are parked, two are on their way and two are on their way back.
                    if place < 6 or place > 7:
                        await moving
                    back = asyncio.create_task(pauser.restore(key)) if place > 7 else None
                    await asyncio.sleep(0.02)
                    begun_s = time.monotonic()
                    newcomer.process.kill()
                    await asyncio.to_thread(wait_for_end, key)
                    slowest_s = max(slowest_s, time.monotonic() - begun_s)
                    done += has_ended(key)
                    await asyncio.gather(*(task for task in (moving, back) if task is not None))
                    newcomer.end()
                note(f"kills: {at + 10} of {number}, slowest end {slowest_s:.2f} s")
        return done, slowest_s

    free_before, _ = memory()
    done, slowest_s = asyncio.run(run())
    time.sleep(0.5)
    lost = free_before - memory()[0]
    text = f"{done} of {number} ended, slowest {slowest_s:.2f} s, {lost / 2**20:.0f} MiB not free"
    row("kills", text, "all, memory free", done == number and lost < 64 << 20)


def repeat(given: argparse.Namespace) -> None:
    _, total = memory()
    held = total / GIB - 4 - 10
    good, waited = 0, []
    with ExitStack() as stack:
        ballast = stack.enter_context(program("ballast", f"{held - 60:g}"))
        assert ballast.line(60) == "ready"
        idle = stack.enter_context(notebook(8.0))
        cell = idle.run_cell()
        assert cell is not None
        running = stack.enter_context(agent("75Gi"))
        tried = 0
        # About 64 GiB are free: 66 do not fit until the idle program is parked.
        for at in range(given.repetitions):
            if time.monotonic() > given.until_s:
                break
            since = len(running.lines) if at else 0
            with program("torch", "66") as newcomer:
                assert newcomer.line(60) == "imported"
                if not until_watched(running, since):
                    break
                tried += 1
                newcomer.go()
                line = newcomer.line(100)
                good += line.startswith("ok")
                waited.append(float(line.split()[1]) if line.startswith("ok") else float("nan"))
                note(f"repeat {at + 1}: {line or 'ended'}; {running.last('goes on')[-110:]}")
            same, back_s = is_back(idle, cell[1:])
            note(f"    the idle program is back after {back_s:.1f} s, {'identical' if same else 'DIFFERENT'}")
            good -= not same
    text = f"{good} of {tried} started, median {statistics.median(waited or [float('nan')]):.1f} s to its memory"
    row("repeat", text, "all start, idle one identical", 0 < tried == good)


def four(given: argparse.Namespace) -> None:
    """Four newcomers are four times the room, a quarter of the GPU each: all idle programs make room, and come back."""
    idle, each_gib, number, gib = 4, 25.0, 4, "25"
    tried, good, waited = 0, 0, []
    with ExitStack() as stack:
        newcomers = [stack.enter_context(program("torch", gib)) for _ in range(number)]
        books = [stack.enter_context(notebook(each_gib)) for _ in range(idle)]
        cells = {book.key: book.run_cell() for book in books}
        running = stack.enter_context(agent("25%"))
        while tried < given.repetitions and time.monotonic() + SLOWEST_FOUR_S < given.until_s:
            imported = [one.line(60) for one in newcomers]
            # All were used; the wait is over once the last of them counts as idle.
            if imported != ["imported"] * number or not is_watched(running):
                break
            time.sleep(IDLE_AFTER_S)
            tried += 1
            free = memory()[0] / GIB
            for one in newcomers:
                one.go()
            lines = [one.line(120) for one in newcomers]
            waited += [float(line.split()[1]) for line in lines if line.startswith("ok")]
            parked = [book for book in books if not nvml_bytes(book.key.pid)]
            for one in newcomers:
                one.end()
            newcomers = [stack.enter_context(program("torch", gib)) for _ in range(number)]
            same, back_s = are_back(parked, cells)
            good += all(line.startswith("ok") for line in lines) and same == len(parked) > 0
            note(
                f"four {tried}: {free:.0f} GiB were free, {number} x {gib} GiB: {lines}; {same} of {len(parked)} "
                f"parked programs identical after {back_s:.1f} s"
            )
        same, _ = are_back(books, cells)
        if good < tried:
            _show_parking(running)
    text = f"{good} times of {tried} all four started, {times_of(waited)} to their memory; idle ones identical: "
    row("four", f"{text}{same} of {idle}", "all start, all identical", 0 < tried == good and same == idle)


def times_of(seconds: list[float]) -> str:
    if not seconds:
        return "no time"
    return f"{min(seconds):.1f} to {max(seconds):.1f} s (median {statistics.median(seconds):.1f})"


def full(given: argparse.Namespace) -> None:
    """Of four idle programs, the two that were idle longest make room each time, and are used again after it."""
    idle, each_gib, gib = 4, 25.0, "80"
    tried, good, waited = 0, 0, []
    with ExitStack() as stack:
        newcomer = stack.enter_context(program("torch", gib))
        books = [stack.enter_context(notebook(each_gib)) for _ in range(idle)]
        cells = {book.key: book.run_cell() for book in books}
        # No more room than it needs: a repetition takes as long as its moves.
        running = stack.enter_context(agent("82Gi"))
        while tried < given.repetitions and time.monotonic() + SLOWEST_FULL_S < given.until_s:
            assert newcomer.line(60) == "imported"
            if not is_watched(running):
                break
            tried += 1
            free = memory()[0] / GIB
            newcomer.go()
            line = newcomer.line(100)
            waited.append(float(line.split()[1]) if line.startswith("ok") else float("nan"))
            parked = [book for book in books if not nvml_bytes(book.key.pid)]
            newcomer.end()
            # The next one starts while the idle programs come back.
            newcomer = stack.enter_context(program("torch", gib))
            same, back_s = are_back(parked, cells)
            good += line.startswith("ok") and same == len(parked) > 0
            note(
                f"full {tried}: {free:.0f} GiB were free, {gib} GiB: {line or 'ended'}; {same} of {len(parked)} parked "
                f"programs identical after {back_s:.1f} s; {running.last('goes on')[-110:]}"
            )
        same, _ = are_back(books, cells)
    text = f"{good} of {tried} started, median {statistics.median(waited):.1f} s to its memory; idle ones identical: "
    row("full", f"{text}{same} of {idle}", "all start, all identical", 0 < tried == good and same == idle)


def are_back(books: list[Notebook], cells: Mapping[ProcessKey, Cell | None]) -> tuple[int, float]:
    """Uses these programs at once. Returns how many give what they gave before, and after how many seconds all do."""
    begun_s = time.monotonic()
    for book in books:
        book.ask()
    pairs = [(cells[book.key], book.end_cell(90)) for book in books]
    same = sum(before is not None and again is not None and again[1:] == before[1:] for before, again in pairs)
    return same, time.monotonic() - begun_s


def servers(given: argparse.Namespace) -> None:
    """As users write them. The newcomer gets its room when all of them are parked."""
    kinds = ("loader", "graph", "pair")
    with ExitStack() as stack:
        newcomer = stack.enter_context(program("torch", "110"))
        server = stack.enter_context(program("server", "8"))
        others = {kind: stack.enter_context(program(kind, "4")) for kind in kinds}
        kernel = stack.enter_context(notebook(8.0))
        url = f"http://127.0.0.1:{server.line(90)}/"
        before = urllib.request.urlopen(url, timeout=60).read()
        cell = kernel.run_cell()
        assert cell is not None
        first = {kind: server.line(60) and server.ask(60) for kind, server in others.items()}
        running = stack.enter_context(agent("97%"))
        assert newcomer.line(60) == "imported"
        watched = until_watched(running, 0)
        time.sleep(4)
        newcomer.go()
        line = newcomer.line(100)
        note(f"servers: the newcomer: {line}; {running.last('goes on')[-150:]}")
        parked = sum("parking: parked:" in line for line in running.lines)
        newcomer.end()
        time.sleep(2.5)
        begun_s = time.monotonic()
        good = urllib.request.urlopen(url, timeout=60).read() == before
        times = [f"server {time.monotonic() - begun_s:.1f} s"]
        same, cell_s = is_back(kernel, cell[1:])
        good &= same
        times.append(f"kernel {cell_s:.1f} s")
        for kind, server in others.items():
            begun_s = time.monotonic()
            again = server.ask(60)
            # The DataLoader's next step has another batch.
            good &= bool(again) and (again == first[kind] or kind == "loader")
            times.append(f"{kind} {time.monotonic() - begun_s:.1f} s")
        _show_parking(running)
    text = f"{parked} of {len(kinds) + 2} parked; first answers after: {', '.join(times)}"
    row("servers", text, "all parked, right answers", watched and line.startswith("ok") and good)


def shared(given: argparse.Namespace) -> None:
    """Memory that two processes share cannot be checkpointed."""
    with ExitStack() as stack:
        newcomer = stack.enter_context(program("torch", "20"))
        idle = stack.enter_context(program("shared", "8"))
        first = idle.line(60) and idle.ask(60)
        running = stack.enter_context(agent("95%"))
        assert newcomer.line(60) == "imported"
        until_watched(running, 0)
        time.sleep(4)
        newcomer.go()
        line = newcomer.line(100)
        note(f"shared: the newcomer: {line}; {running.last('goes on')[-150:]}")
        newcomer.end()
        again = idle.ask(60)
        _show_parking(running)
        refused = running.last("parking: refused")
    text = f"refused: {bool(refused)}; the newcomer: {line or 'ended'}; answer {'right' if again == first else again}"
    row("shared", text, "refused, nothing lost", bool(refused) and line.startswith("ok") and again == first)


def _show_parking(running: LoneAgent) -> None:
    for line in running.lines:
        if "parking:" in line:
            note(f"    {line[-180:]}")


def shards(given: argparse.Namespace) -> None:
    tried, good, waited, backs = 0, 0, [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        with program("save", folder, "20") as saving:
            saving.process.wait(120)
        newcomer = stack.enter_context(program("shards", folder))
        _, total = memory()
        idle = stack.enter_context(notebook(20.0))
        cell = idle.run_cell()
        assert cell is not None
        ballast = stack.enter_context(program("ballast", f"{total / GIB - 20 - 16:g}"))
        assert ballast.line(60) == "ready"
        running = stack.enter_context(agent("25%"))
        while tried < given.repetitions and time.monotonic() + SLOWEST_SHARDS_S < given.until_s:
            assert newcomer.line(90) == "imported"
            if not is_watched(running):
                break
            tried += 1
            newcomer.go()
            line = newcomer.line(100)
            if line.startswith("ok"):
                waited.append(float(line.split()[1]))
            newcomer.end()
            newcomer = stack.enter_context(program("shards", folder))
            same, back_s = is_back(idle, cell[1:])
            backs.append(back_s)
            good += line.startswith("ok") and same
            note(f"shards {tried}: {line or 'ended'}, back after {back_s:.1f} s; {running.last('goes on')[-110:]}")
        if good < tried:
            _show_parking(running)
    text = f"{good} of {tried} loaded 20 GiB, in {times_of(waited)}; the idle program was back in {times_of(backs)}"
    row("shards", text, "all load, idle one identical", 0 < tried == good)


PARTS: dict[str, tuple[Callable[[argparse.Namespace], None], float]] = {
    "empty": (empty, 25.0),
    "roomy": (roomy, 35.0),
    "signs": (signs, 25.0),
    "kills": (kills, 25.0),
    "repeat": (repeat, 40.0),
    "four": (four, 110.0),
    "full": (full, 95.0),
    "servers": (servers, 70.0),
    "shared": (shared, 30.0),
    "shards": (shards, 75.0),
}

REPEATED = ("repeat", "four", "full", "shards")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--repetitions", type=int, default=20)
    given = parser.parse_args()
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        print("skipped: bench.arrivals needs a GPU and torch")
        return
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    parts = given.parts or list(PARTS)
    given.until_s = BEGUN_S + given.seconds
    for at, name in enumerate(parts):
        measure, needs_s = PARTS[name]
        left_s = given.until_s - time.monotonic()
        if left_s < needs_s:
            note(f"{name}: skipped, it takes about {needs_s:.0f} s and {left_s:.0f} are left")
            continue
        if name in REPEATED:
            # What the parts after it do not need.
            given.until_s -= sum(PARTS[later][1] for later in parts[at + 1 :])
        try:
            measure(given)
        except Exception as error:
            row(name, f"{type(error).__name__}: {error}", "it runs", False)
        given.until_s = BEGUN_S + given.seconds
    show("Room on arrival", ["part", "measured", "bar", ""], ROWS)


if __name__ == "__main__":
    main()
