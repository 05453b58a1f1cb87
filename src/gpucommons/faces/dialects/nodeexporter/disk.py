"""node_disk_*: what block devices did since boot, and what udev knows of them."""

from collections.abc import Iterable, Iterator

from gpucommons.faces.exposition.families import Family, Point, counter, gauge
from gpucommons.model.kernel import Disk
from gpucommons.model.snapshot import Snapshot

# /proc/diskstats counts in sectors of this size, whatever the device's own is.
_SECTOR_BYTES = 512
_PER_MILLISECOND = 1 / 1000

# In the kernel's order, each with what one of its units is in ours.
COUNTERS = (
    (counter("node_disk_reads_completed_total", "Reads that a device completed.", "device"), 1),
    (
        counter(
            "node_disk_reads_merged_total", "Reads that were merged with another before they were issued.", "device"
        ),
        1,
    ),
    (counter("node_disk_read_bytes_total", "Bytes that were read from a device.", "device"), _SECTOR_BYTES),
    (
        counter("node_disk_read_time_seconds_total", "Seconds that all reads took, added up.", "device"),
        _PER_MILLISECOND,
    ),
    (counter("node_disk_writes_completed_total", "Writes that a device completed.", "device"), 1),
    (
        counter(
            "node_disk_writes_merged_total", "Writes that were merged with another before they were issued.", "device"
        ),
        1,
    ),
    (counter("node_disk_written_bytes_total", "Bytes that were written to a device.", "device"), _SECTOR_BYTES),
    (
        counter("node_disk_write_time_seconds_total", "Seconds that all writes took, added up.", "device"),
        _PER_MILLISECOND,
    ),
    (gauge("node_disk_io_now", "Operations of a device that are in progress.", "device"), 1),
    (
        counter("node_disk_io_time_seconds_total", "Seconds in which a device had work to do.", "device"),
        _PER_MILLISECOND,
    ),
    (
        counter(
            "node_disk_io_time_weighted_seconds_total",
            "Seconds that a device had work to do, times the operations in progress.",
            "device",
        ),
        _PER_MILLISECOND,
    ),
    (counter("node_disk_discards_completed_total", "Discards that a device completed.", "device"), 1),
    (
        counter(
            "node_disk_discards_merged_total",
            "Discards that were merged with another before they were issued.",
            "device",
        ),
        1,
    ),
    (counter("node_disk_discarded_sectors_total", "Sectors of 512 bytes that were discarded.", "device"), 1),
    (
        counter("node_disk_discard_time_seconds_total", "Seconds that all discards took, added up.", "device"),
        _PER_MILLISECOND,
    ),
    (counter("node_disk_flush_requests_total", "Flushes that a device completed.", "device"), 1),
    (
        counter("node_disk_flush_requests_time_seconds_total", "Seconds that all flushes took, added up.", "device"),
        _PER_MILLISECOND,
    ),
)
INFO = gauge(
    "node_disk_info",
    "Identity of a block device as udev has it; always 1.",
    *("device", "major", "minor", "path", "wwn", "model", "serial", "revision"),
)
FILESYSTEM_INFO = gauge(
    "node_disk_filesystem_info",
    "File system on a block device as udev has it; always 1.",
    *("device", "type", "usage", "uuid", "version"),
)
DEVICE_MAPPER_INFO = gauge(
    "node_disk_device_mapper_info",
    "Identity of a device-mapper device as udev has it; always 1.",
    *("device", "name", "uuid", "vg_name", "lv_name", "lv_layer"),
)
ATA = (
    (gauge("node_disk_ata_write_cache", "1 if an ATA disk has a write cache, else 0.", "device"), "ID_ATA_WRITE_CACHE"),
    (
        gauge("node_disk_ata_write_cache_enabled", "1 if the write cache of an ATA disk is enabled, else 0.", "device"),
        "ID_ATA_WRITE_CACHE_ENABLED",
    ),
    (
        gauge(
            "node_disk_ata_rotation_rate_rpm",
            "Rotations a minute of an ATA disk, 0 for one without moving parts.",
            "device",
        ),
        "ID_ATA_ROTATION_RATE_RPM",
    ),
)

CATALOGUE = (
    *(metric for metric, _ in COUNTERS),
    INFO,
    FILESYSTEM_INFO,
    DEVICE_MAPPER_INFO,
    *(metric for metric, _ in ATA),
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None or kernel.disks is None:
        return
    disks = kernel.disks
    for place, (metric, unit) in enumerate(COUNTERS):
        yield metric.of(((disk.name,), disk.counters[place] * unit) for disk in disks if place < len(disk.counters))
    yield INFO.of((_labels(disk, str(disk.major), str(disk.minor), of=_IDENTITY), 1) for disk in disks)
    yield FILESYSTEM_INFO.of((_labels(disk, of=_FILESYSTEM), 1) for disk in disks if disk.properties.get("ID_FS_TYPE"))
    yield DEVICE_MAPPER_INFO.of((_labels(disk, of=_MAPPER), 1) for disk in disks if disk.properties.get("DM_NAME"))
    for metric, property in ATA:
        yield metric.of(_ata(disks, property))


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
