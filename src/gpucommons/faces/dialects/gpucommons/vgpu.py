"""gpucommons_vgpu_allocation_ratio_ok: the state of the file of allocation ratios that the vgpu dialect uses."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

RATIO_OK = gauge(
    "gpucommons_vgpu_allocation_ratio_ok",
    "State of the file of allocation ratios: 1 if valid, 0 if invalid and the last valid values are used.",
)

CATALOGUE = (RATIO_OK,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    ratio = snapshot.readings.allocation_ratio
    yield RATIO_OK.value(None if ratio is None else int(not ratio.problem))
