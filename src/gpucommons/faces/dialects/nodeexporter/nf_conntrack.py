"""node_nf_conntrack_*: the table of tracked connections. What it counts is a gauge, as node_exporter has it."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

ENTRIES = gauge("node_nf_conntrack_entries", "Number of connections that are tracked now.")
LIMIT = gauge("node_nf_conntrack_entries_limit", "Number of connections that can be tracked.")
STATISTICS = {
    name: gauge(f"node_nf_conntrack_stat_{name}", help)
    for name, help in (
        ("found", "Lookups that found an entry, since boot."),
        ("invalid", "Packets that cannot be tracked, since boot."),
        ("ignore", "Packets that belong to a tracked connection already, since boot."),
        ("insert", "Entries that were added, since boot."),
        ("insert_failed", "Entries that could not be added, since boot."),
        ("drop", "Packets that were dropped because tracking failed, since boot."),
        ("early_drop", "Entries that were dropped to make room for others, since boot."),
        ("search_restart", "Lookups that started again because the table was resized, since boot."),
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
