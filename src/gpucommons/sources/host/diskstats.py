"""The counters of block devices from /proc/diskstats, with the udev properties of each device; software RAIDs."""

import re
from collections.abc import Iterator
from pathlib import Path

from gpucommons.model.host import Disk, Raid
from gpucommons.sources.host.procfs import read_whole
from gpucommons.sources.host.udev import UdevProperties

# Of /proc/mdstat: "1000 blocks super 1.2 [2/1] [U_]", and "(500/1000)" while it synchronises.
_RAID_DISKS = re.compile(r"\[(\d+)/(\d+)\]")
_RAID_SYNCED = re.compile(r"\((\d+)/\d+\)")
_RAID_ACTIVITIES = (("recovery", "recovering"), ("check", "checking"), ("resync", "resyncing"))
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


def parse_raids(text: str) -> Iterator[Raid]:
    """A device is a line "md0 : active raid1 sda1[0] sdb1[1](F)", followed by indented lines."""
    for block in re.split(r"\n(?=\S)", text):
        head, *rest = block.split("\n")
        if rest and not head.startswith(("Personalities", "unused")):
            yield _raid(head, rest)


def _raid(head: str, rest: list[str]) -> Raid:
    name, _, state, *members = head.split()
    blocks = int(rest[0].split()[0])
    if "raid0" in members or "linear" in members:
        required = active = head.count("[")
    elif state == "inactive":
        required = active = 0
    elif (disks := _RAID_DISKS.search(rest[0])) is not None:
        required, active = int(disks[1]), int(disks[2])
    else:
        raise ValueError(f"/proc/mdstat: no number of disks of {name}")
    synced = blocks
    for line in rest[1:]:
        activity = next((activity for word, activity in _RAID_ACTIVITIES if word in line), None)
        if activity is not None:
            # A pending or delayed synchronisation has no numbers.
            at = _RAID_SYNCED.search(line)
            state, synced = activity, 0 if at is None else int(at[1])
    return Raid(name, state, required, active, head.count("(F)"), head.count("(S)"), blocks, synced)


def read_raids(procfs: Path) -> tuple[Raid, ...]:
    """Raises FileNotFoundError if the kernel has no software RAID."""
    return tuple(parse_raids(read_whole(procfs, "mdstat").decode("utf-8", "surrogateescape")))
