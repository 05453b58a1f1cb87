"""node_scrape_collector_*: the duration and the result of the last read of each collector.

Collectors that share a read share its duration: cpu, stat and loadavg are one read of /proc.
"""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

DURATION = gauge(
    "node_scrape_collector_duration_seconds", "Duration of the last read of a collector in seconds.", "collector"
)
SUCCESS = gauge(
    "node_scrape_collector_success", "Result of the last read of a collector: 1 if it succeeded, else 0.", "collector"
)

CATALOGUE = (DURATION, SUCCESS)

_BY_SOURCE = {
    "cpu": "cpu",
    "stat": "cpu",
    "loadavg": "cpu",
    "meminfo": "memory",
    "pressure": "pressure",
    "filesystem": "filesystems",
    "hwmon": "hardware",
    "textfile": "text_files",
}
_BY_KERNEL_PART = {
    "vmstat": "vmstat",
    "diskstats": "disks",
    "netdev": "links",
    "filefd": "file_handles",
    "conntrack": "conntrack",
    "sockstat": "sockets",
    "uname": "uname",
    "time": "clock",
    "timex": "clock_discipline",
    "netstat": "protocols",
    "softnet": "softnet",
    "netclass": "devices",
    "bonding": "bonds",
    "mdadm": "raids",
}


def collect(snapshot: Snapshot) -> Iterator[Family]:
    runs = dict(_runs(snapshot))
    yield DURATION.of(((name,), duration_s) for name, (duration_s, _) in runs.items() if duration_s is not None)
    yield SUCCESS.of(((name,), int(ok)) for name, (_, ok) in runs.items())


def _runs(snapshot: Snapshot) -> Iterator[tuple[str, tuple[float | None, bool]]]:
    """(collector, (duration, success)) of the collectors that have a source."""
    for collector, source in _BY_SOURCE.items():
        state = snapshot.sources.get(source)
        if state is not None:
            yield collector, (state.duration_s, state.up and _has_read(snapshot, collector))
    kernel = snapshot.readings.kernel
    if kernel is not None:
        for collector, part in _BY_KERNEL_PART.items():
            if (run := kernel.runs.get(part)) is not None:
                yield collector, (run.duration_s, not run.error)
    elif (state := snapshot.sources.get("kernel")) is not None:
        for collector in _BY_KERNEL_PART:
            yield collector, (state.duration_s, False)


def _has_read(snapshot: Snapshot, collector: str) -> bool:
    """A source that is up may lack the values of one collector."""
    cpu, hardware = snapshot.readings.cpu, snapshot.readings.hardware
    if collector == "loadavg":
        return cpu is not None and cpu.load_1m is not None
    if collector == "hwmon":
        return hardware is not None and hardware.chips is not None and not hardware.chips_failed
    return True
