"""Sensors and CPU throttling from sysfs. A separate source, since a sensor on a slow bus may take seconds."""

from pathlib import Path

from gpucommons.model.host import Chip, HardwareReading
from gpucommons.sources.host.cpu_sysfs import ThrottleReader, read_isolated_cpus
from gpucommons.sources.host.hwmon import read_chips
from gpucommons.sources.source import SourceAbsent


class HardwareReader:
    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._throttles = ThrottleReader(sysfs)

    def read(self) -> HardwareReading:
        if not self._sysfs.is_dir():
            raise SourceAbsent(
                f"no hardware to read: {self._sysfs} does not exist",
                "mount the host's /sys and set [path] sysfs to it",
            )
        chips, failed = self._chips()
        return HardwareReading(chips, failed, self._throttles.read(), read_isolated_cpus(self._sysfs))

    def _chips(self) -> tuple[tuple[Chip, ...] | None, int]:
        try:
            return read_chips(self._sysfs)
        except FileNotFoundError:
            return None, 0
