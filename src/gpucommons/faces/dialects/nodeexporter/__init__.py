"""The vocabulary of node_exporter 1.5 for Linux: the first word after node_ is the module.

The exception is node_exporter's own: stat.py holds what /proc/stat counts (boot time, context switches, forks,
interrupts, processes). The dialect is not part of /metrics, where a node that also runs node_exporter would have each
series twice.
"""

from gpucommons.faces.dialects.dialect import dialect_of
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
    time,
    uname,
    vmstat,
)

NODEEXPORTER = dialect_of(
    (
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
    ),
    name="nodeexporter",
    port=9100,
    summary="the host in the names of Prometheus's node_exporter",
    on_main=False,
    open_prefixes=(memory.PREFIX, vmstat.PREFIX, sockstat.PREFIX, hwmon.PREFIX),
    # Devices and mount points are the administrator's and must equal those of node_exporter.
    bounds_names=False,
)
