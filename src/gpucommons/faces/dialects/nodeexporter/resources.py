"""node_exporter's families of CPU, load, memory, file systems, disks and network devices."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, Point, counter, gauge, untyped
from gpucommons.model.host import Bond, CoreTimes, Disk, LinkCounters, NetworkDevice, Raid, SoftnetCounters
from gpucommons.model.snapshot import Snapshot

# node_cpu_*: the time of each core by mode, thermal throttling, and isolated cores.

_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

SECONDS = counter("node_cpu_seconds_total", "Seconds that a CPU spent in each mode since boot.", "cpu", "mode")
GUEST_SECONDS = counter(
    "node_cpu_guest_seconds_total",
    "Seconds that a CPU ran virtual machines since boot; included in the modes user and nice.",
    "cpu",
    "mode",
)
CORE_THROTTLES = counter(
    "node_cpu_core_throttles_total", "Thermal throttling events of a core since boot.", "package", "core"
)
PACKAGE_THROTTLES = counter(
    "node_cpu_package_throttles_total", "Thermal throttling events of a CPU package since boot.", "package"
)
ISOLATED = gauge("node_cpu_isolated", "CPU that is isolated from the scheduler; always 1.", "cpu")

CPU_CATALOGUE = (SECONDS, GUEST_SECONDS, CORE_THROTTLES, PACKAGE_THROTTLES, ISOLATED)


def collect_cpu(snapshot: Snapshot) -> Iterator[Family]:
    cpu, hardware = snapshot.readings.cpu, snapshot.readings.hardware
    if cpu is not None:
        modes = [(mode, CoreTimes._fields.index(mode)) for mode in _MODES]
        cores = cpu.core_times.items()
        yield SECONDS.of(((core, mode), times[place]) for core, times in cores for mode, place in modes)
        yield GUEST_SECONDS.of(
            point
            for core, times in cores
            for point in (((core, "user"), times.guest), ((core, "nice"), times.guest_nice))
        )
    if hardware is not None:
        yield CORE_THROTTLES.of(hardware.throttles.cores.items())
        yield PACKAGE_THROTTLES.of(((package,), count) for package, count in hardware.throttles.packages.items())
        yield ISOLATED.of(((str(number),), 1) for number in hardware.isolated_cpus)


# node_load*: the load averages.

LOAD1 = gauge("node_load1", "Load average of the host over one minute.")
LOAD5 = gauge("node_load5", "Load average of the host over five minutes.")
LOAD15 = gauge("node_load15", "Load average of the host over fifteen minutes.")

LOAD_CATALOGUE = (LOAD1, LOAD5, LOAD15)


def collect_load(snapshot: Snapshot) -> Iterator[Family]:
    cpu = snapshot.readings.cpu
    if cpu is not None:
        yield LOAD1.value(cpu.load_1m)
        yield LOAD5.value(cpu.load_5m)
        yield LOAD15.value(cpu.load_15m)


# node_memory_*: every field of /proc/meminfo. The kernel names the fields, so a newer kernel may add some.

MEMORY_PREFIX = "node_memory_"
_PARENTHESES = re.compile(r"\((.*)\)")
# The fields of Linux 6.x on x86-64, those in bytes and those that are numbers of pages.
_SIZES = (
    *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapCached"),
    *("Active", "Inactive", "Active(anon)", "Inactive(anon)", "Active(file)", "Inactive(file)"),
    *("Unevictable", "Mlocked", "SwapTotal", "SwapFree", "Zswap", "Zswapped", "Dirty", "Writeback"),
    *("AnonPages", "Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim"),
    *("KernelStack", "PageTables", "SecPageTables", "NFS_Unstable", "Bounce", "WritebackTmp"),
    *("CommitLimit", "Committed_AS", "VmallocTotal", "VmallocUsed", "VmallocChunk", "Percpu"),
    *("HardwareCorrupted", "AnonHugePages", "ShmemHugePages", "ShmemPmdMapped"),
    *("FileHugePages", "FilePmdMapped", "CmaTotal", "CmaFree", "Unaccepted", "Balloon"),
    *("Hugepagesize", "Hugetlb", "DirectMap4k", "DirectMap2M", "DirectMap1G"),
)
_COUNTS = ("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp")


def _name(field: str) -> str:
    """Active(anon) becomes Active_anon."""
    return MEMORY_PREFIX + _PARENTHESES.sub(r"_\1", field)


@cache
def size_metric(field: str) -> Metric:
    return gauge(f"{_name(field)}_bytes", f"Value of {field} in /proc/meminfo, in bytes.")


@cache
def count_metric(field: str) -> Metric:
    return gauge(_name(field), f"Value of {field} in /proc/meminfo.")


MEMORY_CATALOGUE = (*map(size_metric, _SIZES), *map(count_metric, _COUNTS))


def collect_memory(snapshot: Snapshot) -> Iterator[Family]:
    memory = snapshot.readings.memory
    if memory is not None:
        for field, size in memory.sizes.items():
            yield size_metric(field).value(size)
        for field, count in memory.counts.items():
            yield count_metric(field).value(count)


# node_filesystem_*: the space of each mounted file system. One that does not answer has only its error.

_LABELS = ("device", "mountpoint", "fstype")

DEVICE_ERROR = gauge(
    "node_filesystem_device_error",
    "Error of a file system: 1 if it failed or did not answer in time and its other series are absent, else 0.",
    *_LABELS,
)
SIZE = gauge("node_filesystem_size_bytes", "Size of a file system in bytes.", *_LABELS)
FREE = gauge("node_filesystem_free_bytes", "Free bytes of a file system, including those reserved for root.", *_LABELS)
AVAIL = gauge("node_filesystem_avail_bytes", "Free bytes of a file system for users other than root.", *_LABELS)
FILES = gauge("node_filesystem_files", "Inodes of a file system.", *_LABELS)
FILES_FREE = gauge("node_filesystem_files_free", "Free inodes of a file system.", *_LABELS)
READONLY = gauge("node_filesystem_readonly", "Mode of a mount: 1 if read-only, else 0.", *_LABELS)

FILESYSTEM_CATALOGUE = (DEVICE_ERROR, SIZE, FREE, AVAIL, FILES, FILES_FREE, READONLY)


def collect_filesystem(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.filesystems
    if reading is None:
        return
    named = [
        ((filesystem.device, filesystem.mount_point, filesystem.type), filesystem) for filesystem in reading.filesystems
    ]
    answered = [
        (labels, filesystem.space, filesystem.read_only) for labels, filesystem in named if filesystem.space is not None
    ]
    yield DEVICE_ERROR.of((labels, int(filesystem.space is None)) for labels, filesystem in named)
    yield SIZE.of((labels, space.size_bytes) for labels, space, _ in answered)
    yield FREE.of((labels, space.free_bytes) for labels, space, _ in answered)
    yield AVAIL.of((labels, space.available_bytes) for labels, space, _ in answered)
    yield FILES.of((labels, space.files) for labels, space, _ in answered)
    yield FILES_FREE.of((labels, space.files_free) for labels, space, _ in answered)
    yield READONLY.of((labels, int(read_only)) for labels, _, read_only in answered)


# node_disk_*: I/O of block devices since boot, and their properties from udev; node_md_*: software RAIDs.

# /proc/diskstats counts in sectors of this size, whatever the sector size of the device.
_SECTOR_BYTES = 512
_PER_MILLISECOND = 1 / 1000


def _counter(name: str, help: str) -> Metric:
    return counter(f"node_disk_{name}_total", help, "device")


# In the kernel's order, each with the factor from the kernel's unit to ours.
COUNTERS = (
    (_counter("reads_completed", "Reads that a device completed."), 1),
    (_counter("reads_merged", "Reads merged with another read before they were issued."), 1),
    (_counter("read_bytes", "Bytes read from a device."), _SECTOR_BYTES),
    (_counter("read_time_seconds", "Total time of all reads in seconds."), _PER_MILLISECOND),
    (_counter("writes_completed", "Writes that a device completed."), 1),
    (_counter("writes_merged", "Writes merged with another write before they were issued."), 1),
    (_counter("written_bytes", "Bytes written to a device."), _SECTOR_BYTES),
    (_counter("write_time_seconds", "Total time of all writes in seconds."), _PER_MILLISECOND),
    (gauge("node_disk_io_now", "Operations of a device in progress.", "device"), 1),
    (_counter("io_time_seconds", "Seconds in which a device was busy."), _PER_MILLISECOND),
    (
        _counter("io_time_weighted_seconds", "Seconds in which a device was busy, times the operations in progress."),
        _PER_MILLISECOND,
    ),
    (_counter("discards_completed", "Discards that a device completed."), 1),
    (_counter("discards_merged", "Discards merged with another discard before they were issued."), 1),
    (_counter("discarded_sectors", "Discarded sectors of 512 bytes."), 1),
    (_counter("discard_time_seconds", "Total time of all discards in seconds."), _PER_MILLISECOND),
    (_counter("flush_requests", "Flushes that a device completed."), 1),
    (_counter("flush_requests_time_seconds", "Total time of all flushes in seconds."), _PER_MILLISECOND),
)
DISK_INFO = gauge(
    "node_disk_info",
    "Identity of a block device from udev; always 1.",
    *("device", "major", "minor", "path", "wwn", "model", "serial", "revision"),
)
FILESYSTEM_INFO = gauge(
    "node_disk_filesystem_info",
    "File system on a block device from udev; always 1.",
    *("device", "type", "usage", "uuid", "version"),
)
DEVICE_MAPPER_INFO = gauge(
    "node_disk_device_mapper_info",
    "Identity of a device-mapper device from udev; always 1.",
    *("device", "name", "uuid", "vg_name", "lv_name", "lv_layer"),
)
ATA = (
    (
        gauge("node_disk_ata_write_cache", "Presence of a write cache in an ATA disk: 1 if present, else 0.", "device"),
        "ID_ATA_WRITE_CACHE",
    ),
    (
        gauge(
            "node_disk_ata_write_cache_enabled",
            "State of the write cache of an ATA disk: 1 if enabled, else 0.",
            "device",
        ),
        "ID_ATA_WRITE_CACHE_ENABLED",
    ),
    (
        gauge(
            "node_disk_ata_rotation_rate_rpm",
            "Rotations per minute of an ATA disk; 0 for a solid-state disk.",
            "device",
        ),
        "ID_ATA_ROTATION_RATE_RPM",
    ),
)

RAID_DISKS = gauge("node_md_disks", "Disks of a software RAID in each state.", "device", "state")
RAID_DISKS_REQUIRED = gauge("node_md_disks_required", "Disks that a software RAID needs.", "device")
RAID_BLOCKS = gauge("node_md_blocks", "Blocks of a software RAID.", "device")
RAID_BLOCKS_SYNCED = gauge("node_md_blocks_synced", "Blocks of a software RAID that are synchronised.", "device")
RAID_STATE = gauge("node_md_state", "State of a software RAID: 1 for the current one, else 0.", "device", "state")
# node_exporter's words for the states.
_RAID_STATES = {
    "active": "active",
    "inactive": "inactive",
    "recovering": "recovering",
    "resyncing": "resync",
    "checking": "check",
}

DISK_CATALOGUE = (
    *(metric for metric, _ in COUNTERS),
    DISK_INFO,
    FILESYSTEM_INFO,
    DEVICE_MAPPER_INFO,
    *(metric for metric, _ in ATA),
    RAID_DISKS,
    RAID_DISKS_REQUIRED,
    RAID_BLOCKS,
    RAID_BLOCKS_SYNCED,
    RAID_STATE,
)


def collect_disk(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None:
        return
    if kernel.disks is not None:
        yield from _disks(kernel.disks)
    if kernel.raids is not None:
        yield from _raids(kernel.raids)


def _disks(disks: tuple[Disk, ...]) -> Iterator[Family]:
    for place, (metric, unit) in enumerate(COUNTERS):
        yield metric.of(((disk.name,), disk.counters[place] * unit) for disk in disks if place < len(disk.counters))
    yield DISK_INFO.of((_labels(disk, str(disk.major), str(disk.minor), of=_IDENTITY), 1) for disk in disks)
    yield FILESYSTEM_INFO.of((_labels(disk, of=_FILESYSTEM), 1) for disk in disks if disk.properties.get("ID_FS_TYPE"))
    yield DEVICE_MAPPER_INFO.of((_labels(disk, of=_MAPPER), 1) for disk in disks if disk.properties.get("DM_NAME"))
    for metric, property in ATA:
        yield metric.of(_ata(disks, property))


def _raids(raids: tuple[Raid, ...]) -> Iterator[Family]:
    yield RAID_DISKS.of(
        ((raid.name, state), number)
        for raid in raids
        for state, number in (
            ("active", raid.disks_active),
            ("failed", raid.disks_failed),
            ("spare", raid.disks_spare),
        )
    )
    yield RAID_DISKS_REQUIRED.of(((raid.name,), raid.disks_required) for raid in raids)
    yield RAID_BLOCKS.of(((raid.name,), raid.blocks) for raid in raids)
    yield RAID_BLOCKS_SYNCED.of(((raid.name,), raid.blocks_synced) for raid in raids)
    yield RAID_STATE.of(
        ((raid.name, word), int(raid.state == state)) for raid in raids for state, word in _RAID_STATES.items()
    )


_IDENTITY = ("ID_PATH", "ID_WWN", "ID_MODEL", "ID_SERIAL_SHORT", "ID_REVISION")
_FILESYSTEM = ("ID_FS_TYPE", "ID_FS_USAGE", "ID_FS_UUID", "ID_FS_VERSION")
_MAPPER = ("DM_NAME", "DM_UUID", "DM_VG_NAME", "DM_LV_NAME", "DM_LV_LAYER")


def _labels(disk: Disk, *more: str, of: tuple[str, ...]) -> tuple[str, ...]:
    return (disk.name, *more, *(disk.properties.get(property, "") for property in of))


def _ata(disks: Iterable[Disk], property: str) -> Iterator[Point]:
    for disk in disks:
        text = disk.properties.get(property)
        if text is not None and disk.properties.get("ID_ATA"):
            try:
                yield (disk.name,), float(text)
            except ValueError:
                continue


# The network: node_network_* (devices), node_netstat_* (protocols), node_softnet_* (packets per CPU), node_bonding_*.
#
# The counters of devices are combined as in /proc/net/dev and node_exporter. The kernel names the fields of protocols.

NETSTAT_PREFIX = "node_netstat_"
_BYTES_PER_MEGABIT = 125_000


def _metric(name: str, help: str) -> Metric:
    return counter(f"node_network_{name}_total", help, "device")


METRICS: tuple[tuple[Metric, Callable[[LinkCounters], int]], ...] = (
    (_metric("receive_bytes", "Bytes that a network device received."), lambda c: c.rx_bytes),
    (_metric("receive_packets", "Packets that a network device received."), lambda c: c.rx_packets),
    (_metric("receive_errs", "Packets received with an error."), lambda c: c.rx_errors),
    (
        _metric("receive_drop", "Received packets that were dropped, or missed because buffers were full."),
        lambda c: c.rx_dropped + c.rx_missed_errors,
    ),
    (_metric("receive_fifo", "Errors of the receive queue."), lambda c: c.rx_fifo_errors),
    (
        _metric("receive_frame", "Packets received with a wrong frame, length or checksum, or an overrun."),
        lambda c: c.rx_frame_errors + c.rx_length_errors + c.rx_over_errors + c.rx_crc_errors,
    ),
    (_metric("receive_compressed", "Compressed packets received."), lambda c: c.rx_compressed),
    (_metric("receive_multicast", "Multicast packets received."), lambda c: c.multicast),
    (_metric("receive_nohandler", "Received packets that no protocol handled."), lambda c: c.rx_nohandler),
    (_metric("transmit_bytes", "Bytes that a network device sent."), lambda c: c.tx_bytes),
    (_metric("transmit_packets", "Packets that a network device sent."), lambda c: c.tx_packets),
    (_metric("transmit_errs", "Packets that could not be sent."), lambda c: c.tx_errors),
    (_metric("transmit_drop", "Packets that were dropped instead of sent."), lambda c: c.tx_dropped),
    (_metric("transmit_fifo", "Errors of the send queue."), lambda c: c.tx_fifo_errors),
    (_metric("transmit_colls", "Collisions while sending."), lambda c: c.collisions),
    (
        _metric("transmit_carrier", "Packets lost because of a carrier, abort, heartbeat or window error."),
        lambda c: c.tx_carrier_errors + c.tx_aborted_errors + c.tx_heartbeat_errors + c.tx_window_errors,
    ),
    (_metric("transmit_compressed", "Compressed packets sent."), lambda c: c.tx_compressed),
)

UP = gauge("node_network_up", "State of a network device: 1 if its operstate is up, else 0.", "device")
NETWORK_INFO = gauge(
    "node_network_info",
    "Properties of a network device that are texts; always 1.",
    *("device", "address", "broadcast", "duplex", "operstate", "ifalias"),
)
SPEED = gauge("node_network_speed_bytes", "Speed of a network device in bytes per second.", "device")


def _property(name: str, help: str) -> Metric:
    return (counter if name.endswith("_total") else gauge)(f"node_network_{name}", help, "device")


# By the name of the file in /sys/class/net.
PROPERTIES = {
    "addr_assign_type": _property("address_assign_type", "Origin of a device's address, as a number of the kernel."),
    "carrier": _property("carrier", "Physical link of a device: 1 if it is up, else 0."),
    "carrier_changes": _property("carrier_changes_total", "Changes of a device's link."),
    "carrier_up_count": _property("carrier_up_changes_total", "Changes of a device's link to up."),
    "carrier_down_count": _property("carrier_down_changes_total", "Changes of a device's link to down."),
    "dev_id": _property("device_id", "Number that distinguishes devices with one hardware address."),
    "dormant": _property("dormant", "State of a device: 1 if it is dormant, else 0."),
    "flags": _property("flags", "Flags of a device, as a number of the kernel."),
    "ifindex": _property("iface_id", "Number of a device."),
    "iflink": _property("iface_link", "Number of the device that a device is linked to."),
    "link_mode": _property("iface_link_mode", "Link mode of a device, as a number of the kernel."),
    "mtu": _property("mtu_bytes", "Maximum size of a packet in bytes."),
    "name_assign_type": _property("name_assign_type", "Origin of a device's name, as a number of the kernel."),
    "netdev_group": _property("net_dev_group", "Group of a device."),
    "tx_queue_len": _property("transmit_queue_length", "Length of a device's send queue in packets."),
    "type": _property("protocol_type", "Hardware type of a device, as a number of the kernel."),
}

SOFTNET: tuple[tuple[Metric, Callable[[SoftnetCounters], int]], ...] = (
    (counter("node_softnet_processed_total", "Packets that a CPU processed.", "cpu"), lambda c: c.processed),
    (counter("node_softnet_dropped_total", "Packets that a CPU dropped.", "cpu"), lambda c: c.dropped),
    (
        counter("node_softnet_times_squeezed_total", "Times a CPU ran out of quota while packets waited.", "cpu"),
        lambda c: c.squeezed,
    ),
)

BONDING_SLAVES = gauge("node_bonding_slaves", "Devices configured in a bond.", "master")
BONDING_ACTIVE = gauge("node_bonding_active", "Devices of a bond whose link is up.", "master")


@cache
def protocol_metric(field: str) -> Metric:
    return untyped(
        NETSTAT_PREFIX + field, f"Value of {field.replace('_', ' ')} in the protocol statistics, since boot."
    )


# The fields that node_exporter takes by default from a kernel with IPv6.
_PROTOCOL_FIELDS = (
    *(f"Icmp{six}_{field}" for six in ("", "6") for field in ("InErrors", "InMsgs", "OutMsgs")),
    *(f"Ip{kind}_{field}" for kind in ("6", "Ext") for field in ("InOctets", "OutOctets")),
    "Ip_Forwarding",
    *(f"TcpExt_{field}" for field in ("ListenDrops", "ListenOverflows")),
    *(f"TcpExt_Syncookies{field}" for field in ("Failed", "Recv", "Sent")),
    *(f"TcpExt_{field}" for field in ("TCPSynRetrans", "TCPTimeouts")),
    *(f"Tcp_{field}" for field in ("ActiveOpens", "CurrEstab", "InErrs", "InSegs", "OutRsts", "OutSegs")),
    *(f"Tcp_{field}" for field in ("PassiveOpens", "RetransSegs")),
    *(f"Udp{six}_{field}" for six in ("", "6") for field in ("InDatagrams", "InErrors", "NoPorts", "OutDatagrams")),
    *(f"Udp{six}_{field}" for six in ("", "6") for field in ("RcvbufErrors", "SndbufErrors")),
    *(f"UdpLite{six}_InErrors" for six in ("", "6")),
)

NETWORK_CATALOGUE = (
    *(metric for metric, _ in METRICS),
    UP,
    NETWORK_INFO,
    *PROPERTIES.values(),
    SPEED,
    *map(protocol_metric, _PROTOCOL_FIELDS),
    *(metric for metric, _ in SOFTNET),
    BONDING_SLAVES,
    BONDING_ACTIVE,
)


def collect_network(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None:
        return
    if kernel.links is not None:
        links = [((name,), counters) for name, counters in kernel.links.items()]
        for metric, value in METRICS:
            yield metric.of((labels, value(counters)) for labels, counters in links)
    if kernel.devices is not None:
        yield from _devices(kernel.devices)
    for field, number in (kernel.protocols or {}).items():
        yield protocol_metric(field).value(number)
    if kernel.softnet is not None:
        for metric, read in SOFTNET:
            yield metric.of(((str(cpu),), read(counters)) for cpu, counters in enumerate(kernel.softnet))
    if kernel.bonds is not None:
        yield from _bonds(kernel.bonds)


def _devices(devices: Mapping[str, NetworkDevice]) -> Iterator[Family]:
    yield UP.of(((name,), int(device.texts.get("operstate") == "up")) for name, device in devices.items())
    texts = ("address", "broadcast", "duplex", "operstate", "ifalias")
    yield NETWORK_INFO.of(
        ((name, *(device.texts.get(text, "") for text in texts)), 1) for name, device in devices.items()
    )
    for file, metric in PROPERTIES.items():
        yield metric.of(((name,), device.numbers[file]) for name, device in devices.items() if file in device.numbers)
    # The kernel's -1 for an unknown speed stays negative, as in node_exporter.
    yield SPEED.of(
        ((name,), device.numbers["speed"] * _BYTES_PER_MEGABIT)
        for name, device in devices.items()
        if "speed" in device.numbers
    )


def _bonds(bonds: Mapping[str, Bond]) -> Iterator[Family]:
    yield BONDING_SLAVES.of(((master,), bond.configured) for master, bond in bonds.items())
    yield BONDING_ACTIVE.of(((master,), bond.active) for master, bond in bonds.items())


CATALOGUE = (
    *CPU_CATALOGUE,
    *LOAD_CATALOGUE,
    *MEMORY_CATALOGUE,
    *FILESYSTEM_CATALOGUE,
    *DISK_CATALOGUE,
    *NETWORK_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_cpu(snapshot)
    yield from collect_load(snapshot)
    yield from collect_memory(snapshot)
    yield from collect_filesystem(snapshot)
    yield from collect_disk(snapshot)
    yield from collect_network(snapshot)
