"""Starts programs of torch_notebook.py, runs their cells, and shows what NVML says of their memory."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pynvml

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.release import key_of

PROGRAM = Path(__file__).with_name("torch_notebook.py")


class Cell(NamedTuple):
    """What a cell printed. All but `replays` is the same in every cell, unless memory was damaged."""

    replays: int
    product: int
    checksum: int


class Notebook:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        key = key_of(process.pid)
        assert key is not None
        self.key: ProcessKey = key
        assert self._line(120) == "ready"

    def run_cell(self, within_s: float = 120) -> Cell | None:
        """None where the cell does not end in time, because the program is paused."""
        self.begin_cell()
        return self.end_cell(within_s)

    def begin_cell(self) -> None:
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), b"\n")

    def end_cell(self, within_s: float = 120) -> Cell | None:
        line = self._line(within_s)
        return None if line is None else Cell(*map(int, line.split()))

    def _line(self, within_s: float) -> str | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        if not select.select([descriptor], [], [], within_s)[0]:
            return None
        return os.read(descriptor, 4096).decode().strip()


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


def nvml_bytes(pid: int) -> int:
    """What NVML shows for this process on all GPUs."""
    pynvml.nvmlInit()
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    rows = [row for handle in handles for row in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    return sum(row.usedGpuMemory or 0 for row in rows if row.pid == pid)
