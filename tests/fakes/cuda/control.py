"""How a test steers the fake driver and its programs, and sees what they do."""

import mmap
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import State
from gpucommons.pauser.release import key_of
from waiting import until

# struct program of program.h behind its mutex, which is 40 bytes on 64-bit Linux.
_FIELDS = struct.Struct("=40x IIII QQQQQ IIII QQ")
_WORDS = ("state", "asked", "result", "timeout_ms")
_NUMBERS = ("steps", "gpu_bytes", "host_bytes", "drain_us", "move_bytes_per_s")
_FLAGS = ("managed", "ready", "locks", "quiet")
_CELLS = ("burn_us", "calls")
_NAMES = (*_WORDS, *_NUMBERS, *_FLAGS, *_CELLS)
_OFFSETS = {
    **{name: 40 + 4 * number for number, name in enumerate(_WORDS)},
    **{name: 56 + 8 * number for number, name in enumerate(_NUMBERS)},
    **{name: 96 + 4 * number for number, name in enumerate(_FLAGS)},
    **{name: 112 + 8 * number for number, name in enumerate(_CELLS)},
}


# The status of a program that starts with device files on a GPU without room.
OUT_OF_MEMORY_STATUS = 42


class FakeProgram:
    """A child process that makes steps while it is not paused."""

    def __init__(self, directory: Path, process: "subprocess.Popen[bytes]", pid: int) -> None:
        self.process = process
        self.pid = pid
        path = directory / str(self.pid)
        until(lambda: path.exists() and path.stat().st_size >= _FIELDS.size, "the program starts")
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        until(lambda: self._get("ready") or process.poll(), "the program is ready")
        assert self._get("ready"), f"the program ended with status {process.returncode}"
        key = key_of(self.pid)
        assert key is not None
        self.key: ProcessKey = key

    @property
    def is_asked(self) -> bool:
        """Whether the driver has asked something of it that it has not carried out."""
        return self._get("asked") != 0

    @property
    def locks(self) -> int:
        """How many locks were asked of it, also those that failed."""
        return self._get("locks")

    def _get(self, name: str) -> int:
        return int(_FIELDS.unpack_from(self._page)[_NAMES.index(name)])

    def _set(self, name: str, value: int) -> None:
        struct.pack_into("=I" if name in _FLAGS else "=Q", self._page, _OFFSETS[name], value)

    @property
    def state(self) -> State:
        return State(self._get("state"))

    @property
    def steps(self) -> int:
        return self._get("steps")

    @property
    def gpu_bytes(self) -> int:
        return self._get("gpu_bytes")

    @property
    def host_bytes(self) -> int:
        return self._get("host_bytes")

    def drain_in(self, seconds: float) -> None:
        """How long its submitted work takes from now on."""
        self._set("drain_us", round(seconds * 1e6))

    def move_at(self, bytes_per_s: int) -> None:
        self._set("move_bytes_per_s", bytes_per_s)

    def use_managed_memory(self) -> None:
        self._set("managed", 1)

    def share_memory(self) -> None:
        """With another process, by CUDA IPC."""
        os.kill(self.pid, signal.SIGUSR2)
        until(lambda: "/dev/shm/cuda.shm." in Path(f"/proc/{self.pid}/maps").read_text(), "it shares memory")

    def wait_for_user(self) -> None:
        """It hardly uses the CPU from now on, as a notebook does."""
        self._set("quiet", 1)

    def run_cell(self, cpu_s: float = 0.02) -> None:
        """Its user runs a cell: CPU time, then a CUDA call, which blocks while the program is paused."""
        self._set("burn_us", round(cpu_s * 1e6))

    @property
    def cells(self) -> int:
        """How many cells have ended."""
        return self._get("calls")

    def fork(self) -> None:
        """It gets a child without CUDA, also while it is paused."""
        os.kill(self.pid, signal.SIGUSR1)

    def runs(self, within_s: float = 40) -> float:
        """Wait until it makes steps, and say how long that took."""
        before, begun = self.steps, time.monotonic()
        until(lambda: self.steps > before + 1, f"program {self.pid} runs; it is {self.state.name}", within_s)
        return time.monotonic() - begun

    def stands_still(self, for_s: float = 0.05) -> bool:
        before = self.steps
        time.sleep(for_s)
        return self.steps == before

    def end(self) -> None:
        """Also where it is the child of the process that was started: that one would leave it behind."""
        if key_of(self.pid) == self.key:
            os.kill(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@dataclass
class FakeCuda:
    """One machine with the fake driver. `environment` is for the processes that load it."""

    directory: Path
    library: Path
    program: Path
    programs: list[FakeProgram] = field(default_factory=list)
    # Programs open the device files of this directory, if there is one, and allocate their memory after that.
    device_files: Path | None = None
    # While this file is there, programs have initialised CUDA and make no context.
    prepares: Path | None = None
    lines: list[str] = field(default_factory=list)
    spawned: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        os.chmod(self.directory, 0o777)

    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_CUDA_DIR": str(self.directory)}

    def start(
        self,
        gpu_bytes: int = 0,
        *more: str,
        uid: int | None = None,
        prefix: tuple[str, ...] = (),
        is_child: bool = False,
        is_elsewhere: bool = False,
    ) -> FakeProgram:
        """`prefix` is a command that becomes the program, or starts it as its child, or lets another process start it
        (`is_elsewhere`), as srun does."""
        before = set(self._pids())
        process = self.spawn(gpu_bytes, *more, uid=uid, prefix=prefix)
        if is_elsewhere:
            pid = until(
                lambda: next((pid for pid in self._pids() if pid not in before), None), "the program is started"
            )
        else:
            pid = until(lambda: self._child(process.pid), "the program is started") if is_child else process.pid
        program = FakeProgram(self.directory, process, pid)
        self.programs.append(program)
        return program

    def spawn(
        self, gpu_bytes: int, *more: str, uid: int | None = None, prefix: tuple[str, ...] = ()
    ) -> "subprocess.Popen[bytes]":
        """Start a program without waiting for it. With `device_files` it may end with OUT_OF_MEMORY_STATUS."""
        arguments = (str(self.program), str(self.directory), str(gpu_bytes), *more)
        files = {"FAKE_DEVICE_FILES": self.device_files, "FAKE_PREPARES": self.prepares}
        environment = {name: str(path) for name, path in files.items() if path is not None}
        # In a process group of its own, as shells and batch systems start programs. That of the tests may have no
        # parent in its session, and SIGTSTP stops nothing in such a group. setsid makes one, and forks if it has one.
        group = None if "setsid" in prefix else 0
        command, variables = [*prefix, *arguments], {**os.environ, **environment}
        process = subprocess.Popen(command, user=uid, env=variables, process_group=group)
        self.spawned.append(process)
        return process

    def _pids(self) -> Iterator[int]:
        return (int(path.name) for path in self.directory.iterdir() if path.name.isdecimal())

    def _child(self, parent: int) -> int | None:
        # One may end meanwhile; psutil then also raises FileNotFoundError.
        with suppress(psutil.Error, FileNotFoundError):
            for child in psutil.Process(parent).children():
                with suppress(psutil.Error, FileNotFoundError):
                    if child.exe() == str(self.program):
                        return child.pid
        return None

    def gpu_has(self, total_bytes: int) -> None:
        (self.directory / "gpu").write_text(str(total_bytes))

    def say(self, *lines: str) -> None:
        """Lines of the control file (driver.c); obeyed from the next call on."""
        self.lines += lines
        self._write()

    def unsay(self, *beginnings: str) -> None:
        self.lines = [line for line in self.lines if not line.startswith(beginnings)]
        self._write()

    def close(self) -> None:
        self.unsay("hang", "slow", "fail")
        for program in self.programs:
            program.end()
        # Those that the test did not come to wait for, with the children that a prefix started.
        for process in self.spawned:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
                process.wait()

    def _write(self) -> None:
        temporary = self.directory / "control.new"
        temporary.write_text("".join(f"{line}\n" for line in self.lines))
        temporary.rename(self.directory / "control")
