"""node_vmstat_*: paging, swapping and OOM kills. Untyped, as in node_exporter."""

from collections.abc import Iterator
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, untyped
from gpucommons.model.snapshot import Snapshot

PREFIX = "node_vmstat_"


@cache
def metric_of(field: str) -> Metric:
    return untyped(PREFIX + field, f"Value of {field} in /proc/vmstat, since boot.")


CATALOGUE = tuple(map(metric_of, ("pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault", "pgmajfault", "oom_kill")))


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and kernel.vmstat is not None:
        for field, value in kernel.vmstat.items():
            yield metric_of(field).value(value)
