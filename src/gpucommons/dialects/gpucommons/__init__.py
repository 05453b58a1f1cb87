"""Our own vocabulary, gpucommons_*: what no other dialect names, one module per subject."""

from collections.abc import Iterator

from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.gpucommons import (
    accounts,
    agent,
    allocations,
    containers,
    gpu_parts,
    gpus,
    health,
    nvml,
    owners,
    sharing,
    sources,
    waits,
)
from gpucommons.exposition.families import Family
from gpucommons.model.snapshot import Snapshot

_PARTS = (agent, sources, health, gpus, gpu_parts, nvml, owners, containers, allocations, accounts, sharing, waits)


def _collect(snapshot: Snapshot) -> Iterator[Family]:
    for part in _PARTS:
        yield from part.collect(snapshot)


GPUCOMMONS = Dialect(
    name="gpucommons",
    port=9460,
    summary="owners, remainder, accounts and the agent itself: what no other vocabulary names",
    catalogue=tuple(metric for part in _PARTS for metric in part.CATALOGUE),
    collect=_collect,
)
