"""The vocabulary of node_exporter 1.5 for Linux: resources.py and kernel.py, in its order.

The dialect is not part of /metrics, where a node that also runs node_exporter would have each series twice.
"""

from collections.abc import Iterator

from gpucommons.faces.dialects.dialect import Dialect, MetricModule
from gpucommons.faces.dialects.nodeexporter import kernel, resources, textfile
from gpucommons.faces.exposition.families import Family
from gpucommons.model.snapshot import Snapshot

_PARTS: tuple[MetricModule, ...] = (resources, kernel)
_CATALOGUE = (*(metric for part in _PARTS for metric in part.CATALOGUE), *textfile.CATALOGUE)
_LISTED = frozenset(metric.name for metric in _CATALOGUE)


def _collect(snapshot: Snapshot) -> Iterator[Family]:
    unlisted = set()
    for part in _PARTS:
        for family in part.collect(snapshot):
            unlisted.add(family.metric.name)
            yield family
    yield from textfile.collect(snapshot, _LISTED | unlisted)


NODEEXPORTER = Dialect(
    name="nodeexporter",
    port=9100,
    summary="the host in the names of Prometheus's node_exporter, and the metrics of text files",
    catalogue=_CATALOGUE,
    collect=_collect,
    on_main=False,
    open_prefixes=(
        resources.MEMORY_PREFIX,
        kernel.VMSTAT_PREFIX,
        kernel.SOCKSTAT_PREFIX,
        kernel.HWMON_PREFIX,
        resources.NETSTAT_PREFIX,
    ),
    # Devices and mount points are the administrator's and must equal those of node_exporter.
    bounds_names=False,
)
