"""The collector's pauses, in a process of its own: it is the whole process that changes."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, gc
from gpucommons.agent import pauses

def full_looks():
    return gc.get_stats()[2]["collections"]

pauses.shorten_pauses()
assert gc.get_freeze_count() > 1000, "what was loaded is still looked at"
before = full_looks()
kept = [[] for _ in range(300_000)]
assert gc.get_stats()[1]["collections"] > 0, "the young are not looked at"
assert full_looks() == before, "the old are looked at while others wait"

class Cycle:
    def __init__(self):
        self.self = self

async def main():
    pauses._FULL_LOOK_S = 0.01
    looking = asyncio.create_task(pauses.look_at_all_at_times())
    Cycle()
    while full_looks() == before:
        await asyncio.sleep(0)
    looking.cancel()

asyncio.run(main())
assert not [one for one in gc.get_objects() if isinstance(one, Cycle)], "an old cycle is never freed"
"""


def test_only_the_young_are_looked_at_and_all_of_them_seldom() -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
