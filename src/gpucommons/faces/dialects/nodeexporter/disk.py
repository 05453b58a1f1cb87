"""node_disk_*: I/O of block devices since boot, and their properties from udev; node_md_*: software RAIDs."""

from collections.abc import Iterable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, Point, counter, gauge
from gpucommons.model.host import Disk, Raid
from gpucommons.model.snapshot import Snapshot

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
INFO = gauge(
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

CATALOGUE = (
    *(metric for metric, _ in COUNTERS),
    INFO,
    FILESYSTEM_INFO,
    DEVICE_MAPPER_INFO,
    *(metric for metric, _ in ATA),
    RAID_DISKS,
    RAID_DISKS_REQUIRED,
    RAID_BLOCKS,
    RAID_BLOCKS_SYNCED,
    RAID_STATE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
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
    yield INFO.of((_labels(disk, str(disk.major), str(disk.minor), of=_IDENTITY), 1) for disk in disks)
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
