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


def parse_protocols(text: bytes) -> Iterator[tuple[str, int]]:
    """Pairs of lines: "Tcp: InSegs OutSegs", then "Tcp: 7 8", are (Tcp_InSegs, 7) and (Tcp_OutSegs, 8)."""
    lines = text.decode("ascii").splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        protocol, *fields = names.split()
        same, *numbers = values.split()
        if same != protocol:
            raise ValueError(f"the line after {protocol} begins with {same}")
        for field, number in zip(fields, numbers, strict=True):
            yield f"{protocol.removesuffix(':')}_{field}", int(number)


def parse_protocols_v6(text: bytes) -> Iterator[tuple[str, int]]:
    """One field per line: "Ip6InOctets 7" is (Ip6_InOctets, 7)."""
    for line in text.decode("ascii").splitlines():
        name, number = line.split()
        protocol, six, field = name.partition("6")
        if six:
            yield f"{protocol}6_{field}", int(number)


def read_protocols(procfs: Path, fields: re.Pattern[str]) -> dict[str, int]:
    values = dict(parse_protocols(read_whole(procfs, "net/netstat")))
    values |= parse_protocols(read_whole(procfs, "net/snmp"))
    # The file does not exist if IPv6 is disabled.
    with contextlib.suppress(FileNotFoundError):
        values |= parse_protocols_v6(read_whole(procfs, "net/snmp6"))
    return {name: value for name, value in values.items() if fields.search(name)}


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
    root = sysfs / "class/net"
    devices = {}
    for name in sorted(os.listdir(root)):
        if (ignored is None or not ignored.search(name)) and (root / name).is_dir():
            devices[name] = _device(f"{root}/{name}")
    return devices


def _device(directory: str) -> NetworkDevice:
    texts = {file: text for file in _TEXTS if (text := _text(f"{directory}/{file}")) is not None}
    numbers = {}
    for file in _NUMBERS:
        if (text := _text(f"{directory}/{file}")) is not None:
            try:
                # Flags and device ids are hexadecimal, with 0x.
                numbers[file] = int(text, 0)
            except ValueError:
                continue
    return NetworkDevice(numbers, texts)


def _text(path: str) -> str | None:
    """Without Path, which doubles the cost: a node of containers has hundreds of devices with 22 files each."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
