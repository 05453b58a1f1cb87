"""node_time_*: the time of the snapshot, the time zone, and the clock sources of the kernel."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

SECONDS = gauge("node_time_seconds", "Unix time of the snapshot.")
ZONE_OFFSET = gauge("node_time_zone_offset_seconds", "Offset of local time from UTC in seconds.", "time_zone")
CLOCKSOURCE_AVAILABLE = gauge(
    "node_time_clocksource_available_info",
    "Clock source that is available to the kernel; always 1.",
    "device",
    "clocksource",
)
CLOCKSOURCE_CURRENT = gauge(
    "node_time_clocksource_current_info", "Clock source that the kernel uses; always 1.", "device", "clocksource"
)

CATALOGUE = (SECONDS, ZONE_OFFSET, CLOCKSOURCE_AVAILABLE, CLOCKSOURCE_CURRENT)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None or (clock := kernel.clock) is None:
        return
    numbered = [(str(number), source) for number, source in enumerate(clock.sources)]
    yield SECONDS.value(snapshot.wall_s)
    yield ZONE_OFFSET.value(clock.zone_offset_s, clock.zone)
    yield CLOCKSOURCE_AVAILABLE.of(((number, name), 1) for number, source in numbered for name in source.available)
    yield CLOCKSOURCE_CURRENT.of(((number, source.current), 1) for number, source in numbered)
