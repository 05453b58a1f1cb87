"""Freed memory goes back to the kernel. In a separate process: the settings of malloc are global."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from gpucommons.agent.memory import return_freed_memory
from gpucommons.sources.agent import own_rss_bytes

MEGABYTE = 1 << 20
return_freed_memory()
# Once a block of this size was freed, malloc by default takes later blocks up to this size from its heap.
bytearray(b"x") * (16 * MEGABYTE)
large = [bytearray(b"x") * (4 * MEGABYTE) for _ in range(4)]
# A small block behind each large one keeps the heap from shrinking.
small = []
for index in range(len(large)):
    small.append(bytearray(100_000))
    large.append(bytearray(b"x") * (4 * MEGABYTE))
before = own_rss_bytes()
large.clear()
print((before - own_rss_bytes()) // MEGABYTE)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc's malloc")
def test_large_freed_blocks_are_returned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2] / "src",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 30
