"""node_sockstat_*: sockets by protocol. The kernel names the protocols."""

from collections.abc import Iterator
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, gauge
from gpucommons.model.snapshot import Snapshot

PREFIX = "node_sockstat_"
_FIELDS = {
    "inuse": "Number of {} sockets in use.",
    "orphan": "Number of {} sockets that no process holds any more.",
    "tw": "Number of {} sockets in the state TIME_WAIT.",
    "alloc": "Number of {} sockets that are allocated.",
    "mem": "Pages of memory that {} sockets use.",
    "memory": "Bytes of memory that {} uses.",
    "mem_bytes": "Bytes of memory that {} sockets use.",
}


@cache
def metric_of(protocol: str, field: str) -> Metric:
    return gauge(f"{PREFIX}{protocol}_{field}", _FIELDS[field].format(protocol))


USED = gauge(f"{PREFIX}sockets_used", "Number of sockets of all kinds in use.")

CATALOGUE = (
    USED,
    *(metric_of("TCP", field) for field in ("inuse", "orphan", "tw", "alloc", "mem", "mem_bytes")),
    *(metric_of("UDP", field) for field in ("inuse", "mem", "mem_bytes")),
    *(metric_of(protocol, "inuse") for protocol in ("UDPLITE", "RAW", "TCP6", "UDP6", "UDPLITE6", "RAW6")),
    *(metric_of(protocol, field) for protocol in ("FRAG", "FRAG6") for field in ("inuse", "memory")),
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None or (sockets := kernel.sockets) is None:
        return
    yield USED.value(sockets.used)
    for protocol, fields in sockets.protocols.items():
        for field, value in fields.items():
            if field in _FIELDS:
                yield metric_of(protocol, field).value(value)
        if "mem" in fields:
            yield metric_of(protocol, "mem_bytes").value(fields["mem"] * sockets.page_bytes)
