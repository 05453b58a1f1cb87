"""Parking on a real GPU: rates to host memory and back, whether memory and CUDA graphs survive, the time to wake.

python -m bench.parking [cycles] [agent] [faster] [turns] [--gib 10] [--cycles 20] [--seconds 140]
    [--leases 50 50 50]    As root.

cycles: parks and wakes a torch program with a CUDA graph, again and again, with the pauser alone.
agent: an agent parks the program because it is idle, and brings it back when a cell runs.
faster: what changes the rate to host memory: huge pages, binding to a NUMA node, two and four programs at once.
turns: --leases of so many GiB, which do not fit into one GPU together, for --seconds; each has a program that computes.

Every measurement is printed as it is made. Without arguments: cycles.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pynvml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bench.table import show  # noqa: E402
from gpucommons.pauser.client import Pauser, PauserSettings  # noqa: E402
from gpucommons.pauser.protocol import Reply  # noqa: E402
from parking.torch_notebooks import Notebook, notebook  # noqa: E402
from pauser.gpu_programs import nvml_bytes  # noqa: E402
from running import RunningAgent, running_agent  # noqa: E402
from scheduler.torch_programs import TorchProgram  # noqa: E402

GB = 1e9
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PARTS = ("cycles", "agent", "faster", "turns")
SMALL_GIB = 4.0
BEGUN_S = time.monotonic()


def note(text: str) -> None:
    print(f"{time.monotonic() - BEGUN_S:6.1f} s  {text}", flush=True)


class Cycle(NamedTuple):
    """Bytes by NVML, and the seconds of each move."""

    bytes: int
    out_s: float
    in_s: float

    @property
    def out_rate(self) -> float:
        return self.bytes / GB / self.out_s

    @property
    def in_rate(self) -> float:
        return self.bytes / GB / self.in_s

    @property
    def text(self) -> str:
        return (
            f"{self.bytes / GB:.1f} GB out in {self.out_s:.2f} s ({self.out_rate:.2f} GB/s), "
            f"back in {self.in_s:.2f} s ({self.in_rate:.2f} GB/s)"
        )


def free_bytes() -> int:
    """Of the first GPU."""
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free)


def seconds_of(reply: Reply, what: str) -> float:
    if reply.failure is not None:
        raise SystemExit(f"{what} failed: {reply.failure.meaning} ({reply.failure.code})")
    return reply.duration_s


async def park(pauser: Pauser, program: Notebook, held: int) -> float:
    seconds_of(await pauser.lock(program.key, timeout_ms=5000), "lock")
    return seconds_of(await pauser.checkpoint(program.key, memory_bytes=held), "checkpoint")


async def wake(pauser: Pauser, program: Notebook) -> float:
    taken_s = seconds_of(await pauser.restore(program.key), "restore")
    seconds_of(await pauser.unlock(program.key), "unlock")
    return taken_s


def thread_seconds(pid: int) -> dict[int, float]:
    """The CPU time of each thread."""
    seconds_of_thread = {}
    for name in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError, IndexError):
            seconds_of_thread[int(name)] = int(Path(f"/proc/{pid}/task/{name}/schedstat").read_text().split()[0]) / 1e9
    return seconds_of_thread


def cpu_text(pid: int, before: dict[int, float]) -> str:
    """Which threads of the program used the CPU since then: the driver moves memory in one of them."""
    spent = {thread: total_s - before.get(thread, 0.0) for thread, total_s in thread_seconds(pid).items()}
    others = sorted((value for thread, value in spent.items() if thread != pid), reverse=True)
    listed = " ".join(f"{value * 1e3:.1f}" for value in others[:4])
    return f"CPU of its main thread {spent.get(pid, 0.0) * 1e3:.1f} ms, of others {listed or 'none'} ms"


def held_bytes(program: Notebook, gib: float) -> int:
    """By NVML. In a container NVML may list other pids: then what the program allocated."""
    return nvml_bytes(program.key.pid) or int(gib * 2**30)


@contextmanager
def record_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "paused"


class Pausing:
    """A pauser for `async with`."""

    def __init__(self, record: Path) -> None:
        self._pauser = Pauser(PauserSettings(record=record, environment={"PYTHONPATH": os.pathsep.join(sys.path)}))

    async def __aenter__(self) -> Pauser:
        await self._pauser.start()
        if not await self._pauser.wait_available(30):
            raise SystemExit(f"no pauser: {self._pauser.reason}")
        return self._pauser

    async def __aexit__(self, *exception: object) -> None:
        await self._pauser.stop()


# -- cycles


async def cycles(gib: float, number: int, seconds: float) -> None:
    runs: list[Cycle] = []
    with record_folder() as record, notebook(gib) as program:
        first = program.run_cell()
        assert first is not None
        note(f"pid {program.key.pid} has {gib:g} GiB and a CUDA graph; NVML {nvml_bytes(program.key.pid) / GB:.2f} GB")
        async with Pausing(record) as pauser:
            for at in range(number):
                if runs and time.monotonic() - BEGUN_S + runs[-1].out_s + runs[-1].in_s + 3 > seconds:
                    note(f"stopped after {at} of {number} cycles: {seconds:g} s are over")
                    break
                held, before, threads = held_bytes(program, gib), free_bytes(), thread_seconds(program.key.pid)
                out_s = await park(pauser, program, held)
                if at < 3:
                    note(f"    while it was parked: {cpu_text(program.key.pid, threads)}")
                left, freed = nvml_bytes(program.key.pid), free_bytes() - before
                done = Cycle(held, out_s, await wake(pauser, program))
                cell = program.run_cell()
                same = cell is not None and cell[1:] == first[1:] and cell.replays == first.replays + at + 1
                runs.append(done)
                note(
                    f"{at + 1:2}: {done.text}; NVML {left} bytes while parked, GPU freed {freed / GB:.2f} GB; "
                    f"memory and graph {'identical' if same else f'DIFFER: {first} {cell}'}"
                )
                assert left == 0, "NVML shows memory of a parked program"
                assert same, "memory or graph differ"
    if runs:
        rows = []
        for title, seconds_each, rates in (
            ("to host memory", [cycle.out_s for cycle in runs], [cycle.out_rate for cycle in runs]),
            ("back", [cycle.in_s for cycle in runs], [cycle.in_rate for cycle in runs]),
        ):
            rows.append(
                [
                    title,
                    f"{statistics.median(seconds_each):.2f} s",
                    f"{max(seconds_each):.2f} s",
                    f"{statistics.median(rates):.2f} GB/s",
                    f"{min(rates):.2f} GB/s",
                ]
            )
        title = f"{len(runs)} park/wake cycles, {runs[0].bytes / GB:.1f} GB, memory and CUDA graph identical in each"
        show(title, ["", "median", "longest", "median rate", "least rate"], rows)


# -- the agent

CONFIG = "[parking]\nidle_after_s = 3\neager = true\nmin_residence_s = 1\n"


def agent(gib: float) -> None:
    with tempfile.TemporaryDirectory() as name, notebook(gib) as program:
        config = Path(name) / "config.toml"
        config.write_text(CONFIG)
        environment = {"GPUCOMMONS_SCHEDULER_SOCKET": f"{name}/scheduler.sock"}
        first = program.run_cell()
        assert first is not None
        held, full = held_bytes(program, gib), free_bytes()
        with running_agent("--scheduler", "--share", "--config", str(config), environment=environment) as running:
            note(f"the agent runs; a program with {held / GB:.1f} GB is idle")
            for at in range(2):
                deadline_s = time.monotonic() + 60
                while free_bytes() < full + held // 2:
                    assert time.monotonic() < deadline_s, "\n".join(running.lines)
                    time.sleep(0.1)
                while not any("parking: parked" in line for line in running.lines[at:]):
                    time.sleep(0.1)
                note(f"parked: NVML {nvml_bytes(program.key.pid)} bytes")
                time.sleep(4)
                begun = time.monotonic()
                cell = program.run_cell(60)
                taken_s = time.monotonic() - begun
                allowed_s = held / 4e9 + 2
                same = cell is not None and cell[1:] == first[1:]
                note(
                    f"a cell ran {taken_s:.2f} s after it was begun (at most {allowed_s:.2f} s allowed); "
                    f"memory {'identical' if same else f'DIFFERS: {first} {cell}'}"
                )
                assert same
        for line in running.lines:
            if "parking" in line:
                note(line)


# -- what changes the rate


@contextmanager
def huge_pages(mode: str) -> Iterator[bool]:
    """Whether it could be set."""
    try:
        before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
        HUGE_PAGES.write_text(mode)
    except OSError as error:
        note(f"huge pages cannot be set to {mode}: {error.strerror}")
        yield False
        return
    try:
        yield True
    finally:
        HUGE_PAGES.write_text(before)


def numa_nodes() -> dict[str, set[int]]:
    cpus_of_node = {}
    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        cpus: set[int] = set()
        for part in (node / "cpulist").read_text().strip().split(","):
            low, _, high = part.partition("-")
            if low:
                cpus |= set(range(int(low), int(high or low) + 1))
        cpus_of_node[node.name] = cpus & os.sched_getaffinity(0)
    return {name: cpus for name, cpus in cpus_of_node.items() if cpus}


async def one(pauser: Pauser, program: Notebook) -> Cycle:
    held = held_bytes(program, SMALL_GIB)
    return Cycle(held, await park(pauser, program, held), await wake(pauser, program))


async def faster() -> None:
    rows: list[list[str]] = []

    def add(title: str, done: Cycle) -> None:
        note(f"{title}: {done.text}")
        rows.append([title, f"{done.out_rate:.2f} GB/s", f"{done.in_rate:.2f} GB/s"])

    async with Pausing(Path(tempfile.mkdtemp()) / "paused") as pauser:
        with notebook(SMALL_GIB) as program:
            add("as it is", await one(pauser, program))
            add("as it is, again", await one(pauser, program))
            for mode in ("always", "never"):
                with huge_pages(mode) as is_set:
                    if is_set:
                        add(f"transparent huge pages {mode}", await one(pauser, program))
            nodes = numa_nodes()
            for name, cpus in nodes.items() if len(nodes) > 1 else ():
                for thread in os.listdir(f"/proc/{program.key.pid}/task"):
                    os.sched_setaffinity(int(thread), cpus)
                add(f"the program on {name}", await one(pauser, program))
        with ExitStack() as stack:
            started = [stack.enter_context(notebook(SMALL_GIB)) for _ in range(4)]
            for count in (2, 4):
                programs = started[:count]
                held = [held_bytes(program, SMALL_GIB) for program in programs]
                begun = time.monotonic()
                await asyncio.gather(*(park(pauser, p, h) for p, h in zip(programs, held, strict=True)))
                out_s, begun = time.monotonic() - begun, time.monotonic()
                await asyncio.gather(*(wake(pauser, p) for p in programs))
                add(f"{count} programs at once, together", Cycle(sum(held), out_s, time.monotonic() - begun))
                assert all(program.run_cell() is not None for program in programs)
    show(f"Rates with {SMALL_GIB:g} GiB", ["", "to host memory", "back"], rows)


# -- turns

TURNS_CONFIG = "[parking]\noversubscribe = true\nmin_residence_s = 20\n[leases]\nenabled = true\n"


def waiting(agent: RunningAgent) -> Iterator[str]:
    """What the agent shows of those that wait."""
    parking = json.loads(agent.get("/api/v1/turns")[1])["turns"]["parking"]
    yield from (f"{program['stage']}: {program['waits']}" for program in parking["programs"].values())
    for request in json.loads(agent.get("/api/v1/queue")[1])["queue"]["waiting"].values():
        start_s = request["expected_start_unix_s"]
        yield "a start that is not known" if start_s is None else f"a start in {start_s - time.time():.0f} s"


def turns(seconds: float, leases_gib: Sequence[float]) -> None:
    run = (sys.executable, "-m", "gpucommons", "run", "--share", "--quiet", "--memory")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        config = directory / "config.toml"
        config.write_text(TURNS_CONFIG)
        sockets = {f"GPUCOMMONS_{part}_SOCKET": f"{name}/{part.lower()}.sock" for part in ("SCHEDULER", "LEASES")}
        running = stack.enter_context(
            running_agent("--scheduler", "--share", "--config", str(config), environment=sockets)
        )
        os.environ |= {**sockets, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        programs = [TorchProgram(4096, directory, gib=gib - 1, prefix=(*run, f"{gib:g}Gi", "--")) for gib in leases_gib]
        for program in programs:
            stack.callback(program.stop)
        begun_s, last = time.monotonic(), [0] * len(programs)
        while time.monotonic() - begun_s < seconds:
            time.sleep(10)
            now = [program.products for program in programs]
            done = [new - old for new, old in zip(now, last, strict=True)]
            note("; ".join([f"products {now}, in 10 s {done}", *waiting(running)]))
            last = now
            assert all(program.process.poll() is None for program in programs), "a program has ended"
        whole = sum(last)
        show(
            f"Leases that do not fit together, in turns for {seconds:g} s",
            ["lease", "products", "share"],
            [[f"{gib:g} GiB", str(done), f"{done / whole:.2f}"] for gib, done in zip(leases_gib, last, strict=True)],
        )
        for line in running.lines:
            if "parking" in line:
                note(line)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--leases", type=float, nargs="+", default=[50.0, 50.0, 50.0], metavar="GIB")
    given = parser.parse_args()
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        print("skipped: bench.parking needs a GPU and torch")
        return
    parts = given.parts or ["cycles"]
    if "cycles" in parts:
        asyncio.run(cycles(given.gib, given.cycles, given.seconds))
    if "agent" in parts:
        agent(given.gib)
    if "faster" in parts:
        asyncio.run(faster())
    if "turns" in parts:
        turns(given.seconds, given.leases)
    note("done")


if __name__ == "__main__":
    main()
