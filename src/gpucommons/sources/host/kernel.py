"""The kernel's counters, part by part: paging, files, sockets, disks, network devices, names and clocks.

A part that fails does not affect the others; its failure is reported with its name.
"""

import ctypes
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpucommons.model.host import (
    Clock,
    ClockDiscipline,
    ClockSource,
    Conntrack,
    Disk,
    FileHandles,
    KernelReading,
    LinkCounters,
    Raid,
    ReadRun,
    Sockets,
    Uname,
)
from gpucommons.sources.host.network import ProtocolReader, read_bonds, read_devices, read_softnet
from gpucommons.sources.host.procfs import read_file, read_whole

# Paging, swapping and OOM kills from /proc/vmstat: the fields that node_exporter takes by default.

_FIELDS = re.compile(rb"^((?:oom_kill|pgpg|pswp|pg\S*fault)\S*) (\d+)$", re.MULTILINE)


def parse_vmstat(text: bytes) -> dict[str, int]:
    return {name.decode("ascii", "replace"): int(value) for name, value in _FIELDS.findall(text)}


def read_vmstat(procfs: Path) -> dict[str, int]:
    return parse_vmstat(read_whole(procfs, "vmstat"))


# Open file handles of the whole system, from /proc/sys/fs/file-nr.


def read_file_handles(procfs: Path) -> FileHandles:
    # The number in the middle, of free handles, has been 0 since Linux 2.6.
    allocated, _, maximum = read_file(procfs, "sys/fs/file-nr").split()
    return FileHandles(int(allocated), int(maximum))


# Names and versions of kernel and node: the system call uname, and the NIS domain, which Python leaves out.


def read_uname(procfs: Path) -> Uname:
    own = os.uname()
    domain = read_file(procfs, "sys/kernel/domainname").decode("utf-8", "surrogateescape").rstrip("\n")
    return Uname(own.sysname, own.release, own.version, own.machine, own.nodename, domain)


# The system's time zone, the kernel's clock sources from sysfs, and how the clock is kept, by adjtimex(2).

# From linux/timex.h: the clock is not synchronised; the offset is in nanoseconds.
_TIME_ERROR = 5
_STA_NANO = 0x2000


class _Timex(ctypes.Structure):
    """struct timex of linux/timex.h."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


def read_clock(sysfs: Path) -> Clock:
    directory = f"{sysfs}/devices/system/clocksource"
    sources = tuple(_clock_source(Path(directory, name)) for name in sorted(_clock_sources(directory)))
    local = time.localtime()
    return Clock(local.tm_zone, local.tm_gmtoff, sources)


def _clock_sources(directory: str) -> list[str]:
    # Without Path.glob, which costs as much as all other reads of the clock.
    try:
        return [name for name in os.listdir(directory) if name.startswith("clocksource")]
    except FileNotFoundError:
        return []


def _clock_source(path: Path) -> ClockSource:
    available = read_file(path, "available_clocksource").decode("ascii", "replace")
    return ClockSource(
        tuple(available.split()), read_file(path, "current_clocksource").decode("ascii", "replace").strip()
    )


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def read_clock_discipline() -> ClockDiscipline:
    """With `modes` 0 the call changes nothing and needs no privilege; a sandbox may refuse it nevertheless.

    The C library makes it with clock_adjtime(2) where that exists.
    """
    state = _Timex()
    result = _c_library().adjtimex(ctypes.byref(state))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"adjtimex: {os.strerror(code)}")
    return ClockDiscipline(
        synchronised=result != _TIME_ERROR,
        in_nanoseconds=bool(state.status & _STA_NANO),
        offset=state.offset,
        frequency=state.freq,
        max_error_us=state.maxerror,
        estimated_error_us=state.esterror,
        status=state.status,
        time_constant=state.constant,
        tick_us=state.tick,
        pps_frequency=state.ppsfreq,
        pps_jitter=state.jitter,
        pps_shift=state.shift,
        pps_stability=state.stabil,
        pps_jitter_exceeded=state.jitcnt,
        pps_calibrations=state.calcnt,
        pps_errors=state.errcnt,
        pps_stability_exceeded=state.stbcnt,
        tai_offset_s=state.tai,
    )


# Connection tracking of netfilter: size of the table, and packet counters summed over the CPUs.

_STATISTICS = ("found", "invalid", "ignore", "insert", "insert_failed", "drop", "early_drop", "search_restart")


def parse_statistics(text: bytes) -> dict[str, int]:
    """One line per CPU in hexadecimal, below a line of names. A column that the kernel has dropped is left out."""
    head, *rows = text.decode("ascii").splitlines()
    # Some kernels write two column names without a separator, search_restart among them: those are not recognised.
    columns = {name: place for place, name in enumerate(head.split()) if name in _STATISTICS}
    table = [row.split() for row in rows]
    return {name: sum(int(row[place], 16) for row in table) for name, place in columns.items()}


def read_conntrack(procfs: Path) -> Conntrack:
    entries, limit = (int(read_file(procfs, f"sys/net/netfilter/nf_conntrack_{name}")) for name in ("count", "max"))
    return Conntrack(entries, limit, parse_statistics(read_whole(procfs, "net/stat/nf_conntrack")))


# Sockets in use by protocol, from /proc/net/sockstat and sockstat6. Without IPv6 the second file does not exist.

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def parse_sockstat(text: bytes) -> dict[str, dict[str, int]]:
    """The fields of each line by its name: "TCP: inuse 3 orphan 0" is TCP -> {inuse: 3, orphan: 0}."""
    by_protocol = {}
    for line in text.decode("ascii").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        by_protocol[name] = {field: int(value) for field, value in zip(fields[::2], fields[1::2], strict=True)}
    return by_protocol


def read_sockets(procfs: Path) -> Sockets:
    protocols: dict[str, dict[str, int]] = {}
    for file in ("net/sockstat", "net/sockstat6"):
        try:
            protocols |= parse_sockstat(read_whole(procfs, file))
        except FileNotFoundError:
            continue
    used = protocols.pop("sockets", {}).get("used")
    return Sockets(used, protocols, _PAGE_BYTES)


# Properties of block devices from udev's database. A file is read again only after udev has rewritten it.

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
            kept = self._known.get(device)
            if kept is not None and kept[0] == written_ns:
                return kept
            return written_ns, parse_udev(read_file(self._directory, name))
        except OSError:
            return 0, _NONE


# The counters of block devices from /proc/diskstats, with the udev properties of each device; software RAIDs.

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


# The counters of network devices by netlink: one request for all of them.
#
# /proc/net/dev has the same counters except for packets without a handler.

_ANSWER_WITHIN_S = 1.0
_MAX_NETLINK_BYTES = 1 << 16
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_LINK_HEADER_BYTES = 16
_COUNTERS = struct.Struct(f"={len(LinkCounters._fields)}Q")
# From linux/rtnetlink.h and linux/if_link.h.
_ERROR, _DONE, _NEW_LINK, _GET_LINK = 2, 3, 16, 18
_REQUEST_DUMP = 0x301
_IFLA_IFNAME, _IFLA_STATS64 = 3, 23
_TYPE_MASK = 0x3FFF


def read_links(exclude: re.Pattern[str] | None) -> dict[str, LinkCounters]:
    """Counters by name of the device, in this process's network namespace."""
    links = dict(_dump())
    return {name: counters for name, counters in links.items() if exclude is None or not exclude.search(name)}


