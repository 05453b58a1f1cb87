"""node_uname_info: names and versions of the kernel and the node."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

INFO = gauge(
    "node_uname_info",
    "Names and versions of the kernel and the node; always 1.",
    *("sysname", "release", "version", "machine", "nodename", "domainname"),
)

CATALOGUE = (INFO,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and (own := kernel.uname) is not None:
        yield INFO.value(1, own.sysname, own.release, own.version, own.machine, own.nodename, own.domainname)
