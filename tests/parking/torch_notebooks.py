"""Starts programs of torch_notebook.py, and runs their cells."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pauser.gpu_programs import AnsweringProgram

PROGRAM = Path(__file__).with_name("torch_notebook.py")


class Cell(NamedTuple):
    """What a cell printed. All but `replays` is the same in every cell, unless memory was damaged."""

    replays: int
    product: int
    checksum: int


class Notebook(AnsweringProgram):
    def run_cell(self, within_s: float = 120) -> Cell | None:
        """None where the cell does not end in time, because the program is paused."""
        self.ask()
        return self.end_cell(within_s)

    def end_cell(self, within_s: float = 120) -> Cell | None:
        line = self._line(within_s)
        return None if line is None else Cell(*map(int, line.split()))


@contextmanager
def notebook(gib: float, with_session: bool = True) -> Iterator[Notebook]:
    """Without a session of its own, a job of this one: the kernel ignores SIGTSTP of a session without a terminal."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(gib)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=with_session,
        process_group=None if with_session else 0,
    )
    try:
        yield Notebook(process)
    finally:
        process.kill()
        process.wait()
