"""The node agent's vocabulary: cpu_*, node_* and gpu_*, one module per part of the machine."""

from collections.abc import Iterator

from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.node import gpus, host, processes
from gpucommons.exposition.families import Family
from gpucommons.model.snapshot import Snapshot

_PARTS = (host, processes, gpus)


def _collect(snapshot: Snapshot) -> Iterator[Family]:
    for part in _PARTS:
        yield from part.collect(snapshot)


NODE = Dialect(
    name="node",
    port=9100,
    summary="CPU, memory, pressure, processes and health of the host",
    catalogue=tuple(metric for part in _PARTS for metric in part.CATALOGUE),
    collect=_collect,
)