def _dump() -> Iterator[tuple[str, LinkCounters]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_ANSWER_WITHIN_S)
        request = bytes(_LINK_HEADER_BYTES)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _GET_LINK, _REQUEST_DUMP, 1, 0) + request)
        while True:
            for kind, body in messages(kernel.recv(_MAX_NETLINK_BYTES)):
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, "netlink refused to list the network devices")
                if kind == _NEW_LINK and (link := parse_link(body)) is not None:
                    yield link


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each netlink message in one datagram."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            raise ValueError("netlink message with an impossible length")
        yield kind, data[at + _HEADER.size : at + length]
        at += _align(length)


def parse_link(body: bytes) -> tuple[str, LinkCounters] | None:
    """None for a device without counters."""
    name, counters, at = "", None, _LINK_HEADER_BYTES
    while at + _ATTRIBUTE.size <= len(body) and not (name and counters):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        value = body[at + _ATTRIBUTE.size : at + length]
        if kind & _TYPE_MASK == _IFLA_IFNAME:
            name = value.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind & _TYPE_MASK == _IFLA_STATS64:
            # A kernel before 4.6 has fewer counters, a newer one may have more.
            counters = LinkCounters(*_COUNTERS.unpack(value[: _COUNTERS.size].ljust(_COUNTERS.size, b"\0")))
        at += _align(length)
    return (name, counters) if name and counters is not None else None


def _align(length: int) -> int:
    return (length + 3) & ~3


# Reads the kernel's counters, part by part. A part that fails does not affect the others; the outcome is kept.


class KernelReader:
    """Devices whose names match `disks_exclude`, `links_exclude` (counters) or `devices_ignored` (properties) are left
    out; an empty pattern excludes none. `protocol_fields` fits the protocol counters that are kept."""

    def __init__(
        self,
        procfs: Path,
        sysfs: Path,
        rootfs: Path,
        disks_exclude: str,
        links_exclude: str,
        devices_ignored: str = "",
        protocol_fields: str = "",
    ) -> None:
        disks = DiskReader(procfs, rootfs / "run/udev/data", re.compile(disks_exclude or "(?!)"))
        links = re.compile(links_exclude) if links_exclude else None
        ignored = re.compile(devices_ignored) if devices_ignored else None
        protocols = ProtocolReader(procfs, re.compile(protocol_fields))
        self._readers: dict[str, Callable[[], Any]] = {
            "vmstat": lambda: read_vmstat(procfs),
            "disks": disks.read,
            "links": lambda: read_links(links),
            "file_handles": lambda: read_file_handles(procfs),
            "conntrack": lambda: read_conntrack(procfs),
            "sockets": lambda: read_sockets(procfs),
            "uname": lambda: read_uname(procfs),
            "clock": lambda: read_clock(sysfs),
            "clock_discipline": read_clock_discipline,
            "protocols": protocols.read,
            "softnet": lambda: read_softnet(procfs),
            "devices": lambda: read_devices(sysfs, ignored),
            "bonds": lambda: read_bonds(sysfs),
            "raids": lambda: read_raids(procfs),
        }

    def read(self) -> KernelReading:
        values: dict[str, Any] = {}
        runs: dict[str, ReadRun] = {}
        for part, read in self._readers.items():
            begun_s, error = time.perf_counter(), ""
            try:
                values[part] = read()
            # A file of an unexpected format fails in its parser.
            except (OSError, ValueError, IndexError) as failure:
                error = str(failure) or type(failure).__name__
            runs[part] = ReadRun(time.perf_counter() - begun_s, error)
        return KernelReading(**values, runs=runs)
