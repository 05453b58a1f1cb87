"""Unmodified torch programs on a real GPU: started, and their progress read from outside."""

import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from waiting import until

PROGRAM = Path(__file__).with_name("torch_program.py")


class TorchProgram:
    def __init__(
        self, size: int, directory: Path, idle_s: float = 0.0, gib: float = 0.0, prefix: Sequence[str] = ()
    ) -> None:
        """`prefix` is a command that starts it."""
        self.size = size
        self._counter = directory / f"{size}-{time.monotonic_ns()}"
        self._counter.write_bytes(bytes(8))
        # A session of its own: the programs of one session are one client.
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(PROGRAM), str(size), str(self._counter), str(idle_s), str(gib)],
            start_new_session=True,
        )

    @property
    def products(self) -> int:
        return int(struct.unpack("=Q", self._counter.read_bytes())[0])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def torch_programs(sizes: Sequence[int], directory: Path, idle_s: float = 0.0) -> Iterator[list[TorchProgram]]:
    """All of them have begun to use the GPU."""
    programs = [TorchProgram(size, directory, idle_s) for size in sizes]
    try:
        for program in programs:
            until(lambda program=program: program.products > 0, "a torch program runs", within_s=120)  # type: ignore[misc]
        yield programs
    finally:
        for program in programs:
            program.stop()


def rates(programs: Sequence[TorchProgram], seconds: float) -> list[float]:
    """Products per second of each program over the next `seconds`."""
    begun_s, before = time.monotonic(), [program.products for program in programs]
    time.sleep(seconds)
    elapsed_s = time.monotonic() - begun_s
    return [(program.products - old) / elapsed_s for program, old in zip(programs, before, strict=True)]
