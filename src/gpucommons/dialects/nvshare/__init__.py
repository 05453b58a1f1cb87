"""The vocabulary of nvshare's scheduler and exporter, nvshare_*, one module per subject."""

from collections.abc import Iterator

from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.nvshare import clients, gpus, scheduler
from gpucommons.exposition.families import Family
from gpucommons.model.snapshot import Snapshot

_PARTS = (gpus, clients, scheduler)


def _collect(snapshot: Snapshot) -> Iterator[Family]:
    for part in _PARTS:
        yield from part.collect(snapshot)


NVSHARE = Dialect(
    name="nvshare",
    port=9402,
    summary="GPUs, clients and turns in the names of nvshare's scheduler",
    catalogue=tuple(metric for part in _PARTS for metric in part.CATALOGUE),
    collect=_collect,
)
