"""The vocabulary of node_exporter 1.5 for Linux: the first word after node_ is the module.

The exceptions: stat.py holds what /proc/stat counts (boot time, context switches, forks, interrupts, processes),
network.py also has netstat, softnet and bonding, time.py timex, and disk.py md. Metrics of text files have any names.
The dialect is not part of /metrics, where a node that also runs node_exporter would have each series twice.
"""

from collections.abc import Iterator

from gpucommons.faces.dialects.dialect import Dialect, MetricModule
from gpucommons.faces.dialects.nodeexporter import (
    cpu,
    disk,
    exporter,
    filefd,
    filesystem,
    hwmon,
    load,
    memory,
    network,
    nf_conntrack,
    pressure,
    scrape,
    sockstat,
    stat,
    textfile,
    time,
    uname,
    vmstat,
)
from gpucommons.faces.exposition.families import Family
from gpucommons.model.snapshot import Snapshot

_PARTS: tuple[MetricModule, ...] = (
    cpu,
    load,
    memory,
    filesystem,
    disk,
    network,
    vmstat,
    stat,
    uname,
    time,
    filefd,
    pressure,
    nf_conntrack,
    sockstat,
    hwmon,
    scrape,
    exporter,
)
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
    open_prefixes=(memory.PREFIX, vmstat.PREFIX, sockstat.PREFIX, hwmon.PREFIX, network.NETSTAT_PREFIX),
    # Devices and mount points are the administrator's and must equal those of node_exporter.
    bounds_names=False,
)
