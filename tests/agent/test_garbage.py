"""The garbage collector's thresholds, in a separate process: they are global."""

import subprocess
import sys
from pathlib import Path

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

async def main():
    garbage._FULL_COLLECTION_EVERY_S = 0.01
    collecting = asyncio.create_task(garbage.collect_garbage_periodically())
    Cycle()
    while full_collections() == before:
        await asyncio.sleep(0)
    collecting.cancel()

asyncio.run(main())
assert not [one for one in gc.get_objects() if isinstance(one, Cycle)], "an old cycle is never freed"
"""


def test_full_collections_run_only_periodically() -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
