"""Kernel counters besides CPU and memory: paging, disks, network devices, sockets, files; and the kernel's identity.

A part that could not be read is None; `runs` holds the outcome of each read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ReadRun:
    """The outcome of reading one part: duration, and why it failed. An empty `error` means success."""

    duration_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """One line of /proc/diskstats. `counters` are its numbers in the kernel's order; older kernels have fewer.

    `properties` are those of udev, such as ID_MODEL; empty without udev.
    """

    name: str
    major: int
    minor: int
    counters: tuple[int, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


class LinkCounters(NamedTuple):
    """A network device's counters since its creation, in the order of the kernel's rtnl_link_stats64."""

    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_errors: int
    tx_errors: int
    rx_dropped: int
    tx_dropped: int
    multicast: int
    collisions: int
    rx_length_errors: int
    rx_over_errors: int
    rx_crc_errors: int
    rx_frame_errors: int
    rx_fifo_errors: int
    rx_missed_errors: int
    tx_aborted_errors: int
    tx_carrier_errors: int
    tx_fifo_errors: int
    tx_heartbeat_errors: int
    tx_window_errors: int
    rx_compressed: int
    tx_compressed: int
    rx_nohandler: int


@dataclass(frozen=True, slots=True)
class FileHandles:
    allocated: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Conntrack:
    """Connection tracking; `statistics` are summed over the CPUs, by the kernel's names."""

    entries: int
    limit: int
    statistics: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sockets:
    """`protocols` holds the fields of each protocol by the kernel's names: TCP -> {inuse: 3, mem: 1}."""

    used: int | None
    protocols: Mapping[str, Mapping[str, int]]
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Uname:
    sysname: str
    release: str
    version: str
    machine: str
    nodename: str
    domainname: str


@dataclass(frozen=True, slots=True)
class ClockSource:
    available: tuple[str, ...]
    current: str


@dataclass(frozen=True, slots=True)
class Clock:
    """The system's time zone and the kernel's clock sources."""

    zone: str
    zone_offset_s: int
    sources: tuple[ClockSource, ...]


@dataclass(frozen=True, slots=True)
class KernelReading:
    vmstat: Mapping[str, int] | None = None
    disks: tuple[Disk, ...] | None = None
    links: Mapping[str, LinkCounters] | None = None
    file_handles: FileHandles | None = None
    conntrack: Conntrack | None = None
    sockets: Sockets | None = None
    uname: Uname | None = None
    clock: Clock | None = None
    runs: Mapping[str, ReadRun] = field(default_factory=dict)
