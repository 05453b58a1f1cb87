"""A program of an ordinary user whose command line and environment have many megabytes: root reads little of them."""

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpucommons.pauser.arrivals import read_command, read_visible_devices
from gpucommons.scheduler.parking.host import newcomer_facts
from needs import needs_root

PROGRAM = Path(__file__).parents[1] / "fakes/hostile_memory.py"
MEBIBYTES = 64
PROC = Path("/proc")


@pytest.fixture
def hostile() -> Iterator[int]:
    """Its pid."""
    needs_root()
    command = [sys.executable, str(PROGRAM), "20010", str(MEBIBYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as program:
        assert program.stdout is not None
        answer = program.stdout.readline().decode().strip()
        if answer != "ready":
            pytest.skip(f"this kernel does not let a program place its arguments: {answer}")
        yield program.pid
        program.kill()


@pytest.mark.parametrize(
    "read",
    [newcomer_facts, lambda pid: read_visible_devices(pid, PROC), lambda pid: read_command(pid, PROC)],
    ids=["newcomer", "environment", "command"],
)
def test_what_a_process_says_of_itself_is_read_up_to_a_limit(hostile: int, read: Callable[[int], object]) -> None:
    tracemalloc.start()
    try:
        read(hostile)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < (MEBIBYTES << 20) // 4
