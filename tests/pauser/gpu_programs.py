"""Starts programs of gpu_program.py, and asks how far they are."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.release import key_of

PROGRAM = Path(__file__).with_name("gpu_program.py")


class AnsweringProgram:
    """A program that prints a line when it is ready, and one for each line that it reads."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        key = key_of(process.pid)
        assert key is not None
        self.key: ProcessKey = key
        assert self._line(120) == "ready"

    def ask(self) -> None:
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), b"\n")

    def _line(self, within_s: float) -> str | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        if not select.select([descriptor], [], [], within_s)[0]:
            return None
        return os.read(descriptor, 4096).decode().strip()


class GpuProgram(AnsweringProgram):
    def asked(self, within_s: float = 60) -> tuple[int, int] | None:
        """Products so far and the checksum; None where it does not answer in time, since it is paused."""
        self.ask()
        return self.answer(within_s)

    def answer(self, within_s: float = 60) -> tuple[int, int] | None:
        line = self._line(within_s)
        if line is None:
            return None
        products, checksum = line.split()
        return int(products), int(checksum)


@contextmanager
def gpu_program(size: int = 2048, gib: float = 0, uid: int | None = None) -> Iterator[GpuProgram]:
    arguments = [str(size), str(gib), *([] if uid is None else [str(uid)])]
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        yield GpuProgram(process)
    finally:
        process.kill()
        process.wait()


def nvml_bytes(pid: int) -> int:
    """What NVML shows for this process on all GPUs."""
    pynvml.nvmlInit()
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    rows = [row for handle in handles for row in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    return sum(row.usedGpuMemory or 0 for row in rows if row.pid == pid)
