"""The host at an instant: CPU, memory, pressure, kernel counters, file systems and sensors.

A value that was not read is None, never 0.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

# The host's CPU, memory and pressure at an instant. A value that was not read is None, never 0.


class CoreTimes(NamedTuple):
    """Seconds that one core spent in each mode since boot. Guest time is also included in user and nice."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float
    softirq: float
    steal: float
    guest: float
    guest_nice: float


class SystemActivity(NamedTuple):
    """System-wide counters of the kernel; None if it does not have them."""

    boot_time_s: int | None
    interrupts: int | None
    context_switches: int | None
    forks: int | None
    processes_running: int | None
    processes_blocked: int | None


class CpuReading(NamedTuple):
    """`utilization_ratio` is None until two reads of the counters exist. `core_times` is by the core's number."""

    cores: int
    load_1m: float | None
    load_5m: float | None
    load_15m: float | None
    utilization_ratio: float | None
    core_times: Mapping[str, CoreTimes] = {}
    activity: SystemActivity | None = None


class MemoryReading(NamedTuple):
    """`sizes` and `counts` hold every field by the kernel's name: those in bytes, and those without a unit."""

    total_bytes: int
    available_bytes: int | None
    sizes: Mapping[str, int] = {}
    counts: Mapping[str, int] = {}


class PressureLine(NamedTuple):
    """One line of /proc/pressure: the share of time that tasks stalled, in percent, and the total."""

    avg10: float
    avg60: float
    avg300: float
    stalled_seconds_total: float


class Pressure(NamedTuple):
    """Stalls on one resource: of `some` tasks, or of all (`full`) at the same time."""

    some: PressureLine | None
    full: PressureLine | None


class PressureReading(NamedTuple):
    cpu: Pressure | None
    memory: Pressure | None
    io: Pressure | None


GIB: Final = 1 << 30
LEAST_HOST_RESERVE_BYTES: Final = 4 * GIB


class HostMemory(NamedTuple):
    total_bytes: int
    available_bytes: int

    def budget_bytes(self, reserve_percent: float) -> int:
        """What may be parked: what is available less the reserve."""
        reserve = max(LEAST_HOST_RESERVE_BYTES, int(self.total_bytes * reserve_percent / 100))
        return max(0, self.available_bytes - reserve)


# The host's hardware from sysfs: sensors (hwmon), thermal throttling of the CPUs, isolated CPUs.


class Sensor(NamedTuple):
    """`properties` are the sensor's files by the suffix of their names, in the driver's units; "" is the name without
    a suffix."""

    name: str
    kind: str
    label: str | None
    properties: Mapping[str, float]


class Chip(NamedTuple):
    """`id` is derived from the device's path and is stable; `name` is the driver's name for the chip."""

    id: str
    name: str | None
    sensors: tuple[Sensor, ...]


class CpuThrottles(NamedTuple):
    """Throttling events of each core (by package and core number) and of each package since boot."""

    cores: Mapping[tuple[str, str], int] = {}
    packages: Mapping[str, int] = {}


class HardwareReading(NamedTuple):
    """`chips` is None if the kernel has no hwmon; `chips_failed` counts those that could not be read."""

    chips: tuple[Chip, ...] | None
    chips_failed: int
    throttles: CpuThrottles
    isolated_cpus: tuple[int, ...]


# Kernel counters besides CPU and memory: paging, disks, network devices, sockets, files; and the kernel's identity.
#
# A part that could not be read is None; `runs` holds the outcome of each read.


class ReadRun(NamedTuple):
    """The outcome of reading one part: duration, and why it failed. An empty `error` means success."""

    duration_s: float
    error: str = ""


class Disk(NamedTuple):
    """One line of /proc/diskstats. `counters` are its numbers in the kernel's order; older kernels have fewer.

    `properties` are those of udev, such as ID_MODEL; empty without udev.
    """

    name: str
    major: int
    minor: int
    counters: tuple[int, ...]
    properties: Mapping[str, str] = {}


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


class NetworkDevice(NamedTuple):
    """The files of one device in /sys/class/net, by name: those with a number, and those with a text."""

    numbers: Mapping[str, int]
    texts: Mapping[str, str]


class Bond(NamedTuple):
    """The devices of a bond: those configured, and those whose link is up."""

    configured: int
    active: int


class Raid(NamedTuple):
    """A software RAID of /proc/mdstat. `state` is active, inactive, recovering, resyncing or checking."""

    name: str
    state: str
    disks_required: int
    disks_active: int
    disks_failed: int
    disks_spare: int
    blocks: int
    blocks_synced: int


class KernelReading(NamedTuple):
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
    runs: Mapping[str, ReadRun] = {}


# The mounted file systems at an instant: size and free space.


class Space(NamedTuple):
    size_bytes: int
    free_bytes: int
    available_bytes: int
    files: int
    files_free: int


class Filesystem(NamedTuple):
    """`space` is None if the file system returned an error or did not answer in time."""

    device: str
    mount_point: str
    type: str
    read_only: bool
    space: Space | None


class FilesystemReading(NamedTuple):
    filesystems: tuple[Filesystem, ...]


# Metrics that other programs wrote into files, in the text format of Prometheus. Values only.

Labels = tuple[tuple[str, str], ...]


class TextSample(NamedTuple):
    """One line. `name` has the suffix of a histogram or a summary: _bucket, _sum or _count."""

    name: str
    labels: Labels
    value: float


class TextFamily(NamedTuple):
    """`type` is counter, gauge, histogram, summary or untyped. `help` is empty if the file has none."""

    name: str
    type: str
    help: str
    samples: tuple[TextSample, ...]


class TextFilesReading(NamedTuple):
    """`families` are those of all files, one per name. `modified_s` has the time of each file that was read, in whole
    seconds; `problems` has what is wrong with a directory or a file, by its path."""

    families: tuple[TextFamily, ...] = ()
    modified_s: Mapping[str, int] = {}
    problems: Mapping[str, str] = {}
