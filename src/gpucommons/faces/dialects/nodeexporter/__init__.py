"""node_exporter's vocabulary for Linux (that of version 1.5): the first word after node_ leads to the module.

It stands apart from /metrics, since a node that runs node_exporter as well would have each of its series twice.
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
)
