"""nvshare_nvml_up: whether NVML answers."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

UP = gauge("nvshare_nvml_up", "State of NVML: 1 if it answers, else 0.")

CATALOGUE = (UP,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield UP.value(0 if snapshot.readings.gpus is None else 1)
