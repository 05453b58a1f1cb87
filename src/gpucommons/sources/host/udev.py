"""Properties of block devices from udev's database. A file is read again only after udev has rewritten it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpucommons.sources.host.procfs import read_file

DeviceNumber = tuple[int, int]
_NONE: Mapping[str, str] = {}


def parse_udev(text: bytes) -> dict[str, str]:
    """The lines E:NAME=VALUE. Other lines are not properties."""
    pairs = (line[2:].partition("=") for line in text.decode("utf-8", "replace").split("\n") if line.startswith("E:"))
    return {name: value for name, separator, value in pairs if separator}


class UdevProperties:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[DeviceNumber, tuple[int, Mapping[str, str]]] = {}

    def read(self, devices: Iterable[DeviceNumber]) -> dict[DeviceNumber, Mapping[str, str]]:
        """The properties of each device; none for a device that udev does not know. Other devices are forgotten."""
        self._known = {device: self._one(device) for device in devices}
        return {device: properties for device, (_, properties) in self._known.items()}

    def _one(self, device: DeviceNumber) -> tuple[int, Mapping[str, str]]:
        name = f"b{device[0]}:{device[1]}"
        try:
            written_ns = os.stat(self._directory / name).st_mtime_ns
            known = self._known.get(device)
            if known is not None and known[0] == written_ns:
                return known
            return written_ns, parse_udev(read_file(self._directory, name))
        except OSError:
            return 0, _NONE
