"""Sockets in use by protocol, from /proc/net/sockstat and sockstat6. Without IPv6 the second file does not exist."""

import os
from pathlib import Path

from gpucommons.model.host import Sockets
from gpucommons.sources.host.procfs import read_whole

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def parse_sockstat(text: bytes) -> dict[str, dict[str, int]]:
    """The fields of each line by its name: "TCP: inuse 3 orphan 0" is TCP -> {inuse: 3, orphan: 0}."""
    found = {}
    for line in text.decode("ascii").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        found[name] = {field: int(value) for field, value in zip(fields[::2], fields[1::2], strict=True)}
    return found


def read_sockets(procfs: Path) -> Sockets:
    protocols: dict[str, dict[str, int]] = {}
    for file in ("net/sockstat", "net/sockstat6"):
        try:
            protocols |= parse_sockstat(read_whole(procfs, file))
        except FileNotFoundError:
            continue
    used = protocols.pop("sockets", {}).get("used")
    return Sockets(used, protocols, _PAGE_BYTES)
