"""How long pausing takes on a real GPU: lock, unlock, state, checkpoint and restore, and what the pauser adds.

python -m bench.pauser [ROUNDS]. Without a GPU it shows what the record of paused programs costs, and nothing else.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bench.table import show  # noqa: E402
from gpucommons.pauser import cuda  # noqa: E402
from gpucommons.pauser.backend import Failure  # noqa: E402
from gpucommons.pauser.client import Pauser, PauserSettings  # noqa: E402
from gpucommons.pauser.record import Entry, PauseRecord, Stage  # noqa: E402
from pauser.gpu_programs import GpuProgram, gpu_program  # noqa: E402

ROUNDS = 200
HEADER = ["", "p50", "p99", "longest"]


def row(title: str, seconds: list[float]) -> list[str]:
    ordered = sorted(seconds)
    found = (statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])
    return [title, *(f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.2f} s" for value in found)]


def record_cost(directory: Path) -> list[list[str]]:
    record = PauseRecord.open(directory / "record")
    spent: dict[str, list[float]] = {"record: before a lock": [], "record: after it": [], "record: after an unlock": []}
    for number in range(5000):
        entry = Entry(1 + number % 8, 12345, Stage.LOCKING, settles_at_s=time.monotonic(), gpu="GPU-" + "0" * 36)
        begun = time.perf_counter()
        record.write(entry)
        written = time.perf_counter()
        record.write(Entry(entry.pid, 12345, Stage.LOCKED))
        again = time.perf_counter()
        record.remove(entry.pid)
        for name, value in zip(spent, (written - begun, again - written, time.perf_counter() - again), strict=True):
            spent[name].append(value)
    record.close()
    return [row(title, seconds) for title, seconds in spent.items()]


async def calls(pauser: Pauser, program: GpuProgram, rounds: int, name: str) -> list[list[str]]:
    inside: dict[str, list[float]] = {"lock": [], "unlock": [], "state": []}
    whole: dict[str, list[float]] = {"lock": [], "unlock": [], "state": []}
    for _ in range(rounds):
        for operation in ("lock", "state", "unlock"):
            begun = time.perf_counter()
            if operation == "lock":
                reply = await pauser.lock(program.key, timeout_ms=5000)
            elif operation == "state":
                reply = await pauser.state(program.key)
            else:
                reply = await pauser.unlock(program.key)
            assert reply.failure is None, reply.failure
            whole[operation].append(time.perf_counter() - begun)
            inside[operation].append(reply.duration_s)
        await asyncio.sleep(0.02)
    rows = []
    for operation in inside:
        rows.append(row(f"{name}: {operation}, the driver's call", inside[operation]))
        rows.append(row(f"{name}: {operation}, as the agent sees it", whole[operation]))
    return rows


async def moves(pauser: Pauser, program: GpuProgram, gib: int) -> list[list[str]]:
    out: list[float] = []
    back: list[float] = []
    for _ in range(3):
        assert (await pauser.lock(program.key, timeout_ms=5000)).failure is None
        for found, reply in (
            (out, await pauser.checkpoint(program.key, memory_bytes=gib << 30)),
            (back, await pauser.restore(program.key)),
        ):
            assert reply.failure is None, reply.failure
            found.append(reply.duration_s)
        assert (await pauser.unlock(program.key)).failure is None
    return [row(f"{gib} GiB: checkpoint", out), row(f"{gib} GiB: restore", back)]


async def measure(directory: Path, rounds: int) -> list[list[str]]:
    begun = time.perf_counter()
    pauser = Pauser(PauserSettings(record=directory / "paused", environment={"PYTHONPATH": str(ROOT / "src")}))
    await pauser.start()
    assert await pauser.wait_available(60), pauser.reason
    rows = [row("start of the pauser", [time.perf_counter() - begun])]
    for size in (512, 2048, 4096):
        with gpu_program(size) as program:
            rows += await calls(pauser, program, rounds, f"matmul {size}")
    with gpu_program(2048) as one, gpu_program(2048):
        rows += await calls(pauser, one, rounds, "2048 next to 2048")
    for gib in (2, 8):
        with gpu_program(512, gib=gib) as program:
            rows += await moves(pauser, program, gib)
    await pauser.stop()
    return rows


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rows = record_cost(directory)
        driver = cuda.load()
        if isinstance(driver, Failure):
            title = f"Pausing: the record only ({driver.meaning})"
        else:
            title = f"Pausing, {rounds} rounds"
            rows += asyncio.run(measure(directory, rounds))
        show(title, HEADER, rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
