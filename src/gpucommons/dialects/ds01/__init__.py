"""DS01's vocabulary, ds01_*: who holds which slot, containers, events and people, one module per subject."""

from collections.abc import Iterator

from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.ds01 import allocations, events, node, users
from gpucommons.exposition.families import Family
from gpucommons.model.snapshot import Snapshot

_PARTS = (node, allocations, events, users)


def _collect(snapshot: Snapshot) -> Iterator[Family]:
    for part in _PARTS:
        yield from part.collect(snapshot)


DS01 = Dialect(
    name="ds01",
    port=9101,
    summary="allocations, containers, events and people in the names of DS01's exporter",
    catalogue=tuple(metric for part in _PARTS for metric in part.CATALOGUE),
    collect=_collect,
)
