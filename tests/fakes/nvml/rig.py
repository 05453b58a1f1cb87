"""A fake driver, the real reader on top of it, and a clock that the test controls."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakes.nvml.control import FakeNvml
from gpucommons.model.gpu import Gpu, GpuReading
from gpucommons.sources.nvml.gpm import GpmAccess
from gpucommons.sources.nvml.presence import GpuRecord
from gpucommons.sources.nvml.source import NvmlReader

START_WALL_S = 1_700_000_000.0


class Clock:
    """Advanced by the test; with `runs` it is the real clock."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.runs = False

    def monotonic(self) -> float:
        return time.monotonic() if self.runs else 1000.0 + self.elapsed_s

    def wall(self) -> float:
        return time.time() if self.runs else START_WALL_S + self.elapsed_s


class Rig:
    def __init__(self, fake: FakeNvml, procfs: Path) -> None:
        self.fake = fake
        self.procfs = procfs
        self.sysfs = procfs.parent / "sys"
        self.record: GpuRecord | None = None
        self.environment: dict[str, str] = {}
        self.clock = Clock()
        self.fast_budget_s = 10.0
        self.keep_fast: frozenset[str] = frozenset()
        self.gpm_access = GpmAccess()
        self._source: NvmlReader | None = None

    @property
    def source(self) -> NvmlReader:
        """Created at first use, so that a test can configure the fake before."""
        if self._source is None:
            self.fake.load_here()
            self.fake.set_clock(self.clock.wall())
            self._source = NvmlReader(
                self.procfs,
                self.sysfs,
                record=self.record,
                environment=self.environment,
                fast_budget_s=self.fast_budget_s,
                keep_fast=self.keep_fast,
                gpm_access=self.gpm_access,
                monotonic=self.clock.monotonic,
                wall=self.clock.wall,
            )
        return self._source

    def read(self, after_s: float = 1.0) -> GpuReading:
        """Advance the clock and read."""
        source = self.source
        self.clock.elapsed_s += after_s
        self.fake.set_clock(self.clock.wall())
        return source.read()

    def read_for(self, seconds: float) -> GpuReading:
        """Read every second for this time; returns the last reading."""
        reading = self.read()
        for _ in range(round(seconds) - 1):
            reading = self.read()
        return reading

    def gpu(self, index: int = 0, after_s: float = 1.0) -> Gpu:
        return self.read(after_s).gpus[index]

    def process(self, pid: int, start_ticks: int, name: str = "python") -> None:
        """Add a process to the rig's /proc."""
        directory = self.procfs / str(pid)
        directory.mkdir(exist_ok=True)
        rest = " ".join(["0"] * 18 + [str(start_ticks)] + ["0"] * 20)
        (directory / "stat").write_text(f"{pid} ({name}) S {rest}\n")

    def pci_device(self, address: str, kind: str = "0x030200", vendor: str = "0x10de", driver: str = "") -> None:
        """Add a device to the rig's PCI bus: a GPU of NVIDIA, unless given otherwise."""
        device = self.sysfs / "bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        if driver:
            module = self.sysfs / "bus/pci/drivers" / driver
            module.mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(module)

    def close(self) -> None:
        if self._source is not None:
            self.fake.unsay("hang", "fail", "lose", "slow")
            self._source.close()


@contextmanager
def rig_in(directory: Path, library: Path) -> Iterator[Rig]:
    procfs = directory / "proc"
    procfs.mkdir(parents=True)
    rig = Rig(FakeNvml(directory / "driver", library), procfs)
    try:
        yield rig
    finally:
        rig.close()
