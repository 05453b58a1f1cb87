"""The garbage collector's thresholds, in a separate process: they are global."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, gc
from gpucommons.agent import garbage

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

async def main():
    garbage._CHECK_EVERY_S = 0.01
    {change}
    collecting = asyncio.create_task(garbage.collect_garbage())
    await asyncio.sleep(0.1)
    assert {periodic} or full_collections() == before, "a full collection ran without a reason"
    cycles = [Cycle() for _ in range(2_000)]
    gc.collect(1)  # now they are old
    del cycles
    seen = full_collections()
    async with asyncio.timeout(30):
        while full_collections() == seen:
            await asyncio.sleep(0.01)
    collecting.cancel()

asyncio.run(main())
assert not [one for one in gc.get_objects() if isinstance(one, Cycle)], "an old cycle is never freed"
"""


@pytest.mark.parametrize(
    ("change", "periodic"),
    [("garbage._FULL_COLLECTION_EVERY_S = 0.02", "True"), ("", "False")],
    ids=["time", "growth"],
)
def test_full_collections_run_after_a_time_and_after_growth(change: str, periodic: str) -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    program = PROGRAM.replace("{change}", change).replace("{periodic}", periodic)
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
