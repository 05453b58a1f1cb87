"""Controls the fake NVML library through a control file, and reads its page of counters."""

import ctypes
import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

MAX_GPUS = 64
PAGE_HEADER = 256
SITE = struct.Struct(f"64s{MAX_GPUS + 1}Q")
MAX_SITES = 160
PAGE_BYTES = PAGE_HEADER + SITE.size * MAX_SITES
NO_INSTANCE = 0xFFFFFFFF
XID = 8
COMPUTE, GRAPHICS, MPS = 0, 1, 2

_HEADER = (
    "generation",
    "clock_us",
    "inits",
    "shutdowns",
    "references",
    "gpm_samples",
    "event_sets",
    "stale_mig_uses",
    "misuses",
)


@dataclass
class FakeNvml:
    """One fake driver. `say`, `unsay` and `replace` change its behaviour from the next call on."""

    directory: Path
    library: Path
    lines: list[str] = field(default_factory=list)
    event_sequence: int = 0

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "page"
        path.write_bytes(bytes(PAGE_BYTES))
        with path.open("r+b") as file:
            self.page = mmap.mmap(file.fileno(), PAGE_BYTES)
        self._write()

    def environment(self) -> dict[str, str]:
        """For a child process: nvidia-ml-py finds the fake as it would find the driver's library."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_DIR": str(self.directory)}

    def load_here(self) -> None:
        """In this process: nvidia-ml-py loads a library by name, and gets the one that is loaded under that name."""
        os.environ["FAKE_NVML_DIR"] = str(self.directory)
        ctypes.CDLL(str(self.library))

    # -- control

    def say(self, *lines: str) -> None:
        self.lines += lines
        self._write()

    def unsay(self, *beginnings: str) -> None:
        self.lines = [line for line in self.lines if not line.startswith(beginnings)]
        self._write()

    def replace(self, *lines: str) -> None:
        self.lines = list(lines)
        self._write()

    def event(self, gpu: int, kind: int, data: int) -> None:
        self.event_sequence += 1
        self.say(f"event {self.event_sequence} {gpu} {kind} {data}")

    def xid(self, gpu: int, code: int) -> None:
        self.event(gpu, XID, code)

    def set_clock(self, wall_s: float) -> None:
        """The time of the driver's samples; 0 is the real time."""
        struct.pack_into("Q", self.page, 8, round(wall_s * 1e6))

    def _write(self) -> None:
        temporary = self.directory / "control.new"
        temporary.write_text("".join(f"{line}\n" for line in self.lines))
        temporary.rename(self.directory / "control")
        (generation,) = struct.unpack_from("Q", self.page, 0)
        struct.pack_into("Q", self.page, 0, generation + 1)

    # -- counters

    def counter(self, name: str) -> int:
        (value,) = struct.unpack_from("q", self.page, 8 * _HEADER.index(name))
        return int(value)

    def calls(self, name: str, gpu: int | None = None) -> int:
        """How often a function was called: on one GPU, or in all."""
        counts = self.all_calls().get(name)
        if counts is None:
            return 0
        return sum(counts) if gpu is None else counts[gpu]

    def all_calls(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for number in range(MAX_SITES):
            name, *counts = SITE.unpack_from(self.page, PAGE_HEADER + number * SITE.size)
            text = name.rstrip(b"\0").decode()
            if text:
                found[text] = tuple(counts)
        return found


def mig_device(
    gpu: int,
    gi: int,
    *,
    ci: int = 0,
    profile: str = "1g.18gb",
    gi_slices: int = 1,
    ci_slices: int = 1,
    memory_mb: int = 16384,
    used_mb: int = 100,
    start: int = 0,
    size: int = 1,
    uuid: str = "",
) -> str:
    """A line of the control file that gives a GPU one MIG device."""
    uuid = uuid or f"MIG-0000000{gpu:x}-00{gi:02x}-00{ci:02x}-0000-000000000000"
    slices, place = f"{gi_slices} {ci_slices}", f"{start} {size}"
    return f"mig_device {gpu} {gi} {ci} {profile} {slices} {memory_mb} {used_mb} {place} {uuid}"


def process(
    gpu: int, pid: int, used_bytes: int, *, kind: int = COMPUTE, gi: int = NO_INSTANCE, ci: int = NO_INSTANCE
) -> str:
    return f"process {gpu} {kind} {pid} {used_bytes} {gi} {ci}"


def usage(gpu: int, pid: int, sm: int, *, mem: int = 0, enc: int = 0, dec: int = 0, age_us: int = 200_000) -> str:
    """A utilisation sample with an age by the driver's clock; a negative age is in the future."""
    return f"usage {gpu} {pid} {age_us} {sm} {mem} {enc} {dec}"
