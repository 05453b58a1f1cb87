"""node_nf_conntrack_*: the table of tracked connections. Its counts are gauges, as in node_exporter."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

ENTRIES = gauge("node_nf_conntrack_entries", "Tracked connections.")
LIMIT = gauge("node_nf_conntrack_entries_limit", "Maximum number of tracked connections.")
STATISTICS = {
    name: gauge(f"node_nf_conntrack_stat_{name}", help)
    for name, help in (
        ("found", "Lookups that found an entry, since boot."),
        ("invalid", "Packets that cannot be tracked, since boot."),
        ("ignore", "Packets that belong to an already tracked connection, since boot."),
        ("insert", "Entries added since boot."),
        ("insert_failed", "Entries that could not be added, since boot."),
        ("drop", "Packets dropped because tracking failed, since boot."),
        ("early_drop", "Entries dropped to make room for others, since boot."),
        ("search_restart", "Lookups restarted because the table was resized, since boot."),
    )
}

CATALOGUE = (ENTRIES, LIMIT, *STATISTICS.values())


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and (conntrack := kernel.conntrack) is not None:
        yield ENTRIES.value(conntrack.entries)
        yield LIMIT.value(conntrack.limit)
        for name, metric in STATISTICS.items():
            yield metric.value(conntrack.statistics.get(name))
