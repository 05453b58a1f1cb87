"""node_sockstat_*: sockets by protocol. The kernel names the protocols."""

from collections.abc import Iterator
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, gauge
from gpucommons.model.snapshot import Snapshot

PREFIX = "node_sockstat_"
_FIELDS = {
    "inuse": "{} sockets in use.",
    "orphan": "{} sockets that no process holds any longer.",
    "tw": "{} sockets in the state TIME_WAIT.",
    "alloc": "Allocated {} sockets.",
    "mem": "Memory pages of {} sockets.",
    "memory": "Memory of {} in bytes.",
    "mem_bytes": "Memory of {} sockets in bytes.",
}


@cache
def metric_of(protocol: str, field: str) -> Metric:
    return gauge(f"{PREFIX}{protocol}_{field}", _FIELDS[field].format(protocol))


USED = gauge(f"{PREFIX}sockets_used", "Sockets of all kinds in use.")

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
