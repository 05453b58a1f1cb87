"""The network beyond the counters of its devices: protocols, packets per CPU, properties of devices, bonds.

Protocols are in /proc/net/netstat, snmp and snmp6, packets per CPU in /proc/net/softnet_stat, the rest in
/sys/class/net. In a container, /sys shows the devices of the namespace in which it was mounted.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpucommons.model.host import Bond, NetworkDevice, SoftnetCounters
from gpucommons.sources.host.procfs import read_file, read_whole

_MAX_FILE_BYTES = 4096
_NUMBERS = (
    *("addr_assign_type", "carrier", "carrier_changes", "carrier_down_count", "carrier_up_count", "dev_id"),
    *("dormant", "flags", "ifindex", "iflink", "link_mode", "mtu", "name_assign_type", "netdev_group", "speed"),
    *("tx_queue_len", "type"),
)
_TEXTS = ("address", "broadcast", "duplex", "ifalias", "operstate")


class ProtocolReader:
    """`fields` fits the names of the counters that are kept, such as Tcp_InSegs: a few of hundreds.

    The names change only with the kernel. Which counters of a line are kept is found once.
    """

    def __init__(self, procfs: Path, fields: re.Pattern[str]) -> None:
        self._procfs = procfs
        self._fields = fields
        self._kept_of: dict[bytes, tuple[int, list[tuple[int, str]]]] = {}
        self._name_of_v6: dict[bytes, str | None] = {}

    def read(self) -> dict[str, int]:
        values = dict(self.parse(read_whole(self._procfs, "net/netstat")))
        values |= self.parse(read_whole(self._procfs, "net/snmp"))
        # The file does not exist if IPv6 is disabled.
        with contextlib.suppress(FileNotFoundError):
            values |= self.parse_v6(read_whole(self._procfs, "net/snmp6"))
        return values

    def parse(self, text: bytes) -> Iterator[tuple[str, int]]:
        """Pairs of lines: "Tcp: InSegs OutSegs", then "Tcp: 7 8", are (Tcp_InSegs, 7) and (Tcp_OutSegs, 8)."""
        lines = text.splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            count, kept = self._kept_of.get(names) or self._find_kept(names)
            numbers = values.split()
            if len(numbers) != count or not names.startswith(numbers[0] + b" "):
                raise ValueError(f"the line after {names[:20]!r} does not fit it")
            for place, name in kept:
                yield name, int(numbers[place])

    def parse_v6(self, text: bytes) -> Iterator[tuple[str, int]]:
        """One field per line: "Ip6InOctets 7" is (Ip6_InOctets, 7)."""
        for line in text.splitlines():
            field, number = line.split()
            if field not in self._name_of_v6:
                self._name_of_v6[field] = self._name_v6(field.decode("ascii"))
            if (name := self._name_of_v6[field]) is not None:
                yield name, int(number)

    def _find_kept(self, names: bytes) -> tuple[int, list[tuple[int, str]]]:
        protocol, *fields = names.decode("ascii").split()
        named = [f"{protocol.removesuffix(':')}_{field}" for field in fields]
        kept = [(place, name) for place, name in enumerate(named, 1) if self._fields.search(name)]
        self._kept_of[names] = 1 + len(fields), kept
        return self._kept_of[names]

    def _name_v6(self, field: str) -> str | None:
        protocol, six, rest = field.partition("6")
        name = f"{protocol}6_{rest}"
        return name if six and self._fields.search(name) else None


def parse_softnet(text: bytes) -> tuple[SoftnetCounters, ...]:
    """One line of hexadecimal columns per CPU; newer kernels have more columns."""
    counted = []
    for line in text.splitlines():
        processed, dropped, squeezed, *_ = line.split()
        counted.append(SoftnetCounters(int(processed, 16), int(dropped, 16), int(squeezed, 16)))
    return tuple(counted)


def read_softnet(procfs: Path) -> tuple[SoftnetCounters, ...]:
    return parse_softnet(read_whole(procfs, "net/softnet_stat"))


def read_devices(sysfs: Path, ignored: re.Pattern[str] | None) -> dict[str, NetworkDevice]:
    """A file that a device does not have, or that it refuses to read, such as the speed of a link that is down, is left
    out."""
    root = f"{sysfs}/class/net"
    devices = {}
    for name in sorted(os.listdir(root)):
        if ignored is None or not ignored.search(name):
            # A file, such as bonding_masters, is not a device. A device may have gone meanwhile.
            with contextlib.suppress(NotADirectoryError, FileNotFoundError):
                devices[name] = _device(f"{root}/{name}")
    return devices


def _device(path: str) -> NetworkDevice:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        texts = {file: text for file in _TEXTS if (text := _text(file, directory)) is not None}
        numbers = {}
        for file in _NUMBERS:
            if (text := _text(file, directory)) is not None:
                try:
                    # Flags and device ids are hexadecimal, with 0x.
                    numbers[file] = int(text, 0)
                except ValueError:
                    continue
    finally:
        os.close(directory)
    return NetworkDevice(numbers, texts)


def _text(file: str, directory: int) -> str | None:
    """Relative to the open directory of the device, which is a link: its full path doubles the cost. A node of
    containers has hundreds of devices with 22 files each."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        return os.read(descriptor, _MAX_FILE_BYTES).decode("utf-8", "surrogateescape").strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_bonds(sysfs: Path) -> dict[str, Bond]:
    """Raises FileNotFoundError if the kernel has no bonding."""
    root = sysfs / "class/net"
    masters = read_file(root, "bonding_masters").decode("utf-8", "surrogateescape").split()
    return {master: _bond(root / master) for master in masters}


def _bond(directory: Path) -> Bond:
    devices = read_file(directory, "bonding/slaves").decode("utf-8", "surrogateescape").split()
    return Bond(len(devices), sum(_link_state(directory, device) == b"up" for device in devices))


def _link_state(directory: Path, device: str) -> bytes:
    try:
        return read_file(directory, f"lower_{device}/bonding_slave/mii_status").strip()
    except FileNotFoundError:
        # The name in older kernels.
        return read_file(directory, f"slave_{device}/bonding_slave/mii_status").strip()
