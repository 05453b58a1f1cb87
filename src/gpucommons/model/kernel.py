"""Kernel counters besides CPU and memory: paging, disks, network devices, sockets, files; and the kernel's identity.

A part that could not be read is None; `runs` holds the outcome of each read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class ReadRun(NamedTuple):
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


class FileHandles(NamedTuple):
    allocated: int
    maximum: int


class Conntrack(NamedTuple):
    """Connection tracking; `statistics` are summed over the CPUs, by the kernel's names."""

    entries: int
    limit: int
    statistics: Mapping[str, int]


class Sockets(NamedTuple):
    """`protocols` holds the fields of each protocol by the kernel's names: TCP -> {inuse: 3, mem: 1}."""

    used: int | None
    protocols: Mapping[str, Mapping[str, int]]
    page_bytes: int


class Uname(NamedTuple):
    sysname: str
    release: str
    version: str
    machine: str
    nodename: str
    domainname: str


class ClockSource(NamedTuple):
    available: tuple[str, ...]
    current: str


class Clock(NamedTuple):
    """The system's time zone and the kernel's clock sources."""

    zone: str
    zone_offset_s: int
    sources: tuple[ClockSource, ...]


class ClockDiscipline(NamedTuple):
    """How the clock is kept, in the units of adjtimex(2). `offset` and `pps_jitter` are in nanoseconds, or, unless
    `in_nanoseconds`, in microseconds. Frequencies are parts per million with 16 bits of fraction."""

    synchronised: bool
    in_nanoseconds: bool
    offset: int
    frequency: int
    max_error_us: int
    estimated_error_us: int
    status: int
    time_constant: int
    tick_us: int
    pps_frequency: int
    pps_jitter: int
    pps_shift: int
    pps_stability: int
    pps_jitter_exceeded: int
    pps_calibrations: int
    pps_errors: int
    pps_stability_exceeded: int
    tai_offset_s: int


class SoftnetCounters(NamedTuple):
    """Packets that one CPU processed and dropped, and how often it ran out of quota, since boot."""

    processed: int
    dropped: int
    squeezed: int


@dataclass(frozen=True, slots=True)
class NetworkDevice:
    """The files of one device in /sys/class/net, by name: those with a number, and those with a text."""

    numbers: Mapping[str, int]
    texts: Mapping[str, str]


class Bond(NamedTuple):
    """The devices of a bond: those configured, and those whose link is up."""

    configured: int
    active: int


@dataclass(frozen=True, slots=True)
class Raid:
    """A software RAID of /proc/mdstat. `state` is active, inactive, recovering, resyncing or checking."""

    name: str
    state: str
    disks_required: int
    disks_active: int
    disks_failed: int
    disks_spare: int
    blocks: int
    blocks_synced: int


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
    clock_discipline: ClockDiscipline | None = None
    # Protocol counters by name: Tcp_InSegs.
    protocols: Mapping[str, int] | None = None
    # One entry per CPU that is online.
    softnet: tuple[SoftnetCounters, ...] | None = None
    devices: Mapping[str, NetworkDevice] | None = None
    bonds: Mapping[str, Bond] | None = None
    raids: tuple[Raid, ...] | None = None
    runs: Mapping[str, ReadRun] = field(default_factory=dict)
