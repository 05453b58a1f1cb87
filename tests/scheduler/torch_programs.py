"""Unmodified CUDA programs on a real GPU: started, and their progress read from outside."""

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from waiting import until

PROGRAM = Path(__file__).with_name("torch_program.py")


class CountingProgram:
    """A program that adds what it has done to a file of 8 bytes. `prefix` is a command that starts it."""

    def __init__(
        self,
        program: Path,
        directory: Path,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._counter = directory / f"{program.stem}-{time.monotonic_ns()}"
        self._counter.write_bytes(bytes(8))
        # A session of its own: the programs of one session are one client.
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(program), *before, str(self._counter), *after],
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    @property
    def products(self) -> int:
        return int(struct.unpack("=Q", self._counter.read_bytes())[0])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class TorchProgram(CountingProgram):
    def __init__(
        self, size: int, directory: Path, idle_s: float = 0.0, gib: float = 0.0, prefix: Sequence[str] = ()
    ) -> None:
        super().__init__(PROGRAM, directory, (str(size),), (str(idle_s), str(gib)), prefix)
        self.size = size


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


def rates(programs: Sequence[CountingProgram], seconds: float) -> list[float]:
    """Products per second of each program over the next `seconds`."""
    begun_s, before = time.monotonic(), [program.products for program in programs]
    time.sleep(seconds)
    elapsed_s = time.monotonic() - begun_s
    return [(program.products - old) / elapsed_s for program, old in zip(programs, before, strict=True)]
