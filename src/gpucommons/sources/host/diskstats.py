"""The counters of block devices from /proc/diskstats, with the udev properties of each device."""

import re
from collections.abc import Iterator
from pathlib import Path

from gpucommons.model.kernel import Disk
from gpucommons.sources.host.procfs import read_whole
from gpucommons.sources.host.udev import UdevProperties

_MAJOR, _MINOR, _NAME, _FIRST_COUNTER = range(4)


def parse_diskstats(text: bytes, exclude: re.Pattern[str]) -> Iterator[Disk]:
    for line in text.splitlines():
        fields = line.split()
        name = fields[_NAME].decode("utf-8", "surrogateescape")
        if not exclude.search(name):
            yield Disk(name, int(fields[_MAJOR]), int(fields[_MINOR]), tuple(map(int, fields[_FIRST_COUNTER:])))


class DiskReader:
    def __init__(self, procfs: Path, udev_data: Path, exclude: re.Pattern[str]) -> None:
        self._procfs = procfs
        self._udev = UdevProperties(udev_data)
        self._exclude = exclude

    def read(self) -> tuple[Disk, ...]:
        disks = tuple(parse_diskstats(read_whole(self._procfs, "diskstats"), self._exclude))
        properties = self._udev.read((disk.major, disk.minor) for disk in disks)
        return tuple(
            Disk(disk.name, disk.major, disk.minor, disk.counters, properties[disk.major, disk.minor]) for disk in disks
        )
