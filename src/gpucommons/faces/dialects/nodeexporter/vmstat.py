"""node_vmstat_*: paging, swapping and OOM kills. Without a type, as node_exporter has them."""

from collections.abc import Iterator
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, untyped
from gpucommons.model.snapshot import Snapshot

PREFIX = "node_vmstat_"


@cache
def metric_of(field: str) -> Metric:
    return untyped(PREFIX + field, f"Count since boot that /proc/vmstat has as {field}.")


CATALOGUE = tuple(map(metric_of, ("pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault", "pgmajfault", "oom_kill")))


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and kernel.vmstat is not None:
        for field, value in kernel.vmstat.items():
            yield metric_of(field).value(value)
