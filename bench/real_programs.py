"""Real programs on a GPU, started once and set to work and to rest by the benchmark that uses them."""

import pwd
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).with_name("real_program.py")
_RECORD = struct.Struct("=dd")


class Step(NamedTuple):
    """When it was done, by CLOCK_MONOTONIC, and how long it took."""

    done_s: float
    length_s: float


class RealProgram:
    """A process in a session of its own: the programs of one session are one client. `user` may be another's name."""

    def __init__(self, kind: str, directory: Path, user: str | None = None) -> None:
        self.kind = kind
        self._steps = directory / f"{kind}-{time.monotonic_ns()}"
        self._steps.touch(mode=0o666)
        self._steps.chmod(0o666)
        entry = pwd.getpwnam(user) if user is not None else None
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind, str(self._steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            user=None if entry is None else entry.pw_uid,
            group=None if entry is None else entry.pw_gid,
            cwd="/tmp",
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"{self.kind} did not start: {line!r}, exit status {self.process.poll()}"

    def order(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def steps(self, begin_s: float, end_s: float) -> list[Step]:
        """The steps that were done in this time."""
        data = self._steps.read_bytes()
        whole = len(data) - len(data) % _RECORD.size
        return [step for step in map(Step._make, _RECORD.iter_unpack(data[:whole])) if begin_s <= step.done_s < end_s]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def real_programs(
    kinds: Sequence[str], directory: Path, users: Sequence[str | None] = ()
) -> Iterator[list[RealProgram]]:
    """All of them have a CUDA context and rest."""
    owners = users or [None] * len(kinds)
    programs = [RealProgram(kind, directory, user) for kind, user in zip(kinds, owners, strict=True)]
    try:
        for program in programs:
            program.wait_until_ready()
        yield programs
    finally:
        for program in programs:
            program.stop()


@contextmanager
def at_work(programs: Sequence[RealProgram]) -> Iterator[None]:
    for program in programs:
        program.order("go")
    try:
        yield
    finally:
        for program in programs:
            program.order("rest")
