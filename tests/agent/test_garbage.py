"""When garbage is collected. The collector itself is changed in separate processes: its thresholds are global."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpucommons.agent.memory import Examine, Progress, is_calm, to_examine
from gpucommons.model.sharing import GpuSharing, HistogramReading, SharingReading
from gpucommons.model.snapshot import Readings, Snapshot

PROGRAM = """
import asyncio, gc
from gpucommons.agent import memory as garbage
from gpucommons.model.snapshot import AgentReading, Readings, Snapshot
from gpucommons.sources.agent import own_rss_bytes

def full_collections():
    return gc.get_stats()[2]["collections"]

garbage.shorten_pauses()
assert gc.get_freeze_count() > 1000, "objects of the start are not frozen"
before = full_collections()
kept = [[] for _ in range(300_000)]
assert gc.get_stats()[1]["collections"] > 0, "young objects are never collected"
assert full_collections() == before, "a full collection ran by itself"

class Cycle:
    def __init__(self):
        self.self = self
        self.data = bytearray(b"x" * 20_000)

async def show_snapshots(observe):
    while True:
        own = AgentReading("1", 0.0, None, own_rss_bytes(), None, None)
        observe(Snapshot(1, 0.0, 0.0, "host", readings=Readings(agent=own)))
        await asyncio.sleep(0.01)

async def main():
    {change}
    collection = garbage.GarbageCollection()
    showing = asyncio.create_task(show_snapshots(collection.observe))
    await asyncio.sleep(0.1)
    assert {periodic} or full_collections() == before, "a full collection ran without a reason"
    cycles = [Cycle() for _ in range(2_000)]
    gc.collect(1)  # now they are old
    del cycles
    seen = full_collections()
    async with asyncio.timeout(30):
        while full_collections() == seen:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        while any(isinstance(one, Cycle) for one in gc.get_objects()):
            await asyncio.sleep(0.01)
    survivors = [[] for _ in range(50_000)]
    gc.collect(1)
    before_freeze = gc.get_freeze_count()
    more = [Cycle() for _ in range(2_000)]
    async with asyncio.timeout(30):
        while gc.get_freeze_count() < before_freeze + len(survivors):
            await asyncio.sleep(0.01)
    showing.cancel()
    collection.stop()

asyncio.run(main())
assert not [one for one in gc.get_objects() if isinstance(one, Cycle)], "an old cycle is never freed"
"""


@pytest.mark.parametrize(
    ("change", "periodic"),
    [("garbage._EVERYTHING_EVERY_S = 0.02", "True"), ("", "False")],
    ids=["time", "growth"],
)
def test_full_collections_run_after_a_time_and_after_growth(change: str, periodic: str) -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    program = PROGRAM.replace("{change}", change).replace("{periodic}", periodic)
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("grown_bytes", "everything_s", "calm", "expected"),
    [
        (0, 0.0, True, Examine.NOTHING),
        (9 * MEGABYTE, 0.0, True, Examine.NEW),
        (9 * MEGABYTE, 0.0, False, Examine.NOTHING),
        (60 * MEGABYTE, 0.0, False, Examine.NEW),
        (0, 601.0, True, Examine.EVERYTHING),
        (0, 601.0, False, Examine.NOTHING),
        (60 * MEGABYTE, 601.0, False, Examine.NEW),
        (0, 3601.0, False, Examine.EVERYTHING),
        (None, 0.0, True, Examine.NOTHING),
    ],
)
def test_old_objects_are_examined_after_growth_and_between_turns(
    grown_bytes: int | None, everything_s: float, calm: bool, expected: Examine
) -> None:
    assert to_examine(Progress(grown_bytes, everything_s), calm) is expected


NO_TIMES = HistogramReading((), (0,), 0.0)


def snapshot_with(request_queue: tuple[str, ...], wait_queue: tuple[str, ...], left_s: float | None) -> Snapshot:
    gpu = GpuSharing(
        "GPU-0", 0, True, ("a",), request_queue, wait_queue, 0, 0, 0, 0, True, 0, False, "turns", "serial_mode",
        left_s, 0.0, {}, 0, 0, NO_TIMES, NO_TIMES, NO_TIMES,
    )  # fmt: skip
    sharing = SharingReading(True, "serial", None, (gpu,), (), (), {}, {}, {}, NO_TIMES, 1.0)
    return Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=sharing))


def test_a_moment_is_calm_unless_a_client_may_get_its_turn_now() -> None:
    assert is_calm(Snapshot(1, 0.0, 0.0, "host"))
    assert is_calm(snapshot_with((), (), None))
    assert is_calm(snapshot_with(("b",), (), 20.0))
    assert not is_calm(snapshot_with(("b",), (), 0.5))
    assert not is_calm(snapshot_with(("b",), (), None))
    assert not is_calm(snapshot_with((), ("b",), None))
